"""A pass over probes: it leaves no trace in the model or in random numbers, and rounds as training does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.guard.drift import batches, divergences
from rwalk.guard.drift.batches import device_of
from rwalk.seeds import draws_restored


@contextmanager
def eval_mode(model: nn.Module, keep_draws: bool = False, except_for: Iterable[nn.Module] = ()) -> Iterator[None]:
    """Evaluation mode, with gradients set aside and random numbers put back afterwards.

    Modules change their mode by their own `train` and `eval`, because some do more there than set a flag.

    Args:
        model: its modes and gradients are the same afterwards.
        keep_draws: random numbers drawn inside belong to the user and stay drawn.
        except_for: layers that stay in training mode.
    """
    modes = {module: module.training for module in model.modules()}
    gradients = {parameter: parameter.grad for parameter in model.parameters() if parameter.grad is not None}
    devices = {parameter.device for parameter in model.parameters() if parameter.device.type == "cuda"}
    with torch.inference_mode(False), nullcontext() if keep_draws else draws_restored(list(devices)):
        try:
            if any(modes.values()):
                model.eval()
            for layer in except_for:
                layer.train()
            for parameter in gradients:
                parameter.grad = None
            yield
        finally:
            for parameter in model.parameters():
                parameter.grad = gradients.get(parameter)
            _restore(modes)


def _restore(modes: dict[nn.Module, bool]) -> None:
    """Parents first, because `train` of a parent sets the mode of its children."""
    for module, training in modes.items():
        if module.training != training:
            module.train(training)


class TrainingPass:
    """The first training pass: how large its batch is, under which autocast, and with which kind of loss.

    An optimizer's step is usually taken outside of `torch.autocast`, and never sees the loss. So this hook looks
    at the model's first pass in training, and then removes itself. In a copy of the model it does nothing.
    """

    def __init__(self) -> None:
        self.dtype: torch.dtype | None = None  # None: no autocast
        self.size: tuple[int, int] | None = None  # examples and tokens in its batch; None: not seen
        self.wanted = False  # whether evidence is
        self.evidence: Tensor | None = None  # see `divergences.evidence`; None: not seen
        self._release: Callable[[], None] | None = None

    def watch(self, model: nn.Module) -> None:
        self.release()
        self._release = model.register_forward_hook(self, with_kwargs=True).remove

    def release(self) -> None:
        if self._release is not None:
            self._release()
            self._release = None

    def context(self, model: nn.Module) -> AbstractContextManager[Any]:
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(device_of(model).type, self.dtype)

    def __call__(self, module: nn.Module, args: Any, named: Any, output: Any) -> None:
        if self._release is None or not (module.training and torch.is_grad_enabled()):
            return
        self.release()
        device = device_of(module).type
        self.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        inputs = [each for each in batches.tensors((args, named)) if each.ndim]
        if inputs:
            self.size = len(inputs[0]), len(inputs[0]) * batches.tokens_of_example(inputs[0])
        first = output[0] if isinstance(output, tuple | list) and output else output
        if self.wanted and isinstance(first, Tensor) and first.requires_grad and first.ndim:
            before = first.detach()

            def note(gradient: Tensor) -> None:
                self.evidence = divergences.evidence(before, gradient)

            first.register_hook(note)

    def __deepcopy__(self, memo: Any) -> TrainingPass:
        return TrainingPass()

    def __reduce__(self) -> tuple[type[TrainingPass], tuple[()]]:
        return TrainingPass, ()
