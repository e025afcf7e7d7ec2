"""Layers computed in a fleet's own way give what plain vmap gives: outputs and gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap

from rwalk.engine.vmap_layers import BatchWell

RUNS, BATCH = 3, 4


class Attention(nn.Module):
    """Linear layers on three dimensions, and a pool that tells its places."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(24, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.mix(x[:, :, :, 0]))
        pooled, places = F.max_pool2d(x[:, None], (1, 2), return_indices=True)
        return self.head((pooled + 0.0 * places).flatten(1).repeat(1, 2)[:, :24])


NETWORKS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 6), nn.ReLU(), nn.Linear(6, 5, bias=False)),
    "convolutions": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2, groups=2, bias=False),
        nn.Conv2d(6, 6, 2, dilation=2, padding="same"),
        nn.Flatten(),
        nn.Linear(54, 5),
    ),
    "pools": lambda: nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True),
        nn.BatchNorm2d(4),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    ),
    "three dimensions": Attention,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_same_as_vmap(name: str) -> None:
    torch.manual_seed(0)
    nets = [NETWORKS[name]().double() for _ in range(RUNS)]
    parameters = {
        key: torch.stack([dict(net.named_parameters())[key].detach() for net in nets]).requires_grad_()
        for key, _ in nets[0].named_parameters()
    }
    buffers = {
        key: torch.stack([dict(net.named_buffers())[key] for net in nets]) for key, _ in nets[0].named_buffers()
    }
    x = torch.randn(RUNS, BATCH, 3, 8, 8, dtype=torch.float64)

    def run() -> tuple[Tensor, tuple[Tensor, ...]]:
        still = {key: value.clone() for key, value in buffers.items()}
        out = vmap(lambda p, b, one: functional_call(nets[0], {**p, **b}, (one,)))(parameters, still, x)
        return out, torch.autograd.grad(out.sin().sum(), list(parameters.values()))

    out, grads = run()
    with BatchWell():
        ours, our_grads = run()
    torch.testing.assert_close(ours, out, rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(our_grads, grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_weights_gradients_of_linear_layers_come_in_order() -> None:
    """What it is for: no transposed copy on the way back."""
    weight = torch.randn(RUNS, 6, 7, requires_grad=True)
    x = torch.randn(RUNS, BATCH, 7)
    for mode, contiguous in ((None, False), (BatchWell(), True)):
        seen: list[bool] = []
        turned = weight + 0.0
        turned.register_hook(lambda grad, seen=seen: seen.append(grad.is_contiguous()))
        if mode is None:
            out = vmap(lambda one, w: F.linear(one, w, None))(x, turned)
        else:
            with mode:
                out = vmap(lambda one, w: F.linear(one, w, None))(x, turned)
        out.square().sum().backward()
        assert seen == [contiguous]


def test_shared_weights_and_shared_inputs() -> None:
    """vmap over the one alone: the other is the same for every run."""
    conv = nn.Conv2d(3, 4, 3).double()
    x = torch.randn(RUNS, BATCH, 3, 8, 8, dtype=torch.float64)
    weights = torch.randn(RUNS, 4, 3, 3, 3, dtype=torch.float64)
    with BatchWell():
        torch.testing.assert_close(vmap(conv)(x), torch.stack([conv(one) for one in x]))
        ours = vmap(lambda w: F.conv2d(x[0], w, None, (1, 1), (0, 0), (1, 1), 1))(weights)
        pooled = vmap(lambda w: F.max_pool2d(x[0], 2) * w[0, 0, 0, 0])(weights)
    torch.testing.assert_close(ours, torch.stack([F.conv2d(x[0], w) for w in weights]))
    torch.testing.assert_close(pooled, torch.stack([F.max_pool2d(x[0], 2) * w[0, 0, 0, 0] for w in weights]))
