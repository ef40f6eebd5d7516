from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from signfade import experiments
from signfade.experiments.config import load
from signfade.experiments.findings import finding, theory_finding, theory_rows
from signfade.experiments.folder import FolderError, RunFolder
from signfade.experiments.group import Group, Run, group_runs
from signfade.experiments.html_report import render_report, write_report
from signfade.experiments.panels import group_styles
from signfade.experiments.results import load_run
from signfade.experiments.table import comparison, sent_items
from signfade.experiments.training import train

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Tags that are opened and closed, their text, and everything that could reach for the network."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.tags: list[str] = []
        self.targets: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.stack.append(tag)
        names = ("src", "href", "xlink:href", "action", "data", "srcset")
        self.targets += [value or "" for name, value in attrs if name in names]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(runs: list[Path], tmp_path: Path, **options: Any) -> tuple[str, Page]:
    path = write_report(runs, tmp_path / "out" / "report.html", **options)
    text = path.read_text(encoding="utf-8")
    page = Page(text)
    assert page.stack == []
    return text, page


def test_the_page_is_whole_and_reaches_for_nothing(runs: list[Path], tmp_path: Path) -> None:
    text, page = page_of(runs, tmp_path)
    assert all(target.startswith(("#", "data:")) for target in page.targets)
    assert not {"script", "iframe", "img", "object"} & set(page.tags)
    assert "@import" not in text
    assert "url(http" not in text
    assert text.count("<figure>") == 5
    assert "prefers-color-scheme: dark" in text
    assert 'name="viewport"' in text
    assert "$" not in "".join(page.text)  # every placeholder was filled
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))


def test_the_page_says_what_the_runs_say(runs: list[Path], tmp_path: Path) -> None:
    _, page = page_of(runs, tmp_path)
    text = " ".join("".join(page.text).split())
    assert "digits over one cell" in text
    for label in ("signsgd", "sbfl", "ideal"):
        assert label in text
    groups = group_runs([load_run(path) for path in runs])
    assert finding(groups) in text
    assert theory_finding(groups) in text
    assert "rotation shared" in text  # what differs is shown
    assert "two-chunks" in text  # and what does not
    commands = re.findall(r"signfade run (\S+)/config.toml --out (again/\S+)", text)
    assert [Path(path) for path, _ in commands] == [run.path for group in groups for run in group.runs]
    assert len({out for _, out in commands}) == len(commands)  # or the second would refuse the first's folder
    assert "Made with signfade" in text


def test_equal_runs_give_equal_bytes_however_long_they_took(runs: list[Path], tmp_path: Path) -> None:
    first, _ = page_of(runs, tmp_path)
    folder = RunFolder(runs[0])
    records, summary = folder.read_metrics(), folder.read_summary() or {}
    folder.truncate_metrics_after(0)
    for record in records:
        folder.append_metrics(record | {"seconds": 9.87})
    folder.write_summary(summary | {"seconds": 1234.5})
    second, _ = page_of(runs, tmp_path)
    assert first == second


def test_folders_of_runs_are_expanded(runs: list[Path], tmp_path: Path) -> None:
    _, page = page_of([runs[0].parent], tmp_path, title="all <of> them")
    assert "all <of> them" in page.text
    assert "signsgd" in "".join(page.text)


def test_what_users_write_cannot_become_markup(tmp_path: Path, make_run: Any) -> None:
    evil = "<script>alert(1)</script>&amp;'"
    path = make_run(
        tmp_path / "runs", "sbfl", 1, **{'label = "sbfl"': f'label = "{evil}"', "digits over": evil}
    )
    other = make_run(tmp_path / "runs", "signsgd", 1, **{'fading = "gaussian"': f'fading = "{evil}"'})
    text, page = page_of([path, other], tmp_path, title=evil)
    assert "<script" not in text
    assert evil in page.text
    assert "script" not in page.tags


def test_unfinished_runs_are_shown_with_what_they_have(tmp_path: Path, make_run: Any) -> None:
    root = tmp_path / "runs"
    paths = [
        make_run(root, "sbfl", 1),
        make_run(root, "sbfl", 2, done=60),
        make_run(root, "signsgd", 1, done=0),
    ]
    _, page = page_of(paths, tmp_path)
    text = "".join(page.text)
    assert "sbfl (unfinished)" in text
    assert "60/200" in text
    assert "0/200" in text
    assert "2 runs are unfinished." in text
    _, page = page_of(paths[2:], tmp_path)  # not a single round yet
    assert "No run is finished yet" in "".join(page.text)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("config.toml", "= what", r"its config\.toml is not TOML"),
        ("metrics.jsonl", "{}\n{}\n{}\n", r"line 1 of metrics\.jsonl is not round 1"),
        ("summary.json", "{", r"its summary\.json is not a JSON object"),
    ],
)
def test_a_damaged_folder_is_named_in_one_sentence(
    runs: list[Path], tmp_path: Path, name: str, content: str, sentence: str
) -> None:
    (runs[2] / name).write_text(content)
    with pytest.raises(FolderError, match=sentence) as caught:
        write_report(runs, tmp_path / "report.html")
    assert str(runs[2]) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "report.html").exists()


def test_an_output_that_cannot_be_written(runs: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FolderError, match="cannot write the report"):
        write_report(runs, tmp_path / "file" / "report.html")
    with pytest.raises(FolderError, match="cannot write the report"):
        write_report(runs, runs[0].parent)


def test_the_package_has_what_it_says_and_nothing_else() -> None:
    assert all(getattr(experiments, name) is not None for name in experiments.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = experiments.nothing


# -- the sentences -------------------------------------------------------------------------------------------


def group(label: str, *seeds: dict[str, Any], aggregator: str = "sbfl", finished: bool = True) -> Group:
    config = {"rounds": 100, "data": {"devices": 10}, "method": {"aggregator": aggregator}}
    runs = []
    for number, values in enumerate(seeds):
        keys = ("nmse", "nmse_theory", "cosine")
        metrics = [{"round": t} | {key: values.get(key) for key in keys} for t in range(1, 101)]
        summary = {key: value for key, value in values.items() if key not in keys}
        runs.append(Run(Path(label), "", config | {"seed": number}, metrics, summary if finished else None))
    return Group(label, tuple(runs))


def accuracy(label: str, *values: float, **options: Any) -> Group:
    return group(label, *({"last_accuracy": value} for value in values), **options)


def test_a_compressor_is_no_bound_and_has_a_line_of_its_own() -> None:
    names = ("ideal", "drive", "topk")
    groups = [accuracy(name, 0.9, aggregator="ideal") for name in names]
    for rival, name in zip(groups[1:], names[1:]):
        rival.runs[0].config["method"]["compressor"] = name
    assert [one.ideal for one in groups] == [True, False, False]
    assert len({repr(style) for style in group_styles(groups)}) == 3


def test_finding_names_the_best_and_by_how_much() -> None:
    groups = [accuracy("vote", 0.8), accuracy("sbfl", 0.93), accuracy("ideal", 0.95, aggregator="ideal")]
    assert finding(groups) == (
        "sbfl ends at 93.0 % test accuracy after 100 rounds, 13.0 points above vote; "
        "it is 2.0 points below ideal, the bound without a radio."
    )
    groups = [accuracy("a", 0.8), accuracy("b", 0.93), accuracy("c", 0.9)]
    assert finding(groups) == (
        "b ends at 93.0 % test accuracy after 100 rounds, 3.0 points above c, the next, "
        "and 13.0 points above a, the last."
    )


def test_finding_is_careful_with_one_seed() -> None:
    close = [accuracy("a", 0.92), accuracy("b", 0.925), accuracy("ideal", 0.91, aggregator="ideal")]
    assert finding(close).endswith(
        "level with a; it is 1.5 points above ideal, the run without a radio. "
        "With one seed, a point or two may be chance."
    )


def said(sentence: str, label: str) -> str:
    """What a finding says of a method: level, or the points and the side."""
    if f"level with {label}" in sentence:
        return "level"
    found = re.search(rf"([\d.]+) (?:± [\d.]+ )?points (above|below) {label}", sentence)
    assert found is not None, sentence
    return f"{found[1]} {found[2]}"


def test_one_rule_for_the_next_the_last_and_the_ideal() -> None:
    for tenths in range(1, 41):
        gap = tenths / 1000
        far = accuracy("far", 0.5)
        expected = "level" if tenths <= 10 else f"{tenths / 10:.1f}"
        nearest = finding([accuracy("best", 0.9), accuracy("x", 0.9 - gap), far])
        assert said(nearest, "x").split()[0] == expected
        farthest = finding([accuracy("best", 0.9), accuracy("next", 0.9), accuracy("x", 0.9 - gap)])
        assert said(farthest, "x").split()[0] == expected
        for side, sign in (("below", 1), ("above", -1)):
            ideal = accuracy("x", 0.9 + sign * gap, aggregator="ideal")
            verdict = said(finding([accuracy("best", 0.9), far, ideal]), "x")
            assert verdict == (expected if expected == "level" else f"{expected} {side}")


def test_several_seeds_show_the_interval_that_decides() -> None:
    noisy = [accuracy("a", 0.90, 0.92, 0.91), accuracy("b", 0.92, 0.90, 0.937)]
    assert ", level with a (0.9 ± 6.3 points above) (means over 3 seeds)." in finding(noisy)
    steady = [accuracy("a", 0.90, 0.92, 0.91), accuracy("b", 0.905, 0.926, 0.914)]
    assert ", 0.5 ± 0.2 points above a (means over 3 seeds)." in finding(steady)


def test_losses_within_a_twentieth_are_level() -> None:
    def losses(ours: float) -> str:
        return finding([group("a", {"last_test_loss": 1.0}), group("b", {"last_test_loss": ours})])

    assert "level with a" in losses(0.96)
    assert "6 % below a" in losses(0.94)


def test_a_run_that_fell_says_so_in_the_finding_and_below_the_table(tmp_path: Path, make_run: Any) -> None:
    steady, fallen = make_run(tmp_path, "steady", 0), make_run(tmp_path, "fallen", 0)
    metrics = [json.loads(line) for line in (fallen / "metrics.jsonl").read_text().splitlines()]
    for record in metrics:
        del record["crc32"]  # lines without a checksum are read as they are
    for record in metrics[150:]:
        record["test_accuracy"] = record["test_accuracy"] and record["test_accuracy"] - 0.4
    (fallen / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in metrics))
    summary = json.loads((fallen / "summary.json").read_text())
    del summary["late_accuracy"], summary["crc32"]  # as an older version would have left it
    (fallen / "summary.json").write_text(json.dumps(summary))
    text, _ = page_of([steady, fallen], tmp_path)
    assert "Far below its own best in the end: fallen." in text
    assert re.search(r"fallen, seed 0: accuracy fell: 5\d\.\d % on average over the last evaluations", text)
    assert "steady, seed 0: accuracy fell" not in text


def test_finding_does_not_call_noise_a_lead() -> None:
    close = [accuracy("a", 0.90, 0.94), accuracy("b", 0.91, 0.95)]
    assert ", level with a (means over 2 seeds)." in finding(close)
    apart = [accuracy("a", 0.80, 0.81), accuracy("b", 0.91, 0.92)]
    assert ", 11.0 points above a (means over 2 seeds)." in finding(apart)


def test_finding_for_one_method_says_how_fast() -> None:
    one = group(
        "sbfl", {"last_accuracy": 0.95, "rounds_to_accuracy_09": 60, "uplink_bits_to_accuracy_09": 25_000_000}
    )
    assert finding([one]).endswith("after 100 rounds; it passed 90 % in round 60, after 2.5 Mbit per device.")


def test_finding_for_losses_and_errors() -> None:
    losses = [group("a", {"last_test_loss": 0.2}), group("b", {"last_test_loss": 0.05})]
    assert finding(losses) == "b ends with an excess loss of 0.05 after 100 rounds, 75 % below a."
    errors = [
        group("a", {"nmse": 0.8}),
        group("b", {"nmse": 0.6}),
        group("ideal", {"nmse": 0.0}, aggregator="ideal"),
    ]
    assert finding(errors).startswith("b comes nearest to the true sum, with a normalised error of 0.60")
    assert "25 % below a" in finding(errors)


def test_finding_while_runs_are_on_their_way() -> None:
    groups = [accuracy("a", 0.9), accuracy("b", 0.8, finished=False)]
    assert finding(groups).endswith(" One run is unfinished.")
    assert finding(groups[1:]).startswith("No run is finished yet; the furthest, b, is at round 100 of 100")
    assert finding([]) == "There are no runs."
    assert "neither accuracy nor loss" in finding([group("a", {})])


def test_theory_rows_and_their_sentence() -> None:
    good = group("good", {"nmse": 0.71, "nmse_theory": 0.70})
    poor = group("poor", {"nmse": 0.9, "nmse_theory": 0.6}, {"nmse": 0.9, "nmse_theory": 0.6})
    under = group("under", {"nmse": 0.45, "nmse_theory": 0.5})
    vote = group("vote", {"nmse": 0.9})
    ideal = group("ideal", {"nmse": 0.0, "nmse_theory": 0.0}, aggregator="ideal")
    rows = theory_rows([good, poor, vote, ideal])
    assert [(row.label, round(row.excess, 3)) for row in rows] == [("good", 0.014), ("poor", 0.5)]
    assert theory_finding([good]) == "The error of good is as predicted, within 1 %."
    assert theory_finding([good, poor]) == "Measured errors are 1 to 50 % above the prediction."
    assert theory_finding([poor]) == "The error of poor is 50 % above the prediction."
    assert theory_finding([under]) == "The error of under is 10 % below the prediction."
    assert theory_finding([under, poor]) == (
        "Measured errors are between 10 % below and 50 % above the prediction."
    )
    assert theory_finding([vote, ideal]) == "There is no prediction to compare with."


def test_facts_are_those_that_matter_to_the_run(tmp_path: Path, make_run: Any) -> None:
    def facts(folder: str, **changes: str) -> dict[str, str]:
        text, _ = page_of([make_run(tmp_path / folder, "sbfl", 1, **changes)], tmp_path)
        return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))

    plain = facts("a", **{"batch = 32": "batch = 32\nparticipation = 1.0"})
    assert plain["devices asked in a round"] == "all"
    assert {"split", "model", "batch", "cell radius (km)"} <= plain.keys()
    some = facts(
        "b", **{"batch = 32": "batch = 32\nparticipation = 0.05", 'name = "digits"': 'name = "gaussian"'}
    )
    assert some["devices asked in a round"] == "5 %"
    assert not {"split", "model", "batch"} & some.keys()
    told = facts("c", **{"radius_km = 1.0": "radius_km = 1.0\nsnr_db = 5.0"})
    assert told["mean SNR (dB)"] == "5"
    assert "cell radius (km)" not in told
    perfect = facts("d", **{"radius_km = 1.0": "radius_km = 1.0\nperfect = true"})
    assert perfect["links"] == "perfect"
    assert not {"fading", "cell radius (km)"} & perfect.keys()


def test_only_goals_that_are_drawn_are_explained(tmp_path: Path, make_run: Any) -> None:
    text, _ = page_of([make_run(tmp_path / "long", "sbfl", 1)], tmp_path)
    assert "goal of 90\u00a0% accuracy and training loss 1." in text
    text, _ = page_of([make_run(tmp_path / "short", "sbfl", 1, rounds=12)], tmp_path)
    assert "the goal of" not in text


def test_runs_of_one_name_are_told_apart_once(tmp_path: Path, make_run: Any) -> None:
    paths = [
        make_run(tmp_path / "a", "sbfl", 1),
        make_run(tmp_path / "b", "sbfl", 1, **{'name = "digits"': 'name = "mnist"'}),
    ]
    text, _ = page_of(paths, tmp_path)
    legend = text.split('<ul class="legend">')[1].split("</ul>")[0]
    assert legend.count("sbfl (data mnist)") == 1
    assert legend.count("mnist") == 1


def test_defaults_of_a_method_go_without_saying(runs: list[Path], tmp_path: Path) -> None:
    text, _ = page_of(runs, tmp_path)
    legend = text.split('<ul class="legend">')[1].split("</ul>")[0]
    assert "rotation shared" in legend  # sbfl's, not the default
    assert "rotation none" not in legend


def test_a_run_older_than_a_setting_has_its_default(tmp_path: Path, make_run: Any) -> None:
    old = make_run(tmp_path, "sbfl", 1, **{'fading = "gaussian"\n': ""})
    new = make_run(tmp_path, "sbfl", 2)
    assert (old / "config.toml").read_text() != (new / "config.toml").read_text().replace(
        "seed = 2", "seed = 1"
    )
    (group,) = group_runs([load_run(old), load_run(new)])
    assert group.seeds == 2


def test_what_was_sent_is_told_by_item(tmp_path: Path) -> None:
    """Of ten coordinates: 10 signs, 64 bits of scalars, 10 bytes and 6 bits of packet, 4 pilots."""
    for name in ("sbfl", "signsgd"):
        tree = ["rounds=3", "data.name=gaussian", "data.size=10", "cell.csi=pilot", "cell.pilots=4"]
        train(load(None, [*tree, f"method.aggregator={name}"]), tmp_path / name)
    groups = group_runs([load_run(tmp_path / name) for name in ("sbfl", "signsgd")])
    words = sent_items(groups)
    assert words.headers == ("method", "all", "weights", "scalars", "header", "pilots")
    assert words.rows == (
        ("sbfl", "0.164", "0.010", "0.064", "0.086", "0.004"),
        ("signsgd", "0.100", "0.010", "0.000", "0.086", "0.004"),
    )
    page = render_report(groups)
    assert "What a device sent (kbit per round)" in page
    assert '<td data-name="header">0.086</td>' in page
    rows = comparison(groups)
    cells = dict(zip(rows.headers, rows.rows[0]))
    assert cells["uplink per device (Mbit)"] == "0.00049"  # 3 rounds of 164 bits
    assert cells["weights and scalars alone (Mbit)"] == "0.00022"  # of 74


def test_a_run_of_version_0_1_is_left_out_with_a_word(tmp_path: Path) -> None:
    train(load(None, ["rounds=2", "data.name=gaussian", "data.size=50"]), tmp_path / "new")
    old = tmp_path / "old"
    old.mkdir()
    (old / "config.toml").write_text("rounds = 2\n[server]\nstep = 0.1\n")
    with pytest.warns(UserWarning, match=rf"left out: {old} was written by signfade 0\.1"):
        page = write_report([tmp_path], tmp_path / "report.html")
    assert "<h1>" in page.read_text()
    with (
        pytest.warns(UserWarning, match="left out"),
        pytest.raises(FolderError, match=r"written by signfade 0\.1"),
    ):
        write_report([old], tmp_path / "none.html")


def test_an_error_above_1_of_a_debiased_estimate_is_explained(tmp_path: Path, make_run: Any) -> None:
    biased = make_run(tmp_path, "sbfl")
    debiased = make_run(tmp_path, "mine", **{"[method]\n": "[method]\ndebias = true\n"})
    assert "noise around the right sum" not in page_of([biased], tmp_path)[0]
    assert "noise around the right sum, also with an error above 1" in page_of([debiased], tmp_path)[0]


def test_without_errors_there_is_no_section_about_theory(tmp_path: Path, make_run: Any) -> None:
    """As in a deployment, where nobody knows the true sum."""
    run = load_run(make_run(tmp_path))
    assert 'id="theory"' in render_report(group_runs([run]))
    unknown = dict.fromkeys(("nmse", "nmse_theory", "cosine"))
    metrics = [record | unknown for record in run.metrics]
    run = replace(run, metrics=metrics, summary=(run.summary or {}) | unknown)
    text = render_report(group_runs([run]))
    assert 'id="theory"' not in text
    assert text.count("<section") == text.count("</section>") == 4
