"""Divergences: how far a model's outputs have moved from the old outputs.

A divergence compares old outputs with new ones, prediction by prediction. `keep` reduces old outputs to the
tensors that have to be stored; `between` compares new outputs with them. Both are pure functions, so a new
divergence is one entry in `DIVERGENCES`, or a function of old and new outputs given by the user.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rwalk.errors import InputError, unknown
from rwalk.guard import warnings

DENSE, TOP = (
    512,
    128,
)  # up to DENSE classes all are stored; of more, the TOP most probable and the mass of the rest
Kept = dict[str, Tensor]  # old outputs as they are stored


class Divergence(NamedTuple):
    """A way to compare outputs.

    Args:
        name: its name in files and messages.
        keep: from old outputs to the tensors that are stored.
        between: from these tensors and new outputs to one number per prediction, or one for all.
        rows: whether outputs are flattened to [predictions, numbers] first, without padding.
    """

    name: str
    keep: Callable[[Tensor], Kept]
    between: Callable[[Kept, Tensor], Tensor]
    rows: bool = True


# ── predictions of classes ───────────────────────────────────────────────────────────────────────────────────


def keep_logs(logits: Tensor) -> Kept:
    """Log-probabilities: of all classes, or of the most probable ones and, last, of all others together."""
    logs = wide(logits).log_softmax(-1)
    if logs.shape[-1] <= DENSE:
        return {"logs": logs}
    top = logs.topk(TOP)
    return {"logs": torch.cat([top.values, _others(top.values)], -1), "classes": top.indices.int()}


def kl(old: Kept, logits: Tensor) -> Tensor:
    """KL(old ‖ new) of each prediction, in nats; classes added since then are left out.

    If only the most probable classes were stored, this is the divergence of the distribution over those classes
    and all others together, which is at most the whole divergence.

    >>> old = keep_logs(torch.tensor([[2.0, 0.0]]))
    >>> float(kl(old, torch.tensor([[2.0, 0.0, 9.0]])))
    0.0
    """
    logs, classes = old["logs"], old.get("classes")
    if classes is None:
        new = wide(_old_columns(logits, logs.shape[-1])).log_softmax(-1)
    else:
        top = wide(logits).log_softmax(-1).gather(-1, classes.long())
        new = torch.cat([top, _others(top)], -1)
    return (logs.exp() * (logs - new)).sum(-1)


def _others(logs: Tensor) -> Tensor:
    """The log-probability of all classes that are not among these."""
    smallest = torch.finfo(logs.dtype).eps  # the remainder is rounding noise where nothing is left
    return torch.log1p(-logs.exp().sum(-1, keepdim=True).clamp(max=1 - smallest))


def binary_kl(old: Kept, logits: Tensor) -> Tensor:
    """Σ over labels of KL(old ‖ new), each label a yes-or-no prediction with a logit of its own.

    >>> old = keep_outputs(torch.tensor([[0.0, 3.0]]))
    >>> float(binary_kl(old, torch.tensor([[0.0, 3.0, -1.0]])))
    0.0
    """
    then = old["outputs"]
    now = wide(_old_columns(logits, then.shape[-1]))
    share = then.sigmoid()
    yes = share * (torch.nn.functional.logsigmoid(then) - torch.nn.functional.logsigmoid(now))
    no = (1 - share) * (torch.nn.functional.logsigmoid(-then) - torch.nn.functional.logsigmoid(-now))
    return (yes + no).sum(-1)


# ── numbers and directions ───────────────────────────────────────────────────────────────────────────────────


def keep_outputs(outputs: Tensor) -> Kept:
    return {"outputs": wide(outputs)}


def keep_scaled(outputs: Tensor) -> Kept:
    """The outputs, and the variance of each column; no column counts as less than 1e-4 of the mean variance."""
    outputs = wide(outputs)
    variance = outputs.var(0, unbiased=False) if len(outputs) > 1 else outputs[0].square()
    floor = torch.maximum(1e-4 * variance.mean(), 1e-8 * outputs.square().mean())
    return {"outputs": outputs, "variance": variance.clamp(min=floor.clamp(min=1e-12))}


def mse(old: Kept, outputs: Tensor) -> Tensor:
    """Mean squared change of the outputs, in units of their variance over the probes.

    >>> old = keep_scaled(torch.tensor([[0.0], [2.0]]))
    >>> mse(old, torch.tensor([[1.0], [2.0]]))
    tensor([1., 0.])
    """
    now = wide(_old_columns(outputs, old["outputs"].shape[-1]))
    return ((now - old["outputs"]).square() / old["variance"]).mean(-1)


def cosine(old: Kept, outputs: Tensor) -> Tensor:
    """1 − cos of the angle by which each embedding has turned.

    >>> cosine(keep_outputs(torch.tensor([[1.0, 0.0]])), torch.tensor([[0.0, 5.0]]))
    tensor([1.])
    """
    then, now = _unit(old["outputs"]), _unit(_same_columns(outputs, old["outputs"]))
    return (then - now).square().sum(-1) / 2  # equals 1 − cos, with a gradient that is finite at zero


def similarity(old: Kept, outputs: Tensor) -> Tensor:
    """Mean squared change of the cosine similarities between all embeddings of a batch; rotations are free.

    >>> turned = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
    >>> float(similarity(keep_outputs(torch.eye(2)), turned).sum())
    0.0
    """
    then, now = _unit(old["outputs"]), _unit(_same_columns(outputs, old["outputs"]))
    change: Tensor = now @ now.T - then @ then.T
    return change.square().mean(-1)


def _unit(vectors: Tensor) -> Tensor:
    unit: Tensor = vectors / vectors.norm(dim=-1, keepdim=True).clamp(min=1e-12)
    return unit


# ── shared by all ────────────────────────────────────────────────────────────────────────────────────────────


def wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _old_columns(outputs: Tensor, columns: int) -> Tensor:
    """The outputs that were there before; a head may have grown since."""
    if outputs.shape[-1] < columns:
        raise InputError(f"the model has {outputs.shape[-1]} outputs, and had {columns} when probes were kept")
    return outputs[..., :columns]


def _same_columns(outputs: Tensor, old: Tensor) -> Tensor:
    if outputs.shape != old.shape:
        raise InputError(f"embeddings have shape {tuple(outputs.shape)}, and had {tuple(old.shape)} before")
    return wide(outputs)


DIVERGENCES: dict[str, Divergence] = {
    "kl": Divergence("kl", keep_logs, kl),
    "binary_kl": Divergence("binary_kl", keep_outputs, binary_kl),
    "mse": Divergence("mse", keep_scaled, mse),
    "cosine": Divergence("cosine", keep_outputs, cosine),
    "similarity": Divergence("similarity", keep_outputs, similarity),
}


def named(divergence: Any) -> Divergence:
    """A divergence by its name, or the user's own function of old and new outputs."""
    if isinstance(divergence, Divergence):
        return divergence
    if isinstance(divergence, str):
        if divergence not in DIVERGENCES:
            raise unknown("divergence", divergence, DIVERGENCES)
        return DIVERGENCES[divergence]
    if not callable(divergence):
        raise InputError(
            f"divergence must be one of {', '.join(DIVERGENCES)}, or a function of old and new outputs, "
            f"not {divergence!r}"
        )
    own: Callable[[Tensor, Tensor], Tensor] = divergence
    name = f"{getattr(own, '__module__', '')}:{getattr(own, '__qualname__', type(own).__name__)}"
    return Divergence(name, lambda old: {"old": old}, lambda kept, new: own(kept["old"], new), rows=False)


# ── the outputs of a model ───────────────────────────────────────────────────────────────────────────────────

MANY = 16  # rows in which the same output is the largest: classes would vary
UNDECIDED = 0.75  # of the largest entropy there can be: a classifier prefers some classes to others
ZERO = 0.01  # of `evidence`: outputs in bfloat16 are rounded by a few thousandths
EMBEDDINGS = ("sentence_embedding", "text_embeds", "image_embeds", "embeddings", "pooler_output")


def picked(output: Any, outputs: Any) -> dict[str, Tensor]:
    """The tensors to compare, by name, among the outputs of a model.

    Args:
        output: the object that the model returned.
        outputs: the name of a field or several names, a function of the output, or None to look for logits,
            then embeddings, then the output itself.
    """
    if callable(outputs):
        found = outputs(output)
        found = dict(found) if isinstance(found, Mapping) else {"output": found}
    elif outputs is not None:
        names = [outputs] if isinstance(outputs, str) else list(outputs)
        found = {name: _field(output, name) for name in names}
    elif isinstance(output, Tensor):
        found = {"output": output}
    else:
        name = next((each for each in ("logits", *EMBEDDINGS) if _field(output, each) is not None), None)
        first = output[0] if name is None and isinstance(output, tuple | list) and output else None
        found = {"output": first} if name is None else {name: _field(output, name)}
    for name, tensor in found.items():
        if not isinstance(tensor, Tensor) or not tensor.is_floating_point() or tensor.ndim < 1:
            raise InputError(
                f"drift is measured on tensors of numbers, and the model returned a {type(output).__name__} "
                f"without {'one' if name == 'output' else repr(name)}: give outputs=, the name of a field of its "
                "output, or a function of the output"
            )
    return found


def _field(output: Any, name: str) -> Any:
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def fitting(
    name: str, output: Tensor, batch_is_tokens: bool, labels: Tensor | None = None
) -> tuple[Divergence, bool]:
    """The divergence for an output, and whether that is a guess: the loss of the first step tells (`by_loss`).

    Args:
        name: of the output; "output" if it has none.
        output: old outputs of one batch.
        batch_is_tokens: whether inputs are sequences of tokens.
        labels: that a loader brought along; if they are not class numbers, outputs are no logits of classes.
    """
    guess = name == "output" and labels is None
    columns = output.shape[-1] if output.ndim > 1 else 1
    if name in EMBEDDINGS:
        return DIVERGENCES["cosine"], False
    if labels is not None and labels.is_floating_point() and labels.numel() == output.numel():
        yes_or_no = bool(((labels == 0) | (labels == 1)).all())
        return DIVERGENCES["binary_kl" if yes_or_no else "mse"], False
    if columns == 1:
        return DIVERGENCES["mse"], guess
    if name == "output" and output.ndim == 2 and _are_unit(output):
        return DIVERGENCES["cosine"], False
    if output.ndim == 2 or name == "logits" or batch_is_tokens:
        if guess and bool((output >= 0).all()) and bool(((output.sum(-1) - 1).abs() < 1e-3).all()):
            raise InputError(
                "the model returns probabilities, and drift is measured on logits: give outputs=lambda p: p.log()"
            )
        return DIVERGENCES["kl"], guess and output.ndim == 2
    raise InputError(
        f"outputs of shape {tuple(output.shape)} may be classes per pixel, features or numbers: give divergence=, "
        f"one of {', '.join(DIVERGENCES)}, and outputs= to move classes to the last dimension"
    )


def evidence(output: Tensor, gradient: Tensor) -> Tensor:
    """What the gradient of a loss with respect to outputs tells about them: three numbers that are 0 or not.

    The first is 0 if the loss stays as it is when all columns are shifted, as with classes; the second, if it is
    the loss of labels that are each yes or no; the third, if the length of an output makes no difference.

    >>> logits = torch.randn(8, 3, requires_grad=True)
    >>> torch.nn.functional.cross_entropy(logits, torch.arange(8) % 3).backward()
    >>> (evidence(logits.detach(), logits.grad) < ZERO).tolist()
    [True, False, False]
    """
    out, slope = (flattened(each.float(), None) for each in (output, gradient))
    shift = slope.sum(-1).abs().sum() / slope.abs().sum()
    labels = out.sigmoid() - (slope < 0).float()
    length = (slope * out).sum(-1).abs().sum() / (slope.norm(dim=-1) * out.norm(dim=-1)).sum()
    return torch.stack([shift, 1 - torch.cosine_similarity(slope.flatten(), labels.flatten(), dim=0), length])


def by_loss(seen: Tensor, columns: int) -> Divergence | None:
    """The divergence that suits the loss of a training pass; None without a gradient."""
    if not bool(seen.isfinite().all()):
        return None
    shift, labels, length = (seen < ZERO).tolist()
    if labels:
        return DIVERGENCES["binary_kl"]
    if columns == 1 or not (shift or length):
        return DIVERGENCES["mse"]
    return DIVERGENCES["kl" if shift else "cosine"]


def warn_of_guess(output: Tensor, always: bool) -> None:
    """Warn that outputs are taken for logits: always, or if they prefer no class, or always the same."""
    output = output.detach().float()
    entropy = torch.distributions.Categorical(logits=output).entropy().mean()
    undecided = bool(entropy > UNDECIDED * math.log(output.shape[-1]))
    largest = output.argmax(-1)
    if always or undecided or (len(output) >= MANY and bool((largest == largest[0]).all())):
        warnings.warn(
            f"outputs of shape {tuple(output.shape)} are taken for logits of {output.shape[-1]} classes: if they "
            "are numbers or embeddings, give divergence='mse' or 'cosine'; otherwise 'kl'"
        )


def _are_unit(vectors: Tensor) -> bool:
    lengths = vectors.detach().float().norm(dim=-1)
    return bool((lengths - 1).abs().max() < 1e-3)


def flattened(output: Tensor, mask: Any, divergence: str = "") -> Tensor:
    """[predictions, numbers] without padding; classes per pixel are in dimension 1, as in torch's losses.

    >>> flattened(torch.zeros(2, 5, 4, 4), None, "kl").shape
    torch.Size([32, 5])
    """
    if output.ndim == 1:
        return output[:, None]
    if output.ndim == 4 and divergence in ("kl", "binary_kl"):
        output = output.movedim(1, -1)
    if isinstance(mask, Tensor) and mask.shape == output.shape[:-1]:
        return output[mask.bool()]
    return output.flatten(0, -2)
