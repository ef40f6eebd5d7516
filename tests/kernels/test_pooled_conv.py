"""A pooled convolution is its three layers, forwards and backwards."""

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from signfade.kernels.pooled_conv import PooledConv


def three_layers(x: Tensor, layer: PooledConv) -> Tensor:
    y = functional.conv2d(x, layer.weight, layer.bias, padding=layer.padding)
    return functional.relu(functional.max_pool2d(y, 2))


def compare(layer: PooledConv, x: Tensor) -> None:
    """Outputs and all gradients, against the three layers in float64."""
    exact = PooledConv(layer.in_channels, layer.out_channels, layer.kernel_size[0], int(layer.padding[0]))
    exact.double().load_state_dict(layer.state_dict())
    ours, theirs = layer(x), three_layers(x.double(), exact)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    g = torch.randn(ours.shape)
    mine = torch.autograd.grad(ours, [x, *layer.parameters()], g)
    right = torch.autograd.grad(theirs, [x, *exact.parameters()], g.double())
    for a, b in zip(mine, right, strict=True):
        # float32 sums of a few hundred terms: 1e-5 of the largest entry is some hundred rounding errors
        assert float((a - b).abs().max()) < 1e-5 * float(b.abs().max())


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "padding", "height", "width"),
    [
        (1, 32, 5, 0, 28, 28),  # the paper's first layer
        (1, 32, 5, 2, 9, 10),
        (1, 32, 3, 1, 28, 28),
        (1, 32, 3, 0, 9, 10),
        (1, 31, 5, 0, 12, 12),  # short rows: torch's kernel for the weights
        (32, 64, 5, 0, 12, 12),  # the paper's second
        (1, 16, 3, 1, 8, 8),
        (16, 32, 3, 1, 4, 4),
        (3, 5, 3, 0, 9, 10),  # odd: the last row of the convolution is in no window
        (12, 7, 3, 0, 10, 9),
        (11, 6, 3, 2, 6, 7),
        (40, 3, 1, 0, 5, 4),
    ],
)
def test_it_is_the_three_layers(
    inputs: int, outputs: int, kernel: int, padding: int, height: int, width: int, channels_last: bool
) -> None:
    torch.manual_seed(0)
    layer = PooledConv(inputs, outputs, kernel, padding)
    x = torch.randn(3, inputs, height, width)
    if channels_last:
        x, layer = x.to(memory_format=torch.channels_last), layer.to(memory_format=torch.channels_last)
    compare(layer, x.requires_grad_())


@pytest.mark.parametrize("shape", [(12, 4, 3), (1, 32, 5)])
def test_a_shut_relu_passes_no_gradient(shape: tuple[int, int, int]) -> None:
    layer = PooledConv(*shape)
    with torch.no_grad():
        layer.bias.fill_(-1e3)
    x = torch.randn(2, shape[0], 8, 8, requires_grad=True)
    z = layer(x)
    gradients = torch.autograd.grad(z.sum(), [x, *layer.parameters()])
    assert not z.any()
    assert not any(g.any() for g in gradients)


def test_ties_go_to_the_first_as_in_torch() -> None:
    layer = PooledConv(12, 2, 3)
    x = torch.ones(1, 12, 6, 6, requires_grad=True)
    with torch.no_grad():
        layer.weight.abs_()
    mine = torch.autograd.grad(layer(x).sum(), x)[0]
    right = torch.autograd.grad(three_layers(x, layer).sum(), x)[0]
    torch.testing.assert_close(mine, right)


@pytest.mark.parametrize("inputs", [1, 12])
def test_nan_is_not_hidden(inputs: int) -> None:
    layer = PooledConv(inputs, 2, 3)
    with torch.no_grad():
        layer.weight[0, 0, 0, 0] = float("nan")
    z = layer(torch.ones(1, inputs, 6, 6))
    assert z[:, 0].isnan().all()
    assert not z[:, 1].isnan().any()


@pytest.mark.parametrize("shape", [(2, 3, 3), (1, 32, 5)])
@pytest.mark.parametrize("place", [(3, 3), (3, 4), (4, 3), (5, 5)])
def test_nan_is_seen_wherever_it_is_in_a_window(place: tuple[int, int], shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    layer, x = PooledConv(*shape), torch.randn(1, shape[0], 10, 10)
    x[0, 0, *place] = float("nan")
    assert torch.equal(layer(x).isnan(), three_layers(x, layer).isnan())


def test_an_empty_batch_has_an_empty_result() -> None:
    assert PooledConv(32, 64, 5)(torch.empty(0, 32, 12, 12)).shape == (0, 64, 4, 4)


def test_the_initial_weights_are_those_of_a_convolution() -> None:
    torch.manual_seed(3)
    ours = PooledConv(2, 3, 5)
    torch.manual_seed(3)
    plain = nn.Conv2d(2, 3, 5)
    assert torch.equal(ours.weight, plain.weight)
    assert torch.equal(ours.bias, plain.bias)


def test_gradients_of_gradients_and_float64_take_the_three_layers() -> None:
    torch.manual_seed(0)
    layer = PooledConv(2, 2, 3).double()
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(layer, (x,))
    assert torch.autograd.gradgradcheck(layer, (x,))


def test_vmap_over_devices_works() -> None:
    torch.manual_seed(0)
    layer = PooledConv(1, 4, 3)
    values = {name: value.detach() for name, value in layer.named_parameters()}
    x = torch.randn(3, 2, 1, 8, 8)

    def loss(values: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, values, (x,)).square().sum()

    assert grad(loss)(values, x[0])["weight"].shape == layer.weight.shape  # only the weights are wrapped
    per_device = vmap(grad(loss), in_dims=(None, 0))(values, x)["weight"]
    for k in range(3):
        alone = torch.autograd.grad(layer(x[k]).square().sum(), layer.weight)[0]
        torch.testing.assert_close(per_device[k], alone, rtol=1e-4, atol=1e-4)
