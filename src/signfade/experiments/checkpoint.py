"""Checkpoints: safetensors with a digest, so that damage shows and nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from signfade.experiments.files import remove_leftovers, write_atomically
from signfade.experiments.metrics import parse_json

__all__ = ["Checkpoint", "CheckpointError", "CheckpointStore", "decode_checkpoint", "encode_checkpoint"]

_NAME = re.compile(r"round-([0-9]{8,})\.safetensors")  # eight digits, more from round 100,000,000 on
_KEEP = 2

# safetensors writes its metadata in no fixed order; one entry has only one, so equal states give equal bytes
_ENTRY = "signfade"


class CheckpointError(ValueError):
    """The bytes are not a whole, undamaged checkpoint."""


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run after `round` rounds: named tensors, and words about them."""

    round: int
    tensors: dict[str, Tensor]
    metadata: dict[str, str]


def encode_checkpoint(round: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return the bytes of a checkpoint; equal states give equal bytes.

    Args:
        round: rounds done so far, 0 or more.
        tensors: any shapes and dtypes safetensors knows; copied to the CPU.
        metadata: words to keep beside them.

    Raises:
        ValueError: if `round` is negative or `metadata` holds anything but strings.

    Example:
        >>> data = encode_checkpoint(3, {"w": torch.ones(2)}, {"optimizer": "momentum"})
        >>> decode_checkpoint(data).tensors["w"]
        tensor([1., 1.])
    """
    if round < 0:
        raise ValueError(f"round must be 0 or more; got {round}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError(f"metadata must map strings to strings; got {key!r}: {value!r}")
    # clone: safetensors refuses tensors that share memory, as the parameters of one flat vector do
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in sorted(tensors.items())}
    words = {"round": round, "metadata": dict(metadata), "sha256": _digest(round, plain, metadata)}
    return bytes(save(plain, {_ENTRY: json.dumps(words, sort_keys=True)}))


def decode_checkpoint(data: bytes) -> Checkpoint:
    """Return the checkpoint in `data`, or raise if a single byte of its content is not as it was written.

    Raises:
        CheckpointError: truncated, garbage, or a content that does not match its SHA-256.

    Example:
        >>> decode_checkpoint(b"not a checkpoint")
        Traceback (most recent call last):
        signfade.experiments.checkpoint.CheckpointError: not a whole safetensors file
    """
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        words = parse_json(parse_json(data[8 : 8 + length])["__metadata__"][_ENTRY])
        round, metadata, expected = words["round"], dict(words["metadata"]), str(words["sha256"])
        if type(round) is not int or round < 0:  # JSON also has 1.5, and Python's also has Infinity
            raise ValueError(f"round must be an integer, 0 or more; got {round!r}")
        found = _digest(round, tensors, metadata)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, AttributeError) as error:
        raise CheckpointError("not a whole safetensors file") from error
    if found != expected:
        raise CheckpointError("its content does not match its SHA-256")
    return Checkpoint(round, tensors, metadata)


def _digest(round: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over names, types, shapes, words and every byte of every tensor, in the order of the names."""
    shapes = [(name, str(t.dtype), list(t.shape)) for name, t in sorted(tensors.items())]
    sha = hashlib.sha256(json.dumps([round, dict(metadata), shapes], sort_keys=True).encode())
    for _, tensor in sorted(tensors.items()):
        sha.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


class CheckpointStore:
    """The checkpoints of one run; its methods raise `OSError` as it comes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def save(self, round: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """Write the state after `round`, keep the one before it and remove all others."""
        self.path.mkdir(exist_ok=True)
        path = self.path / f"round-{round:08d}.safetensors"
        write_atomically(path, encode_checkpoint(round, tensors, metadata))
        self.tidy(round)

    def load(self, at_most: int | None, reason: str) -> Checkpoint | None:
        """Return the newest undamaged checkpoint of round `at_most` or before; warn of every one skipped.

        Args:
            at_most: None takes any round.
            reason: why a later one cannot be used.
        """
        found = self.found()
        for round, path in found.items():
            what = "is damaged"
            try:
                checkpoint = decode_checkpoint(path.read_bytes())
                if checkpoint.round != round:
                    problem = f"it is of round {checkpoint.round}"
                elif at_most is not None and round > at_most:
                    what, problem = "cannot be used", reason
                else:
                    return checkpoint
            except (CheckpointError, OSError) as error:
                problem = str(error)
            then = "starting over" if path == [*found.values()][-1] else "falling back to the one before"
            warnings.warn(f"the checkpoint {path} {what} ({problem}); {then}", stacklevel=3)
        return None

    def found(self) -> dict[int, Path]:
        """Return the checkpoint files by round, newest first."""
        if not self.path.is_dir():
            return {}
        matches = [(_NAME.fullmatch(path.name), path) for path in self.path.iterdir()]
        return dict(sorted(((int(m[1]), path) for m, path in matches if m), reverse=True))

    def tidy(self, round: int | None = None) -> None:
        """Remove all but the newest checkpoints up to `round`, and what a kill left half written."""
        found = self.found()
        kept = [number for number in found if round is None or number <= round][:_KEEP]
        for path in (path for number, path in found.items() if number not in kept):
            path.unlink(missing_ok=True)
        remove_leftovers(self.path)
