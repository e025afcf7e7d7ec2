"""What a model predicts, kept as it was, and how far from that it has gone: KL(old ‖ new)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rwalk.errors import InputError

DENSE, TOP = (
    512,
    128,
)  # up to so many classes all are kept; of more, the so many most probable, and the rest's mass


def logits_in(output: Any, batch: Any) -> Tensor:
    """The logits [n, classes] in what a model returned, without those of padding."""
    logits = _found(output)
    if not isinstance(logits, Tensor) or logits.ndim < 2 or logits.shape[-1] < 2:
        raise InputError(
            "drift is measured on predictions, logits [..., classes] of two classes or more: let the model return "
            "them, alone or as .logits, or give predict=, a function of the model and a batch that does"
        )
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if isinstance(mask, Tensor) and mask.shape == logits.shape[:-1]:
        return logits[mask.bool()]
    return logits.flatten(0, -2)


def loss_in(output: Any) -> Tensor | None:
    """The loss that a model returned beside its logits, if it did."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) and loss.numel() == 1 else None


def _found(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping) and "logits" in output:
        return output["logits"]
    if hasattr(output, "logits"):
        return output.logits
    return output[0] if isinstance(output, tuple | list) and output else None


class Kept(NamedTuple):
    """Predictions: log-probabilities, of all classes or of the most probable ones and, last, of all the others."""

    logs: Tensor  # [n, classes], or [n, TOP + 1]
    classes: Tensor | None  # [n, TOP]: which ones

    def __len__(self) -> int:
        return len(self.logs)

    def to(self, device: torch.device) -> Kept:
        """Itself where it already is there."""
        if self.logs.device == device:
            return self
        return Kept(self.logs.to(device), None if self.classes is None else self.classes.to(device))


def kept(logits: Tensor) -> Kept:
    logs = _logs(logits)
    if logs.shape[-1] <= DENSE:
        return Kept(logs, None)
    top = logs.topk(TOP)
    return Kept(torch.cat([top.values, _others(top.values)], -1), top.indices.int())


def divergence(old: Kept, logits: Tensor) -> Tensor:
    """KL(old ‖ new) of each prediction [n].

    Where only the most probable classes were kept, of the distribution over these and all others together; this is
    at most the whole one's. Classes that have come since do not count.
    """
    if len(old) != len(logits):
        raise InputError(f"the model makes {len(logits)} predictions on probes where it made {len(old)} before")
    if old.classes is None:
        if logits.shape[-1] < old.logs.shape[-1]:
            raise InputError(f"the model has {logits.shape[-1]} outputs but had {old.logs.shape[-1]} before")
        new = _logs(logits[:, : old.logs.shape[-1]])
    else:
        top = _logs(logits).gather(-1, old.classes.long())
        new = torch.cat([top, _others(top)], -1)
    return (old.logs.exp() * (old.logs - new)).sum(-1)


def _logs(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def _others(logs: Tensor) -> Tensor:
    """The log-probability of all classes that are not among these."""
    smallest = torch.finfo(logs.dtype).eps  # what is left by rounding, where there is nothing left
    return torch.log1p(-logs.exp().sum(-1, keepdim=True).clamp(max=1 - smallest))
