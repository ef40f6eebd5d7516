"""Gradients of many devices: right, and the same bytes wherever they are computed."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from signfade.data import Dataset, Split
from signfade.keys import generator
from signfade.settings import DeviceSettings
from signfade.simulation.classify import ClassificationTask
from signfade.simulation.models import build_model
from signfade.simulation.task import one_thread


def network() -> nn.Module:
    return build_model("small-cnn", (1, 8, 8), 4, seed=3)


def normalised() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))


def flat(parts: tuple[torch.Tensor, ...]) -> torch.Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


@pytest.mark.parametrize("batch", [None, 8, 10_000])
def test_gradients_are_those_of_each_devices_own_loss(
    dataset: Dataset, who: Split, batch: int | None
) -> None:
    model = network()
    task = ClassificationTask(dataset, who, copy.deepcopy(model), batch, seed=5, workers=2)
    devices = np.array([4, 0, 3])
    local = task.local_updates(task.initial_weights(), devices, round=2)
    for row, device in enumerate(devices):
        held = who.of(int(device))
        if batch == 8:
            held = held[generator(5, "batch", 2, int(device)).choice(len(held), size=8, replace=False)]
        rows = torch.from_numpy(held)
        loss = functional.cross_entropy(model(dataset.train_x[rows]), dataset.train_y[rows])
        expected = flat(torch.autograd.grad(loss, list(model.parameters())))
        assert torch.allclose(local.gradients[row], expected, rtol=1e-4, atol=1e-6)
        assert float(local.losses[row]) == pytest.approx(loss.item(), rel=1e-5)


def test_bytes_do_not_depend_on_workers_order_or_company(dataset: Dataset, who: Split) -> None:
    devices = np.arange(6)
    with one_thread():
        tasks = [ClassificationTask(dataset, who, network(), 8, seed=5, workers=n) for n in (1, 3)]
        weights = tasks[0].initial_weights()
        one = tasks[0].local_updates(weights, devices, round=1).gradients
        many = tasks[1].local_updates(weights, devices[::-1].copy(), round=1).gradients
        alone = tasks[1].local_updates(weights, devices[2:3], round=1).gradients
    assert torch.equal(one, many.flip(0))
    assert torch.equal(one[2:3], alone)


def test_rounds_and_devices_draw_different_batches(dataset: Dataset, who: Split) -> None:
    task = ClassificationTask(dataset, who, network(), 8, seed=5)
    weights = task.initial_weights()
    first = task.local_updates(weights, np.array([0, 1]), round=0).gradients
    later = task.local_updates(weights, np.array([0, 1]), round=1).gradients
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], later[0])


def test_evaluation_is_that_of_the_plain_model(dataset: Dataset, who: Split) -> None:
    model = network()
    task = ClassificationTask(dataset, who, copy.deepcopy(model), 8, seed=5, workers=2)
    weights = 1.5 * task.initial_weights()
    offset = 0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(weights[offset : offset + parameter.numel()].view_as(parameter))
            offset += parameter.numel()
        scores = model(dataset.test_x)
    loss, accuracy, perplexity = task.evaluate(weights)
    assert perplexity is None
    assert loss == pytest.approx(functional.cross_entropy(scores, dataset.test_y).item(), rel=1e-5)
    assert accuracy == (scores.argmax(dim=1) == dataset.test_y).float().mean().item()


def test_buffers_are_averaged_over_devices(dataset: Dataset, who: Split) -> None:
    """Running means after a round: each device's own update from the common value, averaged."""
    model = normalised()
    task = ClassificationTask(dataset, who, copy.deepcopy(model), None, seed=5, workers=2)
    assert task.extra_bits == 32 * (8 + 8 + 1)
    weights = task.initial_weights()
    task.local_updates(weights, np.array([0, 1]), round=0)
    task.local_updates(weights, np.array([2]), round=0)  # the same round, another chunk
    task.end_round()
    expected = []
    for device in range(3):
        replica = copy.deepcopy(model)
        replica(dataset.train_x[torch.from_numpy(who.of(device))])
        expected.append(replica[2].running_mean)  # type: ignore[union-attr]
    state = task.state()
    assert torch.allclose(state["buffer_0"], torch.stack(expected).mean(dim=0), rtol=1e-5, atol=1e-7)  # type: ignore[arg-type]
    assert int(state["buffer_2"]) == 1  # batches tracked: a counter, not an average
    fresh = ClassificationTask(dataset, who, copy.deepcopy(model), None, seed=5)
    fresh.restore(state)
    assert fresh.evaluate(weights) == task.evaluate(weights)


def test_dropout_draws_from_the_devices_own_stream(dataset: Dataset, who: Split) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 4))

    tasks = [ClassificationTask(dataset, who, model(), 8, seed=5, workers=n) for n in (1, 3)]
    torch.manual_seed(123)
    before = torch.get_rng_state()
    a = tasks[0].local_updates(tasks[0].initial_weights(), np.arange(4), round=0).gradients
    assert torch.equal(torch.get_rng_state(), before)
    b = tasks[1].local_updates(tasks[1].initial_weights(), np.arange(4)[::-1].copy(), round=0).gradients
    assert torch.equal(a, b.flip(0))


def test_a_model_that_needs_the_default_layout_gets_it(dataset: Dataset, who: Split) -> None:
    """`view` after a convolution cannot work on channels-last tensors; many models do just that."""

    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolve, self.score = nn.Conv2d(1, 3, 3), nn.Linear(108, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.score(self.convolve(x).view(len(x), -1))
            return result

    task = ClassificationTask(dataset, who, Viewing(), 8, seed=5)
    assert task.local_updates(task.initial_weights(), np.arange(2), round=0).gradients.isfinite().all()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(5, 4), "model failed with RuntimeError"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 9)),
            r"model must give 4 scores a sample; got shape \[2, 9\]",
        ),
    ],
)
def test_a_model_that_does_not_fit_the_data_is_refused(
    dataset: Dataset, who: Split, model: nn.Module, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ClassificationTask(dataset, who, model, 8, seed=0)


def test_a_model_without_trainable_parameters_is_refused(dataset: Dataset, who: Split) -> None:
    for model in (nn.Flatten(), nn.Sequential(nn.Flatten(), nn.Linear(64, 4)).requires_grad_(False)):
        with pytest.raises(ValueError, match="no parameters to train"):
            ClassificationTask(dataset, who, model, 8, seed=0)


def test_only_parameters_that_are_not_frozen_are_weights(dataset: Dataset, who: Split) -> None:
    """The flat vector is the head alone, its gradient that of the head; the frozen layer never changes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8).requires_grad_(False), nn.ReLU(), nn.Linear(8, 4))
    before = copy.deepcopy(model)
    task = ClassificationTask(
        dataset, who, model, None, seed=5, workers=2, local=DeviceSettings(local_steps=3)
    )
    assert (task.size, task.segments) == (36, (32, 4))
    weights = task.initial_weights()
    assert torch.equal(weights, nn.utils.parameters_to_vector(before[3].parameters()))
    moved = weights - 0.1 * task.local_updates(weights, np.arange(6), round=0).gradients.mean(dim=0)
    task.evaluate(moved)
    assert all(torch.equal(old, new) for old, new in zip(before.parameters(), model.parameters()))
    nn.utils.vector_to_parameters(moved, before[3].parameters())
    expected = functional.cross_entropy(before(dataset.test_x), dataset.test_y).item()
    assert task.evaluate(moved).loss == pytest.approx(expected, rel=1e-5)


def test_labels_per_position_are_averaged_over_those_that_count() -> None:
    """Tokens `[N, T]` and labels `[N, T]`; loss, accuracy and perplexity against a loop over positions."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randint(0, 5, (24, 7), generator=rng)
    y = torch.where(torch.rand(24, 7, generator=rng) < 0.2, -100, (x + 1) % 5)
    tokens = Dataset(x[:16], y[:16], x[16:], y[16:], classes=5, name="tokens")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(5, 6), nn.Linear(6, 5))
    parts = Split(np.arange(16), np.array([0, 6, 16]))
    task = ClassificationTask(tokens, parts, copy.deepcopy(model), None, seed=0)
    losses, hits = [], []
    scores = model(x[16:]).log_softmax(dim=-1).detach()
    for row, position in (y[16:] != -100).nonzero().tolist():
        label = int(y[16 + row, position])
        losses.append(-float(scores[row, position, label]))
        hits.append(int(scores[row, position].argmax()) == label)
    found = task.evaluate(task.initial_weights())
    assert found.loss == pytest.approx(np.mean(losses), rel=1e-5)
    assert found.accuracy == pytest.approx(np.mean(hits))
    assert found.perplexity == pytest.approx(np.exp(np.mean(losses)), rel=1e-5)
    local = task.local_updates(task.initial_weights(), np.array([0]), round=0)
    mean = functional.cross_entropy(model(x[:6]).transpose(1, 2), y[:6])
    assert float(local.losses[0]) == pytest.approx(mean.item(), rel=1e-5)
    expected = flat(torch.autograd.grad(mean, list(model.parameters())))
    assert torch.allclose(local.gradients[0], expected, rtol=1e-4, atol=1e-7)
    with pytest.raises(ValueError, match=r"model must give 4 scores a position; got shape \[2, 7, 5\]"):
        ClassificationTask(replace(tokens, classes=4), parts, model, None, seed=0)
