"""Divergences: how far a model's outputs have moved from the old outputs.

A divergence compares old outputs with new ones, prediction by prediction. `keep` reduces old outputs to the
tensors that have to be stored; `between` compares new outputs with them. Both are pure functions, so a new
divergence is one entry in `DIVERGENCES`, or a function of old and new outputs given by the user.

Some families of models have a class that stands for everything else: the background of a segmenter, "outside" of
a tagger, the blank of CTC, DETR's "no object". The old model put there what is a new class now. So the new
classes are counted together with it: what was background may become a new class, and an old class may not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rwalk.errors import InputError, unknown, warn_caller

DENSE = 512  # up to so many classes all are stored
TOP = 128  # of more, the most probable and the mass of the rest
Kept = dict[str, Tensor]  # old outputs as they are stored: rows of predictions, and what belongs to all of them:
SCALE, COLUMNS = "variance", "columns"


class Divergence(NamedTuple):
    """A way to compare outputs.

    Args:
        name: its name in files and messages.
        keep: from old outputs to the tensors that are stored.
        between: from these tensors and new outputs to one number per prediction, or one for all.
        rows: whether outputs are flattened to [predictions, numbers] first, without padding.
        pixels: whether classes are in dimension 1 of images and volumes, as in torch's losses.
        masks: inputs that tell predictions from padding: 0, and -100 in labels.
        picks: from a model's output to the tensor that is compared, if logits or the output itself are not enough.
        compare: the function of old and new outputs that is behind it, if it has settings.
    """

    name: str
    keep: Callable[[Tensor], Kept]
    between: Callable[[Kept, Tensor], Tensor]
    rows: bool = True
    pixels: bool = False
    masks: tuple[str, ...] = ("attention_mask",)
    picks: Callable[[Any], Tensor] | None = None
    compare: Callable[..., Tensor] | None = None


# ── predictions of classes ───────────────────────────────────────────────────────────────────────────────────


def keep_logs(logits: Tensor) -> Kept:
    """Log-probabilities: of all classes, or of the most probable ones and, last, of all others together.

    The number of classes is stored as the length of an empty tensor, so that no step waits to read it.
    """
    logs = wide(logits).log_softmax(-1)
    if logs.shape[-1] <= DENSE:
        return {"logs": logs}
    top = logs.topk(TOP)
    kept = torch.cat([top.values, _others(top.values)], -1)
    return {"logs": kept, "classes": top.indices.int(), COLUMNS: logs.new_empty(logs.shape[-1], 0)}


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
        columns = len(old[COLUMNS]) if COLUMNS in old else logits.shape[-1]  # files of 0.2 have none
        top = wide(_old_columns(logits, columns)).log_softmax(-1).gather(-1, classes.long())
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
    return _binary_kl(then, wide(_old_columns(logits, then.shape[-1]))).sum(-1)


def _binary_kl(then: Tensor, now: Tensor) -> Tensor:
    share = then.sigmoid()
    yes = share * (F.logsigmoid(then) - F.logsigmoid(now))
    no = (1 - share) * (F.logsigmoid(-then) - F.logsigmoid(-now))
    return yes + no


# ── classes beside a background ──────────────────────────────────────────────────────────────────────────────

LEAST = 0.05  # share of predictions that counts as foreground at least, where there is hardly any


def segmentation(old: Tensor, new: Tensor, background: int = 0) -> Tensor:
    """KL(old ‖ new) of each pixel, in nats per pixel of the old foreground; background may become a new class.

    Args:
        old: logits [pixels, classes].
        new: logits [pixels, classes], with columns of new classes after those of the old ones.
        background: the class of everything else; -1 if it is the last one, also after new classes came.

    >>> old = torch.tensor([[9.0, 0.0], [0.0, 9.0]])  # background, and a thing
    >>> grown = torch.tensor([[0.0, 0.0, 9.0], [0.0, 0.0, 9.0]])
    >>> segmentation(old, grown) > 0.01
    tensor([False,  True])
    """
    then = wide(old).log_softmax(-1)
    now = _with_background(new, then.shape[-1], background)
    foreground = (1 - then[..., background].exp()).mean().clamp(min=LEAST)
    return (then.exp() * (then - now)).sum(-1) / foreground


def tagging(old: Tensor, new: Tensor, outside: int = 0) -> Tensor:
    """KL(old ‖ new) of each token's tag, in nats per token that has one; "outside" may become a new tag.

    Args:
        old: logits [tokens, tags].
        new: logits [tokens, tags], with columns of new tags after those of the old ones.
        outside: the tag of tokens that have none; -1 if it is the last one.

    >>> old = torch.randn(5, 3)
    >>> float(tagging(old, torch.cat([old, torch.full((5, 2), -50.0)], 1)).abs().max()) < 1e-5
    True
    """
    return segmentation(old, new, outside)


def ctc(old: Tensor, new: Tensor, blank: int = 0) -> Tensor:
    """KL(old ‖ new) of each frame, in nats per frame that is no blank; blanks may become new symbols.

    Args:
        old: logits [frames, symbols].
        new: logits [frames, symbols], with columns of new symbols after those of the old ones.
        blank: CTC's blank; -1 if it is the last one.

    >>> old = torch.randn(5, 3)
    >>> float(ctc(old, old + 2).abs().max()) < 1e-5
    True
    """
    return segmentation(old, new, blank)


def _with_background(logits: Tensor, columns: int, background: int) -> Tensor:
    """Log-probabilities of the old classes; those of new classes are counted as background.

    >>> _with_background(torch.zeros(1, 4), 2, background=-1).exp()  # a class, two new ones, no object
    tensor([[0.2500, 0.7500]])
    """
    _old_columns(logits, columns)
    logs = wide(logits).log_softmax(-1)
    if logs.shape[-1] == columns:
        return logs
    if background == -1:
        return torch.cat([logs[..., : columns - 1], logs[..., columns - 1 :].logsumexp(-1, keepdim=True)], -1)
    others = torch.cat([logs[..., [background]], logs[..., columns:]], -1).logsumexp(-1, keepdim=True)
    return torch.cat([logs[..., :background], others, logs[..., background + 1 : columns]], -1)


# ── boxes ────────────────────────────────────────────────────────────────────────────────────────────────────

BOXES = 100  # per image, the most confident ones; more are background
SLACK = 0.1  # of a box's size: below it, the change of a box counts by its square


def detection(old: Tensor, new: Tensor, background: int | None = None) -> Tensor:
    """How far the detections in each image have moved: classes in nats, and boxes, per object that was seen.

    Detections are a set. Each of the old ones is compared with the new one that is most like it, and each of the
    new ones with the old one that is most like it, because queries and anchors of many models change places. Only
    the most confident ones count, each class by the larger of the two scores, and boxes by the square of the old
    score. So background is free for new objects, but old classes may not appear there. A box has moved by the
    change of its sides in units of its size, plus 1 − GIoU.

    Args:
        old: [images, detections, 4 + classes], a box (centre x, centre y, width, height) and logits.
        new: the same; columns of new classes follow those of the old ones.
        background: None if each class is a yes or no (YOLO, RT-DETR, D-FINE); otherwise the class of no object,
            -1 if it is the last one (DETR, YOLOS), also after new classes came.

    >>> box, sure, unsure = [0.5, 0.5, 0.2, 0.2], [8.0, -8.0], [-8.0, -8.0]
    >>> old = torch.tensor([[box + sure, box + unsure]])
    >>> float(detection(old, old.flip(1)))
    0.0
    >>> float(detection(old, torch.tensor([[box + unsure, box + unsure]]))) > 2
    True
    """
    if old.ndim != 3 or old.shape[-1] < 5 or old.shape[:1] != new.shape[:1] or new.ndim != 3:
        raise InputError(
            "detections are [images, detections, 4 + classes], a box and logits; got shapes "
            f"{tuple(old.shape)} before and {tuple(new.shape)} now"
        )
    then, now = _Detections.of(wide(old), old, background), _Detections.of(wide(new), old, background)
    seen = then.confidence.square().sum(-1).clamp(min=1)
    forth = _apart(then.most_confident(), now, swapped=False)
    back = _apart(now.most_confident(), then, swapped=True)
    return (forth + back) / 2 / seen


class _Detections(NamedTuple):
    """Boxes [images, detections, 4], log-probabilities [images, detections, classes], and scores of objects."""

    boxes: Tensor
    logs: Tensor  # of yes and no for every class; or of the old classes, new ones counted as no object
    scores: Tensor

    @classmethod
    def of(cls, packed: Tensor, old: Tensor, background: int | None) -> _Detections:
        columns, logits = old.shape[-1] - 4, packed[..., 4:]
        if background is None:
            logits = _old_columns(logits, columns)
            return cls(packed[..., :4], logits, logits.sigmoid())
        logs = _with_background(logits, columns, background)
        objects = [each for each in range(columns) if each != background % columns]
        return cls(packed[..., :4], logs, logs[..., objects].exp())

    @property
    def confidence(self) -> Tensor:
        return self.scores.amax(-1)

    def rows(self, chosen: Tensor) -> _Detections:
        return _Detections(*(each.gather(1, chosen[..., None].expand(-1, -1, each.shape[-1])) for each in self))

    def most_confident(self) -> _Detections:
        return self.rows(self.confidence.topk(min(BOXES, self.scores.shape[1]), -1).indices)


def _apart(some: _Detections, others: _Detections, swapped: bool) -> Tensor:
    """Σ over some detections of how far each is from the one most like it; swapped: these are the new ones."""
    with torch.no_grad():
        size = some.boxes[..., 2:].abs().sum(-1, keepdim=True).clamp(min=1e-6)
        unlike = torch.cdist(some.boxes, others.boxes, p=1) / size + torch.cdist(some.scores, others.scores, p=1)
        nearest = unlike.argmin(-1)
    like = others.rows(nearest)
    then, now = (like, some) if swapped else (some, like)
    weight = torch.maximum(then.scores, now.scores)
    if then.logs.shape == then.scores.shape:
        classes = (weight * _binary_kl(then.logs, now.logs)).sum(-1)
    else:
        classes = weight.amax(-1) * (then.logs.exp() * (then.logs - now.logs)).sum(-1)
    size = then.boxes[..., 2:].abs().clamp(min=1e-6)
    sides = (now.boxes - then.boxes) / torch.cat([size, size], -1)
    sides = F.smooth_l1_loss(sides, torch.zeros_like(sides), beta=SLACK, reduction="none").mean(-1)
    return (classes + then.confidence.square() * (sides + 1 - _giou(then.boxes, now.boxes))).sum(-1)


def _giou(first: Tensor, second: Tensor) -> Tensor:
    """The generalised intersection over union of boxes, row by row: 1 if equal, towards -1 if far apart.

    >>> _giou(torch.tensor([0.0, 0.0, 2.0, 2.0]), torch.tensor([1.0, 0.0, 2.0, 2.0]))
    tensor(0.3333)
    """
    size, other = (boxes[..., 2:].clamp(min=1e-6) for boxes in (first, second))
    away = second[..., :2] - first[..., :2]  # seen from the first one's centre, so that equal boxes give 1
    inner = (torch.minimum(size, 2 * away + other) + torch.minimum(size, other - 2 * away)).clamp(min=0) / 2
    hull = (torch.maximum(size, 2 * away + other) + torch.maximum(size, other - 2 * away)) / 2
    shared, whole = inner.prod(-1), hull.prod(-1)
    union = size.prod(-1) + other.prod(-1) - shared
    return shared / union - (whole - union) / whole


def boxes_and_logits(output: Any) -> Tensor:
    """The fields `pred_boxes` and `logits` side by side, as transformers' detectors return them.

    >>> boxes_and_logits({"logits": torch.zeros(2, 9, 3), "pred_boxes": torch.zeros(2, 9, 4)}).shape
    torch.Size([2, 9, 7])
    """
    if isinstance(output, Tensor):
        return output
    boxes, logits = (_field(output, name) for name in ("pred_boxes", "logits"))
    if not (isinstance(boxes, Tensor) and isinstance(logits, Tensor)):
        raise InputError(
            f"the model returns a {type(output).__name__} without pred_boxes and logits: give outputs=, a "
            "function from it to [images, detections, 4 + classes], boxes (centre x, centre y, width, height) and "
            "logits"
        )
    return torch.cat([wide(boxes), wide(logits)], -1)


# ── numbers and directions ───────────────────────────────────────────────────────────────────────────────────


def keep_outputs(outputs: Tensor) -> Kept:
    return {"outputs": wide(outputs)}


def keep_scaled(outputs: Tensor) -> Kept:
    """The outputs, and the mean of their columns' variances, once per column.

    Most losses of numbers add up squared or absolute errors, so drift weighs columns as they do. Divided by its
    own variance, a column that hardly varies would outweigh all others.
    """
    outputs = wide(outputs)
    variance = (outputs.var(0, unbiased=False) if len(outputs) > 1 else outputs[0].square()).mean()
    floor = (1e-8 * outputs.square().mean()).clamp(min=1e-12)
    return {"outputs": outputs, SCALE: variance.clamp(min=floor).repeat(outputs.shape[-1])}


def mse(old: Kept, outputs: Tensor) -> Tensor:
    """Mean squared change of the outputs, in units of their variance over the probes.

    >>> old = keep_scaled(torch.tensor([[0.0], [2.0]]))
    >>> mse(old, torch.tensor([[1.0], [2.0]]))
    tensor([1., 0.])
    """
    now = wide(_old_columns(outputs, old["outputs"].shape[-1]))
    return ((now - old["outputs"]).square() / old[SCALE]).mean(-1)


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


def _on_outputs(name: str, compare: Callable[..., Tensor], **options: Any) -> Divergence:
    return Divergence(
        name, keep_outputs, lambda kept, new: compare(kept["outputs"], new), compare=compare, **options
    )


DIVERGENCES: dict[str, Divergence] = {
    each.name: each
    for each in (
        Divergence("kl", keep_logs, kl, pixels=True),
        Divergence("binary_kl", keep_outputs, binary_kl, pixels=True),
        Divergence("mse", keep_scaled, mse),
        Divergence("cosine", keep_outputs, cosine),
        Divergence("similarity", keep_outputs, similarity),
        Divergence("seq2seq", keep_logs, kl, masks=("decoder_attention_mask", "labels")),
        _on_outputs("tagging", tagging, masks=("attention_mask", "labels")),
        _on_outputs("segmentation", segmentation, pixels=True),
        _on_outputs("ctc", ctc),
        _on_outputs("detection", detection, rows=False, picks=boxes_and_logits),
        _on_outputs("detr", partial(detection, background=-1), rows=False, picks=boxes_and_logits),
    )
}


def named(divergence: Any) -> Divergence:
    """A divergence by its name, one of ours with other settings, or the user's function of old and new outputs."""
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
    function = divergence.func if isinstance(divergence, partial) else divergence
    name = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', type(function).__name__)}"
    if isinstance(divergence, partial):
        name += f"{divergence.args or ''}{divergence.keywords or ''}"
    for ours in DIVERGENCES.values():
        if ours.compare is function:
            return ours._replace(name=name, between=lambda kept, new: own(kept["outputs"], new))
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


def check_no_boxes(output: Any) -> None:
    """Outputs with boxes are compared by a divergence that the user names: logits alone would not hold them."""
    if not isinstance(output, Tensor) and isinstance(_field(output, "pred_boxes"), Tensor):
        raise InputError(
            "the model returns boxes: give divergence='detr' if its last class is \"no object\" (DETR, YOLOS), "
            "otherwise 'detection' (RT-DETR, D-FINE, Deformable DETR)"
        )


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
    if output.ndim == 2 and bool((output.logsumexp(-1).abs() < 1e-3).all()):
        return DIVERGENCES["kl"], False  # log-probabilities
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
    out, slope = (flattened(each.float()) for each in (output, gradient))
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
        warn_caller(
            f"outputs of shape {tuple(output.shape)} are taken for logits of {output.shape[-1]} classes: if they "
            "are numbers or embeddings, give divergence='mse' or 'cosine'; otherwise 'kl'"
        )


def _are_unit(vectors: Tensor) -> bool:
    lengths = vectors.detach().float().norm(dim=-1)
    return bool((lengths - 1).abs().max() < 1e-3)


def flattened(output: Tensor, mask: Any = None, pixels: bool = False) -> Tensor:
    """[predictions, numbers] without padding; classes per pixel are in dimension 1, as in torch's losses.

    >>> flattened(torch.zeros(2, 5, 4, 4), pixels=True).shape
    torch.Size([32, 5])
    """
    if output.ndim == 1:
        return output[:, None]
    if output.ndim >= 4 and pixels:
        output = output.movedim(1, -1)
    if isinstance(mask, Tensor) and mask.shape == output.shape[:-1]:
        return output[mask.bool()]
    return output.flatten(0, -2)


def mask_of(batch: Any, kind: Divergence, output: Tensor) -> Tensor | None:
    """Which predictions are none of padding, by the inputs that have one number for each of them."""
    found = None
    for name in kind.masks:
        each = batch.get(name) if isinstance(batch, Mapping) else None
        if isinstance(each, Tensor) and each.shape == output.shape[:-1]:
            here = each != -100 if name == "labels" else each.bool()
            found = here if found is None else found & here
    return found
