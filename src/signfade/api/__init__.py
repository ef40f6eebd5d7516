"""The front door: what every command does, as one call from Python.

    import signfade as sf

    run = sf.run(data="digits", method="best", rounds=100, seed=0)
    run.summary["last_accuracy"], run.metrics, run.model
    run.report("report.html")

Calls take the settings of `signfade config` as keywords, plain dicts or a TOML file. Without `folder` or
`out` nothing is kept on disk after the result is gone.
"""

from __future__ import annotations

from signfade.api.calls import (
    compare,
    config,
    demo,
    deploy,
    export,
    link,
    load,
    predict_errors,
    report,
    reproduce,
    run,
    sweep,
    tune,
)
from signfade.api.results import RunResult, RunsResult, TuneResult

__all__ = [
    "RunResult",
    "RunsResult",
    "TuneResult",
    "compare",
    "config",
    "demo",
    "deploy",
    "export",
    "link",
    "load",
    "predict_errors",
    "report",
    "reproduce",
    "run",
    "sweep",
    "tune",
]
