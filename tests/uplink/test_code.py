"""Polar codes: every word comes back, the check checks, and losses are what theory allows."""

from __future__ import annotations

import itertools
import math
import sys

import numpy as np
import pytest
import torch

from signfade.keys import generator, stream_keys
from signfade.theory.coding import block_error, block_error_faded
from signfade.uplink import draw_fading
from signfade.uplink.code import CHECKS, PolarCode, _transform, send_coded

LEADING = {6: 1 << 6, 11: 1 << 11, 16: 1 << 16, 24: 1 << 24}


def payloads(code: PolarCode, count: int, seed: int = 0) -> torch.Tensor:
    draw = np.random.default_rng(seed).integers(0, 2, (count, code.payload), dtype=np.uint8)
    return torch.from_numpy(draw)


def noisy(code: PolarCode, bits: torch.Tensor, snr: float, seed: int = 1) -> torch.Tensor:
    """LLRs of words sent at an SNR."""
    noise = torch.from_numpy(np.random.default_rng(seed).normal(size=(len(bits), code.length)))
    return 2 * snr * (1 - 2 * code.encode(bits).double() + noise / math.sqrt(snr))


@pytest.mark.parametrize(
    ("payload", "length", "check"),
    [
        (1, 7, 6),
        (8, 128, 24),
        (8, 41, 24),
        (8, 32, 24),
        (64, 352, 24),
        (64, 100, 16),
        (300, 900, 11),
        (3, 9, 6),
    ],
)
def test_without_noise_every_word_comes_back(payload: int, length: int, check: int) -> None:
    for paths in (1, 2, 8):
        code = PolarCode(payload, length, check, paths)
        bits = payloads(code, 30)
        word = code.encode(bits)
        assert word.shape == (30, length)
        decoded = code.decode(100 * (1 - 2 * word.float()))
        assert torch.equal(decoded.bits, bits)
        assert bool(decoded.passed.all())


def test_the_transform_is_the_kronecker_power() -> None:
    kernel = np.array([[1, 0], [1, 1]])
    power = np.kron(np.kron(kernel, kernel), kernel)
    u = np.array(list(itertools.product((0, 1), repeat=8)), dtype=np.uint8)
    assert np.array_equal(_transform(u.copy()), u @ power % 2)


def test_bits_stand_on_the_positions_that_polarise_best() -> None:
    """The [8, 4] code is the extended Hamming code; what is not sent carries nothing."""
    code = PolarCode(payload=2, length=8, check=6)
    assert code.frozen.sum() == 0
    assert np.flatnonzero(~PolarCode(2, 16, 6).frozen).tolist() == [7, 9, 10, 11, 12, 13, 14, 15]
    low, high = PolarCode(8, 100, 24), PolarCode(40, 100, 24)
    assert low.rate <= 7 / 16 < high.rate
    assert low.frozen[:28].all()
    assert high.frozen[100:].all()
    shortened = np.zeros((50, 128), dtype=np.uint8)
    shortened[:, ~high.frozen] = np.random.default_rng(0).integers(0, 2, (50, 64))
    assert not _transform(shortened)[:, 100:].any()


@pytest.mark.parametrize("check", CHECKS)
def test_the_check_is_the_inverted_remainder_of_a_polynomial_division(check: int) -> None:
    code = PolarCode(13, 13 + check, check)
    for bits in payloads(code, 20):
        value = int("".join(map(str, bits.tolist())), 2) << check
        divisor = LEADING[check] | CHECKS[check]
        while value.bit_length() > check:
            value ^= divisor << (value.bit_length() - divisor.bit_length())
        found = code._checksum(bits.numpy()[None])[0]
        assert "".join(map(str, found)) == format(value ^ (2**check - 1), f"0{check}b")


def test_a_long_list_is_maximum_likelihood() -> None:
    """With a path for every word the decoder takes the word nearest to what was received."""
    code = PolarCode(payload=4, length=24, check=6, paths=1024)
    every = torch.tensor(list(itertools.product((0, 1), repeat=4)), dtype=torch.uint8)
    llr = noisy(code, payloads(code, 60), snr=0.3)
    nearest = (llr @ (1 - 2 * code.encode(every).double()).T).argmax(dim=1)
    decoded = code.decode(llr)
    assert torch.equal(decoded.bits, every[nearest])
    assert bool(decoded.passed.all())
    assert not torch.equal(PolarCode(4, 24, 6, paths=1).decode(llr).bits, decoded.bits)


def test_a_dead_link_never_passes() -> None:
    for check in CHECKS:
        code = PolarCode.of_rate(8, 0.25, check)
        assert not bool(code.decode(torch.zeros(3, code.length)).passed.any())
    # Nor does a word of zeros, which is what hardly anything heard looks like: zero has another check.
    assert not bool(code.decode(torch.full((3, code.length), 1e-3)).passed.any())


def test_noise_passes_a_short_check_by_accident_as_often_as_it_should() -> None:
    """Of 8 paths each passes with probability 1/64; they are different words, so almost independently."""
    code = PolarCode(payload=40, length=160, check=6)
    count = 2000
    llr = torch.from_numpy(np.random.default_rng(5).normal(size=(count, code.length)))
    chance = 1 - (1 - 1 / 64) ** 8
    passed = float(code.decode(llr).passed.double().mean())
    assert abs(passed - chance) < 5 * math.sqrt(chance / count)


@pytest.mark.parametrize(("payload", "rate"), [(8, 0.25), (8, 0.5), (64, 0.25)])
def test_losses_are_within_a_decibel_of_the_normal_approximation(payload: int, rate: float) -> None:
    """Above what the payload alone could reach, below the check's worth of bits one decibel worse."""
    code = PolarCode.of_rate(payload, rate)
    carried, count = payload + code.check, 600
    bits = payloads(code, count)
    for error in (0.5, 0.1):
        snr = next(s for s in np.geomspace(0.05, 10, 400) if block_error(s, carried, code.length) < error)
        lost = float((~code.decode(noisy(code, bits, float(snr))).passed).double().mean())
        slack = 4 * math.sqrt(0.25 / count)
        assert lost > block_error(snr, payload, code.length) - slack
        assert lost < block_error(snr / 10**0.1, carried, code.length) + slack


@pytest.mark.parametrize(("payload", "rate", "snr"), [(8, 0.5, 0.8), (16, 0.25, 0.35), (64, 0.25, 0.45)])
def test_losses_are_those_of_the_reference_decoder(payload: int, rate: float, snr: float) -> None:
    """The same received words: the two disagree on few, and on as many one way as the other."""
    pytest.importorskip("sionna")
    code = PolarCode.of_rate(payload, rate)
    bits = payloads(code, 400)
    llr = noisy(code, bits, snr)
    own, reference = code.decode(llr), code.decode(llr, decoder="sionna")
    both = own.passed & reference.passed
    assert torch.equal(own.bits[both], bits[both])
    assert torch.equal(reference.bits[both], bits[both])
    more = int((own.passed & ~reference.passed).sum())
    less = int((~own.passed & reference.passed).sum())
    assert 0.2 < float(own.passed.double().mean()) < 0.8
    assert more + less < 0.05 * len(bits)
    assert abs(more - less) < 4 * math.sqrt(more + less + 1)


@pytest.mark.parametrize("fading", ["gaussian", "rayleigh"])
@pytest.mark.parametrize("mean_snr_db", [10.0, 20.0])
def test_fading_loses_the_share_of_words_that_theory_says(fading: str, mean_snr_db: float) -> None:
    """4000 links; the code is at most one decibel behind the approximation."""
    code, count, mean_snr = PolarCode.of_rate(8, 0.5), 4000, 10 ** (mean_snr_db / 10)
    h = draw_fading(fading, count, generator(3, "fading"))
    keys = stream_keys(3, "side noise", 0, range(count))
    sigma2 = torch.full((count,), 1 / mean_snr, dtype=torch.float64)
    decoded = send_coded(payloads(code, count), code, h, sigma2, keys)
    lost = float((~decoded.passed).double().mean())
    carried = code.payload + code.check
    expected = block_error_faded(mean_snr, carried, code.length, fading)
    worse = block_error_faded(mean_snr / 10**0.1, carried, code.length, fading)
    error = 4 * math.sqrt(expected / count)
    assert 0.9 * expected - error < lost < worse + error


def test_a_word_depends_on_its_key_and_link_alone() -> None:
    code = PolarCode.of_rate(8, 0.5)
    bits, keys = payloads(code, 6), stream_keys(1, "side noise", 2, range(6))
    h, sigma2 = torch.linspace(-1, 1, 6), torch.full((6,), 0.4)
    all_of_them = send_coded(bits, code, h, sigma2, keys)
    some = [4, 1]
    for a, b in zip(
        all_of_them, send_coded(bits[some], code, h[some], sigma2[some], keys[some]), strict=True
    ):
        assert torch.equal(a[some], b)


def test_a_gain_of_the_wrong_sign_is_noticed() -> None:
    """All LLRs turned is another word with its last bit turned: the check sees it."""
    code = PolarCode.of_rate(8, 0.25)
    bits, one = payloads(code, 50), torch.ones(50)
    keys = stream_keys(1, "side noise", 0, range(50))
    assert bool(send_coded(bits, code, one, 0.01 * one, keys).passed.all())
    assert not bool(send_coded(bits, code, one, 0.01 * one, keys, known=(-one, 0.01 * one)).passed.any())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"payload": 0, "length": 64}, "payload must be at least 1; got 0"),
        ({"payload": 8, "length": 31}, "length must be at least payload . check = 32"),
        ({"payload": 8, "length": 1 << 15}, "at most 16384; got 32768"),
        ({"payload": 8, "length": 64, "check": 7}, "check must be one of 6, 11, 16, 24; got 7"),
        ({"payload": 8, "length": 64, "paths": 6}, "paths must be a power of two; got 6"),
    ],
)
def test_codes_that_cannot_be_are_refused(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PolarCode(**arguments)


def test_words_that_cannot_be_are_refused() -> None:
    code = PolarCode(8, 64)
    with pytest.raises(ValueError, match="rate must be above 0"):
        PolarCode.of_rate(8, 0.0)
    with pytest.raises(ValueError, match=r"bits must have shape \[2, 8\]"):
        code.encode(torch.zeros(2, 7, dtype=torch.uint8))
    with pytest.raises(ValueError, match="zeros and ones"):
        code.encode(torch.full((2, 8), 2, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"llr must have shape \[2, 64\]"):
        code.decode(torch.zeros(2, 63))
    with pytest.raises(ValueError, match="NaN"):
        code.decode(torch.full((2, 64), float("nan")))
    with pytest.raises(ValueError, match="decoder must be one of 'own', 'sionna'"):
        code.decode(torch.zeros(2, 64), decoder="viterbi")


def test_a_missing_reference_decoder_is_said_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sionna.phy.fec.polar", None)
    code = PolarCode(8, 64)
    with pytest.raises(ValueError, match=r"needs the package sionna-no-rt; in the .* -e '\.\[phy\]'$"):
        code.decode(torch.zeros(1, 64), decoder="sionna")
