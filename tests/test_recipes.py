"""The recipes of docs/architecture.md work to the letter: write the files, apply the changes, run."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()


@dataclass
class Recipe:
    """What a recipe says."""

    touches: int
    files: dict[str, str] = field(default_factory=dict)
    changes: list[tuple[str, list[str]]] = field(default_factory=list)
    commands: list[list[str]] = field(default_factory=list)


def read_recipes() -> dict[str, Recipe]:
    found = {}
    for section in PAGE.split("\n## Recipes\n")[1].split("\n### ")[1:]:
        title = re.match(r"(.*) \((\d+) files?.*\)\n", section)
        assert title
        recipe = found[title[1]] = Recipe(int(title[2]))
        for kind, body in re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL):
            first, _, rest = body.partition("\n")
            if kind == "python":
                recipe.files[first.removeprefix("# ")] = rest
            elif kind == "diff":
                recipe.changes.append((first.removeprefix("--- "), rest.splitlines()))
            else:
                recipe.commands += [shlex.split(line) for line in body.splitlines()]
    return found


RECIPES = read_recipes()


def place(root: Path) -> None:
    """Make a copy of the package of links, with the same compiled kernels, and of the examples."""
    package, source = root / "src" / "signfade", ROOT / "src" / "signfade"
    shutil.copytree(
        source, package, copy_function=os.symlink, ignore=shutil.ignore_patterns("kernels", "__pycache__")
    )
    (package / "kernels").symlink_to(source / "kernels")
    (root / "examples").symlink_to(ROOT / "examples")


def follow(recipe: Recipe, root: Path) -> set[str]:
    """Do what the recipe says; return the files of the package that it touched."""
    for name, text in recipe.files.items():
        assert not (root / name).exists()
        (root / name).write_text(text)
    for name, lines in recipe.changes:
        file = root / name
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] == " ")
        after = "".join(f"{line[1:]}\n" for line in lines)
        text = file.read_text()
        assert text.count(before) == 1, f"{name} must have this once:\n{before}"
        file.unlink()  # a link to the file itself
        file.write_text(text.replace(before, after))
    return {name for name in (*recipe.files, *(name for name, _ in recipe.changes)) if name.startswith("src")}


def run(command: list[str], root: Path) -> str:
    assert command[0] == "signfade"
    done = subprocess.run(
        [sys.executable, "-m", "signfade", *command[1:]],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_there_are_five_recipes() -> None:
    assert list(RECIPES) == ["A new rule", "A data set", "An attack", "A setting", "A CLI command"]


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_works_as_it_stands(title: str, tmp_path: Path) -> None:
    recipe = RECIPES[title]
    place(tmp_path)
    assert len(follow(recipe, tmp_path)) == recipe.touches
    outputs = [run(command, tmp_path) for command in recipe.commands]
    rounds = [len(file.read_text().splitlines()) for file in tmp_path.glob("runs/*/metrics.jsonl")]
    assert rounds == [2] * sum(command[1] == "run" for command in recipe.commands)
    if title == "A setting":
        assert "weight_decay" in outputs[0]
    if title == "A data set":
        assert "stripes" in outputs[1]
    if title == "A CLI command":
        assert "sbfl" in outputs[0]
