"""The snippets of docs/model.md say what they print."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "model.md"


def test_snippets_print_what_the_page_says() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    session = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "model.md", str(PAGE), 0)
    assert len(session.examples) > 30
    report: list[str] = []
    result = doctest.DocTestRunner().run(session, out=report.append)
    assert result.failed == 0, "".join(report)
