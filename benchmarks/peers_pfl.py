"""The job in pfl: federated averaging on its simulated backend, in one process."""

from __future__ import annotations

from typing import Any

import torch
from peers_job import BATCH, DEVICES, STEP, Turns, cnn, data
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
    """Reports how long a round took and waits for the next turn."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Stop when there are no more turns."""
        return not self._turns.round_is_over(model.pytorch_model.parameters()), Metrics()


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
        callbacks=[OneByOne(Turns())],
    )


if __name__ == "__main__":
    main()
