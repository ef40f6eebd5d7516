"""`signfade deploy`: the same run on real processes that talk over Flower."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from signfade.cli.options import (
    AsJson,
    ConfigFile,
    Force,
    Name,
    Out,
    Overrides,
    Resume,
    print_summary,
    read_settings,
    tune_process,
)

__all__ = ["deploy"]


def deploy(
    config: ConfigFile = None,
    devices: Annotated[int | None, Option(metavar="N", help="SuperNodes; the setting data.devices.")] = None,
    tls: Annotated[bool, Option("--tls", help="Encrypt connections, by certificates made now.")] = False,
    auth: Annotated[
        bool, Option("--auth", help="Let in only SuperNodes whose keys, made now, are known; turns TLS on.")
    ] = False,
    timeout: Annotated[float, Option(metavar="S", help="Seconds a round waits at most.")] = 120.0,
    quorum: Annotated[float, Option(metavar="Q", help="Share of replies that completes a round.")] = 1.0,
    deadline: Annotated[
        float | None,
        Option(
            metavar="S",
            help="Seconds a round that has its quorum waits for the rest; half as long again by default.",
        ),
    ] = None,
    overrides: Overrides = None,
    name: Name = None,
    out: Out = None,
    resume: Resume = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Train on real processes over Flower.

    Starts a SuperLink and N SuperNodes on this machine, submits the run, follows it, and stops all of them.
    With a cell in the settings bits also pass through its simulated radio; with "--set cell.perfect=true"
    they pass through Flower's network only. A round takes many seconds, so there are 10 unless the settings
    say how many. Scales are bounded unless "--set defence.bound_scales=false". All processes listen on
    127.0.0.1 only, but whoever reaches the SuperLink's port there, with TLS by the certificate that is
    made, can run programs in your name: do not use this on a machine that others log in to. Everything
    about the run is kept in the folder OUT/NAME-deploy.
    """
    changes = [*(overrides or []), *([] if devices is None else [f"data.devices={devices}"])]
    settings = read_settings(config, changes, out, name)
    from signfade import api

    tune_process()
    options: dict[str, Any] = {"tls": tls, "auth": auth, "timeout": timeout, "quorum": quorum}
    options |= {"deadline": deadline, "resume": resume, "force": force}
    print_summary(api.deploy(settings, out=settings.out, **options), as_json)
