"""The networks: `mlp`, `cnn`, `resnet18`, and any factory of nn.Module named `package.module:factory`.

A factory takes the input's shape and the number of classes. The penultimate features of a network are the
inputs of its head: the attribute `head`, or else its last nn.Linear with one output per class.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from weakref import WeakValueDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rwalk.engine.dropout import Dropout, replace_dropout
from rwalk.errors import InputError, first_line, unknown
from rwalk.registry import MOVED, full_name, imported, installed
from rwalk.seeds import seeded

Factory = Callable[[tuple[int, ...], int], nn.Module]


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


NETWORKS: dict[str, tuple[Factory, str]] = {
    "mlp": (MLP, "two hidden layers of 256 ReLU units (the paper's MNIST network)"),
    "cnn": (CNN, "four 3×3 convolutions with dropout (the paper's CIFAR network)"),
    "resnet18": (ResNet18, "ResNet-18 for small images, 20 base filters (GEM's reduced version)"),
    "resnet18-full": (partial(ResNet18, filters=64), "ResNet-18 for small images, 64 base filters"),
}


def find(name: str | Factory) -> Factory:
    """A factory by name, or `package.module:factory`, or the factory itself."""
    if not isinstance(name, str):
        return name
    if name in NETWORKS:
        return NETWORKS[name][0]
    name = full_name("networks", name, NETWORKS)
    if ":" not in name and name not in MOVED:
        raise unknown("network", name, [*NETWORKS, *installed("networks"), "package.module:factory"])
    found = imported(name, "network")
    if not callable(found):
        raise InputError(f"network {name!r} is not callable: it must take (input_shape, classes)")
    return found  # type: ignore[no-any-return]


def builder(name: str | Factory, shape: tuple[int, ...], classes: int) -> Callable[[], nn.Module]:
    """A function that builds one network for this input and head, checked once before anything is trained."""
    factory = find(name)
    if (kind := torch.get_default_dtype()) != torch.float32:
        raise InputError(f"torch's default type is {kind}: networks begin in float32, so set that")

    made: WeakValueDictionary[int, Tensor] = WeakValueDictionary()  # by their ids

    def build() -> nn.Module:
        try:
            module = factory(shape, classes)
        except TypeError as error:
            raise InputError(f"network {name!r} must take (input_shape, classes): {error}") from error
        if not isinstance(module, nn.Module):
            raise InputError(f"network {name!r} must return an nn.Module, not {type(module).__name__}")
        changing = [
            *filter(lambda held: held[1].requires_grad, module.named_parameters()),
            *module.named_buffers(),
        ]
        if shared := [part for part, each in changing if made.get(id(each)) is each]:
            raise InputError(
                f"network {name!r} shares {shared[0]} between its calls: make new layers in every call, or copies "
                "of yours (copy.deepcopy)"
            )
        made.update((id(each), each) for _, each in changing)
        replace_dropout(module)
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
