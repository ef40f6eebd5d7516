"""Where do commas and full stops go? Adapters of MiniLM-L6 learn it from speeches, one president per device.

Dictation needs punctuation, and every author has a style. The data are the State of the Union addresses (the
texts of signfade's `sotu`), lower case and without punctuation. A sample is 14 words around a gap; its class
says what stood there: nothing, a comma or a full stop, equally often.

The first four layers of MiniLM-L6 are used. The lower three are frozen, so their output for a sample never
changes: it is computed once and kept in signfade's cache, and that is what devices train on. The fourth layer
has adapters (`model.lora_rank`), and a linear head reads the word before the gap.
"""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from signfade.data import Dataset, load_texts
from signfade.data.dataset import cache_folder

sys.path.insert(0, str(Path(__file__).parent))
import minilm

__all__ = ["encoder", "marks"]

_FROZEN = 3  # layers below the one with adapters
_SIDE = 7  # words on either side of the gap
_CLIENTS, _TRAIN, _TEST = 20, 200, 50  # presidents, and windows of each
_PER_SPEECH = 25  # windows of each class
_COMMA, _STOP, _FIRST_WORD = 1010, 1012, 1996  # tokens


def marks() -> Dataset:
    """Return windows as the frozen layers see them, `[N, 16, 384]`, their marks, and whose speech it was."""
    kept = load_file(_prepared())
    return Dataset.from_arrays({name: part.numpy() for name, part in kept.items()}, 3, "speeches")


class _Top(nn.Module):
    """The last layer, at the word before the gap, standardised, and the head."""

    def __init__(self, classes: int, centre: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.layer = minilm.load(_FROZEN, _FROZEN + 1)[0]
        self.head = nn.Linear(minilm.WIDTH, classes)
        self.centre, self.spread = (nn.Parameter(part, requires_grad=False) for part in (centre, spread))

    def forward(self, x: Tensor) -> Tensor:
        here = self.layer(x, slice(_SIDE, _SIDE + 1)).squeeze(1)
        scores: Tensor = self.head((here - self.centre) / self.spread)
        return scores


def encoder(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """Return the pretrained layer with a new head. Say `model.lora_rank` and `model.trained = ["head.*"]`."""
    states = load_file(_prepared())["random"]
    with torch.no_grad():  # what words look like to this layer, whoever wrote them
        seen = minilm.load(_FROZEN, _FROZEN + 1)[0](states).flatten(0, 1)
    return _Top(classes, seen.mean(dim=0), 10 * seen.std(dim=0))


def _prepared() -> Path:
    """Return the file of what the frozen layers make of every sample; make it the first time."""
    path = cache_folder() / "adapters" / "speeches-1.safetensors"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            save_file(_prepare(), Path(folder) / path.name)
            (Path(folder) / path.name).replace(path)
    return path


def _prepare() -> dict[str, Tensor]:
    words = minilm.WordPiece(minilm.files() / "vocab.txt")
    windows: dict[str, list[tuple[list[int], int]]] = defaultdict(list)
    draw = np.random.default_rng(0)
    for author, _, text in load_texts("sotu"):
        windows[author] += _windows(words.encode(text[:40_000]), draw)
    authors = sorted(sorted(windows), key=lambda name: -len(windows[name]))[:_CLIENTS]
    chosen = [draw.permutation(len(windows[name]))[: _TRAIN + _TEST] for name in authors]
    train = [windows[name][i] for name, rows in zip(authors, chosen) for i in rows[:_TRAIN]]
    test = [windows[name][i] for name, rows in zip(authors, chosen) for i in rows[_TRAIN:]]
    frozen = minilm.load(0, _FROZEN)
    states: dict[str, Tensor] = {}
    random = torch.from_numpy(draw.integers(_FIRST_WORD, 30_000, (64, 2 * _SIDE + 2)))
    for name, part in (("train", train), ("test", test)):
        tokens = torch.tensor([tokens for tokens, _ in part])
        states[f"{name}_x"], states[f"{name}_y"] = _apply(frozen, tokens), torch.tensor([y for _, y in part])
    clients = torch.arange(_CLIENTS).repeat_interleave(_TRAIN)
    return states | {"random": _apply(frozen, random), "clients": clients}


@torch.no_grad()
def _apply(model: nn.Module, tokens: Tensor) -> Tensor:
    return torch.cat([model(some) for some in torch.split(tokens, 100)])


def _windows(tokens: list[int], draw: np.random.Generator) -> list[tuple[list[int], int]]:
    """Return windows of words without punctuation, as many of each class, with the mark in their middle."""
    words, after = list[int](), list[int]()
    for token in tokens:
        if token >= _FIRST_WORD:
            words.append(token)
            after.append(0)
        elif token in (_COMMA, _STOP) and after:
            after[-1] = 1 + (token == _STOP)
    found = []
    for mark in range(3):
        places = [i for i in range(_SIDE - 1, len(words) - _SIDE) if after[i] == mark]
        for i in draw.permutation(places)[:_PER_SPEECH]:
            found.append(([minilm.CLS, *words[i - _SIDE + 1 : i + _SIDE + 1], minilm.SEP], mark))
    return found
