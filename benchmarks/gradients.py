"""Gradients of K devices at common weights: which way is fastest on this machine?

`signfade` is what the library does; `signfade+sbfl` and `signfade+best` are its whole rounds (metrics on, no
evaluation), and `plain+numpy` is the plain loop with the uplink one writes first in NumPy.

Every candidate is a process of its own (allocator and thread settings are per process) that computes one
round per turn. Ratios are to `plain`, the loop one writes first, with torch's default settings.

    python benchmarks/gradients.py --rounds 15 --json gradients.json
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from harness import Candidate, Turns, arguments, show, take_turns, write
from peers_job import cnn
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
Round = Callable[[], Tensor]


def pool_first() -> nn.Sequential:
    """The same function: both are monotone, so they commute, and ReLU has a quarter of the work."""
    layers = list(cnn())
    layers[1:3] = layers[2:0:-1]
    layers[4:6] = layers[5:3:-1]
    return nn.Sequential(*layers)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, CLASSES))


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


def of_signfade(words: list[str], model: nn.Module, flat: Tensor, x: Tensor, y: Tensor) -> Round:
    """The library's own gradients, or a whole round with the named method."""
    tune_allocator()
    nn.utils.vector_to_parameters(flat, model.parameters())
    devices, batch = x.shape[:2]
    data = Dataset(x.flatten(0, 1), y.flatten(), x[0], y[0], classes=CLASSES, name="random")
    who = Split(np.arange(devices * batch), batch * np.arange(devices + 1))
    task = ClassificationTask(data, who, model, batch, seed=0, workers=2)
    if not words:
        return lambda: task.local_updates(flat, np.arange(devices), 0).gradients
    settings = {
        "rounds": 10**6,
        "data": {"devices": devices},
        "method": {"preset": "best"} if words[0] == "best" else {"aggregator": words[0]},
        "eval": {"every": 10**6},
        "server": {"learning_rate": 1e-6},
    }
    run = Experiment(RunSettings.model_validate(settings), task)

    def one_round() -> Tensor:
        run.advance()
        return run.weights

    return one_round


def regression_round(candidate: str, devices: int, samples: int = 100, size: int = 300) -> Round:
    """The paper's regression: autograd device by device, the formula device by device, or the library."""
    data = RegressionData(devices, samples, size, heterogeneous=False, seed=0)
    x, z = data.chunk(np.arange(devices))
    w = torch.randn(size, generator=torch.Generator().manual_seed(0))
    task = RegressionTask(data, None, seed=0)

    def plain() -> Tensor:
        rows = []
        for k in range(devices):
            v = w.clone().requires_grad_()
            rows.append(torch.autograd.grad((x[k] @ v - z[k]).square().sum(), v)[0])
        return torch.stack(rows)

    def formula() -> Tensor:
        return torch.stack([2 * (x[k] @ w - z[k]) @ x[k] for k in range(devices)])

    def batched() -> Tensor:
        with one_thread():
            return task.local_updates(w, np.arange(devices), 0).gradients

    return {"plain": plain, "formula": formula, "signfade": batched}[candidate]


def make_round(candidate: str, kind: str, devices: int, batch: int) -> Round:
    """Return a function that computes all devices' gradients `[K, M]` once."""
    way, *words = candidate.split("+")
    build = pool_first if "pool" in words else {"cnn": cnn, "mlp": mlp}[kind]
    if "mallopt" in words:
        tune_allocator()
    layout = torch.channels_last if "last" in words else torch.contiguous_format
    model = build()
    flat = nn.utils.parameters_to_vector(model.parameters()).detach()
    x = torch.rand(devices, batch, 1, 28, 28)
    y = torch.randint(CLASSES, (devices, batch))
    out = torch.empty(devices, flat.numel())
    values = {n: p.detach() for n, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, values, (x,)), y)

    if way == "vmap":
        values = {n: v.contiguous(memory_format=layout) if v.dim() == 4 else v for n, v in values.items()}
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))
        return lambda: torch.cat([g.reshape(devices, -1) for g in gradients(values, x, y).values()], dim=1)
    if way == "compiled":
        gradient = torch.compile(grad(loss))

        def compiled() -> Tensor:
            for k in range(devices):
                torch.cat([g.flatten() for g in gradient(values, x[k], y[k]).values()], out=out[k])
            return out

        return compiled
    if way == "plain":
        parameters = list(model.parameters())

        def plain() -> Tensor:
            rows = []
            for k in range(devices):
                model.zero_grad()
                functional.cross_entropy(model(x[k]), y[k]).backward()
                rows.append(torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]))
            return torch.stack(rows)

        return (lambda: numpy_uplink(plain())) if "numpy" in words else plain
    if way == "signfade":
        return of_signfade(words, model if kind == "mlp" else paper_cnn((1, 28, 28), CLASSES), flat, x, y)
    own = threading.local()

    def prepare() -> None:
        own.model = build()
        own.parameters = replica(own.model, flat, layout)

    def device(k: int) -> None:
        images = x[k].contiguous(memory_format=layout)
        device_gradient(own.model, own.parameters, images, y[k], out[k])

    def loop() -> Tensor:
        for k in range(devices):
            device(k)
        return out

    def prepare_thread() -> None:
        torch.set_num_threads(1)
        prepare()

    if way == "loop":
        prepare()
        return loop
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(2, initializer=prepare_thread)

    def threaded() -> Tensor:
        list(pool.map(device, range(devices)))
        return out

    return threaded


CANDIDATES = {
    "cnn": [
        "plain", "plain+numpy", "plain+mallopt", "vmap", "vmap+last+mallopt", "compiled+mallopt",
        "loop+last+mallopt", "threads+last+mallopt", "threads+last+pool+mallopt", "signfade",
        "signfade+sbfl", "signfade+best",
    ],
    "mlp": ["plain", "plain+numpy", "vmap+mallopt", "threads+mallopt", "signfade", "signfade+sbfl"],
    "regression": ["plain", "formula", "signfade"],
}  # fmt: skip


def serve(candidate: str, kind: str, devices: int, batch: int) -> None:
    """Be a candidate."""
    regression = kind == "regression"
    work = regression_round(candidate, devices) if regression else make_round(candidate, kind, devices, batch)
    for _ in range(3):
        result = work()
    turns = Turns()
    turns.ready(float(result.double().abs().sum()))
    turns.serve(work)


def main() -> None:
    parser = arguments(__doc__, rounds=15)
    parser.add_argument("--model", default="cnn", choices=sorted(CANDIDATES))
    parser.add_argument("--candidates", nargs="*")
    parser.add_argument("--devices", type=int, default=20)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.model, args.devices, args.batch)
        return
    command = [sys.executable, __file__, "--model", args.model, "--devices", str(args.devices)]
    command += ["--batch", str(args.batch), "--serve"]
    names = args.candidates or CANDIDATES[args.model]
    running, checks = {}, {}
    for name in names:
        running[name] = Candidate([*command, name])
        checks[name] = f"checksum {running[name].numbers()[0]:.6f}"
    rows = take_turns(running, args.rounds, names[0])
    title = f"{args.model}, K={args.devices}, batch {args.batch}; ratio to {names[0]}: higher is faster"
    show(title, rows, checks)
    write(args.json, {"model": args.model, "devices": args.devices, "batch": args.batch, "rows": rows})


if __name__ == "__main__":
    main()
