"""Tables that a benchmark finds, shown and put into a page of the documentation."""

from __future__ import annotations

from pathlib import Path


class Tables:
    """Tables as they are found: shown at once, put into a page between `<!-- name -->` and `<!-- end -->`."""

    def __init__(self) -> None:
        self._lines: dict[str, list[str]] = {}

    def head(self, name: str, *columns: str) -> None:
        """Begin a table."""
        self._lines[name] = []
        print(f"\n{name}")
        self.row(name, *columns)
        self.row(name, *("---" for _ in columns))

    def row(self, name: str, *cells: str) -> None:
        """Add a line to it."""
        line = f"| {' | '.join(cells)} |"
        print(line, flush=True)
        self._lines[name].append(line)

    def write(self, page: Path) -> None:
        """Replace the tables of a page by those found now; the others stay."""
        text = page.read_text(encoding="utf-8")
        for name, lines in self._lines.items():
            block = "\n".join([f"<!-- {name} -->", *lines, "<!-- end -->"])
            before, found, after = text.partition(f"<!-- {name} -->")
            if found:
                text = before + block + after.partition("<!-- end -->")[2]
        page.write_text(text, encoding="utf-8")
