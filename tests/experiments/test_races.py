"""Two processes that want one folder: one plays, the other says why it does not."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import socket
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from signfade.experiments.config import load
from signfade.experiments.files import Held, acquire, check_free, release
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.training import train
from signfade.settings import RunSettings

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no advisory locks there")

RACES = 100
HELD = r"another process is writing to the run folder .*: pid {pid} on \S+, since \d+-\d+-\d+ \d+:\d+:\d+"


def tiny(seed: int) -> RunSettings:
    sets = ["rounds=2", "data.name=gaussian", "data.size=16", "data.devices=2", "threads=1", f"seed={seed}"]
    return load(None, sets)


def race(home: Path, seeds: list[int], barrier: Barrier, answers: Connection) -> None:
    """Play run after run, each in a folder that another process wants at the same moment."""
    told: list[tuple[str, int, str]] = []
    train(tiny(0), home / f"warm-{os.getpid()}")  # loads and compiles everything
    for number, seed in enumerate(seeds):
        rounds: list[Any] = []
        barrier.wait(120)
        try:
            summary = train(tiny(seed), home / str(number), on_round=rounds.append)
            told.append(("played" if rounds else "finished", summary["seed"], ""))
        except FolderError as error:
            told.append(("refused", seed, str(error)))
    answers.send((os.getpid(), told))


def without_seconds(folder: Path) -> list[dict[str, Any]]:
    return [record | {"seconds": 0} for record in RunFolder(folder).read_metrics()]


def test_of_two_runs_at_once_one_plays_and_the_other_says_why_not(tmp_path: Path) -> None:
    """Different runs in the even folders, equal ones in the odd."""
    fresh = multiprocessing.get_context("forkserver")
    fresh.set_forkserver_preload(["signfade.experiments.training", "sklearn.datasets"])
    barrier, ends = fresh.Barrier(2), [fresh.Pipe(duplex=False) for _ in range(2)]
    seeds = [[0] * RACES, [(number + 1) % 2 for number in range(RACES)]]
    racers = [fresh.Process(target=race, args=(tmp_path, seeds[i], barrier, ends[i][1])) for i in range(2)]
    for racer in racers:
        racer.start()
    (one, first), (other, second) = (end[0].recv() for end in ends)
    for racer in racers:
        racer.join()
    alone = {}
    for seed in (0, 1):
        train(tiny(seed), tmp_path / f"alone-{seed}")
        alone[seed] = without_seconds(tmp_path / f"alone-{seed}")
    for number in range(RACES):
        outcomes = {one: first[number], other: second[number]}
        kinds = [kind for kind, _, _ in outcomes.values()]
        assert kinds.count("played") == 1, outcomes
        winner = next(pid for pid, (kind, _, _) in outcomes.items() if kind == "played")
        loser = one + other - winner
        seed = outcomes[winner][1]
        assert load(tmp_path / str(number) / "config.toml").seed == seed
        assert without_seconds(tmp_path / str(number)) == alone[seed]
        assert sorted(p.name for p in (tmp_path / str(number)).glob(".*")) == []
        kind, _, sentence = outcomes[loser]
        reasons = [HELD.format(pid=winner)]
        if number % 2 == 0:
            reasons.append(r"already holds a run with another config \(seed: [01] there, [01] here\)")
            assert kind == "refused"
        assert kind == "finished" or any(re.search(reason, sentence) for reason in reasons), sentence


def test_two_commands_at_once(tmp_path: Path) -> None:
    sets = ["--set", "rounds=3", "--set", "data.name=gaussian", "--set", "data.size=16"]
    command = [sys.executable, "-m", "signfade", "run", "--out", str(tmp_path), *sets, "--set"]
    both = [subprocess.Popen([*command, f"seed={n}"], stderr=subprocess.PIPE, text=True) for n in (0, 1)]
    said = [one.communicate(timeout=300)[1] for one in both]
    codes = [one.returncode for one in both]
    assert sorted(codes) == [0, 2], said
    assert RunFolder(tmp_path / "run").config()["seed"] == codes.index(0)
    summary = RunFolder(tmp_path / "run").read_summary()
    assert summary is not None
    assert summary["seed"] == codes.index(0)
    assert re.search("another process is writing|with another config", said[codes.index(2)])


def test_an_equal_run_that_comes_later_is_told_who_plays(tmp_path: Path) -> None:
    settings, told = tiny(0), []

    def again(record: dict[str, Any]) -> None:
        for resume in (False, True):
            with pytest.raises(FolderError, match=HELD.format(pid=os.getpid())) as caught:
                train(settings, tmp_path / "run", resume=resume)
            told.append(str(caught.value))

    train(settings, tmp_path / "run", on_round=again)
    assert len(told) == 4
    assert socket.gethostname() in told[0]
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_lock_of_a_dead_process_is_taken_and_who_is_unknown_is_not_made_up(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    words = {"pid": 2**22 + 1, "host": socket.gethostname(), "since": "2020-01-01 00:00:00"}
    path.write_text(json.dumps(words))  # left by a kill
    check_free(path)
    lock = acquire(path)
    assert str(os.getpid()) in path.read_text()
    for content in ("", "[" * 5000, '{"pid": 1e999}', json.dumps(words)):
        path.write_text(content)
        with pytest.raises(Held, match="it has not said which one"):
            check_free(path)
    path.write_text(json.dumps({"pid": os.getpid(), "host": "\x1b[2J", "since": "now"}))
    with pytest.raises(Held, match=re.escape(rf"pid {os.getpid()} on \x1b[2J, since now")):
        acquire(path)
    release(path, lock)
    assert not path.exists()


def test_a_look_at_the_lock_does_not_keep_a_run_from_it(tmp_path: Path) -> None:
    """`check_free` holds the lock for a moment, without a name: whoever wants it waits that moment."""
    import fcntl

    path = tmp_path / ".lock"
    path.touch()
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    child = os.fork()
    if child == 0:
        time.sleep(0.2)
        os._exit(0)
    os.close(descriptor)  # the child's copy holds on until it ends
    lock = acquire(path)
    os.waitpid(child, 0)
    release(path, lock)


def test_a_planted_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("years of work")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "precious")
    with pytest.raises(FolderError, match="cannot write to the run folder"):
        train(tiny(0), tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "years of work"
