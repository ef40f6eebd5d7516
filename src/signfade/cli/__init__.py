"""The command `signfade`. Nothing heavy is imported before a command needs it, so that `--help` is quick."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line and exit."""
    try:  # an interrupt may come while we are still being loaded
        from signfade.cli.entry import run

        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)
