"""Signs are one bit, and packing them loses nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from signfade.device import one_bit, pack_signs, sign, unpack_signs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_sign_has_no_third_value(dtype):
    x = torch.tensor([-3, -1, 0, 1, 3]).to(dtype)
    s = sign(x)
    assert s.dtype == dtype
    assert s.tolist() == [-1, -1, 1, 1, 1]


def test_sign_of_both_zeros_and_of_the_smallest_numbers():
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-45, float("inf"), -float("inf")])
    assert sign(x).tolist() == [1, 1, 1, -1, 1, -1]
    assert x.tolist()[3] < 0  # the input is what it was


def test_sign_takes_scalars_views_and_tensors_with_gradients():
    assert sign(torch.tensor(-2.0)).item() == -1
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    s = sign(x.T[::2])
    assert not s.requires_grad
    assert torch.equal(s, torch.where(x.detach().T[::2] < 0, -1.0, 1.0))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.complex64])
def test_sign_needs_a_dtype_that_holds_minus_one(dtype):
    with pytest.raises(ValueError, match="x must have a real dtype"):
        sign(torch.ones(2, dtype=dtype))
    with pytest.raises(ValueError, match="signs must have a real dtype"):
        pack_signs(torch.ones(2, dtype=dtype))
    with pytest.raises(ValueError, match="dtype must have a real dtype"):
        unpack_signs(torch.tensor([128], dtype=torch.uint8), 3, dtype=dtype)


def test_one_bit_is_the_sign_about_the_mean():
    g = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.0, 1.0]])
    assert one_bit(g, torch.tensor([2.0, 0.5])).signs().tolist() == [[-1, 1, 1], [-1, -1, 1]]
    assert one_bit(g, torch.tensor([[2.0, 3.0], [-2.0, 9.0]]), segments=[1, 2]).signs().tolist() == [
        [-1, -1, 1],
        [1, -1, -1],
    ]


def test_one_bit_compares_without_rounding():
    # In float32 the difference of these is smaller than the smallest normal number; its sign still counts.
    tiny = torch.tensor([[2.8e-45, 1.4e-45]])
    assert one_bit(tiny, torch.tensor([2.8e-45])).signs().tolist() == [[1, -1]]
    # A float64 threshold between two neighbouring float32 numbers separates them.
    below, above = np.float32(1), np.nextafter(np.float32(1), np.float32(2))
    threshold = torch.tensor([(float(below) + float(above)) / 2], dtype=torch.float64)
    assert one_bit(torch.tensor([[float(below), float(above)]]), threshold).signs().tolist() == [[-1, 1]]


def test_one_bit_refuses_what_is_not_finite_but_not_what_only_sums_to_infinity():
    big = torch.full((1, 4), 3e38)
    assert one_bit(big, torch.zeros(1)).signs().tolist() == [[1, 1, 1, 1]]
    for bad in (float("nan"), float("inf"), -float("inf")):
        g = torch.tensor([[bad, 1.0, -bad]])
        with pytest.raises(ValueError, match="g must be finite"):
            one_bit(g, torch.zeros(1))
        with pytest.raises(ValueError, match="mean must be finite"):
            one_bit(torch.zeros(1, 3), torch.tensor([bad]))


@pytest.mark.parametrize(
    ("g", "mean", "segments", "words"),
    [
        (torch.zeros(3), torch.zeros(1), None, "g must be float32 or float64"),
        (torch.zeros(2, 3, dtype=torch.int64), torch.zeros(2), None, "g must be float32 or float64"),
        (torch.zeros(2, 3), torch.zeros(3), None, "mean must have shape"),
        (torch.zeros(2, 3), torch.zeros(2, 1), None, "mean must have shape"),
        (torch.zeros(2, 3), torch.zeros(2), [1, 2], "mean must have shape"),
        (torch.zeros(2, 3), torch.zeros(2, 2), [1, 1], "segments must sum to M = 3"),
    ],
)
def test_one_bit_names_what_is_wrong(g, mean, segments, words):
    with pytest.raises(ValueError, match=words):
        one_bit(g, mean, segments)


@settings(deadline=None, derandomize=True)
@given(bits=st.lists(st.booleans(), max_size=70), rows=st.integers(0, 3))
def test_packing_is_the_binary_numeral(bits, rows):
    signs = torch.tensor([[1.0 if bit else -1.0 for bit in bits]] * rows).reshape(rows, len(bits))
    packed = pack_signs(signs)
    numeral = "".join("01"[bit] for bit in bits)
    numeral += "0" * (-len(bits) % 8)
    expected = [int(numeral[i : i + 8], 2) for i in range(0, len(numeral), 8)]
    assert packed.dtype == torch.uint8
    assert packed.tolist() == [expected] * rows
    assert torch.equal(unpack_signs(packed, len(bits)), signs)


def test_packing_takes_any_leading_shape_and_dtype():
    signs = sign(torch.randn(2, 3, 21, generator=torch.Generator().manual_seed(1)))
    packed = pack_signs(signs.to(torch.int8))
    assert packed.shape == (2, 3, 3)
    assert torch.equal(unpack_signs(packed, 21, dtype=torch.int8), signs.to(torch.int8))
    assert torch.equal(unpack_signs(packed, 21, dtype=torch.float64), signs.double())


def test_a_million_signs_survive():
    signs = sign(torch.randn(1_000_003, generator=torch.Generator().manual_seed(2)))
    packed = pack_signs(signs)
    assert packed.shape == (125_001,)
    assert torch.equal(unpack_signs(packed, 1_000_003), signs)


@pytest.mark.parametrize("bad", [0.0, 2.0, -3.0, float("nan"), float("inf")])
def test_only_signs_are_packed(bad):
    with pytest.raises(ValueError, match=r"signs must be \+1 or -1"):
        pack_signs(torch.tensor([1.0, bad]))


def test_scalars_and_misfitting_bytes_are_refused():
    with pytest.raises(ValueError, match="signs must have shape"):
        pack_signs(torch.tensor(1.0))
    byte = torch.tensor([0b10100000], dtype=torch.uint8)
    assert unpack_signs(byte, 3).tolist() == [1, -1, 1]
    with pytest.raises(ValueError, match="unused bits zero"):
        unpack_signs(byte, 2)
    for size, packed in ((9, byte), (0, byte), (3, byte.long()), (8, byte[0])):
        with pytest.raises(ValueError, match="packed must be uint8"):
            unpack_signs(packed, size)
    with pytest.raises(ValueError, match="size must be non-negative"):
        unpack_signs(byte[:0], -1)
