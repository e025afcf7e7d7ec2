"""
A segmenter gets a new class
============================

A segmenter knows three handwritten digits on photographs, pixel by pixel. It learns a fourth one from images in
which only that digit is annotated. Old digits in these images are background, as far as their annotations tell.

.. code-block:: console

   $ python examples/guard_segmenter.py

The images are made of scikit-learn's digits and photographs."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits, load_sample_images
from torch import Tensor, nn

import rwalk

OLD, NEW = [1, 2, 3], 4  # classes of pixels; 0 is background, and class n is the digit n − 1
SIZE = 24


# %%
# Images whose pixels are annotated
# ---------------------------------


class Scenes(NamedTuple):
    images: Tensor  # [n, 3, size, size]
    labels: Tensor  # [n, size, size]

    def __getitem__(self, chosen: Any) -> Scenes:  # type: ignore[override]
        return Scenes(self.images[chosen], self.labels[chosen])

    def annotated(self, classes: list[int]) -> Scenes:
        """All other classes are not annotated."""
        return Scenes(self.images, torch.where(torch.isin(self.labels, torch.tensor(classes)), self.labels, 0))


def photographs() -> Tensor:
    """Crops of scikit-learn's two photographs, [n, 3, size, size]."""
    crops = []
    for image in load_sample_images().images:
        whole = torch.tensor(image).permute(2, 0, 1)[None] / 255
        small = F.interpolate(whole, scale_factor=0.5, mode="area")[0]
        crops.append(small.unfold(1, SIZE, 12).unfold(2, SIZE, 12).permute(1, 2, 0, 3, 4).flatten(0, 1))
    return torch.cat(crops)


def scenes(
    glyphs: Tensor, digits: Tensor, backgrounds: Tensor, kinds: list[list[int]], n: int, seed: int
) -> Scenes:
    """A photograph with a coloured digit of each list of classes, side by side or one above the other."""
    draw = np.random.default_rng(seed)
    images = 0.4 * backgrounds[draw.integers(len(backgrounds), size=n)]
    labels = torch.zeros(n, SIZE, SIZE, dtype=torch.long)
    pools = [torch.isin(digits + 1, torch.tensor(kind)).nonzero().flatten().numpy() for kind in kinds]
    for image, label in zip(images, labels, strict=True):
        turned = bool(draw.integers(2))
        for place, pool in enumerate(pools):
            index = draw.choice(pool)
            side = int(draw.integers(9, 13))
            ink = F.interpolate(glyphs[index][None, None], (side, side), mode="bilinear")[0, 0]
            x, y = 12 * place + int(draw.integers(0, 13 - side)), int(draw.integers(0, SIZE + 1 - side))
            area = (slice(x, x + side), slice(y, y + side)) if turned else (slice(y, y + side), slice(x, x + side))
            colour = torch.tensor(0.7 + 0.3 * draw.random(3)).float()
            image[:, *area] = image[:, *area] * (1 - ink) + colour[:, None, None] * ink
            label[area][ink > 0.4] = int(digits[index]) + 1
    return Scenes(images, labels)


# %%
# A small segmenter
# -----------------


class Segmenter(nn.Module):
    """Convolutions down to a quarter of the size and back; logits [n, classes, size, size]."""

    def __init__(self, classes: int, width: int = 12) -> None:
        super().__init__()

        def block(inputs: int, outputs: int) -> nn.Sequential:
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
            return nn.Sequential(convolution, nn.GroupNorm(4, outputs), nn.ReLU())

        self.fine, self.middle = block(3, width), block(width, 2 * width)
        self.coarse = nn.Sequential(block(2 * width, 4 * width), block(4 * width, 4 * width))
        self.join, self.finish = block(6 * width, 2 * width), block(3 * width, width)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x - 0.5)
        middle = self.middle(F.max_pool2d(fine, 2))
        coarse = self.coarse(F.max_pool2d(middle, 2))
        middle = self.join(torch.cat([middle, F.interpolate(coarse, scale_factor=2)], 1))
        logits: Tensor = self.head(self.finish(torch.cat([fine, F.interpolate(middle, scale_factor=2)], 1)))
        return logits


def grow(model: Segmenter) -> None:
    """A head with one more class, which is hardly ever found yet."""
    head = nn.Conv2d(model.head.in_channels, model.head.out_channels + 1, 1)
    with torch.no_grad():
        head.weight[:-1], head.bias[:-1] = model.head.weight, model.head.bias  # type: ignore[index]
        head.weight[-1], head.bias[-1] = 0.0, model.head.bias.min() - 2  # type: ignore[index, union-attr]
    model.head = head


# %%
# The loss
# --------
# A pixel without annotation is background, or a class that was not annotated in these images. A loss that takes it
# for background teaches the segmenter to forget the old classes.


def loss_of(logits: Tensor, labels: Tensor, annotated: list[int]) -> Tensor:
    """Cross entropy; a pixel without annotation may have any of the other classes."""
    logs = logits.log_softmax(1)
    others = [each for each in range(logits.shape[1]) if each not in annotated]
    right = torch.where(labels > 0, logs.gather(1, labels[:, None])[:, 0], logs[:, others].logsumexp(1))
    return -right.mean()


def train(
    model: Segmenter, optimizer: torch.optim.Optimizer, data: Scenes, steps: int, annotated: list[int],
    replayed: Scenes | None = None,
) -> None:  # fmt: skip
    model.train()
    for _ in range(steps):
        batch = data[torch.randint(len(data.images), (16,))]
        loss = loss_of(model(batch.images), batch.labels, annotated)
        if replayed is not None:  # as many old images as new ones
            batch = replayed[torch.randint(len(replayed.images), (16,))]
            loss = (loss + loss_of(model(batch.images), batch.labels, OLD)) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def overlaps(model: nn.Module, data: Scenes) -> list[float]:
    """Intersection over union of every class but the background, in %."""
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(images).argmax(1) for images in data.images.split(100)])
    pairs = [(found == each, data.labels == each) for each in (*OLD, NEW)]
    return [100 * float((a & b).sum() / (a | b).sum().clamp(min=1)) for a, b in pairs]


# %%
# The new class
# -------------


class Task(NamedTuple):
    model: Segmenter  # knows the old classes
    old: Scenes
    new: Scenes
    tested: dict[str, Scenes]
    steps: int
    rate: float = 3e-3

    def scores(self, model: nn.Module, part: str = "test") -> dict[str, float]:
        """The overlap of the old classes, on average, and of the new one."""
        *old, new = overlaps(model, self.tested[part])
        return {"old": sum(old) / len(old), "new": new}

    def probes(self, which: str, n: int = 128) -> Tensor:
        return (self.old if which == "old" else self.new).images[:n]


def prepare(seed: int, quick: bool = False) -> Task:
    """A segmenter that knows the old classes, and images in which only the new one is annotated."""
    torch.manual_seed(seed)
    data, crops = load_digits(), photographs()
    order, crops = torch.randperm(len(data.target)), crops[torch.randperm(len(crops))]
    glyphs, digits = torch.tensor(data.images / 16).float()[order], torch.tensor(data.target)[order]

    def made(part: int, kinds: list[list[int]], n: int) -> Scenes:
        """From the digits and photographs of this part: for training, validation or testing."""
        some = slice((0, 900, 1200)[part], (900, 1200, None)[part])
        return scenes(glyphs[some], digits[some], crops[part::3], kinds, n // 30 if quick else n, seed)

    old, new = made(0, [OLD, OLD], 1500), made(0, [OLD, [NEW]], 300).annotated([NEW])
    tested = {name: made(part, [OLD, [*OLD, NEW]], 300) for part, name in ((1, "validation"), (2, "test"))}
    model = Segmenter(NEW)
    train(model, torch.optim.Adam(model.parameters(), 3e-3), old, 3 if quick else 800, OLD)
    return Task(model, old, new, tested, 3 if quick else 150)


def learn(
    task: Task, probes: Any = None, rate: float = 1.0, naive: bool = False, frozen: bool = False, replay: int = 0,
    **options: Any,
) -> Segmenter:  # fmt: skip
    """The segmenter after training on the new class.

    The guard is made before the head grows. So it keeps outputs of the old classes alone, and background may
    become the new class.
    """
    model = copy.deepcopy(task.model)
    model.requires_grad_(not frozen)
    optimizer = torch.optim.Adam(model.parameters(), rate * task.rate)
    guard = None
    if probes is not None:
        guard = rwalk.Guard(model, optimizer, probes=probes, divergence="segmentation", **options)
    grow(model)
    optimizer = torch.optim.Adam(model.parameters(), rate * task.rate)
    if guard is not None:
        guard.attach(optimizer)
    replayed = task.old[:replay] if replay else None
    train(model, optimizer, task.new, task.steps, [*OLD, NEW] if naive else [NEW], replayed)
    if guard is not None:
        guard.finish()
    return model


# %%
# What comes out
# --------------


def compare(task: Task) -> dict[str, nn.Module]:
    ways = {
        "no guard": {},
        "guard, new images": {"probes": task.probes("new")},
        "guard, old images": {"probes": task.probes("old")},
    }
    models: dict[str, nn.Module] = {"before": task.model}
    for name, options in ways.items():
        torch.manual_seed(0)
        models[name] = learn(task, **options)
    for name, model in models.items():
        scores = task.scores(model)
        print(f"{name:18} overlap of old classes {scores['old']:5.1f}   new class {scores['new']:5.1f}")
    return models


def picture(task: Task, models: dict[str, nn.Module], shown: int = 5) -> None:
    """Images, their true classes, and the classes that each model finds."""
    images, labels = task.tested["test"][:shown]
    with torch.no_grad():
        rows = {"image": images.permute(0, 2, 3, 1), "true": labels}
        rows |= {name: model(images).argmax(1) for name, model in models.items()}
    _, axes = plt.subplots(len(rows), shown, figsize=(shown * 1.1 + 1.5, len(rows) * 1.1), layout="constrained")
    for line, (name, row) in zip(axes, rows.items(), strict=True):
        for place, each in zip(line, row, strict=True):
            place.imshow(each, **({} if name == "image" else {"cmap": "tab10", "vmin": 0, "vmax": 9}))
            place.set(xticks=[], yticks=[])
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
    plt.show()


if __name__ == "__main__":
    torch.set_num_threads(1)
    task = prepare(0)
    picture(task, compare(task))
