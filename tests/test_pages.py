"""What README, docs and examples tell their readers to type runs, with few rounds."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from signfade.api import calls
from signfade.cli.entry import run as signfade
from signfade.data import DATASETS, Dataset
from signfade.experiments.comparisons import run_in_turn

from .test_docs import ALL_PAGES, ROOT, commands, snippets

# What no test of this file runs, and why.
ELSEWHERE = {
    r"^(?!reproduce --list)reproduce": "hours; tests/experiments/studies runs each study with few rounds",
    r"^deploy": "many processes; tests/integrations/flower/test_processes.py",
    r"--engine ray": "a cluster; tests/integrations/test_ray.py",
    r"^--install-completion": "writes to the start-up files of your shell",
    r"data\.name=shakespeare": "reads a text that is fetched; tests/data/test_texts.py",
    r"examples/adapters/": "needs a model that is fetched; tests/simulation/test_lora.py",
    r"dial\.toml": "15 min; tests/experiments/studies/test_dial.py",
    r"^report runs/digits-app": "of a run on Flower, which no test leaves behind",
}
SHORTER = {  # what is added to a command, to take seconds; the last of an option counts
    "run": "--set data.batch=8",
    "compare": "--seeds 1 --jobs 1",
    "sweep": "--jobs 1",
    "tune": "--seeds 1 --rates 0.1 --momenta 0 --jobs 1",
}
WITH_COMMANDS = [
    page for page in ALL_PAGES if commands(page) and page.name != "architecture.md"
]  # test_recipes


def shortened(words: list[str]) -> list[str]:
    """The command with one round, or two where it asks for more rounds than a run before it had."""
    kind = words[0]
    if kind not in SHORTER or "--list" in words:
        return words
    rounds = "rounds=2" if "--resume" in words else "rounds=1"
    short = [rounds if word.startswith("rounds=") else word for word in words]
    return (
        short + SHORTER[kind].split() + ([] if short != words or rounds in words else ["--set", "rounds=1"])
    )


def furnish(place: Path, page: Path) -> None:
    """Put the files there that a page's commands name: the examples, and what the page itself shows."""
    shutil.copytree(ROOT / "examples", place / "examples")
    sweep = place / "examples" / "sweep.toml"
    sweep.write_text(re.sub(r"\nseeds = 2", "\nseeds = 1", sweep.read_text()))
    for name in ("src", "benchmarks"):
        (place / name).symlink_to(ROOT / name)
    (place / "mine.toml").write_text("\n".join(["[data]\ndevices = 4", *snippets(page, "toml")[-1:]]))
    for name in ("my.toml", "run.toml"):
        (place / name).write_text('[data]\nname = "digits"\n')
    for text in snippets(page):
        if named := re.match(r"# (\w+\.py)\n", text):
            (place / named[1]).write_text(text)


@pytest.fixture
def small_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of the right shapes in place of the images that would be fetched."""
    for name in ("mnist", "fashion-mnist", "cifar10"):
        source = DATASETS.find(name)
        assert source.shape is not None
        shape, classes = source.shape
        draw = torch.Generator().manual_seed(0)
        x, y = torch.rand(1200, *shape, generator=draw), torch.arange(1200) % classes
        small = Dataset(x[:1000], y[:1000], x[1000:], y[1000:], classes=classes, name=name)
        entry = dataclasses.replace(source, load=lambda folder, small=small, **options: small)
        monkeypatch.setitem(DATASETS._entries, name, entry)


@pytest.mark.usefixtures("small_sets")
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_every_command_of_a_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], page: Path
) -> None:
    """In order, in one folder, with few rounds and small data; but for those that are run elsewhere."""
    furnish(tmp_path, page)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calls, "_engine", lambda *settings: run_in_turn)  # no processes to wait for
    for words in commands(page):
        if not any(re.search(pattern, " ".join(words)) for pattern in ELSEWHERE):
            assert signfade(shortened(words)) == 0, f"signfade {shlex.join(words)}: {capsys.readouterr().err}"


def test_what_is_run_elsewhere_is_still_on_a_page() -> None:
    every = [" ".join(words) for page in ALL_PAGES for words in commands(page)]
    assert [pattern for pattern in ELSEWHERE if not any(re.search(pattern, line) for line in every)] == []
    assert [
        why
        for why in ELSEWHERE.values()
        for path in re.findall(r"tests/\S+", why)
        if not (ROOT / path).exists()
    ] == []


@pytest.mark.parametrize("pandas", [True, False])
def test_the_five_lines_of_the_readme_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pandas: bool
) -> None:
    """As `pip install .` leaves it, too: without pandas."""
    monkeypatch.chdir(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: find(name) if pandas or name != "pandas" else None
    )
    first, _ = snippets(ROOT / "README.md")
    exec(re.sub(r"rounds=\d+", "rounds=2", first), {})
    assert (tmp_path / "report.html").exists()


def test_getting_started_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of its Python, in order, with few rounds; but for MNIST, which it would fetch, and for tuning.

    The last run, by a rule of one's own, is as long as on the page: it must learn.
    """
    monkeypatch.chdir(tmp_path)
    lines = "".join(snippets(ROOT / "docs" / "getting-started.md")).splitlines()
    code = "\n".join(line for line in lines if "mnist" not in line and "sf.tune" not in line)
    first, own = re.sub(r"seeds=\d+", "seeds=1, quiet=True", code).split("import torch\n")
    names: dict[str, Any] = {}
    exec(re.sub(r"rounds=\d+", "rounds=2", first).replace("sf.run({", "sf.run({'rounds': 2, "), names)
    exec(f"import torch\n{own}", names)
    assert names["run"].summary["last_accuracy"] > 0.85  # 0.93 on the page
    assert {path.name for path in tmp_path.iterdir()} == {"curves.png", "report.html", "runs"}
