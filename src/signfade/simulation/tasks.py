"""From settings to a task."""

from __future__ import annotations

from signfade.data import Dataset, load, make_regression, split
from signfade.settings import RunSettings
from signfade.simulation.classify import ClassificationTask, one_thread
from signfade.simulation.models import build_model
from signfade.simulation.synthetic import GaussianTask, RegressionTask
from signfade.simulation.task import Task

__all__ = ["make_task"]


@one_thread()  # an optimum found by two threads differs in its last digits
def make_task(settings: RunSettings, workers: int = 1, dataset: Dataset | None = None) -> Task:
    """Load the data, split it over the devices and build the model.

    Args:
        settings: All of the run.
        workers: Threads; never changes a result.
        dataset: The labelled set that the settings name, if somebody has loaded it already.

    Raises:
        ValueError: Data is missing or damaged, the split is impossible, or the model does not fit the data.
    """
    data, seed = settings.data, settings.seed
    if data.name == "gaussian":
        return GaussianTask(data.devices, data.size, seed)
    if data.name == "regression":
        drawn = make_regression(data.devices, data.samples, data.size, data.heterogeneous, seed)
        mean = settings.method.weights == "share"
        return RegressionTask(drawn, data.batch, seed, mean=mean, workers=workers)
    dataset = load(data.name, data.folder) if dataset is None else dataset
    who = split(dataset.train_y, data.devices, data.split, data.concentration, seed)
    model = build_model(settings.model.name, dataset.input_shape, dataset.classes, seed)
    return ClassificationTask(dataset, who, model, data.batch, seed, workers, settings.device)
