"""The model as it was when drift was last zero: its trained parameters and its buffers, and the way back there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rwalk.errors import InputError
from rwalk.guard.select import named_tensors
from rwalk.guard.state.sharded import local

HALVINGS = 20  # of the way back, in the search for the furthest point that keeps a budget


class Old:
    """Copies of all that training moves; of a parameter whose anchor the method keeps as it is, that anchor."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    @classmethod
    def of(cls, model: nn.Module, anchors: Mapping[str, Tensor]) -> Old:
        taken: dict[str, Tensor] = {}
        for name, tensor in named_tensors(model).items():
            here = local(tensor.detach())
            anchor = anchors.get(name)
            exact = (
                anchor is not None and anchor.device == here.device and torch.equal(anchor.to(here.dtype), here)
            )
            taken[name] = anchor if exact and anchor is not None else here.clone()
        return cls(taken)

    def own(self, anchors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The copies that are no method's anchors."""
        shared = {anchor.data_ptr() for anchor in anchors.values()}
        return {name: tensor for name, tensor in self.tensors.items() if tensor.data_ptr() not in shared}

    def here(self, model: nn.Module) -> dict[str, Tensor]:
        """What of the model was copied and is there still, in place."""
        there = {name: local(tensor.detach()) for name, tensor in named_tensors(model).items()}
        grown = [name for name in self.tensors if name in there and there[name].shape != self.tensors[name].shape]
        if grown:
            raise InputError(f"{grown[0]} has changed its shape since: there is no way back; consolidate() first")
        return {name: there[name] for name in self.tensors if name in there}

    @contextmanager
    def instead(self, model: nn.Module) -> Iterator[None]:
        """The old model, for a moment."""
        here = self.here(model)
        now = {name: tensor.clone() for name, tensor in here.items()}
        try:
            self._go(here, now, 0.0)
            yield
        finally:
            self._go(here, now, 1.0)

    def rewind(self, model: nn.Module, keeps: Callable[[], bool]) -> float:
        """Go back, as little as is needed, on the straight way to the old model; how much of the way is left."""
        if keeps():
            return 1.0
        here = self.here(model)
        now = {name: tensor.clone() for name, tensor in here.items()}
        good, bad = 0.0, 1.0
        for _ in range(HALVINGS):
            middle = (good + bad) / 2
            self._go(here, now, middle)
            good, bad = (middle, bad) if keeps() else (good, middle)
        self._go(here, now, good)
        return good

    def approach(self, model: nn.Module, share: float, names: Iterable[str] | None = None) -> None:
        """Go this share of the way to the old model, all of it or what has these names."""
        here = self.here(model)
        for name in here if names is None else names:
            if name in here and here[name].is_floating_point():
                here[name].lerp_(self.tensors[name].to(here[name]), share)

    def _go(self, here: Mapping[str, Tensor], now: Mapping[str, Tensor], way: float) -> None:
        with torch.no_grad():
            for name, tensor in here.items():
                if way == 1.0 or not tensor.is_floating_point():
                    tensor.copy_(now[name])
                else:
                    wide = torch.promote_types(tensor.dtype, torch.float32)
                    old = self.tensors[name].to(tensor.device, wide)
                    tensor.copy_(torch.lerp(old, now[name].to(wide), way))
