"""`accelerate` changes how a network is computed, never what it computes."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from signfade.learn.accelerate import PatchConv2d, accelerate


def paper_like() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(6 * 5 * 5, 10),
    ).double()


def gradient(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    loss = functional.cross_entropy(model(x), y)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def test_same_output_and_gradient_in_double_precision() -> None:
    model, x, y = paper_like(), torch.rand(3, 1, 28, 28).double(), torch.tensor([1, 5, 9])
    fast = accelerate(model)
    assert type(fast[0]) is PatchConv2d
    torch.testing.assert_close(fast(x), model(x), rtol=0, atol=1e-14)
    torch.testing.assert_close(gradient(fast, x, y), gradient(model, x, y), rtol=0, atol=1e-14)


def test_original_is_not_changed_and_parameters_are_shared_under_the_same_names() -> None:
    model = paper_like()
    kinds = [type(layer) for layer in model]
    fast = accelerate(model)
    assert [type(layer) for layer in model] == kinds
    ours, theirs = dict(fast.named_parameters()), dict(model.named_parameters())
    assert list(ours) == list(theirs)
    assert all(ours[name] is theirs[name] for name in theirs)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(1, 4, 3, padding=1),
        nn.Conv2d(2, 4, (3, 5), padding=(2, 1)),
        nn.Conv2d(3, 4, 1, bias=False),
        nn.Conv2d(2, 4, 3, stride=2),
        nn.Conv2d(2, 4, 3, dilation=2),
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, padding="same"),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(20, 4, 3),
    ],
    ids=str,
)
def test_every_kind_of_convolution_keeps_its_meaning(layer: nn.Conv2d) -> None:
    layer = layer.double()
    x = torch.rand(
        2, layer.in_channels, 9, 11, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    torch.testing.assert_close(accelerate(nn.Sequential(layer))(x), layer(x), rtol=0, atol=1e-14)


def test_images_in_a_larger_storage_and_in_another_layout() -> None:
    model = paper_like()
    batch = torch.rand(5, 1, 28, 28).double()
    torch.testing.assert_close(accelerate(model)(batch[2:4]), model(batch[2:4]), rtol=0, atol=1e-14)
    turned = batch.transpose(2, 3)
    torch.testing.assert_close(accelerate(model)(turned), model(turned), rtol=0, atol=1e-14)


def test_input_that_needs_a_gradient_gets_one() -> None:
    model = paper_like()
    x = torch.rand(2, 1, 28, 28, dtype=torch.float64, requires_grad=True)
    (fast,) = torch.autograd.grad(accelerate(model)(x).sum(), x)
    (slow,) = torch.autograd.grad(model(x).sum(), x)
    torch.testing.assert_close(fast, slow, rtol=0, atol=1e-14)


def test_relu_and_pooling_commute_exactly_even_at_ties_and_zeros() -> None:
    layers = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    generator = torch.Generator().manual_seed(3)
    x = torch.randint(-2, 3, (50, 4, 8, 8), generator=generator).float().requires_grad_()
    weight = torch.randn(50, 4, 4, 4, generator=generator)
    swapped = accelerate(layers)
    assert type(swapped[0]) is nn.MaxPool2d
    assert torch.equal(swapped(x), layers(x))
    (a,) = torch.autograd.grad((swapped(x) * weight).sum(), x)
    (b,) = torch.autograd.grad((layers(x) * weight).sum(), x)
    assert torch.equal(a, b)


def test_other_modules_are_left_alone() -> None:
    class Own(nn.Sequential):
        pass

    own = Own(nn.Conv2d(1, 2, 3))
    assert accelerate(own) is own
    linear = nn.Linear(3, 2)
    assert accelerate(linear) is linear


def test_image_smaller_than_the_kernel_is_refused_as_by_torch() -> None:
    with pytest.raises(RuntimeError, match="Kernel size"):
        accelerate(nn.Sequential(nn.Conv2d(1, 2, 5)))(torch.rand(1, 1, 3, 3))
