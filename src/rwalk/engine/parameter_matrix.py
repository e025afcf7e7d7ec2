"""A network is a vector, a fleet of networks is a matrix: nn.Module ⇄ θ[R, P].

Only this file handles how parameters get out of θ and how gradients get back into a vector. All other code uses
`theta`, `forward` and `gradient`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.engine.vmap_layers import BatchWell
from rwalk.errors import InputError, first_line
from rwalk.seeds import seeded


@dataclass(frozen=True)
class Layout:
    """Where each named parameter of a module lies in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        trainable = {name: p.shape for name, p in module.named_parameters() if p.requires_grad and p.numel()}
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

        They are one `split` and views: its backward is one `cat`, whereas each slice would pad to P.
        """
        parts = theta.split(self.sizes, dim=-1)
        lead = theta.shape[:-1]
        views = [part.view(*lead, *shape) for part, shape in zip(parts, self.shapes, strict=True)]
        return dict(zip(self.names, views, strict=True))


class Networks:
    """R networks of one architecture, whose parameters are the rows of θ[R, P].

    Buffers (batch norm's statistics, dropout's counters) and frozen parameters are stacked per run beside θ. For
    R = 1 the module's own parameters are views into θ, and a forward pass is a plain call, so a fleet of one costs
    nothing extra. For R > 1 the module is a template, called under vmap.

    Args:
        build: Makes one network; called once per seed, under that seed.
        seeds: One seed per network.
        device: Where the networks are trained.
        dtype: Type of all parameters.
        tap: Finds the layer of a network whose inputs are its features.
        autocast: Whether forward passes use bfloat16.
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
        self._initial = partial(_initial, build, seeds, dtype)
        module, theta, buffers = self._initial()
        self.layout = Layout.of(module)
        self.device = torch.device(device)
        self.autocast = autocast
        self.module = module.to(self.device)
        self.theta = theta.to(self.device)
        self.buffers = {name: buffer.to(self.device) for name, buffer in buffers.items()}
        self._features: Tensor | None = None
        self.head = tap(self.module)
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
        """Return to the initial parameters and buffers of the seeds."""
        _, theta, buffers = self._initial()
        self.theta.detach().copy_(theta)
        for name, buffer in buffers.items():
            self.buffers[name].copy_(buffer)

    @property
    def runs(self) -> int:
        return self.theta.shape[0]

    def forward(self, x: Tensor, **how: Any) -> Tensor:
        """Logits [R, B, C] of inputs [R, B, ...]; `how` as in `forward_with_features`."""
        return self.forward_with_features(x, **how)[1]

    def forward_with_features(
        self,
        x: Tensor,
        *,
        theta: Tensor | None = None,
        buffers: Mapping[str, Tensor] | None = None,
        train: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Features [R, B, f] and logits [R, B, C] of inputs [R, B, ...].

        Args:
            x: The inputs of every network.
            theta: Another matrix of parameters; it changes no buffer. By default the networks' own.
            buffers: The buffers that belong to `theta`; by default the networks' own.
            train: Whether the modules are in training mode.

        Returns:
            Features, with f = 0 if the network has no known head, and logits.
        """
        if self.module.training != train:
            self.module.train(train)
        with self._precision():
            if self.solo and theta is None:
                logits = self.module(_channels_last(x[0]))[None]
                features = self._taken(logits[0])[None]
            else:
                parameters = self.layout.split(self.theta if theta is None else theta)
                held = self.buffers if buffers is None else buffers
                held = dict(held) if theta is None else {name: each.clone() for name, each in held.items()}
                with BatchWell(), batching():
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
        """The same for R = 1, without concatenation: one piece [1, n] per parameter."""
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
        with torch.enable_grad(), self._precision():
            logits = self._pure_logits(leaves, dict(zip(self.buffers, buffers, strict=True)), x)
            losses = loss(logits.to(self.theta.dtype))
        grads = torch.autograd.grad(losses.sum(), list(leaves.values()), allow_unused=True, materialize_grads=True)
        return losses.detach(), [grad.reshape(self.runs, -1) for grad in grads]

    def pure_outputs(self, theta: Tensor, buffers: Mapping[str, Tensor], x: Tensor) -> Tensor:
        """Logits [R, B, C] of θ [R, P] in evaluation mode, in a form that `programs` can record."""
        self.module.eval()
        own, held = self.layout.split(theta), {name: buffer.clone() for name, buffer in buffers.items()}
        if self.solo:
            own, held = ({name: each[0] for name, each in state.items()} for state in (own, held))
        with self._precision():
            return self._pure_logits(own, held, x).to(self.theta.dtype)

    def _pure_logits(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        """Logits [R, B, C]; for R = 1 parameters and buffers have no dimension of runs."""
        if self.solo:
            return self.call(parameters, buffers, _channels_last(x[0]))[1][None]
        with BatchWell(), batching():
            logits: Tensor = torch.func.vmap(self.call)(parameters, buffers, x)[1]
        return logits

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
def batching() -> Iterator[None]:
    """A network that cannot be computed for several runs or examples at once is one line."""
    try:
        yield
    except RuntimeError as error:
        if not (reason := first_line(error)).startswith("vmap:"):
            raise
        raise InputError(
            f"the network cannot be computed for several runs or examples at once ({reason.partition('. ')[0]}): "
            "let it compute with tensors, without reading their values"
        ) from error


@contextmanager
def preserved(buffers: Mapping[str, Tensor]) -> Iterator[None]:
    """Restore these buffers after the forward passes inside."""
    before = {name: buffer.clone() for name, buffer in buffers.items()}
    try:
        yield
    finally:
        for name, buffer in buffers.items():
            buffer.copy_(before[name])


def _initial(
    build: Callable[[], nn.Module], seeds: Sequence[int], dtype: torch.dtype
) -> tuple[nn.Module, Tensor, dict[str, Tensor]]:
    """The last network, and θ [R, P] and buffers [R, …] of all networks, one per seed."""
    rows, beside = [], []
    for seed in seeds:
        with seeded(seed):
            module = build().to(dtype)
        rows.append(torch.cat([p.detach().reshape(-1) for p in Layout.of(module).pick(module)]))
        beside.append(_untrained(module))
    return module, torch.stack(rows), {name: torch.stack([each[name] for each in beside]) for name in beside[0]}


def _untrained(module: nn.Module) -> dict[str, Tensor]:
    """A module's buffers and frozen parameters."""
    frozen = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    return {**dict(module.named_buffers()), **frozen}


def _channels_last(x: Tensor) -> Tensor:
    """Images on CUDA in the layout that cuDNN prefers."""
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.dim() == 4 else x
