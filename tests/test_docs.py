"""What the docs point at exists: every test, every name, every equation of the paper."""

import ast
import importlib
import re
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / "errata.md", ROOT / "docs" / "paper-map.md"]
EQUATIONS = 61


def names_of_tests(file: Path) -> set[str]:
    return {
        node.name
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_test_that_a_page_names_exists(page: Path) -> None:
    links = re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text())
    assert len(links) > 20
    for file, name in links:
        assert (ROOT / file).is_file(), f"{page.name} names {file}"
        assert name in names_of_tests(ROOT / file), f"{page.name} names {file}::{name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_name_of_the_package_that_a_page_mentions_exists(page: Path) -> None:
    for name in sorted(set(re.findall(r"\bsignfade(?:\.\w+)+", page.read_text()))):
        parent, _, last = name.rpartition(".")
        module = importlib.import_module(parent)
        if not hasattr(module, last):
            importlib.import_module(name)  # a submodule; raises if there is none


@pytest.mark.parametrize(
    "page",
    [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"],
    ids=lambda page: page.name,
)
def test_every_link_to_a_file_leads_there(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
    assert links
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_every_equation_of_the_paper_is_mapped_once() -> None:
    section = (ROOT / "docs" / "paper-map.md").read_text().split("## Equations")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| (")]
    found: list[int] = []
    for row in rows:
        numbers = [int(number) for number in re.findall(r"\((\d+)\)", row)]
        found += range(numbers[0], numbers[1] + 1) if " to " in row else numbers
    assert sorted(found) == list(range(1, EQUATIONS + 1))


def test_errata_are_numbered_and_each_is_decided_or_says_that_it_is_not() -> None:
    text = (ROOT / "docs" / "errata.md").read_text()
    entries = re.split(r"\n### ", text)[1:]
    assert [int(entry.split(".")[0]) for entry in entries] == list(range(1, len(entries) + 1))
    for entry in entries:
        decided = "Decided by `tests/" in " ".join(entry.split())
        assert decided or "without a test" in entry.splitlines()[0] or "Table" in entry.splitlines()[0]


def test_the_map_points_into_the_errata() -> None:
    entries = len(re.findall(r"\n### \d+\.", (ROOT / "docs" / "errata.md").read_text()))
    mentioned = re.findall(r"errata (\d+)(?: and (\d+))?", (ROOT / "docs" / "paper-map.md").read_text())
    assert mentioned
    assert all(1 <= int(number) <= entries for pair in mentioned for number in pair if number)


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().split()) < 700


def test_the_readmes_snippet_runs_and_its_prediction_holds(capsys: pytest.CaptureFixture[str]) -> None:
    snippet = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert snippet
    torch.manual_seed(0)
    exec(snippet[1], {})
    measured, predicted, _ = map(float, re.findall(r"\d+(?:\.\d+)?", capsys.readouterr().out))
    assert measured == pytest.approx(predicted, rel=0.1)  # 10,000 coordinates: a standard error of 1.5 %
