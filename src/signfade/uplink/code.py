"""Polar codes for the few bits that must arrive whole: means and scales, one codeword per device and round.

A code takes `payload` bits, appends `check` bits of a cyclic redundancy check, and sends `length` coded bits.
Bits travel as signs, 0 as +1 and 1 as -1, over the same link as everything else: `y = h s + n` with real
noise of variance sigma2. LLRs are `ln P(0)/P(1) = 2 h y / sigma2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signfade._check import check_choice, check_shape, check_tensor
from signfade.device import EXACT_BITS, Encoder
from signfade.kernels.polar import decode_range
from signfade.kernels.threads import available_threads, run_ranges
from signfade.settings import CellSettings
from signfade.uplink.channel import Noise, half_llr, transmit

__all__ = [
    "CHECKS",
    "Decoded",
    "PolarCode",
    "bits_to_scalars",
    "codeword",
    "make_code",
    "scalars_to_bits",
    "send_coded",
]

# The checks of 5G, by their number of bits; the leading term of the polynomial is left out.
CHECKS = {6: 0x21, 11: 0x621, 16: 0x1021, 24: 0xB2B117}
LONGEST = 1 << 14

_KNOWN = 1e30  # LLR of a bit that is not sent because it is always zero
_LARGEST = 1e20
_PUNCTURED_UP_TO = 7 / 16  # codes up to this rate leave out bits that nothing depends on, others known zeros


class Decoded(NamedTuple):
    """What a decoder makes of K codewords."""

    bits: Tensor  # the payloads, uint8 [K, payload]: where the check failed, the decoder's best guess
    passed: Tensor  # whether the check passed, bool [K]


@dataclass(frozen=True)
class PolarCode:
    """A polar code of any length with a check, decoded by a list of paths.

    The mother code has the next power of two as its length and carries bits on the positions of largest
    polarisation weight `sum_j b_j 2^(j/4)`, b the position's binary digits. Up to the rate 7/16 the first
    coded bits are punctured, above it the last are shortened. The check bits are inverted, so that a link
    that is all but dead does not pass as a word of zeros.

    A word that cannot be decoded passes by accident with a probability of about `paths / 2**check`.

    Example:
        >>> code = PolarCode(payload=8, length=128)
        >>> bits = torch.tensor([[1, 0, 1, 1, 0, 0, 1, 0]], dtype=torch.uint8)
        >>> word = code.encode(bits)
        >>> decoded = code.decode(10 * (1 - 2 * word.float()))
        >>> torch.equal(decoded.bits, bits), decoded.passed.tolist()
        (True, [True])

    Reference: Tal, Vardy: List decoding of polar codes (2015); Sec. IV of the paper takes the scalars as
    known.
    """

    payload: int
    length: int  # coded bits, at least payload + check
    check: int = 24  # bits of the check: 6, 11, 16 or 24
    paths: int = 8  # size of the decoder's list, a power of two

    def __post_init__(self) -> None:
        if self.payload < 1:
            raise ValueError(f"payload must be at least 1; got {self.payload}")
        if self.check not in CHECKS:
            raise ValueError(f"check must be one of {', '.join(map(str, CHECKS))}; got {self.check}")
        if not self.payload + self.check <= self.length <= LONGEST:
            least = f"payload + check = {self.payload + self.check}"
            raise ValueError(f"length must be at least {least} and at most {LONGEST}; got {self.length}")
        if self.paths < 1 or self.paths & (self.paths - 1):
            raise ValueError(f"paths must be a power of two; got {self.paths}")

    @classmethod
    def of_rate(cls, payload: int, rate: float, check: int = 24, paths: int = 8) -> PolarCode:
        """Return the code with `length = ceil((payload + check) / rate)`.

        Example:
            >>> PolarCode.of_rate(payload=8, rate=0.25).length
            128
        """
        if not 0 < rate <= 1:
            raise ValueError(f"rate must be above 0 and at most 1; got {rate!r}")
        return cls(payload, int(np.ceil((payload + check) / rate - 1e-9)), check, paths)

    @property
    def rate(self) -> float:
        """Bits carried, the check's included, over bits sent."""
        return (self.payload + self.check) / self.length

    @property
    def mother(self) -> int:
        """Length of the mother code, a power of two."""
        return 1 << (self.length - 1).bit_length()

    @property
    def sent(self) -> slice:
        """The part of the mother code's word that is sent."""
        if self.rate <= _PUNCTURED_UP_TO:
            return slice(self.mother - self.length, self.mother)
        return slice(0, self.length)

    @cached_property
    def frozen(self) -> NDArray[np.bool_]:
        """Positions that carry nothing, `[mother]`."""
        position = np.arange(self.mother)
        digits = [((position >> j) & 1) * 2 ** (j / 4) for j in range(self.mother.bit_length())]
        weight = np.sum(digits, axis=0)
        unsent = np.ones(self.mother, dtype=bool)
        unsent[self.sent] = False
        weight[unsent] = -1.0
        frozen = np.ones(self.mother, dtype=bool)
        # Ties go to the later position; there are none up to 64 positions and few beyond.
        frozen[np.lexsort((position, weight))[self.mother - self.payload - self.check :]] = False
        return frozen

    @property
    def _mask(self) -> int:
        return (1 << self.check) - 1

    def encode(self, bits: Tensor) -> Tensor:
        """Return the coded bits, uint8 `[K, length]`, of every payload, uint8 `[K, payload]`."""
        check_tensor("bits", bits)
        check_shape("bits", bits, (len(bits), self.payload))
        if bits.dtype != torch.uint8 or bool((bits > 1).any()):
            raise ValueError(f"bits must be zeros and ones of type torch.uint8; got {bits.dtype}")
        words = bits.cpu().numpy()
        u = np.zeros((len(words), self.mother), dtype=np.uint8)
        u[:, ~self.frozen] = np.hstack([words, self._checksum(words)])
        return torch.from_numpy(_transform(u)[:, self.sent].copy())

    def decode(self, llr: Tensor, decoder: str = "own") -> Decoded:
        """Return the payloads behind received words, given `ln P(0)/P(1)` of every coded bit, `[K, length]`.

        Successive cancellation with a list of `paths`, of which the most likely one that passes the check is
        taken. `decoder` is "own", or "sionna": the reference of the extra `phy`, three to six times slower.
        """
        check_choice("decoder", decoder, ("own", "sionna"))
        check_tensor("llr", llr)
        check_shape("llr", llr, (len(llr), self.length))
        if bool(llr.isnan().any()):
            raise ValueError("llr must be numbers; got NaN")
        channel = np.empty((len(llr), self.mother), dtype=np.float32)
        channel[:] = 0.0 if self.sent.start else _KNOWN
        channel[:, self.sent] = llr.detach().cpu().double().clamp(-_LARGEST, _LARGEST).numpy()
        decoded = self._decode_sionna(channel) if decoder == "sionna" else self._decode(channel)
        nonzero = (llr != 0).any(dim=1).cpu()  # a short check may take nothing for a word
        return decoded._replace(passed=decoded.passed & nonzero)

    def _decode(self, channel: NDArray[np.float32]) -> Decoded:
        bits = np.empty((len(channel), self.payload), dtype=np.uint8)
        passed = np.empty(len(channel), dtype=np.bool_)
        numbers = (self.paths, self.payload, CHECKS[self.check], self.check, self._mask)

        def work(first: int, last: int) -> None:
            decode_range(channel, self.frozen, *numbers, first, last, bits, passed)

        if len(channel):
            run_ranges(work, len(channel), available_threads())
        return Decoded(torch.from_numpy(bits), torch.from_numpy(passed))

    def _decode_sionna(self, channel: NDArray[np.float32]) -> Decoded:
        try:
            from sionna.phy.fec.polar import PolarSCLDecoder
        except ImportError:
            hint = "in the checkout: pip install -e '.[phy]'"
            raise ValueError(f'decoder = "sionna" needs the package sionna-no-rt; {hint}') from None
        names = {6: "CRC6", 11: "CRC11", 16: "CRC16", 24: "CRC24C"}
        reference: Any = PolarSCLDecoder(
            np.flatnonzero(self.frozen),
            self.mother,
            list_size=self.paths,
            crc_degree=names[self.check],
            return_crc_status=True,
        )
        # Its check is not inverted: the word of the inversion itself is taken off first.
        u = np.zeros((1, self.mother), dtype=np.uint8)
        u[0, np.flatnonzero(~self.frozen)[self.payload :]] = 1
        plain = channel * (1.0 - 2.0 * _transform(u)[0]).astype(np.float32)
        bits, passed = reference(torch.from_numpy(-plain))  # its LLRs are ln P(1)/P(0)
        return Decoded(bits[:, : self.payload].to(torch.uint8).cpu(), passed.cpu())

    def _checksum(self, words: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the inverted remainders `[K, check]` of words `[K, payload]`."""
        register = np.zeros(len(words), dtype=np.int64)
        for column in words.T:
            carry = (register >> (self.check - 1)) ^ column
            register = ((register << 1) & self._mask) ^ (carry * CHECKS[self.check])
        register ^= self._mask
        shifts = np.arange(self.check - 1, -1, -1)
        return ((register[:, None] >> shifts) & 1).astype(np.uint8)


def _transform(u: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return `u F^{(x) stages}` of every row, in place."""
    half = 1
    while half < u.shape[1]:
        pairs = u.reshape(len(u), -1, 2, half)
        pairs[:, :, 0] ^= pairs[:, :, 1]
        half *= 2
    return u


def send_coded(
    bits: Tensor,
    code: PolarCode,
    h: Tensor,
    sigma2: Tensor,
    noise: Noise,
    known: tuple[Tensor, Tensor] | None = None,
) -> Decoded:
    """Send every device's bits, uint8 `[K, payload]`, as one codeword over its link, and decode them.

    `y = h (1 - 2 x) + n`, `n ~ N(0, sigma2)` real; LLRs are `2 h y / sigma2` with the gains and variances
    that the server takes for true, `known`, or the true ones if None. Links and noise as in `transmit`.

    Example:
        >>> code = PolarCode.of_rate(payload=8, rate=0.25)
        >>> bits = torch.ones(2, 8, dtype=torch.uint8)
        >>> h, sigma2 = torch.tensor([1.0, 0.0]), torch.tensor([0.5, 0.5])
        >>> send_coded(bits, code, h, sigma2, torch.Generator().manual_seed(0)).passed
        tensor([ True, False])
    """
    signs = 1 - 2 * code.encode(bits).float()
    y = transmit(signs, h, sigma2, noise).y
    gain, variance = (h, sigma2) if known is None else known
    return code.decode(2 * half_llr(y, gain, variance, limit=_LARGEST))


def make_code(cell: CellSettings, payload: int) -> PolarCode:
    """Return the code that carries a device's scalars, `payload` bits."""
    shape = (cell.code_check, cell.code_list)
    try:
        if cell.code_length is None:
            return PolarCode.of_rate(payload, cell.code_rate, *shape)
        return PolarCode(payload, cell.code_length, *shape)
    except ValueError as error:
        raise ValueError(f"cell.code_rate or cell.code_length does not fit the scalars: {error}") from None


def codeword(encoder: Encoder, cell: CellSettings) -> PolarCode:
    """Return the code that carries a device's scalars in this round.

    The longer payload of a first round, whose scales are on the wide grid, goes at the rate of all others, or
    as near to it as the longest code comes.

    Example:
        >>> from signfade.settings import MethodSettings
        >>> method, cell = MethodSettings(side_bits=4), CellSettings(code_rate=0.5)
        >>> first = codeword(Encoder(method, (30,)), cell)
        >>> later = codeword(Encoder(method, (30,), exponents=(0,)), cell)
        >>> (first.payload, first.length), (later.payload, later.length)
        ((20, 88), (8, 64))
    """
    layers = len(encoder.segments)
    payload, numbers = layers * sum(encoder.scalar_bits), 2 if encoder.sends_mean else 1
    usual = make_code(cell, numbers * layers * (encoder.method.side_bits or EXACT_BITS))
    if payload == usual.payload:
        return usual
    length = -(-(payload + usual.check) * usual.length // (usual.payload + usual.check))
    return PolarCode(payload, min(LONGEST, length), usual.check, usual.paths)


def scalars_to_bits(encoder: Encoder, mean: Tensor, scale: Tensor) -> Tensor:
    """Return the payloads, uint8: means first, where they are sent, the highest bit of each first."""
    codes: tuple[Tensor, ...]
    if encoder.quantised:
        codes = encoder.scalar_code.encode(mean, scale)
    else:
        codes = tuple(x.float().contiguous().view(torch.int32).long() for x in (mean, scale))
    shifts = [torch.arange(width - 1, -1, -1) for width in encoder.scalar_bits]
    digits = [((part[:, :, None] >> shift) & 1).flatten(1) for part, shift in zip(codes, shifts)]
    return torch.cat(digits, dim=1).to(torch.uint8)


def bits_to_scalars(encoder: Encoder, bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return means and scales, `[K, S]`, and which devices' make sense, `[K]`."""
    layers = len(encoder.segments)
    parts = bits.long().split_with_sizes([layers * width for width in encoder.scalar_bits], dim=1)
    first, second = (
        (part.reshape(len(bits), layers, width) << torch.arange(width - 1, -1, -1)).sum(dim=2)
        for part, width in zip(parts, encoder.scalar_bits)
    )
    if not encoder.quantised:
        mean, scale = (
            torch.from_numpy(part.numpy().astype(np.uint32).view(np.float32)) for part in (first, second)
        )
        sane = (mean.isfinite() & scale.isfinite() & (scale >= 0)).all(dim=1)
        mean, scale = (torch.where(sane[:, None], part, torch.zeros_like(part)) for part in (mean, scale))
        return mean, scale, sane
    code = encoder.scalar_code
    last = len(code.means.levels) - 1
    sane = (first <= last).all(dim=1)  # one code of the mean stands for nothing
    return *encoder.read_scalars(first.clamp(max=last), second), sane
