"""The server knows what it receives: noise for everything that only a simulation knows changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from signfade.experiments.config import ConfigError, resolve
from signfade.server import AGGREGATORS, Context, Received, Server, core
from signfade.simulation import Experiment, RunFailed

from .test_switches import RULES as VARIANTS
from .test_switches import SWITCHES as COMMON
from .veil import Veil, use_symbols

SIZE = 64
TINY = {"rounds": 5, "data.name": "gaussian", "data.size": SIZE, "data.devices": 6, "threads": 1}
OWN = """
from signfade import server

def own(r):
    slope = r.h / (r.h**2 + r.sigma2)
    return (r.weights * r.scale) @ (slope[:, None] * r.y).float()

def reads_bits(r):
    return r.signals.bits.signs().sum(dim=0)

def reads_links(r):
    return server.sign_sum(r.y, r.signals.link.h)

def reads_noise(r):
    return r.y.sum(dim=0) * float(r.signals.keys[0] % 7)
"""
REGISTERED: dict[str, dict[str, Any]] = {name: {"method.aggregator": name} for name in AGGREGATORS.names()}
RULES = {name: keys for name, keys in {**REGISTERED, **VARIANTS}.items() if name != "ideal"} | {
    "soft": {"method.aggregator": "bfl", "method.joint": "soft"},
    "tie": {"method.aggregator": "signsgd", "method.tie": "random"},
    "published": {"method.form": "published"},
    "own": {"method.aggregator": "own"},
}
PILOT = {"cell.csi": "pilot", "cell.snr_db": 3.0}
SWITCHES = COMMON | {
    "pilot": PILOT,
    "naive pilot": PILOT | {"cell.csi_error": "naive"},
    "aware pilot": PILOT | {"cell.csi_error": "aware"},
    "pilot, noise known": PILOT | {"cell.noise": "known"},
    "rayleigh pilot": PILOT | {"cell.fading": "rayleigh"},
    "coded": {"cell.side_info": "coded", "cell.snr_db": 0.0},
    "coded or dropped": {"cell.side_info": "coded", "cell.snr_db": 0.0, "cell.outage": "drop"},
    "pilot, coded": PILOT | {"cell.side_info": "coded"},
    "phase": {"cell.access": "over_the_air", "cell.precoding": "phase"},
    "adam": {"server.optimizer": "adam"},
    "clip": {"server.clip": 0.1},
}


def run(keys: dict[str, Any], veiled: bool) -> tuple[list[dict[str, Tensor]], list[dict[str, Any]]] | None:
    """Everything that a run keeps, and its record, after each of its rounds; None for settings refused."""
    try:
        experiment = Experiment(resolve({**TINY, **keys}))
    except ConfigError:
        return None
    with pytest.MonkeyPatch.context() as patch:
        use_symbols(patch)
        if veiled:
            Veil(patch)
        kept, records = [], []
        while not experiment.done:
            try:
                records.append(experiment.advance())
            except RunFailed:  # Krum of two devices
                return None
            kept.append({name: value.clone() for name, value in experiment.state().items()})
    return kept, records


def changed(keys: dict[str, Any]) -> list[str] | None:
    """The parts of a run's state that noise for the truth has changed; None for settings refused."""
    plain, veiled = run(keys, veiled=False), run(keys, veiled=True)
    if plain is None or veiled is None:
        return None
    (kept, records), (other, others) = plain, veiled
    measured = [(one["nmse"], two["nmse"]) for one, two in zip(records, others) if one["cosine"]]
    assert not measured or any(one != two for one, two in measured)  # the veil is in place
    found = {
        name
        for one, two in zip(kept, other, strict=True)
        for name in one.keys() | two.keys()
        if not name.startswith("saturation.")  # which metrics count
        and one[name].numpy().tobytes() != two[name].numpy().tobytes()
    }
    return sorted(found)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> str:
    file: Path = tmp_path_factory.mktemp("rule") / "rule.py"
    file.write_text(OWN)
    return f"{file}:own"


def settings_of(rule: str, switch: str, own: str) -> dict[str, Any]:
    keys = {**SWITCHES.get(switch, {}), **RULES[rule]}
    return keys | {"method.aggregator": own} if rule == "own" else keys


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("switch", ["none", *SWITCHES])
def test_no_rule_knows_more_than_it_receives(rule: str, switch: str, own: str) -> None:
    assert changed(settings_of(rule, switch, own)) in ([], None)


@pytest.mark.parametrize("rule", ["sbfl", "best", "signsgd"])
@pytest.mark.parametrize("radio", ["pilot", "coded", "pilot, coded"])
def test_nor_with_two_switches(rule: str, radio: str, own: str) -> None:
    for switch in SWITCHES:
        if not SWITCHES[switch].keys() & SWITCHES[radio].keys():
            assert changed({**SWITCHES[switch], **settings_of(rule, radio, own)}) in ([], None)


def test_most_settings_are_not_refused(own: str) -> None:
    refused = [
        (rule, switch)
        for rule in RULES
        for switch in SWITCHES
        if run({**settings_of(rule, switch, own), "rounds": 1}, veiled=False) is None
    ]
    assert len(refused) < 0.2 * len(RULES) * len(SWITCHES)


def test_more_devices_than_have_a_correlation() -> None:
    assert changed({"method.preset": "best", "data.devices": 1001, "rounds": 2}) == []


def test_a_genie_knows_the_truth() -> None:
    """What may change does: noise that reaches a rule is seen."""
    keys = {"method.preset": "best", "method.correlation": "genie"}
    assert "server.model.weights" in (changed(keys) or [])


@pytest.mark.parametrize("cheat", ["reads_bits", "reads_links", "reads_noise"])
def test_a_rule_that_cheats_is_found_out(cheat: str, own: str) -> None:
    keys = {**PILOT, "method.aggregator": own.replace(":own", f":{cheat}")}
    assert "server.model.weights" in (changed(keys) or [])


def test_a_server_that_always_asks_the_genie_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    aggregate = Server.aggregate

    def cheating(server: Server, memory: Any, received: Received, genie: Tensor | None = None) -> Any:
        def context(method: Any, defence: Any, memory: Any, _: Tensor | None) -> Context:
            return Context(method.model_copy(update={"correlation": "genie"}), defence, memory, genie)

        monkeypatch.setattr(core, "Context", context)
        return aggregate(server, memory, received, genie)

    monkeypatch.setattr(Server, "aggregate", cheating)
    assert "server.model.weights" in (changed({"method.preset": "best"}) or [])
