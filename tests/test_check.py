"""What is not a tensor is named, whichever function it is given to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from signfade import device, server, uplink

Y, H, SIGMA2 = torch.ones(3, 4), torch.ones(3), torch.full((3,), 0.1)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: device.fit_prior([[1.0, 2.0]]), "g must be a torch.Tensor; got list"),
        (lambda: device.one_bit(Y, 0.0), "mean must be a torch.Tensor; got float"),
        (lambda: uplink.transmit(Y, H, 0.1, torch.Generator()), "sigma2 must be a torch.Tensor; got float"),
        (lambda: uplink.Link(1.0, SIGMA2), "h must be a torch.Tensor; got float"),
        (lambda: server.sbfl(Y, H, 0.1, H, H), "sigma2 must be a torch.Tensor; got float"),
        (lambda: server.sbfl(Y.numpy(), H, SIGMA2, H, H), "y must be a torch.Tensor; got numpy.ndarray"),
        (lambda: server.majority_vote(Y, np.ones(3)), "h must be a torch.Tensor; got numpy.ndarray"),
        (lambda: server.learn_correlation(Y, H, None), "sigma2 must be a torch.Tensor; got NoneType"),
    ],
)
def test_a_number_a_list_or_an_array_is_not_taken_for_a_tensor(
    call: Callable[[], Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=sentence):
        call()
