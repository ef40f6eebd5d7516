"""Bytes that one device really sends per round: one-bit packets beside Flower's own FedAvg, on the socket.

A SuperLink and two SuperNodes run on this machine, and between them a proxy that counts. The model is the
paper's (62,346 weights), the data is noise: only sizes matter. Without TLS the proxy
reads the requests and says which bytes were for what; with TLS it counts all that passes.
"""

from __future__ import annotations

import argparse
import json
import re
import socket
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from signfade.integrations.flower.loopback import Loopback

SHARED = """
import torch
from signfade.simulation.models import paper_cnn

def net():
    torch.manual_seed(0)
    return paper_cnn((1, 28, 28), 10)

def batch(seed):
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(4, 1, 28, 28, generator=draw), torch.randint(0, 10, (4,), generator=draw)

loss = torch.nn.functional.cross_entropy
"""
CLIENT = """
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from signfade.integrations.flower import reply_with_bits
from byte_app.shared import batch, loss, net

app = ClientApp()

@app.train()
def train(message, context):
    torch.set_num_threads(1)
    model, data = net(), batch(context.node_config["partition-id"])
    if context.run_config["strategy"] == "one-bit":
        return reply_with_bits(message, context, model, loss, [data])
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loss(model(data[0]), data[1]).backward()
    torch.optim.SGD(model.parameters(), lr=0.01).step()
    metrics = MetricRecord({"num-examples": 4})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)
"""
SERVER = """
import json
from pathlib import Path
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from signfade.integrations.flower import OneBitStrategy, settings_from
from byte_app.shared import net

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    if config["strategy"] == "one-bit":
        strategy = OneBitStrategy(settings_from(config), net())
        strategy.start(grid, timeout=600)
        counted = {"uplink": strategy.validator.totals.uplink_bytes, "downlink": strategy.downlink_bytes}
    else:
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=2)
        rounds = int(config["signfade.rounds"])
        strategy.start(grid, ArrayRecord(net().state_dict()), num_rounds=rounds, timeout=600)
        counted = {}
    Path(config["result"]).write_text(json.dumps(counted))
"""


BODIES = "bodies of push-object"


class Proxy:
    """Passes bytes on between SuperNodes and the SuperLink, and counts those that go up."""

    def __init__(self, target: tuple[str, int], plain: bool) -> None:
        self.sent: Counter[str] = Counter()
        self.bodies: Counter[str] = Counter()
        self._target, self._plain = target, plain
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            try:
                far = socket.create_connection(self._target)
            except OSError:  # the SuperLink is stopped first
                near.close()
                continue
            for pair, count in (((near, far), True), ((far, near), False)):
                threading.Thread(target=self._pass, args=(*pair, count), daemon=True).start()

    def _pass(self, source: socket.socket, sink: socket.socket, count: bool) -> None:
        waiting = b""
        while data := self._receive(source):
            if count and self._plain:
                waiting = self._read(waiting + data)
            elif count:
                self.sent["all"] += len(data)
            try:
                sink.sendall(data)
            except OSError:
                break
        for end in (source, sink):
            end.close()

    @staticmethod
    def _receive(source: socket.socket) -> bytes:
        try:
            return source.recv(1 << 16)
        except OSError:
            return b""

    def _read(self, data: bytes) -> bytes:
        """Count whole requests by what they are for; return the rest."""
        while (end := data.find(b"\r\n\r\n")) >= 0:
            head = data[:end].decode("latin-1")
            length = re.search(r"(?i)^content-length: *(\d+)", head, re.MULTILINE)
            size = end + 4 + (int(length[1]) if length else 0)
            if len(data) < size:
                break
            path = head.split()[1].rsplit("/", 1)[-1]
            self.sent[path] += size
            self.bodies[path] += size - end - 4
            data = data[size:]
        return data


class Counted(Loopback):
    """A deployment whose SuperNodes reach the SuperLink through a proxy."""

    proxy: Proxy | None = None

    @property
    def node_address(self) -> str:
        """The proxy's."""
        if self.proxy is None:
            host, port = self.address.split(":")
            self.proxy = Proxy((host, int(port)), plain=self.certificate is None)
        return self.proxy.address


def write_app(folder: Path, strategy: str, rounds: int) -> Path:
    code = folder / "byte_app"
    code.mkdir(parents=True)
    for name, text in (("__init__", ""), ("shared", SHARED), ("client_app", CLIENT), ("server_app", SERVER)):
        (code / f"{name}.py").write_text(text)
    (folder / "pyproject.toml").write_text(
        f"""[project]
name = "byte-app"
version = "1.0.0"
description = "Counts bytes"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "signfade"

[tool.flwr.app.components]
serverapp = "byte_app.server_app:app"
clientapp = "byte_app.client_app:app"

[tool.flwr.app.config]
strategy = "{strategy}"
result = "{folder / "result.json"}"

[tool.flwr.app.config.signfade]
rounds = {rounds}
data.devices = 2
"""
    )
    return folder


def measure(strategy: str, rounds: int, tls: bool) -> tuple[dict[str, float], dict[str, int]]:
    """Return bytes up per device and round, by request, and what the strategy itself counted."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        app = write_app(folder / "app", strategy, rounds)
        with Counted(folder / "flower", 2, tls=tls) as flower:
            run: subprocess.Popen[bytes] = flower.submit(app)
            while run.poll() is None and not (app / "result.json").exists():
                flower.check()
                time.sleep(0.5)
            if not (app / "result.json").exists():
                raise SystemExit(flower.log("run").read_text())
            assert flower.proxy is not None
            sent = {path: count / rounds / 2 for path, count in flower.proxy.sent.items()}
            sent[BODIES] = flower.proxy.bodies["push-object"] / rounds / 2
        return sent, json.loads((app / "result.json").read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="without TLS only")
    asked = parser.parse_args()
    rounds = asked.rounds
    console = Console(width=110)
    table = Table("bytes up, per device and round", "one-bit", "FedAvg", "ratio")
    plain = {strategy: measure(strategy, rounds, tls=False) for strategy in ("one-bit", "fedavg")}
    one, full = plain["one-bit"][0], plain["fedavg"][0]

    def row(what: str, few: float, many: float) -> None:
        table.add_row(what, f"{few:,.0f}", f"{many:,.0f}", f"{many / few:.1f}")

    payload = [sent.pop(BODIES) for sent in (one, full)]
    for path in sorted(set(one) | set(full)):
        row(path, one.get(path, 0.0), full.get(path, 0.0))
    row("the model in the answer: bodies of push-object", *payload)
    answer = ("push-message", "push-messages", "push-object", "confirm-message-received")
    whole = [sum(sent.get(path, 0.0) for path in answer) for sent in (one, full)]
    row("the answer with HTTP's headers", *whole)
    row("all requests", sum(one.values()), sum(full.values()))
    counted = plain["one-bit"][1]["uplink"] / rounds / 2
    console.print(f"the strategy's own count of a reply: {counted:,.0f} bytes")
    if not asked.plain:
        secret = [measure(strategy, rounds, tls=True)[0]["all"] for strategy in ("one-bit", "fedavg")]
        row("the socket, with TLS", *secret)
    console.print(table)


if __name__ == "__main__":
    main()
