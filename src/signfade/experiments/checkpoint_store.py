"""The folder of checkpoints: the newest two, each written aside and moved into place."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from signfade.experiments.checkpoint import Checkpoint, CheckpointError, decode_checkpoint, encode_checkpoint
from signfade.experiments.files import remove_leftovers, write_atomically

__all__ = ["CheckpointStore"]

_NAME = re.compile(r"round-([0-9]{8,})\.safetensors")  # eight digits, more from round 100,000,000 on
_KEEP = 2


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
