"""The command line: what it prints, what it leaves, how it fails."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from signfade import __version__
from signfade.cli.entry import run as signfade
from signfade.data import write_idx
from signfade.experiments.config import load
from signfade.experiments.folder import RunFolder
from signfade.theory.errors import mse

TINY = ("rounds=4", "data.name=gaussian", "data.size=64", "data.devices=3", "eval.every=2")
COMMAND = [sys.executable, "-m", "signfade"]


def sets(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [record | {"seconds": 0} for record in RunFolder(folder).read_metrics()]


def idx_folder(folder: Path, classes: int, samples: int = 40) -> Path:
    """Four IDX files of small random images."""
    draw = np.random.default_rng(1)
    folder.mkdir()
    for part in ("train", "t10k"):
        images = draw.integers(0, 256, (samples, 8, 8), dtype=np.uint8)
        write_idx(folder / f"{part}-images-idx3-ubyte", images)
        write_idx(folder / f"{part}-labels-idx1-ubyte", (np.arange(samples) % classes).astype(np.uint8))
    return folder


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must be refused: exit code 2, one sentence on stderr, nothing written anywhere."""

    def check(*arguments: str | Path) -> str:
        before = content(tmp_path)
        capsys.readouterr()
        assert signfade([str(argument) for argument in arguments]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("signfade: ")
        assert printed.err.count("\n") == 1
        assert content(tmp_path) == before
        return printed.err

    return check


# -- the face ----------------------------------------------------------------------------------------------


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(["--version"]) == 0
    assert capsys.readouterr().out == f"signfade {__version__}\n"


def test_help_loads_nothing_heavy() -> None:
    script = (
        "import sys; from signfade.cli.entry import run; run(['--help']); run(['run', '--help']);"
        "print('loaded', sorted({'torch', 'numpy', 'matplotlib', 'scipy', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded []"
    for command in ("run", "compare", "demo", "link", "theory", "report", "sweep", "tune", "data", "config"):
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("command", [[], ["data"]])
def test_without_a_command_there_is_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(command) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.splitlines()[0].split()[0]) == ("", "Usage:")
    assert "\nCommands:\n" in printed.err


def test_an_interrupt_while_the_commands_are_built(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(app: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupted)
    assert signfade(["config"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("run", "resume with: signfade run --resume"),
        ("demo", "resume with: signfade demo"),
        ("link", "nothing"),
    ],
)
def test_an_interrupt_before_the_first_round(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, told: str
) -> None:
    def interrupted(*settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("signfade.cli.commands.read_settings", interrupted)
    assert signfade([command]) == 130
    assert capsys.readouterr().err.startswith(f"signfade: stopped; {told}")


def test_config_names_the_words_that_a_key_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(["config"]) == 0
    text = capsys.readouterr().out
    told = " ".join(text.replace("\n# ", " ").split())
    for words in (
        "two-chunks, iid, dirichlet",
        "medium, large, metropolitan",
        "gaussian, rayleigh, rician, none",
    ):
        assert words in told


def test_config_names_each_registered_choice_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(["config"]) == 0
    text = capsys.readouterr().out
    for line in ("#   mnist: ", "#   mlp: ", "#   krum: ", "#   mean-shift: ", "#   none: nobody attacks"):
        assert text.count(line) == 1
    told = [line for line in text.splitlines() if line.startswith("# ") and not line.startswith("#   ")]
    for name in ("signsum", "high_snr", "small-cnn", "sign-flip", "below-bound", "mnist (", "own ("):
        assert name not in " ".join(told)


def test_theory_says_whose_errors_it_predicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(["theory", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "each rule that reads every device by itself" in told
    assert '"signfade link"' in told


def test_theory_shows_what_its_options_take(capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(["theory", "--help"]) == 0
    told = capsys.readouterr().out
    assert "gaussian|laplacian" in told
    assert "gaussian|rayleigh|rician|none" in told


def test_config_prints_a_file_that_can_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from signfade.experiments.config import load

    assert signfade(["config"]) == 0
    path = tmp_path / "all.toml"
    path.write_text(capsys.readouterr().out)
    assert load(path) == load(None)
    assert signfade(["config", str(path), *sets("seed=5")]) == 0
    assert "\nseed = 5\n" in capsys.readouterr().out


def test_a_method_goes_by_the_name_that_python_takes(
    refused: Refused, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, line in {"signsgd": 'aggregator = "signsgd"', "low-rate": 'preset = "low-rate"'}.items():
        assert signfade(["config", *sets(f"method={name}")]) == 0
        assert line in capsys.readouterr().out
    assert "unknown method 'bst'; the nearest known one is 'best'" in refused("config", *sets("method=bst"))
    (tmp_path / "sweep.toml").write_text("[grid]\nrounds = [1, 2]\n")
    for command in (["config"], ["sweep", tmp_path / "sweep.toml", "--list"]):
        assert "method must be a name" in refused(*command, *sets("method=3"))
    assert signfade(["sweep", str(tmp_path / "sweep.toml"), "--list", *sets("method=signsgd")]) == 0


def test_a_reader_that_has_seen_enough() -> None:
    script = f"{shlex.join([*COMMAND, 'config'])} | true"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


# -- run ---------------------------------------------------------------------------------------------------


def test_run_leaves_a_folder_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = sets(*TINY, "method.aggregator=sbfl", "name=a")
    assert signfade(["run", *changes, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == str(tmp_path / "a")
    assert printed.out.startswith("a, sbfl, seed 0: ")
    assert "sbfl: round 4 of 4, error 0." in printed.err  # gradients without data have no loss
    assert re.match(r"a, sbfl, seed 0: median error 0\.\d+ \(predicted 0\.\d+\), 4 rounds", printed.out)
    assert RunFolder(tmp_path / "a").read_summary()["diverged_at"] is None  # type: ignore[index]
    names = {path.name for path in (tmp_path / "a").iterdir()}
    files = {"config.toml", "environment.json", "metrics.jsonl", "summary.json"}
    assert names == files | {"checkpoints", "log"}


def test_a_run_that_fell_says_so_in_its_last_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = {"name": "a", "seed": 0, "rounds": 4, "last_accuracy": 0.5, "best_accuracy": 0.9}
    for late, fell in ((0.517, True), (0.88, False)):
        summary = ends | {"late_accuracy": late}
        monkeypatch.setattr("signfade.experiments.training.train", lambda *told, found=summary, **more: found)
        assert signfade(["run", *sets(*TINY), "--out", str(tmp_path)]) == 0
        last = capsys.readouterr().out.splitlines()[-1]
        assert (
            last.startswith("accuracy fell: 51.7 % on average over the last evaluations, 38.3 points") == fell
        )
        assert ("smaller server.learning_rate" in last) == fell


def test_run_reads_a_file_and_prints_json_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my.toml"
    path.write_text('name = "mine"\nrounds = 3\n[data]\nname = "gaussian"\nsize = 32\ndevices = 2\n')
    command = ["run", str(path), "--json", *sets("label=x", f"out={tmp_path}")]
    assert signfade(command) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == RunFolder(tmp_path / "mine").read_summary()
    assert (summary["name"], summary["method"], summary["rounds"]) == ("mine", "x", 3)
    before = content(tmp_path)
    assert signfade(command) == 0  # again: nothing is played, the answer is the same
    printed = capsys.readouterr()
    assert json.loads(printed.out) == summary
    assert "already finished" in printed.err
    assert content(tmp_path) == before


def test_a_diverged_run_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = sets(
        "rounds=9", "data.devices=2", "method.aggregator=sbfl", "server.learning_rate=1e38", "name=a"
    )
    assert signfade(["run", *changes, "--out", str(tmp_path)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("signfade: round 2: ")
    assert signfade(["report", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").exists()  # where the runs are, not where the user stands
    assert signfade(["report", str(tmp_path), "-o", str(tmp_path / "a.html")]) == 0
    page = (tmp_path / "a.html").read_text()
    assert "sbfl (failed), seed 0: round 2: " in page  # and says why
    assert "unfinished" not in page
    assert "server.learning_rate" in last


def test_a_crash_in_your_own_rule_is_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text("def rule(received):\n    return {}['absent']\n")
    changes = sets(*TINY, f"method.aggregator={tmp_path}/mine.py:rule")
    assert signfade(["run", *changes, "--out", str(tmp_path)]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("signfade: ")
    assert "absent" in last


def test_traceback_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGNFADE_TRACEBACK", "1")
    with pytest.raises(ValueError, match="unknown key"):
        signfade(["run", *sets("sede=1")])


def test_interrupted_and_resumed_as_told(tmp_path: Path) -> None:
    changes = sets("rounds=25", "data.devices=4", "name=my run", "checkpoint_every=50")
    command = ["run", "--out", str(tmp_path / "a"), *changes]
    process = subprocess.Popen([*COMMAND, *command], stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "a" / "my-run" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_bytes().count(b"\n") >= 3):
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    last = errors.splitlines()[-1]
    assert last.startswith("signfade: stopped after round ")
    told = shlex.split(last.partition("resume with: ")[2])
    assert told == ["signfade", *command, "--resume"]
    assert signfade(told[1:]) == 0
    assert signfade(["run", "--out", str(tmp_path / "b"), *changes]) == 0
    assert rounds_of(tmp_path / "a" / "my-run") == rounds_of(tmp_path / "b" / "my-run")
    last_states = [
        (tmp_path / one / "my-run" / "checkpoints" / "round-00000025.safetensors").read_bytes()
        for one in "ab"
    ]
    assert last_states[0] == last_states[1]


# -- bad input: one sentence, exit code 2, nothing overwritten ---------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run", "absent.toml"], "no such config file: absent.toml"),
        (["run", *sets("rounds=0")], "rounds must be greater than or equal to 1; got 0"),
        (["run", *sets("server.learning_ratee=1")], "the nearest known one is 'server.learning_rate'"),
        (["run", *sets("rounds")], "--set takes key=value"),
        (["run", *sets("data.devices=1438")], "1437; got 1438"),
        (["run", *sets("server.optimizer=newton")], "server.optimizer must be one of"),
        (["run", *sets("model.name=resnet")], "model.name must be"),
        (["run", *sets("model.name=no_such_package:model")], "no_such_package"),
        (["run", *sets("method.aggregator=vote")], "method.aggregator must be"),
        (["run", *sets("model.name=resnet")], "package.module:function or file.py:function; got 'resnet'"),
        (["run", *sets("attack.kind=bribe")], "attack.kind must be one of none, sign-flip, "),
        (["run", *sets("data.name=cifar")], "sotu, package.module:function or file.py"),
        (["run", *sets("method.aggregator=absent.py:rule")], "no such file: absent.py"),
        (
            ["run", *sets("cell.city=moon")],
            "cell.city must be 'medium', 'large' or 'metropolitan'; got 'moon'",
        ),
        (["run", *sets("data.name=idx", "data.folder=absent")], "absent has no file"),
        (["run", *sets("data.name=mnist", "data.folder=absent")], "absent has no file"),
        (["run", "--colour"], "--colour"),
        (["run", "a", "b"], "unexpected extra argument"),
        (["walk"], "walk"),
        (["compare", "--methods", "sbfl,sbfl"], "two of the methods are called 'sbfl'"),
        (["compare", "--methods", "sbfl,signsdg"], "the nearest known one is 'signsgd'"),
        (["compare", "--methods", ","], "there is nothing to compare"),
        (["compare", "--methods", "sbfl,absent.py:rule"], "no such file: absent.py"),
        (["compare", "--seeds", "0"], "seeds must be 1 or more; got 0"),
        (["theory", "--snr-db", "a,b"], "--snr-db must be numbers"),
        (["theory", "--snr-db", "0:10:0"], "--snr-db must be numbers"),
        (["theory", "--family", "cauchy"], "family must be one of"),
        (["theory", "--plot", "curve.doc"], "--plot must end in .png, .svg or .pdf; got 'curve.doc'"),
        (["theory", "--fading", "heavy"], "fading must be one of"),
        (
            ["theory", "--bits-per-weight", "1.5"],
            "signfade: bits_per_weight must be from 0.001 to 1, or 2, 3",
        ),
        (["theory", "--correlation", "1.2"], "correlation must be from -0.0526 to 1 for 20 devices; got 1.2"),
        (["report", "absent"], "absent does not exist"),
        (["data", "split", *sets("data.name=gaussian")], "gaussian has no classes"),
        (["data", "split", *sets("data.devices=1438")], "1437; got 1438"),
        (["data", "fetch", "digits"], "digits needs no fetching"),
        (["data", "fetch", "minst"], "no data set 'minst'; fetch one of mnist"),
        (["run", "--out", ""], "--out must name a folder"),
        (["theory", "--snr-db", "4000"], "--snr-db must be numbers"),
        (
            ["theory", "--plot", f"{__file__}/a.png"],
            f"cannot write the figure {__file__}/a.png: Not a directory",
        ),
        (["report", "--nothing"], "(see signfade report --help)"),
    ],
)
def test_bad_input(
    refused: Refused, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sentence in refused(*arguments)


def test_more_devices_than_samples(refused: Refused, tmp_path: Path) -> None:
    changes = sets("data.name=idx", f"data.folder={idx_folder(tmp_path / 'few', 10, samples=20)}")
    for split in ("two-chunks", "iid", "dirichlet"):
        told = refused("run", *changes, *sets("data.devices=30", f"data.split={split}"), "--out", tmp_path)
        assert "20" in told


def test_two_chunks_need_two_classes(refused: Refused, tmp_path: Path) -> None:
    changes = sets("data.name=idx", f"data.folder={idx_folder(tmp_path / 'one', 1)}", "data.devices=2")
    assert "two" in refused("run", *changes, "--out", tmp_path)


def test_corrupt_data(refused: Refused, tmp_path: Path) -> None:
    folder = idx_folder(tmp_path / "set", 10)
    for name in ("idx", "mnist"):  # small random images are not MNIST, whose checksums are known
        path = folder / "train-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-7])
        told = refused("run", *sets(f"data.name={name}", f"data.folder={folder}"), "--out", tmp_path)
        assert "train-images-idx3-ubyte" in told


@pytest.mark.parametrize("command", ["run", "compare", "demo", "link"])
def test_an_unwritable_folder(refused: Refused, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("not a folder")
    told = refused(command, *sets("rounds=1"), "--out", tmp_path / "file")
    assert str(tmp_path / "file") in told


def test_an_unwritable_report(refused: Refused, tmp_path: Path) -> None:
    assert signfade(["run", *sets(*TINY, "name=a"), "--out", str(tmp_path)]) == 0
    assert "cannot write" in refused("report", tmp_path / "a", "-o", tmp_path / "a" / "log" / "r.html")


def test_a_folder_that_is_not_ours(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "thesis.tex").write_text("precious")
    assert "holds no run" in refused("run", *sets(*TINY, "name=a"), "--out", tmp_path)


def test_an_existing_run_with_another_config(refused: Refused, tmp_path: Path) -> None:
    assert signfade(["run", *sets(*TINY, "name=a"), "--out", str(tmp_path)]) == 0
    told = refused("run", *sets(*TINY, "name=a", "seed=1"), "--out", tmp_path)
    assert "another config (seed: 0 there, 1 here)" in told
    assert "--resume" not in told
    longer = refused("run", *sets(*TINY, "name=a", "rounds=9"), "--out", tmp_path)
    assert "add --resume to go on to round 9, or choose another name or folder" in longer
    assert "another config" in refused("run", *sets(*TINY, "name=a", "seed=1"), "--out", tmp_path, "--resume")
    again = ["run", *sets(*TINY, "name=a", "seed=1"), "--out", str(tmp_path)]
    assert signfade([*again, "--name", "b"]) == signfade([*again, "--force"]) == 0
    assert [load(tmp_path / name / "config.toml").seed for name in ("a.1", "a", "b")] == [0, 1, 1]


def test_an_unfinished_run_without_resume(refused: Refused, tmp_path: Path) -> None:
    assert signfade(["run", *sets(*TINY, "name=a"), "--out", str(tmp_path)]) == 0
    (tmp_path / "a" / "summary.json").unlink()
    assert "add --resume" in refused("run", *sets(*TINY, "name=a"), "--out", tmp_path)
    assert signfade(["run", *sets(*TINY, "name=a"), "--out", str(tmp_path), "--resume"]) == 0


def test_one_bad_folder_stops_a_comparison_before_it_begins(refused: Refused, tmp_path: Path) -> None:
    command = ["compare", *sets(*TINY, "name=a"), "--out", tmp_path, "--methods"]
    assert signfade([str(word) for word in [*command, "ideal"]]) == 0
    told = refused(*command, "sbfl,ideal", *sets("server.learning_rate=0.5"))
    assert "ideal" in told
    assert not (tmp_path / "a-compare" / "sbfl").exists()
    assert "unknown method" in refused(*command, "sbfl,idael", "--force")
    command += ["ideal", "--force", *sets("server.learning_rate=0.5")]
    assert signfade([str(word) for word in command]) == 0
    assert (tmp_path / "a-compare.1" / "ideal" / "seed-0" / "summary.json").exists()


# -- compare, demo, report ---------------------------------------------------------------------------------


def test_no_name_leads_out_of_the_folder(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    words = ["--set", "name=../x", "--set", "rounds=1", "--set", "data.devices=2", "--out", str(inside)]
    assert signfade(["compare", *words, "--methods", "sbfl"]) == 0
    assert signfade(["link", *words]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert sorted(path.name for path in inside.iterdir()) == ["x-compare", "x-link"]


def test_compare_is_fair_and_complete(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'name = "c"\nrounds = 3\neval.every = 1\ndata.devices = 4\n'
        '[variants.slow]\n"server.learning_rate" = 1e-4\n'
        '[variants.signsgd]\n"server.learning_rate" = 1e-3\nmethod.aggregator = "signsgd"\n'
    )
    (tmp_path / "mine.py").write_text("def rule(received):\n    return received.y.sum(dim=0)\n")
    methods = f"slow,signsgd,ideal,{tmp_path}/mine.py:rule"
    command = ["compare", str(path), "--methods", methods, "--seeds", "2", "--out", str(tmp_path)]
    assert signfade(command) == 0
    printed = capsys.readouterr()
    folder = tmp_path / "c-compare"
    assert {path.name for path in folder.iterdir()} == {
        *("slow", "signsgd", "ideal", "rule"),
        *("table.txt", "curves.png", "report.html"),
    }
    for name in ("slow", "signsgd", "ideal", "rule"):
        assert name in printed.out
    assert printed.out.splitlines()[-1] == str(folder / "report.html")
    for seed in (0, 1):
        first = [
            RunFolder(folder / name / f"seed-{seed}").read_metrics()[0]
            for name in ("slow", "signsgd", "ideal")
        ]
        assert len({record["train_loss"] for record in first}) == 1  # same data, same initial weights
        heard = [RunFolder(folder / name / f"seed-{seed}").read_metrics() for name in ("slow", "signsgd")]
        assert [r["snr_db"] for r in heard[0]] == [r["snr_db"] for r in heard[1]]  # same cell, same fading
    steps = {
        name: RunFolder(folder / name / "seed-0").config()["server"]["learning_rate"]
        for name in ("slow", "signsgd")
    }
    assert steps == {"slow": 1e-4, "signsgd": 1e-3}
    runs = {p: data for p, data in content(folder).items() if "seed-" in p}
    assert signfade(command) == 0  # again: everything is there
    assert {p: data for p, data in content(folder).items() if "seed-" in p} == runs


def test_a_method_that_fails_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "c.toml"
    path.write_text(
        'name = "c"\nrounds = 4\ndata.devices = 2\n'
        '[variants.wild]\n"server.learning_rate" = 1e38\n"method.aggregator" = "ideal"\n'
    )
    assert signfade(["compare", str(path), "--methods", "wild,sbfl", "--out", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert "signfade: note: wild failed: round 2" in printed.err
    assert "sbfl" in (tmp_path / "c-compare" / "table.txt").read_text()
    assert (tmp_path / "c-compare" / "report.html").exists()
    assert signfade(["compare", str(path), "--methods", "wild", "--out", str(tmp_path)]) == 1


def test_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(["demo", "--out", str(tmp_path), *sets("rounds=3")]) == 0
    printed = capsys.readouterr()
    for name in ("signsgd", "sbfl", "best", "ideal"):
        assert name in printed.out
    assert "<html" in (tmp_path / "demo" / "report.html").read_text()


def test_report_of_several_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        assert signfade(["run", *sets(*TINY, f"name={name}"), "--out", str(tmp_path)]) == 0
    page = tmp_path / "page.html"
    capsys.readouterr()
    assert signfade(["report", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(page)]) == 0
    assert capsys.readouterr().out == f"{page}\n"
    assert "<html" in page.read_text()


# -- link, theory, data ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "pictures", "words"),
    [
        ((), {"link.png"}, ("Link budget", "anybody in this cell", "at 2 GHz", "Gaussian fading", "0.000")),
        (("cell.snr_db=0", "cell.fading=none"), {"link.png"}, ("0.650", "0.682", "1.000")),
        (("cell=none",), set(), ("Perfect links", "0.363", "Time and energy")),
    ],
)
def test_link(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: tuple[str, ...],
    pictures: set[str],
    words: tuple[str, ...],
) -> None:
    assert signfade(["link", *sets(*changes, "name=a"), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert {path.name for path in tmp_path.rglob("*.png")} == pictures
    for word in words:
        assert word in printed


def test_links_of_two_names_are_kept_apart(tmp_path: Path) -> None:
    for name in ("near", "far"):
        assert signfade(["link", "--name", name, "--out", str(tmp_path)]) == 0
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.png")}
    assert found == {"near-link/link.png", "far-link/link.png"}


def test_link_predicts_the_mean_over_its_devices(tmp_path: Path) -> None:
    from signfade.experiments.config import load
    from signfade.experiments.link_study import study_link
    from signfade.theory.errors import mse

    snrs = [-3.0, 4.0, 11.0]
    cell = [f"cell.snr_db={snrs}", "data.devices=3", "cell.fading=rayleigh"]
    changes = [*cell, "method.aggregator=sbfl", "method.prior=laplacian"]
    study = study_link(load(None, changes))
    each = [mse("sbfl", 10 ** (snr / 10), family="laplacian", fading="rayleigh") for snr in snrs]
    assert study.errors["sbfl"] == pytest.approx(sum(map(float, each)) / 3, rel=1e-12)


def test_link_predicts_the_vote_of_all_devices() -> None:
    """Without fading it is the formula; with it, luck of the rounds looked at hardly shows."""
    from signfade.experiments.config import load
    from signfade.experiments.link_study import study_link
    from signfade.theory.errors import vote_nmse

    def errors(*changes: str) -> dict[str, float]:
        return study_link(load(None, ["cell.snr_db=8", *changes])).errors

    plain = errors("cell.fading=none")["signsgd, best scale"]
    assert plain == pytest.approx(vote_nmse([10**0.8] * 20), rel=1e-9)
    alone = errors("data.devices=1")
    assert alone["signsgd, best scale"] == pytest.approx(alone["best hard decision"], rel=1e-6)
    faded = [errors(f"seed={seed}")["signsgd, best scale"] for seed in range(3)]
    assert max(faded) - min(faded) < 0.01


def test_link_of_more_devices_than_it_looks_at_one_by_one() -> None:
    from signfade.experiments.config import load
    from signfade.experiments.link_study import study_link

    few, many = (study_link(load(None, [f"data.devices={n}"])) for n in (500, 501))
    for rule in ("sbfl", "blmmse", "high_snr"):
        assert many.errors[rule] == pytest.approx(few.errors[rule], abs=2e-3)


def test_link_looks_at_the_cell_the_run_will_have(tmp_path: Path) -> None:
    from signfade.experiments.config import load
    from signfade.experiments.link_study import study_link

    study = study_link(load(None, ["data.devices=5", "seed=3"]))
    assert study.faded_snr_db is not None
    assert signfade(["run", *sets(*TINY, "data.devices=5", "seed=3", "name=a"), "--out", str(tmp_path)]) == 0
    for record, snrs in zip(RunFolder(tmp_path / "a").read_metrics(), study.faded_snr_db):
        low, middle, high = record["snr_db"]
        assert [low, middle, high] == pytest.approx([snrs.min(), np.median(snrs), snrs.max()], abs=1e-4)


def test_theory_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot = tmp_path / "curves.svg"
    assert signfade(["theory", "--snr-db", "0,10", "--plot", str(plot)]) == 0
    lines = capsys.readouterr().out.splitlines()
    row = next(line.split() for line in lines if line.split()[:1] == ["sbfl"])
    assert row == ["sbfl", "0.6496", "0.3649"]
    assert lines[-1] == str(plot)
    assert "<svg" in plot.read_text()


def test_theory_as_json_and_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["theory", "--snr-db", "0,10", "--devices", "3", "--csv", str(tmp_path)]
    assert signfade([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)  # nothing else is printed
    assert (document["schema"], document["devices"]) == ("signfade.theory/1", 3)
    row = next(row for row in document["errors"] if row["rule"] == "1 bit, shared" and row["snr_db"] == 10)
    assert row["nmse"] == pytest.approx(mse("sbfl", 10.0), rel=1e-9)
    assert row["above_limit_db"] == pytest.approx(10 * np.log10(11 * row["nmse"]), rel=1e-9)
    lines = (tmp_path / "errors.csv").read_text().splitlines()
    assert len(lines) == 1 + len(document["errors"])


def test_compare_as_json_and_csv(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["compare", *sets(*TINY, "name=a"), "--out", str(tmp_path), "--methods", "sbfl,ideal"]
    assert signfade([*command, "--seeds", "2", "--json", "--csv", str(tmp_path)]) == 0
    document = json.loads(capsys.readouterr().out)  # nothing else is printed
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == 1 + len(document["runs"])
    assert [row["method"] for row in document["methods"]] == ["sbfl", "ideal"]
    for method in document["methods"]:
        own = [row for row in document["runs"] if row["method"] == method["method"]]
        errors = [row["median_nmse"] for row in own]
        read = [json.loads((Path(row["folder"]) / "summary.json").read_text()) for row in own]
        assert errors == [summary["median_nmse"] for summary in read]
        assert method["median_nmse_mean"] == pytest.approx(np.mean(errors))
        assert method["median_nmse_std"] == pytest.approx(np.std(errors, ddof=1))


def test_theory_fits_a_terminal_of_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal
    monkeypatch.setenv("NO_COLOR", "1")
    for snrs in ("-10:20:5", "-50:50:4.5"):
        assert signfade(["theory", "--fading", "rayleigh", "--snr-db", snrs]) == 0
        printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
        assert "…" not in printed
        assert max(map(len, printed.splitlines())) <= 80
        assert printed.startswith("Predicted squared error of a coordinate")


def test_data_list(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SIGNFADE_CACHE", str(tmp_path))
    assert signfade(["data", "list"]) == 0
    printed = capsys.readouterr().out
    for name in ("digits", "mnist", "idx", "regression", "signfade data fetch mnist"):
        assert name in printed


def test_data_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(["data", "split", "-o", str(tmp_path / "who.png")]) == 0
    told, path = capsys.readouterr().out.splitlines()
    assert path == str(tmp_path / "who.png")
    assert re.fullmatch(r"20 devices hold \d+ to \d+ samples each, \d+ of 1437 in all", told)
    assert (tmp_path / "who.png").read_bytes().startswith(b"\x89PNG")


def test_no_colour_or_bar_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert signfade(["run", *sets(*TINY, "name=a"), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert not {"\x1b", "\r"} & set(printed.out + printed.err)
