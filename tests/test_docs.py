"""What the docs point at exists: every test, every name, every equation of the paper."""

import ast
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import typer

from signfade.cli.entry import app
from signfade.experiments.config import overlay, parse_override

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "docs" / "errata.md", ROOT / "docs" / "paper-map.md"]
ALL_PAGES = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
ALL_PAGES += sorted((ROOT / "examples").glob("*/README.md"))
LATER = {"server.weight_decay", "rules"}  # what the recipes of docs/architecture.md add
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
    ALL_PAGES,
    ids=lambda page: page.name,
)
def test_every_link_to_a_file_leads_there(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())
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


def snippets(page: Path, language: str = "python") -> list[str]:
    """The blocks of code of a page."""
    blocks = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [text for kind, text in blocks if kind == language]


def commands(page: Path) -> list[list[str]]:
    """The words of every `signfade ...` that a page tells its reader to type: in a block, indented, inline.

    Inline, a command without arguments is only a name, and one with capitals or brackets is a pattern.
    """
    text = page.read_text()
    blocks = "\n".join(snippets(page, "") + snippets(page, "bash") + snippets(page, "sh"))
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks += "\n" + "\n".join(re.findall(r"^ {4}(.*)", prose, re.MULTILINE))
    lines = blocks.replace("\\\n", " ").splitlines()
    found = [line for line in lines if line.startswith("signfade ") and "..." not in line]
    inline = [" ".join(line.split()) for line in re.findall(r"`(signfade [^`]+)`", prose)]
    found += [line for line in inline if "=" in line and not re.search(r"\b[A-Z]+\b", line)]
    return [shlex.split(line.partition(" | ")[0], comments=True)[1:] for line in found]


@pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)
def test_the_command_line_takes_every_command_of_a_page(page: Path) -> None:
    root = typer.main.get_command(app)
    for words in commands(page):
        if words[0] in LATER or words[0].startswith("-"):
            continue
        command: Any = root
        context = command.make_context("signfade", list(words), resilient_parsing=True)
        rest = list(words)
        while hasattr(command, "resolve_command"):
            name, command, rest = command.resolve_command(context, rest)
            if not hasattr(command, "resolve_command"):
                context = command.make_context(name, list(rest), parent=context)
        sets = dict(map(parse_override, context.params.get("overrides") or []))
        overlay({}, {key: value for key, value in sets.items() if key not in LATER})  # every key exists


def test_the_readmes_snippet_runs_and_its_prediction_holds(capsys: pytest.CaptureFixture[str]) -> None:
    _, snippet = snippets(ROOT / "README.md")
    torch.manual_seed(0)
    exec(snippet, {})
    measured, predicted, _ = map(float, re.findall(r"\d+(?:\.\d+)?", capsys.readouterr().out))
    assert measured == pytest.approx(predicted, rel=0.1)  # 10,000 coordinates: a standard error of 1.5 %


def test_extras_are_installed_from_the_checkout() -> None:
    """No index has signfade, so nothing may say that pip finds it there."""
    texts = [*ROOT.glob("*.md")]
    for folder, kinds in {"src": ("py",), "docs": ("md", "ipynb"), "examples": ("md", "toml", "py")}.items():
        texts += [path for kind in kinds for path in (ROOT / folder).rglob(f"*.{kind}")]
    assert [path for path in texts if "signfade[" in path.read_text(encoding="utf-8")] == []
