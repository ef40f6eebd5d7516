"""The study of many tasks: settings that resolve, and numbers taken from records by hand."""

from __future__ import annotations

from signfade.experiments.studies import many_tasks
from signfade.experiments.studies.records import FULL, QUICK, Record, Records, Results, family_of
from signfade.experiments.studies.study import Table


def test_every_run_resolves_and_has_a_name_of_its_own() -> None:
    for scale in (FULL, QUICK):
        parts = many_tasks.MANY_TASKS.parts
        runs = [want.settings for part in parts for want in part.wants(scale, Records())]
        assert len({(family_of(run), run.seed) for run in runs}) == len(runs) > 20
    splits = [want.settings for want in parts[2].wants(FULL, Records())]
    assert [sum(run.data.split == how for run in splits) for how in ("iid", "two-chunks")] == [20, 20]


def test_the_gap_of_a_method_is_that_of_its_worst_group() -> None:
    records = Records()
    for name, scores in (("one model", (0.2, 0.3)), ("clustered", (0.9, 0.8)), ("groups known", (0.9, 0.81))):
        for run in many_tasks._runs(FULL, "groups", name)[:2]:
            summary = {"device_mean": sum(scores) / 2, "device_min": min(scores), "group_scores": [*scores]}
            summary |= {"groups_recovered": name != "one model"}
            records.add(
                Record(run.name, family_of(run), run.seed, run.rounds, summary, {"round": [run.rounds]})
            )
    (table,) = many_tasks.MANY_TASKS.parts[0].render(Results(FULL, records, {}))
    assert isinstance(table, Table)
    found = {row[0]: row[1:] for row in table.rows}
    # Of two groups at 0 and -1 points, the second; of those at +70 and +50, again the second.
    assert found["clustered"] == ["2", "2 of 2", "85.0 ± 0.0", "80.0 ± 0.0", "-1.0 ± 0.0", "50.0 ± 0.0"]
    assert found["one model"][-2:] == ["-70.0 ± 0.0", ""]
