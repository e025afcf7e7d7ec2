"""A network is a vector, a fleet of networks is a matrix: nn.Module ⇄ θ[R, P].

This is the only file that knows how parameters get out of θ and how gradients get back into a vector.
Everybody else sees `theta`, `forward` and `gradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.engine.batched import BatchWell, SquareWell
from rwalk.errors import InputError
from rwalk.seeds import seeded

Begun = tuple[nn.Module, Tensor, dict[str, Tensor]]  # a network, all their θ [R, P], what lies beside it [R, …]


@dataclass(frozen=True)
class Layout:
    """Where each named parameter of a module lies in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        trainable = {name: p.shape for name, p in module.named_parameters() if p.requires_grad}
        if not trainable:
            raise InputError("the network has no trainable parameter: nothing can be learned")
        return cls(tuple(trainable), tuple(trainable.values()))

    @property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def pick(self, module: nn.Module) -> list[nn.Parameter]:
        """The module's parameters, in the vector's order."""
        parameters = dict(module.named_parameters())
        return [parameters[name] for name in self.names]

    def split(self, theta: Tensor) -> dict[str, Tensor]:
        """Views [..., *shape] of θ[..., P] by name.

        One `split` and views, never slices: its backward is one `cat`, where each slice would pad to P.
        """
        parts = theta.split(self.sizes, dim=-1)
        lead = theta.shape[:-1]
        views = [part.view(*lead, *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return dict(zip(self.names, views, strict=True))


class Networks:
    """R networks of one architecture, their parameters the rows of θ[R, P].

    `build` makes one network; it is called once per seed, under that seed. Buffers (BatchNorm's statistics,
    dropout's counters) and frozen parameters are stacked per run beside θ.

    For R = 1 the module's own parameters are views into θ, and a forward pass is a plain call, so a
    fleet of one costs nothing extra. For R > 1 the module is a template, called under vmap.
    """

    def __init__(
        self,
        build: Callable[[], nn.Module],
        seeds: Sequence[int],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        tap: Callable[[nn.Module], nn.Module | None] = lambda module: None,
        autocast: bool = False,
    ) -> None:
        self._begin = partial(_begun, build, seeds, dtype)
        module, theta, buffers = self._begin()
        self.layout = Layout.of(module)
        self.device = torch.device(device)
        self.autocast = autocast
        self.module = module.to(self.device)
        self.theta = theta.to(self.device)
        self.buffers = {name: buffer.to(self.device) for name, buffer in buffers.items()}
        self._features: Tensor | None = None
        self.head = tap(self.module)
        self.has_features = self.head is not None
        if self.head is not None:
            self.head.register_forward_pre_hook(self._remember_features)
        self.solo = len(seeds) == 1
        if self.solo:
            self._bind()
        else:
            self.theta.requires_grad_(True)

    def _remember_features(self, module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self._features = inputs[0]

    def _bind(self) -> None:
        """Make the module's parameters and buffers views into row 0."""
        self._parameters = self.layout.pick(self.module)
        for parameter, view in zip(self._parameters, self.layout.split(self.theta[0]).values(), strict=True):
            parameter.data = view
        for name, held in _untrained(self.module).items():
            self.buffers[name] = self.buffers[name].contiguous()
            held.set_(self.buffers[name][0])  # type: ignore[call-overload]

    def restart(self) -> None:
        """Begin anew, as the seeds say."""
        _, theta, buffers = self._begin()
        self.theta.detach().copy_(theta)
        for name, buffer in buffers.items():
            self.buffers[name].copy_(buffer)

    @property
    def runs(self) -> int:
        return self.theta.shape[0]

    def forward(
        self,
        x: Tensor,
        *,
        theta: Tensor | None = None,
        buffers: Mapping[str, Tensor] | None = None,
        train: bool = True,
    ) -> Tensor:
        """Logits [R, B, C] of inputs [R, B, ...], at θ or at another matrix of the same shape.

        `buffers` are those that belong to another θ; by default the networks' own.
        """
        return self.forward_with_features(x, theta=theta, buffers=buffers, train=train)[1]

    def forward_with_features(
        self,
        x: Tensor,
        *,
        theta: Tensor | None = None,
        buffers: Mapping[str, Tensor] | None = None,
        train: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """(features [R, B, f], logits [R, B, C]); features are empty where the network has no known head."""
        if self.module.training != train:
            self.module.train(train)
        with self._precision():
            if self.solo and theta is None:
                logits = self.module(_channels_last(x[0]))[None]
                features = self._taken(logits[0])[None]
            else:
                parameters = self.layout.split(self.theta if theta is None else theta)
                # Evaluating another θ is not training: it must not update the running statistics.
                held = self.buffers if buffers is None else buffers
                held = dict(held) if theta is None else {name: each.clone() for name, each in held.items()}
                with BatchWell():
                    features, logits = torch.func.vmap(self.call)(parameters, held, x)
        return features.to(self.theta.dtype), logits.to(self.theta.dtype)

    def _precision(self) -> AbstractContextManager[Any]:
        return torch.autocast(self.device.type, dtype=torch.bfloat16) if self.autocast else nullcontext()

    def call(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits of one network, with these parameters and buffers."""
        logits = torch.func.functional_call(self.module, {**parameters, **buffers}, (x,))
        return self._taken(logits), logits

    def _taken(self, logits: Tensor) -> Tensor:
        features, self._features = self._features, None
        return logits.new_empty(logits.shape[0], 0) if features is None else features.flatten(1)

    def gradient(self, losses: Tensor) -> Tensor:
        """∂losses[r]/∂θ[r] for every run: [R, P]."""
        if not self.solo:
            return torch.autograd.grad(losses.sum(), self.theta)[0]
        return torch.cat(self.gradient_pieces(losses), dim=1)

    def gradient_pieces(self, losses: Tensor) -> list[Tensor]:
        """The same for R = 1, as autograd returns it, without concatenation: one piece [1, n] per parameter."""
        grads = torch.autograd.grad(losses[0], self._parameters, allow_unused=True, materialize_grads=True)
        return [grad.reshape(1, -1) for grad in grads]

    def pure_gradient(
        self,
        loss: Callable[[Tensor], Tensor],
        parameters: Mapping[str, Tensor],
        buffers: Sequence[Tensor],
        x: Tensor,
    ) -> tuple[Tensor, list[Tensor]]:
        """Losses [R] and their gradients, one piece [R, n] per parameter, in a form that `programs` can record.

        A function of parameters [R, *shape] and of `own_buffers`, which it updates as training does.
        """
        self.module.train()
        leaves = {name: (p[0] if self.solo else p).detach().requires_grad_() for name, p in parameters.items()}
        held = dict(zip(self.buffers, buffers, strict=True))
        with torch.enable_grad(), self._precision():
            if self.solo:
                logits = self.call(leaves, held, _channels_last(x[0]))[1][None]
            else:
                with BatchWell():
                    _, logits = torch.func.vmap(self.call)(leaves, held, x)
            losses = loss(logits.to(self.theta.dtype))
        grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        return losses.detach(), [grad.reshape(self.runs, -1) for grad in grads]

    def pure_outputs(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Logits [R, B, C] in evaluation mode, as a function that `programs` can record; it changes nothing."""
        self.module.eval()
        held = {name: buffer.clone() for name, buffer in buffers.items()}
        with self._precision():
            if self.solo:
                own, held = ({name: each[0] for name, each in state.items()} for state in (parameters, held))
                logits = self.call(own, held, _channels_last(x[0]))[1][None]
            else:
                with BatchWell():
                    _, logits = torch.func.vmap(self.call)(dict(parameters), held, x)
        return logits.to(self.theta.dtype)

    @property
    def own_buffers(self) -> list[Tensor]:
        """The buffers as one call of the module takes them: for R = 1 without the runs' dimension."""
        return [buffer[0] if self.solo else buffer for buffer in self.buffers.values()]


def head_weight(net: Networks) -> Tensor:
    """The last layer's weights [R, C, f]: row c is w_c."""
    prefix = next(name for name, module in net.module.named_modules() if module is net.head)
    name = f"{prefix}.weight".removeprefix(".")  # the network may be the layer itself
    frozen = net.buffers.get(name)
    return net.layout.split(net.theta.detach())[name] if frozen is None else frozen


@contextmanager
def preserved(buffers: Mapping[str, Tensor]) -> Iterator[None]:
    """Undo whatever forward passes inside do to these buffers."""
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    try:
        yield
    finally:
        for name, buffer in buffers.items():
            buffer.copy_(before[name])


def example_squares(
    net: Networks,
    x: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    y: Tensor,
    of: Callable[[Tensor], Tensor] = lambda square: square,
) -> Tensor:
    """Mean over the batch of (a function of) squared per-example gradients [R, P]: the Fisher of eq. (1).

    In evaluation mode: a single example has no batch statistics, and measuring the Fisher must neither draw random
    numbers nor update the running statistics.
    """
    net.module.eval()

    def example_loss(row: Tensor, buffers: dict[str, Tensor], one_x: Tensor, one_y: Tensor) -> Tensor:
        return loss(net.call(net.layout.split(row), buffers, one_x[None])[1], one_y[None])

    per_example = torch.func.vmap(torch.func.grad(example_loss), in_dims=(None, None, 0, 0))

    def run_squares(row: Tensor, buffers: dict[str, Tensor], xs: Tensor, ys: Tensor) -> Tensor:
        gradients: Tensor = per_example(row, buffers, xs, ys)
        return of(gradients.square()).mean(0)

    rows = [
        run_squares(net.theta[r].detach(), {k: v[r] for k, v in net.buffers.items()}, x[r], y[r])
        for r in range(net.runs)
    ]
    return torch.stack(rows)


def squares_of_linear_layers(
    net: Networks, x: Tensor, losses: Callable[[Tensor], Iterable[Tensor]]
) -> Tensor | None:
    """Σ over examples of squared gradients [R, P], summed over losses of logits, each [R] a sum over examples.

    No example's gradient is computed on its own: this costs one backward pass per loss. In evaluation mode.
    None where the network has other parameters than those of linear layers, each used once.
    """
    if not is_linear_layers(net.module):
        return None
    net.module.eval()
    theta = net.theta.detach().clone().requires_grad_()
    with SquareWell() as counted:
        _, logits = torch.func.vmap(net.call)(net.layout.split(theta), net.buffers, x)
    if counted.layers != sum(isinstance(module, nn.Linear) for module in net.module.modules()):
        return None
    squares = torch.zeros_like(theta)
    for loss in losses(logits):
        squares += torch.autograd.grad(loss.sum(), theta, retain_graph=True)[0]
    return squares.detach()


def is_linear_layers(module: nn.Module) -> bool:
    """Whether all that is trained are the parameters of linear layers."""
    owned = {id(p) for each in module.modules() if isinstance(each, nn.Linear) for p in each.parameters()}
    return all(id(p) in owned for p in module.parameters() if p.requires_grad)


def _begun(build: Callable[[], nn.Module], seeds: Sequence[int], dtype: torch.dtype) -> Begun:
    """A network per seed."""
    rows, beside = [], []
    for seed in seeds:
        with seeded(seed):
            module = build().to(dtype)
        rows.append(torch.cat([p.detach().reshape(-1) for p in Layout.of(module).pick(module)]))
        beside.append(_untrained(module))
    return module, torch.stack(rows), {name: torch.stack([each[name] for each in beside]) for name in beside[0]}


def _channels_last(x: Tensor) -> Tensor:
    """Images on CUDA in the layout that cuDNN prefers."""
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.dim() == 4 else x


def _untrained(module: nn.Module) -> dict[str, Tensor]:
    """What a module holds besides its trainable parameters: buffers and frozen parameters."""
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    return {**dict(module.named_buffers()), **frozen}
