"""`python -m signfade` is the command `signfade`."""

from __future__ import annotations

from signfade.cli import main

if __name__ == "__main__":
    main()
