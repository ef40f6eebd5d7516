"""A round walks from device through uplink to server; nothing walks back."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import signfade

ROOT = Path(signfade.__file__).parent
# Who may import whom, besides itself and the three helpers below.
MAY_KNOW = {
    "device": set(),
    "uplink": {"device"},
    "server": {"device", "uplink"},
    "theory": set(),
    "kernels": set(),
    "data": set(),
    "learn": {"device", "uplink", "server", "theory", "data"},
    "lab": {"device", "uplink", "server", "theory", "data", "learn"},
    "experiments": {"device", "uplink", "server", "theory", "data", "learn", "lab"},
    "engines": {"device", "uplink", "server", "theory", "data", "learn", "lab"},
}
COMMON = {"_check", "_text", "_jit", "keys", "kernels", "settings"}


def imported(file: Path) -> set[str]:
    """The parts of signfade that a file imports, wherever in the file it does so."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "signfade":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names = (alias.name.split(".") for alias in node.names)
            found |= {parts[1] for parts in names if parts[0] == "signfade" and len(parts) > 1}
    return found - {"__version__"}


@pytest.mark.parametrize("place", MAY_KNOW)
def test_imports_point_one_way(place: str) -> None:
    files = list((ROOT / place).rglob("*.py"))
    assert files
    for file in files:
        strangers = imported(file) - MAY_KNOW[place] - COMMON - {place}
        assert not strangers, f"{file.relative_to(ROOT)} imports {sorted(strangers)}"


def test_importing_the_package_loads_no_torch() -> None:
    code = "import sys, signfade; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
