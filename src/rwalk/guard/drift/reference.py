"""The reference model: guarded parameters and batch norm's statistics as they were, and the way back there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from rwalk.errors import InputError
from rwalk.guard.select import plain, unwrapped
from rwalk.guard.state.sharded import local

HALVINGS = 20  # of the way back, in the search for the largest share of it that keeps a budget


class Reference:
    """Copies of all that training moves, in host memory.

    Args:
        tensors: by the names they have in the model without wrappers, on this rank.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    @classmethod
    def of(cls, model: nn.Module, parameters: Iterable[nn.Parameter]) -> Reference:
        """Copy these parameters and batch norm's running statistics."""
        reference = cls({})
        for name, tensor in moving(model, set(parameters)).items():
            reference.add(name, tensor)
        return reference

    def add(self, name: str, tensor: Tensor) -> None:
        self.tensors[name] = local(tensor.detach()).to("cpu", copy=True)

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())

    @property
    def statistics(self) -> Reference:
        """Batch norm's running statistics alone."""
        return Reference({name: each for name, each in self.tensors.items() if ".running_" in f".{name}"})

    def here(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's tensors that were copied, in place; of a tensor that has grown, the part that was there."""
        there = {name: local(each.detach()) for name, each in _tensors(model).items()}
        found = {}
        for name, old in self.tensors.items():
            tensor = there.get(name)
            if tensor is None:
                continue
            smaller = all(a <= b for a, b in zip(old.shape, tensor.shape, strict=False))
            if tensor.ndim != old.ndim or not smaller:
                raise InputError(
                    f"{name} had shape {tuple(old.shape)}, and has {tuple(tensor.shape)}: no way back"
                )
            found[name] = tensor[tuple(slice(size) for size in old.shape)]
        return found

    @contextmanager
    def between(self, model: nn.Module) -> Iterator[Callable[[float], None]]:
        """A function that puts the model at a share of the way from the reference (0) to where it is now (1).

        Where it is put last, it stays.
        """
        here = self.here(model)
        now = {name: tensor.to("cpu", copy=True) for name, tensor in here.items()}

        def put(share: float) -> None:
            torch.clear_autocast_cache()  # the user's autocast may hold rounded copies of the weights
            with torch.no_grad():
                for name, tensor in here.items():
                    if share == 1.0 or not tensor.is_floating_point():
                        tensor.copy_(now[name])
                        continue
                    wide = torch.promote_types(tensor.dtype, torch.float32)
                    tensor.copy_(torch.lerp(self.tensors[name].to(wide), now[name].to(wide), share))
            torch.clear_autocast_cache()  # inside of autocast it holds roundings of the weights from before

        try:
            yield put
        except BaseException:
            put(1.0)
            raise

    def rewind(self, model: nn.Module, within: Callable[[], bool]) -> float | None:
        """Interpolate the weights towards the reference, no further than needed.

        Returns:
            The share of the way that is left, or None if not even the reference is `within`; then the weights
            stay as they are.
        """
        if within():
            return 1.0
        with self.between(model) as put:
            put(0.0)
            if not within():
                put(1.0)
                return None
            good, bad = 0.0, 1.0
            for _ in range(HALVINGS):
                middle = (good + bad) / 2
                put(middle)
                good, bad = (middle, bad) if within() else (good, middle)
            put(good)
        return good

    def nearest(self, model: nn.Module, drift: Callable[[], float], points: int = 5) -> None:
        """Interpolate towards the reference, to the one of a few equally spaced points with the least drift."""
        if not self.tensors:
            return
        with self.between(model) as put:
            drifts = {}
            for number in range(points):
                share = 1.0 - number / (points - 1)
                put(share)
                drifts[share] = drift()
            put(min(drifts, key=drifts.__getitem__))


def moving(model: nn.Module, parameters: set[nn.Parameter]) -> dict[str, Tensor]:
    """These parameters, and the running statistics of normalisation layers, by name."""
    root = unwrapped(model)
    found: dict[str, Tensor] = {
        plain(name): parameter for name, parameter in root.named_parameters() if parameter in parameters
    }
    for path, module in root.named_modules():
        if isinstance(module, _NormBase):
            for name, buffer in module.named_buffers(recurse=False):
                if buffer.is_floating_point():
                    found[plain(f"{path}.{name}" if path else name)] = buffer
    return found


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    root = unwrapped(model)
    found: dict[str, Tensor] = {plain(name): each for name, each in root.named_parameters()}
    return {**found, **{plain(name): each for name, each in root.named_buffers()}}
