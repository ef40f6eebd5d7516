"""Files and settings that somebody made to do harm, or by mistake: one sentence and exit 2, or right."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from signfade._text import has_controls, printable
from signfade.cli.entry import run as signfade
from signfade.experiments.checkpoint import CheckpointError, decode_checkpoint, encode_checkpoint
from signfade.experiments.config import ConfigError, load, parse_override, read
from signfade.experiments.files import folder_name, remove_leftovers, write_atomically
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.training import train
from signfade.experiments.workers.shards import sharded

CONFIG = 'name = "tiny"\nseed = 1\nrounds = 4\n'
TINY = ["rounds=1", "data.name=gaussian", "data.size=16", "data.devices=2"]
SETS = [word for one in TINY for word in ("--set", one)]


# -- links ---------------------------------------------------------------------------------------------------


def test_a_planted_link_is_not_followed(tmp_path: Path) -> None:
    precious, run = tmp_path / "precious", tmp_path / "run"
    precious.write_text("years of work")
    run.mkdir()
    (run / ".config.toml.tmp").symlink_to(precious)
    (run / "log").symlink_to(precious)
    train(load(None, TINY), run)
    assert precious.read_text() == "years of work"
    assert not (run / "config.toml").is_symlink()
    assert list(run.glob(".*")) == []


def test_what_is_written_aside_has_a_name_nobody_knows_and_usual_rights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    replace = os.replace

    def moved(source: Path, target: Path) -> None:
        names.append(Path(source).name)
        assert Path(source).parent == Path(target).parent
        replace(source, target)

    monkeypatch.setattr(os, "replace", moved)
    before = os.umask(0o027)
    try:
        for _ in range(2):
            write_atomically(tmp_path / "a", b"x")
    finally:
        os.umask(before)
    assert len(set(names)) == 2
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640
    (tmp_path / ".b.tmp").mkdir()
    (tmp_path / ".a.0.tmp").touch()
    remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [".b.tmp", "a"]


# -- numbers -------------------------------------------------------------------------------------------------


def test_rounds_of_nine_digits_are_found_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run").create(CONFIG)
    for number in (99_999_999, 100_000_000, 1_000_000_000):
        folder.save_checkpoint(number, {"w": torch.ones(1)}, {})
    found = folder.load_checkpoint()
    assert found is not None
    assert found.round == 1_000_000_000
    names = sorted(p.name for p in folder.checkpoints_path.iterdir())
    assert names == ["round-100000000.safetensors", "round-1000000000.safetensors"]


@pytest.mark.parametrize("value", ["Infinity", "NaN", "1e400", "3.0", "true", '"3"', "-1", "[" * 20_000])
def test_a_round_that_is_no_number_of_rounds_is_damage(value: str) -> None:
    data = encode_checkpoint(3, {"w": torch.ones(2)}, {})
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].replace(
        b'\\"round\\": 3', rb"\"round\": " + json.dumps(value)[1:-1].encode()
    )
    assert header != data[8 : 8 + length]
    with pytest.raises(CheckpointError):
        decode_checkpoint(len(header).to_bytes(8, "little") + header + data[8 + length :])


def test_a_million_threads_or_shards_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert signfade(["run", "--out", str(tmp_path / "out"), "--set", "threads=1000000"]) == 2
    assert "signfade: threads must be less than or equal to 1024" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="shards must be 1 to 1024; got 1000000"), sharded(1_000_000):
        pass


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{}", "does not say how many rounds there were"),
        ("[]", "is not a JSON object"),
        ("[" * 100_000, "is not a JSON object"),
        ('{"rounds": Infinity}', "is not a JSON object"),
        ('{"rounds": 1, "last_accuracy": "high"}', "has no number under 'last_accuracy'"),
        ('{"rounds": 1, "last_accuracy": 0.5}', "without the other"),
        ('{"rounds": 1, "name": "\\u001b[2J"}', "has no text that can be printed under 'name'"),
    ],
)
def test_a_summary_that_is_none(
    tmp_path: Path, content: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "--out", str(tmp_path), *SETS]
    assert signfade(command) == 0
    (tmp_path / "run" / "summary.json").write_text(content)
    capsys.readouterr()
    for again in (command, ["report", str(tmp_path / "run"), "-o", str(tmp_path / "page.html")]):
        assert signfade(again) == 2
        told = capsys.readouterr().err
        assert sentence in told
        assert told.count("\n") == 1
    (tmp_path / "run" / "summary.json").unlink()  # as the sentence says
    assert signfade([*command, "--resume"]) == 0


@pytest.mark.parametrize(
    "text",
    [
        "seed = " + "[" * 50_000,
        "seed = " + "{a = " * 5_000,
        "[" + ".".join(["a"] * 2_000) + "]",
        ".".join(["server"] * 2_000) + " = 1",
        "cell.snr_db = " + "[" * 40 + "1" + "]" * 40,
    ],
    ids=["lists", "tables", "header", "dotted", "forty"],
)
def test_toml_nested_too_deeply(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError, match="is not valid TOML: nested too deeply"):
        read(tmp_path / "a.toml")
    for command in ("run", "sweep"):
        assert signfade([command, str(tmp_path / "a.toml"), "--out", str(tmp_path / "out")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text(text)
    with pytest.raises(FolderError, match=r"config\.toml is not TOML \(nested too deeply\)"):
        RunFolder(tmp_path / "run").config()


def test_an_override_nested_too_deeply_is_a_word() -> None:
    key, value = parse_override("seed=" + "[" * 50_000)
    assert (key, value) == ("seed", "[" * 50_000)


# -- names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x" * 300, "ü" * 300, "\U0001f4e1" * 300 + "a" * 300])
def test_long_names_make_short_folders_that_stay_apart(tmp_path: Path, name: str) -> None:
    for suffix in ("-deploy", "-compare", "-sweep"):
        (tmp_path / f"{folder_name(name)}{suffix}").mkdir()
    assert folder_name(name) == folder_name(name)
    assert folder_name(name) != folder_name(name + "b")
    assert folder_name("a" * 200) == "a" * 200


def test_a_run_with_a_name_of_300_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", "--out", str(tmp_path), *SETS, "--set", f"name={'x' * 300}"]
    assert signfade(command) == 0
    assert signfade(command) == 0
    assert "is already finished" in capsys.readouterr().err
    too_long = ["run", *SETS, "--out", str(tmp_path / ("y" * 300))]
    assert signfade(too_long) == 2
    assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["name", "label", "out", "data.folder", "model.name", "method.aggregator"])
@pytest.mark.parametrize("code", ["\\u001b[31m", "\\u009b2J", "a\\nb", "\\u202eb", "\\u007f"])
def test_escape_codes_in_settings_are_refused(tmp_path: Path, key: str, code: str) -> None:
    (tmp_path / "a.toml").write_text(f'{key} = "{code}"\n')
    with pytest.raises(ConfigError, match=f"{key} must not hold control characters; got") as caught:
        load(tmp_path / "a.toml")
    assert not has_controls(str(caught.value))


def test_escape_codes_of_others_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.toml").write_text('[variants."\\u001b[2J"]\nseed = 3\n')
    assert signfade(["config", str(tmp_path / "a.toml")]) == 2
    run = tmp_path / "run"
    RunFolder(run).create('label = "\\u001b[2J"\nrounds = 4\n')
    assert signfade(["report", str(run), "-o", str(tmp_path / "page.html")]) == 2
    assert signfade(["run", "--out", "\x1b[2J", *SETS]) == 2
    assert signfade(["report", str(tmp_path / "\x1b[2J")]) == 2
    captured = capsys.readouterr()
    assert "'label' in its config.toml holds control characters" in captured.err
    assert captured.err.count("\n") == 4
    assert not has_controls((captured.out + captured.err).replace("\n", ""))


def test_other_scripts_are_welcome() -> None:
    for name in ("Überreichweite", "میانگین\u200cگیری", "符号", "SBFL – 8 dB", "📡"):
        assert not has_controls(name)
        assert printable(name) == name
        assert load(None, [f'name="{name}"']).name == name
