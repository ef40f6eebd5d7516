"""What the links of a run need: the SNRs at which bits and codewords arrive often enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from signfade.experiments.config import ConfigError
from signfade.experiments.link_cost import round_encoder
from signfade.settings import CellSettings, RunSettings
from signfade.theory.coding import bit_error_faded, block_error_faded, outage, threshold_snr
from signfade.uplink.code import codeword

__all__ = ["LinkNeeds", "array_gain_db", "fading_law", "find_needs"]

Array = NDArray[np.float64]


def fading_law(cell: CellSettings) -> dict[str, Any]:
    """Return how gains are distributed, as the keywords of `signfade.theory`."""
    return {"fading": cell.fading, "rician_k": cell.rician_k, "antennas": cell.antennas}


def array_gain_db(cell: CellSettings) -> float:
    """Return how far the mean SNR after combining is above that at one antenna."""
    return float(10 * np.log10(cell.antennas))


@dataclass(frozen=True)
class LinkNeeds:
    """What a link has to carry: SNRs, as ratios, at which errors are as frequent as the target.

    `word_bits` and `word_length` are the bits of the scalars, with their check, and the coded bits of their
    codeword; None where devices send no scalars or their number is not known.
    """

    target: float
    bit_snr: float
    word_snr: float | None = None
    word_bits: int | None = None
    word_length: int | None = None

    @property
    def bit_db(self) -> float:
        """SNR in dB that a bit needs."""
        return float(10 * np.log10(self.bit_snr))

    @property
    def word_db(self) -> float | None:
        """SNR in dB that the codeword needs."""
        return None if self.word_snr is None else float(10 * np.log10(self.word_snr))

    def margins(self, snr_db: Array, cell: CellSettings) -> dict[str, Array]:
        """Return margins in dB and error probabilities by their keys in the tables.

        `snr_db` `[K]` are mean SNRs at one antenna; margins are those of the combined antennas.
        """
        snr, fading = 10 ** (snr_db / 10), fading_law(cell)
        combined_db = snr_db + array_gain_db(cell)
        found = {
            "margin_db": combined_db - self.bit_db,
            "ber": np.asarray(bit_error_faded(snr, **fading)),
            "outage": np.asarray(outage(self.bit_snr, snr, **fading)),
        }
        if self.word_bits is not None and self.word_length is not None:
            word = block_error_faded(snr, self.word_bits, self.word_length, **fading)
            found |= {"bler_margin_db": combined_db - (self.word_db or 0.0), "bler": np.asarray(word)}
        return found


def find_needs(settings: RunSettings, layers: tuple[int, ...] | None, target: float = 0.1) -> LinkNeeds:
    """Return what the links of a run need: `Q(sqrt(snr)) = target` for a bit, as many blocks lost for a word.

    The codeword is that of the scalars, whether `cell.side_info` has them coded or not.
    """
    if not 0 < target < 0.5:
        raise ValueError(f"the target error must be above 0 and below 0.5; got {target:g}")
    bit = float(special.ndtri(target) ** 2)
    encoder = round_encoder(settings, layers or (1,))
    per_layer = settings.method.scales == "layer" and settings.method.rotation == "none"
    if not encoder.sends_scalars or (layers is None and per_layer):
        return LinkNeeds(target, bit)
    try:
        code = codeword(encoder, settings.cell)
        bits = code.payload + code.check
        return LinkNeeds(target, bit, threshold_snr(bits, code.length, target), bits, code.length)
    except ValueError as error:  # the scalars do not fit, or fill the word so that no SNR will do
        if settings.cell.side_info == "coded":
            raise ConfigError(str(error)) from None
        return LinkNeeds(target, bit)
