"""An accelerator for tests: the CPU behind another name. What mixes the two is refused, as on hardware.

    python tests/simulation/fake_accelerator.py '{"method.preset": "best"}' ...

For each method, two rounds on it and two on the CPU; prints how far apart the weights end, over the way they
went. A program of its own, because torch registers such a device once and for all in a process. Convolutions
are not there: torch asks a device for its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils import _pytree as tree
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("fake")
FAKE = torch.device("fake")
_raw: dict[int, tuple[Any, Tensor]] = {}  # by storage: the storage, which is empty, and the numbers


def _behind(x: Any) -> Any:
    """Return the CPU's tensor or device behind one of ours."""
    if isinstance(x, Tensor) and x.device.type == "fake":
        return _raw[x.untyped_storage()._cdata][1]
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == "fake" else x


def _wrapped(raw: Tensor) -> Tensor:
    out = torch._C._acc.create_empty_tensor(raw.shape, raw.dtype)
    _raw[out.untyped_storage()._cdata] = (out.untyped_storage(), raw)
    return out


def _apply(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Do any operation of torch on the CPU's tensors behind ours."""
    name = op._schema.name
    given = [x for x in tree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    mixed = {x.device.type for x in given if x.ndim > 0}
    if len(mixed) > 1 and name not in ("aten::copy_", "aten::_copy_from", "aten::_copy_from_and_resize"):
        raise RuntimeError(f"{name} got tensors on {mixed}")
    ours = {id(_behind(x)): x for x in given if x.device.type == "fake"}
    a, k = tree.tree_map(_behind, (args, kwargs))
    if name.startswith("aten::_copy_from"):
        a[1].copy_(a[0])
        return args[1]
    if name == "aten::view":
        out = a[0].reshape(a[1])
    elif name == "aten::as_strided":  # ours are all contiguous, whatever is behind them
        offset = (a[3] if len(a) > 3 else 0) or 0
        raw = a[0].contiguous()
        out = raw.as_strided(a[1], a[2], raw.storage_offset() + offset)
    else:
        out = op(*a, **k)
    return tree.tree_map(lambda x: ours.get(id(x), _wrapped(x)) if isinstance(x, Tensor) else x, out)


_library = torch.library.Library("_", "IMPL")
_library.fallback(_apply, "PrivateUse1")
_abs = torch.library.Library("aten", "IMPL")  # which would resize one of ours
_abs.impl("abs", lambda x: _wrapped(_behind(x).abs()), "PrivateUse1")


def _distance(changes: dict[str, Any]) -> float:
    """Return how far from the CPU's the weights end, over the way they went."""
    from signfade.experiments.config import resolve
    from signfade.simulation import Experiment, run

    base = {"rounds": 2, "data.name": "digits", "data.devices": 4, "data.batch": 8, "model.name": "mlp"}
    settings = resolve(base | {"eval.every": 1} | changes)
    on_cpu = Experiment(settings)
    with mock.patch.object(run, "_place", return_value=FAKE):
        there = Experiment(settings)
    start = on_cpu.weights.clone()
    for _ in range(2):
        ours, theirs = on_cpu.advance(), there.advance()
        assert abs(ours["test_loss"] - theirs["test_loss"]) < 1e-5
    return float((there.weights - on_cpu.weights).norm() / (on_cpu.weights - start).norm())


def main() -> None:
    for changes in sys.argv[1:]:
        print(_distance(json.loads(changes)))


if __name__ == "__main__":
    main()
