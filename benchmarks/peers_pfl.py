"""The job in pfl: federated averaging on its simulated backend, in one process."""

from __future__ import annotations

import time
from typing import Any

import torch
from harness import MARK, Turns
from peers_job import BATCH, DEVICES, STEP, WARM_UP, cnn, data, sums
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional


class Network(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = cnn()

    def loss(self, images: Tensor, labels: Tensor, eval: bool = False) -> Tensor:
        """Return what a local step lowers."""
        return functional.cross_entropy(self.layers(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor, eval: bool = False) -> dict[str, Any]:
        """Return what an evaluation would add up."""
        return {"loss": Weighted(self.loss(images, labels).item() * len(labels), len(labels))}


class OneByOne(TrainingProcessCallback):
    """Answers for the round that pfl has run and waits for the next turn."""

    def __init__(self) -> None:
        self._turns, self._done, self._start = Turns(), 0, 0.0
        self._checks: list[float] = []

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Stop when there are no more turns."""
        took = time.perf_counter() - self._start
        self._done += 1
        if self._done == 1:
            self._checks = sums(model.pytorch_model.parameters())
        if self._done == WARM_UP:
            self._turns.ready(*self._checks)
        elif self._done > WARM_UP:
            print(MARK, took, flush=True)
        more = self._done < WARM_UP or self._turns.wait()
        self._start = time.perf_counter()
        return not more, Metrics()


def main() -> None:
    images, labels = data()
    users = {k: Dataset(raw_data=[images[k], labels[k]], user_id=str(k)) for k in range(DEVICES)}
    sampler = get_user_sampler("minimize_reuse", list(users))
    federated = FederatedDataset(users.__getitem__, sampler)
    network = Network()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=10**6,
            evaluation_frequency=10**6,
            train_cohort_size=DEVICES,
            val_cohort_size=0,
        ),
        SimulatedBackend(federated, federated),
        PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0)),
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=STEP),
        callbacks=[OneByOne()],
    )


if __name__ == "__main__":
    main()
