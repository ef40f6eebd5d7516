"""Keys name streams: the same name is the same stream everywhere, another name is an unrelated one."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from scipy import stats

from signfade.keys import generator, stream_key, stream_keys


def test_a_key_is_the_hash_of_its_name() -> None:
    """Written out by hand: a run that goes on under a later version draws the same numbers."""
    name = (7).to_bytes(8, "little") + (3).to_bytes(8, "little") + (2).to_bytes(8, "little") + b"noise"
    expected = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
    assert stream_key(7, "noise", round=3, device=2) == expected
    assert stream_key(7, "noise", np.int64(3), np.int64(2)) == expected
    assert stream_key(7, "noise") == stream_key(7, "noise", 0, 0)


def test_no_two_names_share_a_key() -> None:
    names = [(s, p, r, k) for s in range(5) for p in ("noise", "batch") for r in range(40) for k in range(40)]
    assert len({stream_key(*name) for name in names}) == len(names)
    ends = (0, 1, 2**32, 2**63 - 1, -1)
    corners = [(s, "", r, k) for s in ends for r in ends for k in ends]
    assert len({stream_key(*name) for name in corners}) == len(corners)


def test_keys_of_many_devices_are_those_of_each() -> None:
    keys = stream_keys(3, "noise", 8, np.array([5, 0, 17]))
    assert keys.dtype == np.uint64
    assert keys.tolist() == [stream_key(3, "noise", 8, k) for k in (5, 0, 17)]
    assert stream_keys(3, "noise", 8, []).shape == (0,)


@pytest.mark.parametrize("vary", ["seed", "round", "device"])
def test_neighbouring_streams_are_uncorrelated(vary: str) -> None:
    """The first numbers of a thousand neighbours: uniform, and neighbours unrelated to each other."""
    where = {"seed": 1, "round": 2, "device": 3}
    draws = np.array(
        [generator(purpose="fading", **{**where, vary: n}).standard_normal(8) for n in range(1000)]
    )
    assert stats.kstest(draws.ravel(), "norm").pvalue > 1e-4
    lagged = (draws[1:] * draws[:-1]).sum() / np.sqrt(draws[1:].size)
    assert abs(lagged) < 4.5


def test_a_generator_is_its_stream_from_the_start() -> None:
    first, again = generator(1, "batch", 4, 9), generator(1, "batch", 4, 9)
    generator(1, "batch", 4, 8).random(100)  # others do not matter
    assert first.random(5).tolist() == again.random(5).tolist()


@pytest.mark.parametrize("bad", [2**63, -(2**63) - 1, 1.5, "1", None])
@pytest.mark.parametrize("name", ["seed", "round", "device"])
def test_what_is_no_integer_of_64_bits_is_refused(name: str, bad: object) -> None:
    arguments: dict[str, object] = {"seed": 1, "round": 2, "device": 3, name: bad}
    with pytest.raises(ValueError, match="seed, round and device must be integers of 64 bits; got"):
        stream_key(purpose="noise", **arguments)  # type: ignore[arg-type]
