"""A cache of compiled code that cannot be written or read never reaches a user."""

from __future__ import annotations

import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

import signfade
from signfade.cli.entry import run

PACKAGE = Path(signfade.__file__).parent
KERNEL = """
from signfade.kernels.jit import njit

@njit(cache=True)
def double(x):
    return 2 * x
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    return folder


def load(folder: Path) -> Callable[[int], int]:
    """Import a kernel afresh, as another process would."""
    file = folder / "kernel.py"
    if not file.exists():
        file.write_text(KERNEL)
    spec = importlib.util.spec_from_file_location("kernel", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    double: Callable[[int], int] = module.double
    return double


def hits(double: Any) -> int:
    return sum(double.stats.cache_hits.values())


def only(folder: Path, pattern: str) -> Path:
    (found,) = folder.rglob(pattern)
    return found


def test_the_cache_is_used(tmp_path: Path, cache: Path) -> None:
    first = load(tmp_path)
    assert first(21) == 42
    assert hits(first) == 0
    second = load(tmp_path)
    assert second(21) == 42
    assert hits(second) == 1


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def scribble(file: Path) -> None:
    file.write_bytes(b"not a pickle")


def foreign(file: Path) -> None:  # of another version of numba
    file.write_bytes(pickle.dumps("0.1") + b"rubbish")


def other_content(file: Path) -> None:  # of this version, but with something else in it
    file.write_bytes(pickle.dumps(numba.__version__) + pickle.dumps(["nothing", "of", "ours"]))


def folder_instead(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize("pattern", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize("damage", [truncate, empty, scribble, foreign, other_content, folder_instead])
def test_a_damaged_cache_is_as_good_as_none(
    tmp_path: Path, cache: Path, damage: Callable[[Path], None], pattern: str
) -> None:
    assert load(tmp_path)(21) == 42
    damage(only(cache, pattern))
    double = load(tmp_path)
    assert double(21) == 42
    assert hits(double) == 0
    if damage is not folder_instead:  # what was damaged has been written anew
        again = load(tmp_path)
        assert again(21) == 42
        assert hits(again) == 1


def test_a_full_disk(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    double = load(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "_save_index", full)
    monkeypatch.setattr(numba.core.caching.IndexDataCacheFile, "_save_data", full)
    assert double(21) == 42


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="a user's number")
def test_the_last_resort_is_a_folder_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can write to the cache can run code as this user, so a shared one is not used."""
    (tmp_path / "__pycache__").touch()
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("HOME", str(file / "home"))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = tmp_path / f"signfade-cache-{os.getuid()}"
    assert load(tmp_path)(21) == 42
    assert own.stat().st_mode & 0o777 == 0o700
    assert len(list(own.rglob("*.nbi"))) == 1
    shutil.rmtree(own)
    own.mkdir(mode=0o777)
    own.chmod(0o777)
    assert load(tmp_path)(21) == 42
    assert not list(own.rglob("*.nbi"))


def test_every_kernel_is_compiled_in_this_way() -> None:
    """`cache=True` of numba itself raises where there is nowhere to write."""
    for file in PACKAGE.rglob("*.py"):
        lines = file.read_text().splitlines()
        plain = [line for line in lines if "from numba import" in line and "jit" in line]
        assert not plain, f"{file} takes njit from numba; take it from signfade.kernels.jit"


@pytest.fixture(scope="module")
def unwritable(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A copy of the package and an environment in which nothing can be cached anywhere, root or not."""
    place = tmp_path_factory.mktemp("unwritable")
    copy = place / "signfade"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in [copy, *(path for path in copy.rglob("*") if path.is_dir())]:
        (folder / "__pycache__").touch()
    file = place / "file"
    file.touch()
    nowhere = str(file / "below")
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("XDG_", "NUMBA_", "MPL", "COV_"))
    }
    environment |= {"PYTHONPATH": str(place), "HOME": nowhere, "NUMBA_CACHE_DIR": nowhere}
    return place, environment


def command(arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "signfade", *arguments], env=environment, capture_output=True, text=True
    )


def test_a_run_and_its_report_need_no_home(unwritable: tuple[Path, dict[str, str]]) -> None:
    place, environment = unwritable
    settings = ["data.name=gaussian", "rounds=2", "threads=1", f"out={place}/runs"]
    settings.append("method.aggregator=signsgd")  # which has fewer kernels to compile
    temporary = place / "tmp"
    temporary.mkdir()
    environment = environment | {"TMPDIR": str(temporary)}
    done = command(["run", *(word for key in settings for word in ("--set", key))], environment)
    assert done.returncode == 0, done.stderr
    assert "cache" not in done.stdout + done.stderr
    (written,) = temporary.iterdir()  # nothing is left behind but the cache
    assert written.name.startswith("signfade-cache-")
    report = command(["report", str(place / "runs")], environment)
    assert report.returncode == 0, report.stderr
    assert report.stderr == ""


def test_nowhere_at_all_is_no_cache(unwritable: tuple[Path, dict[str, str]]) -> None:
    place, environment = unwritable
    (place / f"signfade-cache-{os.getuid() if hasattr(os, 'getuid') else 'user'}").touch()
    script = (
        "import numpy as np; from signfade.kernels import standard_normal;"
        "print(standard_normal(np.array([1], dtype=np.uint64), 3).shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment | {"TMPDIR": str(place)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "(1, 3)\n", "")


@pytest.mark.parametrize("value", ["1", "2"])
def test_the_command_refuses_to_run_uncompiled(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", value)
    assert run(["run", "--set", "rounds=1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("signfade: NUMBA_DISABLE_JIT must be 0 or unset")
    assert said.count("\n") == 1


def test_compiling_may_be_allowed_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "0")
    assert run(["config"]) == 0


def test_the_library_refuses_to_run_uncompiled() -> None:
    script = "import signfade.kernels.jit"
    environment = dict(os.environ, NUMBA_DISABLE_JIT="1", PYTHONPATH=str(PACKAGE.parent))
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("ValueError: NUMBA_DISABLE_JIT must be 0 or unset")
