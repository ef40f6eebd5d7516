"""What a release is made of: a wheel that works outside the repository, and files that are whole."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from signfade import __version__

ROOT = Path(__file__).parents[1]
YAML = sorted([*ROOT.glob(".github/**/*.yml"), ROOT / ".pre-commit-config.yaml", ROOT / "CITATION.cff"])


def clean_environment() -> dict[str, str]:
    """Ours without what would lead back to the repository."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}


def test_the_wheel_of_the_sdist_works_outside_the_repository(tmp_path: Path) -> None:
    """Built from a copy of what git would commit, installed into a fresh environment, run elsewhere."""
    source = tmp_path / "source"
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("pyproject.toml", "README.md", "LICENSE", "constraints.txt", "Makefile", "CITATION.cff"):
        source.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=skip)
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(source),
    ]
    subprocess.run(command, check=True, env=clean_environment(), capture_output=True)
    [wheel], [sdist] = (list((tmp_path / "dist").glob(kind)) for kind in ("*.whl", "*.tar.gz"))
    files = {
        path.relative_to(source / "src").as_posix() for path in (source / "src").rglob("*") if path.is_file()
    }
    assert {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name} == files
    with tarfile.open(sdist) as archive:
        assert {f"signfade-{__version__}/src/{name}" for name in files} <= set(archive.getnames())

    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python = place / "bin" / "python"
    # Its dependencies are those of this environment, by a .pth file; those of the environment are not read.
    paths = sysconfig.get_paths(vars={"base": str(place), "platbase": str(place)})
    (Path(paths["purelib"]) / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index"]
    environment = clean_environment() | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run(
        [*install, "--ignore-installed", str(wheel)], check=True, env=environment, capture_output=True
    )

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    where = run(str(python), "-c", "import signfade; print(signfade.__file__, signfade.__version__)")
    assert where.split() == [str(Path(paths["purelib"]) / "signfade" / "__init__.py"), __version__]
    signfade = str(place / "bin" / "signfade")
    quick = ("--set", "rounds=2", "--set", "method.aggregator=ideal", "--set", "model.name=linear")
    assert json.loads(run(signfade, "run", *quick, "--json"))["rounds"] == 2
    assert (tmp_path / "runs" / "run" / "summary.json").exists()
    assert "attacks" in run(signfade, "reproduce", "--list")  # reads files that are not Python


def test_one_version_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_lock_names_every_requirement_once() -> None:
    """constraints.txt pins what pyproject.toml asks for, inside its bounds."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    pins = {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}
    assert len(pins) == len(lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    for requirement in map(
        Requirement, [*project["dependencies"], *(one for extra in extras for one in extra)]
    ):
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


@pytest.mark.parametrize("file", YAML, ids=lambda file: file.name)
def test_yaml_files_are_whole(file: Path) -> None:
    assert isinstance(yaml.safe_load(file.read_text()), dict)


@pytest.mark.parametrize("file", sorted(ROOT.glob(".github/workflows/*.yml")), ids=lambda file: file.name)
def test_workflows_name_versions_and_targets_that_exist(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow: dict[Any, Any] = yaml.safe_load(file.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    for step in steps:
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "a/b@v1")), step
        assert set(re.findall(r"\bmake ([a-z-]+)", step.get("run", ""))) <= targets


def test_the_matrix_is_what_the_package_claims() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", " ".join(project["classifiers"]))
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())
    assert workflow["jobs"]["test"]["strategy"]["matrix"]["python"] == claimed
    assert project["requires-python"] == f">={claimed[0]}"


def test_what_make_test_cpus_runs_is_there() -> None:
    tests = Path(__file__).parent
    folders = runpy.run_path(str(tests / "cpus.py"))["FOLDERS"]
    assert [name for name in folders if not (tests / name).exists()] == []
