"""What runs on the server."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from digits_app.task import Net, accuracy, load_test
from signfade.integrations.flower import OneBitStrategy, settings_from

__all__ = ["app"]

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Evaluate the model on samples that no device holds."""
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model, *load_test())})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and keep the run in the folder."""
    config = context.run_config
    strategy = OneBitStrategy(
        settings_from(config),
        Net(),
        folder=str(config["folder"]),
        quorum=float(config["quorum"]),
        remember_keys=bool(config["remember-keys"]),
    )
    strategy.start(grid, timeout=float(config["timeout"]), evaluate_fn=evaluate)
