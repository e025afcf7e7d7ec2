"""
A detector gets a new class
===========================

A detector knows six handwritten digits on photographs. It is trained further on images that show a seventh one
only, and the old images are gone. What does it still find?

.. code-block:: console

   $ python examples/guard_detector.py
   $ python examples/guard_detector.py --model rt_detr --data DIR --size 96 --first 3000 --steps 600 --seeds 3

Without options, a small detector of our own learns from scikit-learn's digits and photographs, in about a
minute on one core. With ``--data``, MNIST's digits are pasted on the images of CIFAR-100, whose official files
are in DIR. RT-DETR, D-FINE and YOLOS come from transformers, with random weights.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rwalk
from rwalk.data import datasets

OLD, NEW = range(6), 6  # the digits that are known, and the new one


# %%
# Images whose boxes are known
# ----------------------------


class Parts(NamedTuple):
    """Glyphs [n, h, w] with their digits, and photographs [n, 3, size, size]; all between 0 and 1."""

    glyphs: Tensor
    digits: Tensor
    photographs: Tensor


def built_in_parts(size: int) -> tuple[Parts, Parts]:
    """For training and for testing: scikit-learn's digits, and crops of its two photographs."""
    from sklearn.datasets import load_digits, load_sample_images

    data = load_digits()
    glyphs, digits = torch.tensor(data.images / 16).float(), torch.tensor(data.target)
    photographs = []
    for image in load_sample_images().images:
        whole = torch.tensor(image).permute(2, 0, 1)[None] / 255
        small = F.interpolate(whole, scale_factor=0.5, mode="area")[0]
        photographs.append(
            small.unfold(1, size, size // 3).unfold(2, size, size // 3).flatten(1, 2).transpose(0, 1)
        )
    crops = torch.cat(photographs)
    return tuple(  # type: ignore[return-value]
        Parts(glyphs[part], digits[part], crops[part % len(crops)])
        for part in (torch.arange(0, 1347), torch.arange(1347, 1797))
    )


def downloaded_parts(size: int, folder: str) -> tuple[Parts, Parts]:
    """MNIST's digits and CIFAR-100's images: of their training sets, and of their test sets."""
    mnist, cifar = (datasets.load(name, folder) for name in ("mnist", "cifar100-pixels"))
    digits = [
        (mnist.x[:20000], mnist.y[:20000], cifar.x[:6000]),
        (mnist.x_test, mnist.y_test, cifar.x_test[:2000]),
    ]
    return tuple(  # type: ignore[return-value]
        Parts(glyphs[:, 0], labels, F.interpolate(photographs, (size, size), mode="bilinear"))
        for glyphs, labels, photographs in digits
    )


class Scenes(NamedTuple):
    """Images [n, 3, size, size], and for each one its labels as transformers' detectors take them."""

    images: Tensor
    labels: list[dict[str, Tensor]]

    def batches(self, rows: int, device: torch.device) -> Iterator[tuple[Tensor, list[dict[str, Tensor]]]]:
        """Random batches without an end."""
        while True:
            for chosen in torch.randperm(len(self.images)).split(rows):
                if len(chosen) == min(rows, len(self.images)):
                    labels = [{k: v.to(device) for k, v in self.labels[i].items()} for i in chosen.tolist()]
                    yield self.images[chosen].to(device), labels


def scenes(parts: Parts, digits: range | list[int], n: int, size: int, seed: int) -> Scenes:
    """One to three coloured glyphs, of other sizes and in other places, on each photograph."""
    draw = np.random.default_rng(seed)
    pool = torch.isin(parts.digits, torch.tensor(list(digits))).nonzero().flatten().numpy()
    images = parts.photographs[draw.integers(len(parts.photographs), size=n)].clone()
    labels = []
    for image in images:
        boxes: list[tuple[int, int, int, int]] = []
        classes: list[int] = []
        for index in draw.choice(pool, size=draw.integers(1, 4)):
            glyph = parts.glyphs[index]
            rows, columns = (glyph.amax(d) > 0.3 for d in (1, 0))
            top, left = int(rows.float().argmax()), int(columns.float().argmax())
            glyph = glyph[top : len(rows) - int(rows.flip(0).float().argmax())]
            glyph = glyph[:, left : len(columns) - int(columns.flip(0).float().argmax())]
            height = int(draw.integers(size // 4, size // 2))
            width = max(4, min(size // 2, round(height * glyph.shape[1] / glyph.shape[0])))
            y, x = (int(draw.integers(0, size - side + 1)) for side in (height, width))
            if any(abs(2 * (x - a) + width - w) < width + w and abs(2 * (y - b) + height - h) < height + h
                   for a, b, w, h in boxes):  # fmt: skip
                continue  # no glyph covers another one
            ink = F.interpolate(glyph[None, None], (height, width), mode="bilinear")[0].clamp(0, 1)
            colour = torch.tensor(draw.choice([0.0, 1.0], 3) * 0.5 + draw.random(3) * 0.5).float()
            place = image[:, y : y + height, x : x + width]
            place.copy_(place * (1 - ink) + colour[:, None, None] * ink)
            boxes.append((x, y, width, height))
            classes.append(int(parts.digits[index]))
        corner = torch.tensor(boxes).float() / size
        centres = torch.cat([corner[:, :2] + corner[:, 2:] / 2, corner[:, 2:]], 1)
        labels.append({"class_labels": torch.tensor(classes), "boxes": centres})
    return Scenes(images, labels)


# %%
# A small detector
# ----------------
# It says for every cell of a grid whether the centre of an object is there. It takes and returns the same as
# transformers' detectors.


class Dense(nn.Module):
    """Convolutions with two heads: classes, each a yes or no, and boxes."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()

        def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
            convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

        widths = [(3, width, 2), (width, 2 * width, 2), (2 * width, 4 * width, 2), (4 * width, 4 * width, 1)]
        self.body = nn.Sequential(*(block(*each) for each in widths))
        self.class_embed = nn.Linear(4 * width, classes)
        self.box_embed = nn.Linear(4 * width, 4)
        nn.init.constant_(self.class_embed.bias, -4.0)

    def forward(self, pixel_values: Tensor, labels: list[dict[str, Tensor]] | None = None) -> dict[str, Tensor]:
        features = self.body(pixel_values - 0.5)
        rows, columns = features.shape[-2:]
        features = features.flatten(2).transpose(1, 2)
        y, x = torch.meshgrid(torch.arange(rows) + 0.5, torch.arange(columns) + 0.5, indexing="ij")
        cells = torch.stack([x / columns, y / rows], -1).flatten(0, 1).to(features)
        raw = self.box_embed(features)
        boxes = torch.cat([cells + 0.2 * raw[..., :2].tanh(), (raw[..., 2:] - 1).sigmoid()], -1)
        found = {"logits": self.class_embed(features), "pred_boxes": boxes}
        return found if labels is None else {**found, "loss": self._loss(found, cells, labels)}

    def _loss(self, found: dict[str, Tensor], cells: Tensor, labels: list[dict[str, Tensor]]) -> Tensor:
        """As CenterNet: a penalty-reduced focal loss around centres, and the L1 distance of boxes there."""
        boxes, digits = (
            nn.utils.rnn.pad_sequence([label[key] for label in labels], batch_first=True, padding_value=-1)
            for key in ("boxes", "class_labels")
        )
        there = digits >= 0
        near = (-(cells[:, None] - boxes[:, None, :, :2]).square().sum(-1) * len(cells) / 1.5).exp()
        near = (
            near / near.amax(1, keepdim=True) * there[:, None]
        )  # [images, cells, objects]: 1 in the centre's cell
        logits = found["logits"]
        kinds = F.one_hot(digits.clamp(min=0), logits.shape[-1])
        heat = (near[..., None] * kinds[:, None]).amax(2)
        score = logits.sigmoid()
        yes = (1 - score).square() * F.logsigmoid(logits) * (heat == 1)
        no = (1 - heat).pow(4) * score.square() * F.logsigmoid(-logits)
        wrong = (found["pred_boxes"][:, :, None] - boxes[:, None]).abs().sum(-1) * (near > 0.3)
        return (5 * wrong.sum() - yes.sum() - no.sum()) / there.sum()


def transformers_detector(kind: str, classes: int, size: int) -> nn.Module:
    """RT-DETR, D-FINE or YOLOS, small and with random weights."""
    import transformers as t

    if kind == "yolos":
        config = t.YolosConfig(
            hidden_size=192, num_hidden_layers=6, num_attention_heads=3, intermediate_size=768,
            image_size=[size, size], patch_size=8, num_detection_tokens=20, use_mid_position_embeddings=False,
            num_labels=classes,
        )  # fmt: skip
        return t.YolosForObjectDetection(config)
    backbone = {"hidden_sizes": [48, 96, 160, 256], "depths": [1, 1, 1, 1], "layer_type": "basic"}
    options: dict[str, Any] = {
        "encoder_in_channels": [96, 160, 256], "encoder_hidden_dim": 128, "encoder_ffn_dim": 256,
        "encoder_attention_heads": 4, "d_model": 128, "decoder_in_channels": [128] * 3, "decoder_ffn_dim": 256,
        "decoder_layers": 2, "decoder_attention_heads": 4, "num_queries": 40, "num_denoising": 40,
        "hidden_expansion": 0.5, "num_labels": classes, "freeze_backbone_batch_norms": False,
    }  # fmt: skip
    if kind == "d_fine":
        resnet = t.RTDetrResNetConfig(embedding_size=48, out_indices=[2, 3, 4], **backbone)
        return t.DFineForObjectDetection(t.DFineConfig(backbone_config=resnet, **options))
    resnet = t.RTDetrResNetConfig(embedding_size=48, out_indices=[2, 3, 4], **backbone)
    return t.RTDetrForObjectDetection(t.RTDetrConfig(backbone_config=resnet, **options))


# %%
# A head with one more class
# --------------------------


def grow(model: nn.Module) -> None:
    """Room for one class more, which is hardly ever found yet: each layer that scores classes gets an output."""
    softmax = "Yolos" in type(model).__name__
    grown: dict[nn.Parameter, nn.Parameter] = {}  # weights may be shared by layers

    def with_row(old: nn.Parameter, row: Tensor, last: bool) -> nn.Parameter:
        if old not in grown:
            parts = [old[:-1], row, old[-1:]] if last else [old, row]
            grown[old] = nn.Parameter(torch.cat(parts).detach())
        return grown[old]

    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and "denoising_class_embed" in name:
            row = 0.01 * torch.randn_like(module.weight[:1])
            module.weight = with_row(module.weight, row, last=True)  # the last one is padding
            module.num_embeddings, module.padding_idx = len(module.weight), len(module.weight) - 1
        scores = "class_embed" in name or "enc_score_head" in name or "class_labels_classifier.layers.2" in name
        if isinstance(module, nn.Linear) and scores:
            weight, bias = module.weight[-1:], module.bias[-1:] - 4.6  # a hundredth of "no object", the last one
            if not softmax:
                weight, bias = 0.01 * torch.randn_like(weight), torch.full_like(bias, -4.6)
            module.weight = with_row(module.weight, weight, softmax)
            module.bias = with_row(module.bias, bias, softmax)
            module.out_features = len(module.weight)
    if hasattr(model, "config"):
        model.config.num_labels += 1


# %%
# Mean average precision
# ----------------------


def detections(model: nn.Module, images: Tensor, softmax: bool) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each image its 50 surest detections: boxes, classes and scores."""
    model.eval()
    found = []
    with torch.no_grad():
        for part in images.split(128):
            output = model(part.to(next(model.parameters()).device))
            logits, boxes = output["logits"].float(), output["pred_boxes"].float()
            scores = logits.softmax(-1)[..., :-1] if softmax else logits.sigmoid()
            if isinstance(model, Dense):  # only peaks of the map: neighbours see the same object
                side = math.isqrt(scores.shape[1])
                grid = scores.transpose(1, 2).unflatten(-1, (side, side))
                scores = (grid * (F.max_pool2d(grid, 3, 1, 1) == grid)).flatten(2).transpose(1, 2)
            sure = scores.flatten(1).topk(min(50, scores[0].numel()), 1)
            for image in range(len(part)):
                place, kind = sure.indices[image] // scores.shape[-1], sure.indices[image] % scores.shape[-1]
                found.append((boxes[image, place].cpu(), kind.cpu(), sure.values[image].cpu()))
    return found


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of every box with every other one, [n, m]."""
    low = torch.maximum((first[:, :2] - first[:, 2:] / 2)[:, None], (second[:, :2] - second[:, 2:] / 2)[None])
    high = torch.minimum((first[:, :2] + first[:, 2:] / 2)[:, None], (second[:, :2] + second[:, 2:] / 2)[None])
    inner = (high - low).clamp(min=0).prod(-1)
    return inner / (first[:, 2:].prod(-1)[:, None] + second[:, 2:].prod(-1)[None] - inner)


def average_precision(
    found: list[tuple[Tensor, Tensor, Tensor]], labels: list[dict[str, Tensor]], digit: int, threshold: float
) -> float:
    """COCO's average precision of one class: at 101 recalls, each object found once, by the surest detection."""
    scores, hits, objects = [], [], 0
    for (boxes, kinds, sure), label in zip(found, labels, strict=True):
        true = label["boxes"][label["class_labels"] == digit]
        mine = (kinds == digit).nonzero().flatten()
        mine = mine[sure[mine].argsort(descending=True, stable=True)]
        objects += len(true)
        overlaps = overlap(boxes[mine], true)
        for row, score in zip(overlaps, sure[mine].tolist(), strict=True):
            best = int(row.argmax()) if len(row) else -1
            hit = best >= 0 and float(row[best]) >= threshold
            if hit:
                overlaps[:, best] = -1
            scores.append(score)
            hits.append(hit)
    if not objects or not any(hits):
        return 0.0
    right = torch.tensor(hits).float()[torch.tensor(scores).argsort(descending=True, stable=True)].cumsum(0)
    precision = right / torch.arange(1, len(right) + 1)
    best = precision.flip(0).cummax(0).values.flip(0)  # at this recall or a higher one
    at = torch.searchsorted(right / objects, torch.linspace(0, 1, 101))
    return float(torch.cat([best, torch.zeros(1)])[at.clamp(max=len(best))].mean())


class Scores(NamedTuple):
    """Mean average precision in %, of old classes and the new one: at an overlap of 0.5, and at 0.5 to 0.95."""

    old: float
    new: float
    old_strict: float
    new_strict: float


def evaluate(model: nn.Module, test: Scenes, softmax: bool) -> Scores:
    found = detections(model, test.images, softmax)
    thresholds = torch.linspace(0.5, 0.95, 10).tolist()

    def mean(digits: range | list[int], at: list[float]) -> float:
        each = [average_precision(found, test.labels, digit, iou) for digit in digits for iou in at]
        return 100 * sum(each) / len(each)

    return Scores(mean(OLD, [0.5]), mean([NEW], [0.5]), mean(OLD, thresholds), mean([NEW], thresholds))


# %%
# The new class, in several ways
# ------------------------------
# The loop is the same for all. A guard goes around it.


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: Scenes,
    steps: int,
    rows: int,
    limit: float = math.inf,
) -> None:
    """A plain loop. The learning rate rises, stays, and falls in the last third; training ends after `limit` s."""
    model.train()
    rates = [group["lr"] for group in optimizer.param_groups]
    batches = data.batches(rows, _device(model))
    begin = time.perf_counter()
    for step in range(steps):
        done = max(step / steps, (time.perf_counter() - begin) / limit)
        if done >= 1:
            break
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * min(1, (step + 1) / 50) * min(1, 3 * (1 - done))
        images, labels = next(batches)
        model(images, labels=labels)["loss"].backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


class Task(NamedTuple):
    """All that a way of learning may use."""

    old: Scenes
    new: Scenes
    steps: int
    rows: int
    rate: float
    divergence: str
    probes: int
    limit: float = math.inf

    def distorted(self) -> Tensor:
        """Probes made of the new images: crops, turned, mirrored, in other colours, blended, and four in one."""
        return rwalk.distorted(self.new.images, self.probes)


def optimizer_of(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    trained = [each for each in model.parameters() if each.requires_grad]
    return torch.optim.AdamW(trained, rate, weight_decay=1e-4)


def learn(
    model: nn.Module, task: Task, rate: float = 1.0, new: Tensor | None = None, old: Tensor | None = None
) -> None:
    """The new class, with a guard that has new or old images as probes.

    With new images, the guard is made before the head grows, so the new class is free. Old images show none of the
    new objects. There the new class is held too, and is not found in old objects.
    """
    guard = None if new is None else guarded(model, task, new)
    grow(model)
    optimizer = optimizer_of(model, rate * task.rate)
    if guard is not None:
        guard.attach(optimizer)
    elif old is not None:
        guard = rwalk.Guard(model, optimizer, probes=old.to(_device(model)), divergence=task.divergence)
    train(model, optimizer, task.new, task.steps, task.rows, task.limit)
    if guard is not None:
        guard.finish()


def guarded(model: nn.Module, task: Task, probes: Tensor) -> rwalk.Guard:
    optimizer = optimizer_of(model, task.rate)
    return rwalk.Guard(model, optimizer, probes=probes.to(_device(model)), divergence=task.divergence)


def frozen(model: nn.Module, task: Task) -> None:
    """Only heads are trained, and batch norm keeps its statistics."""
    for name, each in model.named_parameters():
        each.requires_grad_("_embed" in name or "score_head" in name or "classifier" in name)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 0.0
    learn(model, task)


def interpolated(model: nn.Module, task: Task) -> None:
    """Halfway back to the weights before, as WiSE-FT."""
    before = copy.deepcopy(model)
    learn(model, task)
    grow(before)
    with torch.no_grad():
        for each, old in zip(model.state_dict().values(), before.state_dict().values(), strict=True):
            if each.is_floating_point():
                each.lerp_(old, 0.5)


def everything(model: nn.Module, task: Task) -> None:
    both = Scenes(torch.cat([task.old.images, task.new.images]), task.old.labels + task.new.labels)
    learn(model, task._replace(new=both))


def labelled_by_the_old_model(model: nn.Module, task: Task) -> None:
    """Sure detections of the old model become labels of the new images, unless they overlap a new object."""
    labels = []
    found = detections(model, task.new.images, task.divergence == "detr")
    for (boxes, kinds, sure), label in zip(found, task.new.labels, strict=True):
        taken = (sure > 0.5) & (overlap(boxes, label["boxes"]).amax(1) < 0.5)
        both = {"boxes": boxes[taken], "class_labels": kinds[taken]}
        labels.append({name: torch.cat([label[name], more]) for name, more in both.items()})
    learn(model, task._replace(new=Scenes(task.new.images, labels)))


Way = Callable[[nn.Module, Task], None]
WAYS: dict[str, Way] = {
    "no guard": learn,
    "frozen backbone": frozen,
    "a tenth of the learning rate": lambda model, task: learn(model, task, rate=0.1),
    "interpolated halfway": interpolated,
    "guard, new images": lambda model, task: learn(model, task, new=task.new.images[:512]),
    "guard, new images distorted": lambda model, task: learn(model, task, new=task.distorted()),
    "guard, 64 old images": lambda model, task: learn(model, task, old=task.old.images[:64]),
    "all old images, with labels": everything,
}
OTHER_WAYS: dict[str, Way] = {
    "labels by the old model": labelled_by_the_old_model,
    "guard, 16 old images": lambda model, task: learn(model, task, old=task.old.images[:16]),
    "guard, 512 old images": lambda model, task: learn(model, task, old=task.old.images[:512]),
}


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device


def relative_step_time(model: nn.Module, task: Task, blocks: int = 12, steps: int = 16) -> float:
    """How long a step with a guard takes, as a multiple of one without: blocks of steps of both in turn."""
    times: dict[bool, list[float]] = {False: [], True: []}
    sides = []
    for held in (False, True):
        ours = copy.deepcopy(model)
        guard = guarded(ours, task, task.distorted()) if held else None
        grow(ours)
        optimizer = optimizer_of(ours, task.rate)
        if guard is not None:
            guard.attach(optimizer)
        sides.append((held, ours, optimizer))
    for _ in range(blocks):
        for held, ours, optimizer in sides:
            begin = time.perf_counter()
            train(ours, optimizer, task.new, steps, task.rows)
            float(next(ours.parameters()).detach().sum())  # the device has finished
            times[held].append(time.perf_counter() - begin)
    ratios = [after / before for before, after in zip(times[False][2:], times[True][2:], strict=True)]
    return sorted(ratios)[len(ratios) // 2]


def compare(options: argparse.Namespace, seed: int, write: Callable[[dict[str, Any]], None]) -> None:
    torch.manual_seed(seed)
    size, start = options.size, time.perf_counter()
    parts = downloaded_parts(size, options.data) if options.data else built_in_parts(size)
    old = scenes(parts[0], OLD, options.images, size, seed)
    new = scenes(parts[0], [*OLD, NEW] if options.mixed else [NEW], options.images // 4, size, seed + 1000)
    if options.mixed:  # old objects are there, but only the new class has labels
        new = labelled_new(new)
    test = scenes(parts[1], [*OLD, NEW], options.test, size, 10**6)
    softmax = options.model == "yolos"
    model = Dense(len(OLD)) if options.model == "dense" else transformers_detector(options.model, len(OLD), size)
    model.to(options.device)

    def note(way: str, model: nn.Module, **more: float) -> None:
        scores = evaluate(model, test, softmax)._asdict()
        row = {"model": options.model, "seed": seed, "mixed": options.mixed, "way": way, **scores, **more}
        write({**row, "seconds": time.perf_counter() - start})

    train(model, optimizer_of(model, options.rate), old, options.first, options.rows, options.limit)
    note("before", model)
    rate, limit = options.rate * options.gentler, options.limit / 6
    divergence = "detr" if softmax else "detection"
    task = Task(old, new, options.steps, options.rows, rate, divergence, options.probes, limit)
    for name in options.ways or WAYS:
        torch.manual_seed(seed)
        ours = copy.deepcopy(model)
        (WAYS | OTHER_WAYS)[name](ours, task)
        note(name, ours)
    if options.time:
        row = {"model": options.model, "seed": seed, "way": "relative step time"}
        write({**row, "ratio": relative_step_time(model, task)})


def labelled_new(found: Scenes) -> Scenes:
    """The images with new objects, without the labels of old ones."""
    images, labels = [], []
    for image, label in zip(found.images, found.labels, strict=True):
        here = label["class_labels"] == NEW
        if bool(here.any()):
            images.append(image)
            labels.append({key: value[here] for key, value in label.items()})
    return Scenes(torch.stack(images), labels)


# %%
# What comes out
# --------------


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=["dense", "rt_detr", "d_fine", "yolos"], default="dense")
    parser.add_argument("--data", help="a folder with MNIST and CIFAR-100")
    parser.add_argument("--size", type=int, default=48, help="of images, in pixels")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--test", type=int, default=150)
    parser.add_argument("--first", type=int, default=700, help="steps on the old classes")
    parser.add_argument("--steps", type=int, default=120, help="steps on the new class")
    parser.add_argument("--rows", type=int, default=32, help="images per step")
    parser.add_argument("--probes", type=int, default=3000, help="images made by distorting new ones")
    parser.add_argument("--rate", type=float, default=6e-3)
    parser.add_argument(
        "--gentler", type=float, default=0.33, help="the learning rate of the new class, as a share"
    )
    parser.add_argument("--mixed", action="store_true", help="new images show old digits too, without labels")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--from-seed", type=int, default=0)
    parser.add_argument("--ways", nargs="*", choices=[*WAYS, *OTHER_WAYS])
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--limit", type=float, default=math.inf, help="seconds for the old classes; a 6th for a way"
    )
    parser.add_argument("--time", action="store_true", help="measure how much longer a step with a guard takes")
    parser.add_argument("--out", type=Path, help="a file for the rows, one line of JSON each")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> list[dict[str, Any]]:
    options = arguments(words)
    rows: list[dict[str, Any]] = []

    def write(row: dict[str, Any]) -> None:
        rows.append(row)
        figures = "  ".join(f"{name} {value:5.1f}" for name, value in row.items() if isinstance(value, float))
        print(f"{row['way']:29} {figures}", flush=True)
        if options.out:
            with open(options.out, "a") as file:
                file.write(json.dumps(row) + "\n")

    for seed in range(options.from_seed, options.from_seed + options.seeds):
        compare(options, seed, write)
    return rows


def picture(rows: list[dict[str, Any]]) -> None:
    """Old classes against the new one, means over seeds: top right is best."""
    import matplotlib.pyplot as plt

    rows = [row for row in rows if "old" in row]
    _, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for way in dict.fromkeys(row["way"] for row in rows):
        old, new = (np.mean([row[name] for row in rows if row["way"] == way]) for name in ("old", "new"))
        kind = "o" if "guard, " in way else "s" if way in ("before", "all old images, with labels") else "X"
        axes.plot(old, new, kind, label=way, markersize=9)
    axes.set(xlabel="mAP of the old classes, %", ylabel="mAP of the new class, %")
    axes.margins(0.08)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    plt.show()


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = main(sys.argv[1:] if sys.argv[0].endswith("guard_detector.py") else [])
    if "--out" not in sys.argv:
        picture(found)
