"""What runs on every device."""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from digits_app.task import Net, load_part, loss
from signfade.integrations.flower import device_number, reply_with_bits

__all__ = ["app"]

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Answer with one bit per weight."""
    parts = int(context.run_config["signfade.data.devices"])
    loader = load_part(device_number(context), parts, int(context.run_config["batch-size"]))
    return reply_with_bits(message, context, Net(), loss, loader)
