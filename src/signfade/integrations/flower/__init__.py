"""One-bit learning on Flower: real devices in processes of their own, with TLS and failures.

A `ClientApp` answers with `reply_with_bits`; a `ServerApp` runs `OneBitStrategy`. docs/flower.md shows both.
"""

from __future__ import annotations

from signfade.integrations.flower.device import Local, answer, device_number, reply_with_bits
from signfade.integrations.flower.messages import Layout
from signfade.integrations.flower.server_core import settings_from
from signfade.integrations.flower.strategy import OneBitStrategy

__all__ = [
    "Layout",
    "Local",
    "OneBitStrategy",
    "answer",
    "device_number",
    "reply_with_bits",
    "settings_from",
]
