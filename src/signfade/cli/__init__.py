"""The command `signfade`. Nothing heavy is imported before a command needs it, so that `--help` is quick."""

from __future__ import annotations

from signfade.cli.main import main

__all__ = ["main"]
