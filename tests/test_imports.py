"""Imports point one way, as docs/architecture.md says, in short chains, and a name means one thing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import signfade

ROOT = Path(signfade.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
SHARED = {"_check", "_text", "keys", "registry", "settings", "state"}  # serve all folders
LONGEST_CHAIN = 17  # modules; from experiments.comparisons to _text
EXCEPTIONS = {"experiments.workers.run_pool": {"integrations"}}  # chooses the pool of processes or Ray


def read_table() -> dict[str, set[str]]:
    """Which folders a folder may import: those in its row, and whatever these may import."""
    rows = re.findall(r"^\| `(\w+)/` \|.*\|([^|]*)\|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    allowed: dict[str, set[str]] = {}
    for folder, words in rows:
        everything = words.strip() in ("all of the above", "everything")
        named = set(allowed) if everything else set(re.findall(r"`(\w+)`", words))
        allowed[folder] = named.union(*(allowed[name] for name in named))
    return allowed


ALLOWED = read_table()


def name_of(file: Path) -> str:
    """The module's name without the leading `signfade.`; empty for the package itself."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {name_of(file): file for file in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(file.read_text(encoding="utf-8")) for name, file in FILES.items()}


def defined_in(module: str, name: str) -> str:
    """The module that `from module import name` reaches: packages that re-export are passed through."""
    inner = f"{module}.{name}".removeprefix(".")
    if inner in FILES:
        return inner
    if module in FILES and FILES[module].name == "__init__.py":
        for node in TREES[module].body:
            if isinstance(node, ast.ImportFrom) and name in {
                alias.asname or alias.name for alias in node.names
            }:
                return defined_in(relative(node.module), name)
    return module


def relative(module: str | None) -> str:
    return (module or "").removeprefix("signfade").removeprefix(".")


def imported(name: str, *, late: bool) -> set[str]:
    """The modules of signfade whose names a module imports; `late`: inside its functions, too."""
    found: set[str] = set()
    left: list[ast.AST] = [TREES[name]]
    while left:
        for node in ast.iter_child_nodes(left.pop()):
            if not late and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if not late and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            left.append(node)
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "signfade":
                found |= {defined_in(relative(node.module), alias.name) for alias in node.names}
            elif isinstance(node, ast.Import):
                names = {alias.name for alias in node.names}
                found |= {relative(module) for module in names if module.split(".")[0] == "signfade"}
    return (found & FILES.keys()) - {name, ""}


def test_the_table_names_every_folder() -> None:
    assert set(ALLOWED) == {folder.parent.name for folder in ROOT.glob("*/__init__.py")}


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_point_one_way(folder: str) -> None:
    modules = [name for name in FILES if name.split(".")[0] == folder]
    assert modules
    for name in modules:
        strangers = {module.split(".")[0] for module in imported(name, late=True)}
        strangers -= ALLOWED[folder] | SHARED | EXCEPTIONS.get(name, set()) | {folder}
        assert not strangers, f"{name} imports {sorted(strangers)}"


@pytest.mark.parametrize("name", sorted(SHARED))
def test_what_all_share_knows_no_folder(name: str) -> None:
    assert not {module.split(".")[0] for module in imported(name, late=False)} - SHARED


def test_no_chain_of_imports_is_long_or_a_circle() -> None:
    @cache
    def chain(name: str) -> tuple[str, ...]:
        known = imported(name, late=False)
        return (name, *max((chain(module) for module in known), key=len, default=()))

    longest = max((chain(name) for name in FILES), key=len)  # a circle would never end: RecursionError
    assert len(longest) <= LONGEST_CHAIN, " -> ".join(longest)


def test_no_module_shares_its_name_with_a_function() -> None:
    """`from signfade.theory import mse` must mean one thing."""
    ambiguous = set()
    for name, tree in TREES.items():
        own = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
        if name.split(".")[-1] in own:
            ambiguous.add(name)
        if FILES[name].name == "__init__.py":
            taken = {
                alias.asname or alias.name
                for node in tree.body
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
                if f"{node.module}.{alias.name}".removeprefix("signfade.") not in FILES
            }
            ambiguous |= {f"{name}.{one}".removeprefix(".") for one in own | taken} & set(FILES)
    assert not ambiguous


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, signfade; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
