"""The networks: `mlp`, `cnn`, `resnet18`, and any factory of nn.Module named `package.module:factory`.

A factory takes the input's shape and the number of classes. The penultimate features of a network are the
inputs of its head: the attribute `head`, or else its last nn.Linear with one output per class.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rwalk.compiled_programs import compiler_works, fused, recording
from rwalk.errors import InputError, first_line, unknown
from rwalk.registry import MOVED, imported
from rwalk.seeds import seeded

Factory = Callable[[tuple[int, ...], int], nn.Module]


class Dropout(nn.Module):
    """Dropout whose draws are a hash of a counter, kept as a buffer.

    A run must not depend on who shares its fleet, and must resume exactly: torch's own dropout draws from one
    global generator and can do neither. `whole` drops whole channels, like nn.Dropout2d.
    """

    counter: Tensor

    def __init__(self, p: float = 0.5, whole: bool = False) -> None:
        super().__init__()
        self.p = p
        self.whole = whole
        self.register_buffer("counter", torch.randint(2**62, ()))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if self.p == 1:
            return x * 0.0
        self.counter.add_(1)
        return _Dropped.apply(x, self.counter.clone(), self.p, self.whole)  # type: ignore[no-any-return, no-untyped-call]


class _Dropped(torch.autograd.Function):
    """x where the hash of its position keeps it. The mask is not saved for the backward pass but drawn again."""

    @staticmethod
    def forward(x: Tensor, counter: Tensor, p: float, whole: bool) -> Tensor:
        return _fused(dropped, x)(x, counter, p, whole)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, float, bool], output: Tensor) -> None:
        _, counter, ctx.p, ctx.whole = inputs
        ctx.save_for_backward(counter)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _fused(dropped, grad)(grad, *ctx.saved_tensors, ctx.p, ctx.whole), None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: Tensor, counter: Tensor, p: float, whole: bool
    ) -> tuple[Tensor, int]:
        x = x.expand(info.batch_size, *x.shape) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        counter = counter.expand(info.batch_size) if in_dims[1] is None else counter
        return _Dropped.apply(x, counter, p, whole), 0  # type: ignore[no-untyped-call]


def dropped(x: Tensor, counter: Tensor, p: float, whole: bool = False) -> Tensor:
    """Dropout of x [B, ...] by a counter [], or of a fleet's [R, B, ...] by counters [R]."""
    shape = x.shape[: counter.dim() + 2] if whole else x.shape
    bits = hashed(counter, shape[counter.dim() :].numel())
    kept = (bits >= int(p * 2**31)).view(*shape, *(1 for _ in x.shape[len(shape) :]))
    return x * (kept.to(x.dtype) / (1.0 - p))


def hashed(counter: Tensor, n: int) -> Tensor:
    """n numbers, uniform over 0 … 2³¹ − 1, that depend on the counter alone; [R, n] for counters [R].

    Two rounds of multiply and xor-shift (Wellons' lowbias32), in wrapping int32 arithmetic.
    """
    key = counter * 0x5851F42D4C957F2D + 0x14057B7EF767814F
    place = torch.arange(n, dtype=torch.int32, device=counter.device)
    x = (place + (key >> 32).to(torch.int32)[..., None]) * -1640531527
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * -2073254261
    return (x ^ ((x >> 16) & 0xFFFF)) & 0x7FFFFFFF


@cache
def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return fused(function)


def _fused(function: Callable[..., Tensor], x: Tensor) -> Callable[..., Tensor]:
    """One kernel on CUDA, where eager arithmetic would launch many."""
    return _compiled(function) if x.is_cuda and not recording() and compiler_works("cuda") else function


class MLP(nn.Module):
    """Fully connected ReLU layers; 2 × 256 in the paper."""

    def __init__(self, shape: tuple[int, ...], classes: int, hidden: tuple[int, ...] = (256, 256)) -> None:
        super().__init__()
        widths = (torch.Size(shape).numel(), *hidden)
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for layer in self.layers:
            x = F.relu(layer(x))
        return self.head(x)  # type: ignore[no-any-return]


class CNN(nn.Module):
    """The paper's CIFAR network (supplement, table 4): four 3×3 convolutions, dropout ½ after each pool.

    `fifth` is the number of filters of one more convolution, after the last pool, or none.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, fifth: int = 0) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < 4:
            raise InputError(f"cnn needs images [channels, height ≥ 4, width ≥ 4], not {list(shape)}; use mlp")
        channels, height, width = shape
        self.body = nn.Sequential(
            nn.Conv2d(channels, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            Dropout(0.5),
            nn.Conv2d(32, 64, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            Dropout(0.5),
            *((nn.Conv2d(64, fifth, 3, padding=1), nn.ReLU()) if fifth else ()),
            nn.Flatten(),
        )
        self.head = nn.Linear((fifth or 64) * (height // 4) * (width // 4), classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut (He et al. 2016)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outside)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for 32×32 images; GEM's reduced version has 20 base filters, the full one 64."""

    def __init__(self, shape: tuple[int, ...], classes: int, filters: int = 20) -> None:
        super().__init__()
        if len(shape) != 3:
            raise InputError(f"resnet18 needs images [channels, height, width], not {list(shape)}; use mlp")
        self.stem = nn.Sequential(
            nn.Conv2d(shape[0], filters, 3, padding=1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()
        )
        widths = [filters, filters, 2 * filters, 4 * filters, 8 * filters]
        blocks: list[nn.Module] = []
        for depth, (inside, outside) in enumerate(pairwise(widths)):
            blocks += [Block(inside, outside, 1 if depth == 0 else 2), Block(outside, outside, 1)]
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))  # type: ignore[no-any-return]


def mlp_of(width: int, xavier: bool = False) -> Factory:
    """An MLP with two hidden layers of this width; drawn as torch does, or as Glorot & Bengio (2010)."""

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        network = MLP(shape, classes, (width, width))
        for layer in (*network.layers, network.head) if xavier else ():
            assert isinstance(layer, nn.Linear)
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        return network

    return build


def normal(factory: Factory) -> Factory:
    """The same network, begun as RWalk's public code does: truncated-normal weights (σ 0.1), biases of 0.1."""

    def build(shape: tuple[int, ...], classes: int) -> nn.Module:
        network = factory(shape, classes)
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                nn.init.constant_(parameter, 0.1)
            else:
                nn.init.trunc_normal_(parameter, std=0.1, a=-0.2, b=0.2)
        return network

    return build


def resnet18_full(shape: tuple[int, ...], classes: int) -> nn.Module:
    return ResNet18(shape, classes, filters=64)


NETWORKS: dict[str, tuple[Factory, str]] = {
    "mlp": (MLP, "two hidden layers of 256 ReLU units (the paper's MNIST network)"),
    "mlp-100": (mlp_of(100, xavier=True), "two hidden layers of 100 ReLU units (DER's MNIST network)"),
    "mlp-400": (mlp_of(400), "two hidden layers of 400 ReLU units (van de Ven's for Split MNIST)"),
    "mlp-1000": (
        mlp_of(1000),
        "two hidden layers of 1000 ReLU units (van de Ven's for Permuted MNIST)",
    ),
    "cnn": (CNN, "four 3×3 convolutions with dropout (the paper's CIFAR network)"),
    "mlp-normal": (normal(MLP), "mlp, begun as in RWalk's public code: normal weights of deviation 0.1"),
    "cnn-normal": (normal(CNN), "cnn, begun as in RWalk's public code: normal weights of deviation 0.1"),
    "resnet18": (ResNet18, "ResNet-18 for small images, 20 base filters (GEM's reduced version)"),
    "resnet18-full": (resnet18_full, "ResNet-18 for small images, 64 base filters"),
}


def find(name: str | Factory) -> Factory:
    """A factory by name, or `package.module:factory`, or the factory itself."""
    if not isinstance(name, str):
        return name
    if name in NETWORKS:
        return NETWORKS[name][0]
    if ":" not in name and name not in MOVED:
        raise unknown("network", name, [*NETWORKS, "package.module:factory"])
    found = imported(name, "network")
    if not callable(found):
        raise InputError(f"network {name!r} is not callable: it must take (input_shape, classes)")
    return found  # type: ignore[no-any-return]


def builder(name: str | Factory, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    """A function that builds one network for this input and head, checked once before anything is trained."""
    factory = find(name)

    def build() -> nn.Module:
        try:
            module = factory(shape, classes)
        except TypeError as error:
            raise InputError(f"network {name!r} must take (input_shape, classes): {error}") from error
        if not isinstance(module, nn.Module):
            raise InputError(f"network {name!r} must return an nn.Module, not {type(module).__name__}")
        _own_dropout(module)
        return module

    with seeded(0), torch.no_grad():
        module = build().train()
        before = torch.get_rng_state()
        try:
            out = module(torch.zeros(2, *shape))
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            reason = first_line(error)
            raise InputError(f"network {name!r} cannot read inputs of shape {list(shape)}: {reason}") from error
        if not torch.get_rng_state().equal(before):
            raise InputError(
                f"network {name!r} draws random numbers that cannot be repeated (F.dropout?): use nn.Dropout"
            )
    if not isinstance(out, Tensor) or out.shape != (2, classes):
        got = list(out.shape[1:]) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"network {name!r} gives {got} outputs where the stream has {classes} classes")
    return build


def head_of(module: nn.Module, classes: int) -> nn.Linear | None:
    """The layer whose inputs are the features."""
    head = getattr(module, "head", None)
    linears = [m for m in module.modules() if isinstance(m, nn.Linear) and m.out_features == classes]
    if isinstance(head, nn.Linear) and head.out_features == classes:
        return head
    return linears[-1] if linears else None


CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
NORMS = (
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
    *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
)


def gains_from_recording(module: nn.Module) -> bool:
    """Whether CUDA computes this network's gradient faster as one compiled program; by measurement, not guesswork.

    Between convolutions a compiler fuses bias, ReLU, pooling and dropout into one pass. cuDNN's batch norm is as
    fast as compiled code, and in an MLP there is little to fuse.
    """
    kinds = [type(each) for each in module.modules()]
    return any(issubclass(kind, CONVOLUTIONS) for kind in kinds) and not any(
        issubclass(kind, NORMS) for kind in kinds
    )


def _own_dropout(module: nn.Module) -> None:
    """Replace torch's dropout by ours, everywhere in a network."""
    for parent, name, child in list(_children(module)):
        if isinstance(child, nn.Dropout):
            setattr(parent, name, Dropout(child.p))
        elif isinstance(child, nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
            setattr(parent, name, Dropout(child.p, whole=True))
        elif isinstance(child, nn.AlphaDropout | nn.FeatureAlphaDropout | nn.RReLU):
            raise InputError(
                f"the network uses {type(child).__name__}, whose random draws cannot be repeated: use nn.Dropout"
            )


def _children(module: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Module]]:
    """(parent, name, child): a child with two names comes twice, unlike with named_children()."""
    for parent in module.modules():
        for name, child in parent._modules.items():
            if child is not None:
                yield parent, name, child
