"""Checkpoints: safetensors with a digest, so that damage shows and nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

__all__ = ["Checkpoint", "CheckpointError", "decode_checkpoint", "encode_checkpoint"]

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
    """Return the bytes of a checkpoint after `round` rounds; equal states give equal bytes.

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
    """Return the checkpoint in `data`; `CheckpointError` if a byte of it is not as it was written."""
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")
        words = json.loads(json.loads(data[8 : 8 + length])["__metadata__"][_ENTRY])
        round, metadata, expected = words["round"], dict(words["metadata"]), str(words["sha256"])
        if type(round) is not int or round < 0:  # JSON also has 1.5, and Python's also has Infinity
            raise ValueError(f"round must be an integer, 0 or more; got {round!r}")
        found = _digest(round, tensors, metadata)
    except (SafetensorError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise CheckpointError("not a whole safetensors file") from error  # too deep JSON: RecursionError
    if found != expected:
        raise CheckpointError("its content does not match its SHA-256")
    return Checkpoint(round, tensors, metadata)


def _digest(round: int, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 over names, types, shapes, words and every byte of every tensor, in the order of the names."""
    shapes = [(name, str(t.dtype), list(t.shape)) for name, t in sorted(tensors.items())]
    sha = hashlib.sha256(json.dumps([round, dict(metadata), shapes], sort_keys=True).encode())
    for _, tensor in sorted(tensors.items()):
        if not tensor.numel():  # its strides may be anything
            continue
        sha.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()
