"""Gradients of K devices at common weights: which way is fastest on this machine?

`signfade` is what the library does; `signfade+sbfl` and `signfade+best` are its whole rounds (metrics on, no
evaluation), and `plain+numpy` is the plain loop with the uplink one writes first in NumPy.

Every candidate lives in a process of its own (allocator and thread settings are per process) and computes one
round per request; rounds of all candidates are interleaved, so that a busy machine slows all alike.
Ratios are to `plain`, the loop one writes first, with torch's default settings.

    python benchmarks/gradients.py --rounds 15 --json gradients.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from signfade.data import Dataset, RegressionData, Split
from signfade.settings import RunSettings
from signfade.simulation import Experiment
from signfade.simulation.allocator import tune_allocator
from signfade.simulation.classify import ClassificationTask
from signfade.simulation.models import paper_cnn
from signfade.simulation.synthetic import RegressionTask
from signfade.simulation.task import one_thread

CLASSES = 10


def cnn() -> nn.Sequential:
    """The paper's network: 62,346 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1024, CLASSES),
    )


def pool_first() -> nn.Sequential:
    """The same function: both are monotone, so they commute, and ReLU has a quarter of the work."""
    layers = list(cnn())
    layers[1:3] = layers[2:0:-1]
    layers[4:6] = layers[5:3:-1]
    return nn.Sequential(*layers)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, CLASSES))


MODELS: dict[str, Callable[[], nn.Sequential]] = {"cnn": cnn, "mlp": mlp}


def replica(model: nn.Module, flat: Tensor, layout: torch.memory_format) -> list[Tensor]:
    """Make the model's parameters views of `flat` where the layout allows it, else copies in that layout."""
    parameters, offset = [], 0
    for module in model.modules():
        for name, old in list(module.named_parameters(recurse=False)):
            view = flat[offset : offset + old.numel()].view(old.shape)
            if old.dim() == 4 and layout == torch.channels_last:
                # clone, not contiguous: with one channel both layouts fit and the convolution guesses wrong
                view = view.clone(memory_format=layout)
            new = nn.Parameter(view)
            setattr(module, name, new)
            parameters.append(new)
            offset += old.numel()
    return parameters


def device_gradient(model: nn.Module, parameters: list[Tensor], x: Tensor, y: Tensor, out: Tensor) -> None:
    loss = functional.cross_entropy(model(x), y)
    offset = 0
    for g in torch.autograd.grad(loss, parameters):
        out[offset : offset + g.numel()].view(g.shape).copy_(g)
        offset += g.numel()


def numpy_uplink(g: Tensor) -> Tensor:
    """What one writes first: every device's signal over a fading, noisy link, then the posterior means."""
    rng = np.random.default_rng(0)
    gradient = g.numpy()
    mean = gradient.mean(axis=1, keepdims=True)
    scale = np.sqrt(2 / np.pi) * gradient.std(axis=1, keepdims=True)
    s = np.where(gradient >= mean, 1.0, -1.0)
    h, sigma2 = rng.standard_normal((len(g), 1)), 0.1
    received = h * s + np.sqrt(sigma2) * rng.standard_normal(s.shape)
    return torch.from_numpy((mean + scale * np.tanh(h * received / sigma2)).sum(axis=0))


def large_batch(model: nn.Sequential, x: Tensor, y: Tensor, out: Tensor) -> Callable[[], Tensor]:
    """All samples at once; then the weights' gradients device by device, layer by layer."""
    devices, batch = x.shape[:2]
    layers = [layer for layer in model if list(layer.parameters())]

    def run() -> Tensor:
        seen: list[tuple[Tensor, Tensor]] = []
        value = x.flatten(0, 1)
        for layer in model:
            entered, value = value, layer(value)
            if layer in layers:
                seen.append((entered, value))
        loss = functional.cross_entropy(value, y.flatten(), reduction="sum") / batch
        sent = torch.autograd.grad(loss, [after for _, after in seen])
        offset = 0
        for layer, (entered, _), g in zip(layers, seen, sent, strict=True):
            for k in range(devices):
                rows = slice(k * batch, (k + 1) * batch)
                parts = weight_gradients(layer, entered[rows].detach(), g[rows])
                torch.cat([part.flatten() for part in parts], out=out[k, offset : offset + parts_of(layer)])
            offset += parts_of(layer)
        return out

    return run


def parts_of(layer: nn.Module) -> int:
    return sum(p.numel() for p in layer.parameters())


def weight_gradients(layer: nn.Module, entered: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    if isinstance(layer, nn.Linear):
        return g.T @ entered.flatten(1), g.sum(0)
    plain = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, True])
    bias = [layer.out_channels]
    return torch.ops.aten.convolution_backward(g, entered, layer.weight.detach(), bias, *plain)[1:]


def of_signfade(
    words: list[str], model: nn.Module, flat: Tensor, x: Tensor, y: Tensor
) -> Callable[[], Tensor]:
    """The library's own gradients, or a whole round with the named method."""
    tune_allocator()
    nn.utils.vector_to_parameters(flat, model.parameters())
    devices, batch = x.shape[:2]
    data = Dataset(x.flatten(0, 1), y.flatten(), x[0], y[0], classes=CLASSES, name="random")
    who = Split(np.arange(devices * batch), batch * np.arange(devices + 1))
    task = ClassificationTask(data, who, model, batch, seed=0, workers=2)
    if not words:
        return lambda: task.local_gradients(flat, np.arange(devices), 0).gradients
    method = {"preset": "best"} if words[0] == "best" else {"aggregator": words[0]}
    settings = {
        "rounds": 10**6,
        "method": method,
        "eval": {"every": 10**6},
        "server": {"learning_rate": 1e-6},
    }
    run = Experiment(RunSettings.model_validate(settings | {"data": {"devices": devices}}), task)

    def round() -> Tensor:
        run.advance()
        return run.weights

    return round


def regression_round(
    candidate: str, devices: int, samples: int = 100, size: int = 300
) -> Callable[[], Tensor]:
    """The paper's regression: autograd device by device, the formula device by device, or the library."""
    data = RegressionData(devices, samples, size, heterogeneous=False, seed=0)
    x, z = data.chunk(np.arange(devices))
    w = torch.randn(size, generator=torch.Generator().manual_seed(0))
    if candidate == "plain":

        def plain() -> Tensor:
            rows = []
            for k in range(devices):
                v = w.clone().requires_grad_()
                rows.append(torch.autograd.grad((x[k] @ v - z[k]).square().sum(), v)[0])
            return torch.stack(rows)

        return plain
    if candidate == "formula":
        return lambda: torch.stack([2 * (x[k] @ w - z[k]) @ x[k] for k in range(devices)])
    task = RegressionTask(data, None, seed=0)

    def batched() -> Tensor:
        with one_thread():
            return task.local_gradients(w, np.arange(devices), 0).gradients

    return batched


def make_round(candidate: str, kind: str, devices: int, batch: int) -> Callable[[], Tensor]:
    """Return a function that computes all devices' gradients `[K, M]` once."""
    words = candidate.split("+")
    build = pool_first if "pool" in words else MODELS[kind]
    if "mallopt" in words:
        tune_allocator()
    layout = torch.channels_last if "last" in words else torch.contiguous_format
    torch.manual_seed(0)
    model = build()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    x = torch.rand(devices, batch, 1, 28, 28)
    y = torch.randint(CLASSES, (devices, batch))
    out = torch.empty(devices, flat.numel())

    if words[0] == "vmap":
        names = [n for n, _ in model.named_parameters()]
        values = {n: p.detach() for n, p in model.named_parameters()}
        values = {n: v.contiguous(memory_format=layout) if v.dim() == 4 else v for n, v in values.items()}

        def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(functional_call(model, values, (x,)), y)

        gradients = vmap(grad(loss), in_dims=(None, 0, 0))

        def by_vmap() -> Tensor:
            result = gradients(values, x, y)
            return torch.cat([result[n].reshape(devices, -1) for n in names], dim=1)

        return by_vmap

    if words[0] == "plain":
        parameters = list(model.parameters())

        def plain() -> Tensor:
            rows = []
            for k in range(devices):
                model.zero_grad()
                functional.cross_entropy(model(x[k]), y[k]).backward()
                rows.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
            return torch.stack(rows)

        return (lambda: numpy_uplink(plain())) if "numpy" in words else plain

    if words[0] == "compiled":

        def one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return functional.cross_entropy(functional_call(model, values, (x,)), y)

        gradient = torch.compile(grad(one))
        values = {n: p.detach() for n, p in model.named_parameters()}

        def compiled() -> Tensor:
            for k in range(devices):
                torch.cat([g.flatten() for g in gradient(values, x[k], y[k]).values()], out=out[k])
            return out

        return compiled

    if words[0] == "batch":
        return large_batch(model, x, y, out)

    if words[0] == "signfade":
        return of_signfade(words[1:], model if kind == "mlp" else paper_cnn((1, 28, 28), CLASSES), flat, x, y)

    if words[0] == "loop":
        parameters = replica(model, flat, layout)

        def loop() -> Tensor:
            for k in range(devices):
                device_gradient(model, parameters, x[k].contiguous(memory_format=layout), y[k], out[k])
            return out

        return loop

    if words[0] == "threads":
        torch.set_num_threads(1)
        own = threading.local()

        def prepare() -> None:
            torch.set_num_threads(1)
            own.model = build()
            own.parameters = replica(own.model, flat, layout)

        def device(k: int) -> None:
            images = x[k].contiguous(memory_format=layout)
            device_gradient(own.model, own.parameters, images, y[k], out[k])

        pool = ThreadPoolExecutor(2, initializer=prepare)

        def threaded() -> Tensor:
            list(pool.map(device, range(devices)))
            return out

        return threaded

    raise SystemExit(f"unknown candidate {candidate}")


def serve(candidate: str, kind: str, devices: int, batch: int) -> None:
    """Compute one round for every line on standard input, and answer with its seconds."""
    regression = kind == "regression"
    work = regression_round(candidate, devices) if regression else make_round(candidate, kind, devices, batch)
    for _ in range(3):
        result = work()
    print(float(result.double().abs().sum()), flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        work()
        print(time.perf_counter() - start, flush=True)


CANDIDATES = {
    "cnn": [
        "plain", "plain+numpy", "plain+mallopt", "loop+mallopt", "loop+last", "loop+last+mallopt",
        "vmap", "vmap+last+mallopt", "batch+mallopt", "compiled+mallopt", "threads+last+mallopt",
        "threads+last+pool+mallopt", "signfade", "signfade+sbfl", "signfade+best",
    ],
    "mlp": [
        "plain", "plain+numpy", "plain+mallopt", "loop+mallopt", "vmap+mallopt", "batch+mallopt",
        "compiled+mallopt", "threads+mallopt", "signfade", "signfade+sbfl",
    ],
    "regression": ["plain", "formula", "signfade"],
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve")
    parser.add_argument("--model", default="cnn", choices=sorted(CANDIDATES))
    parser.add_argument("--candidates", nargs="*")
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.model, args.devices, args.batch)
        return
    command = [sys.executable, __file__, "--model", args.model, "--devices", str(args.devices)]
    command += ["--batch", str(args.batch), "--serve"]
    names = args.candidates or CANDIDATES[args.model]
    workers, checks, seconds = {}, {}, {name: [] for name in names}
    for name in names:
        workers[name] = subprocess.Popen(
            [*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        checks[name] = float(workers[name].stdout.readline())
    for _ in range(args.rounds):
        for name in names:
            workers[name].stdin.write("go\n")
            workers[name].stdin.flush()
            seconds[name].append(float(workers[name].stdout.readline()))
    for process in workers.values():
        process.stdin.close()
        process.wait()
    base = seconds[names[0]]
    print(f"{args.model}, K={args.devices}, batch {args.batch}; ratio to {names[0]}: higher is faster")
    print(f"{'candidate':22s} {'median ms':>9s} {'min ms':>8s} {'ratio':>6s} {'of minima':>9s}  checksum")
    rows = {}
    for name in names:
        ratio = statistics.median(b / s for b, s in zip(base, seconds[name], strict=True))
        rows[name] = {
            "median_ms": 1e3 * statistics.median(seconds[name]),
            "min_ms": 1e3 * min(seconds[name]),
            "ratio": ratio,
            "ratio_of_minima": min(base) / min(seconds[name]),
        }
        r = rows[name]
        print(
            f"{name:22s} {r['median_ms']:9.1f} {r['min_ms']:8.1f} {ratio:6.2f} {r['ratio_of_minima']:9.2f}"
            f"  {checks[name]:.6f}"
        )
    if args.json:
        with open(args.json, "w") as file:
            json.dump(
                {"model": args.model, "devices": args.devices, "batch": args.batch, "rows": rows},
                file,
                indent=2,
            )


if __name__ == "__main__":
    main()
