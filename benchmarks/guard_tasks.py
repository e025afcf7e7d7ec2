"""Five small tasks with real data for `guard_skills`: a trained model, something new to learn, two scores.

text      a language model of bytes: Python's language reference, then a file of C++
digits    a classifier with one head: digits 0 to 4, then 5 to 9
classes   a convolutional network with batch norm that gets a second head: digits 0 to 4, then 5 to 9
rotated   a convolutional network with batch norm: upright digits, then rotated ones
index     an embedding of digits: an index of digits 0 to 4 must stay usable while the model learns 5 to 9

All data come with Python and scikit-learn: nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PROBES = 128  # old inputs that a guard or replay may use
CONTEXT = 8  # bytes that the next one is predicted from

Batch = Any
Pick = Callable[[Any], Tensor]
Optimizers = Callable[[Any, float], torch.optim.Optimizer]


@dataclass(frozen=True)
class Task:
    """A trained model, the skill it should keep, and the task it learns next.

    Attributes:
        model: The model, trained on the old data.
        new: Draws a batch of new data.
        replayed: Draws a number of old examples with labels, from the data that the probes come from.
        loss: The training loss of a batch.
        old_score: How well a model does on the old task.
        new_score: How well a model does on the new task.
        probes: Old inputs, without labels: a tensor, or a dict of keyword arguments.
        held_out: Other old inputs of the same kind, on which drift is measured.
        optimizer: Makes an optimizer of parameters, at a multiple of the task's learning rate.
        steps: Training steps on the new task.
        batch: Examples in a batch of new data.
        outputs: Picks the outputs that should stay from all outputs of the model.
        loss_is_score: Scores are losses, lower is better; otherwise they are percentages.
        divergence: How drift is measured: "kl" or "cosine".
        schedule: The learning rate as a share of the first, by the share of steps done.
        context: Passes through the model run in this context, for example autocast.
        rows: Examples per pass when outputs are measured.
    """

    model: nn.Module
    new: Callable[[torch.Generator], Batch]
    replayed: Callable[[int, torch.Generator], Batch]
    loss: Callable[[nn.Module, Batch], Tensor]
    old_score: Callable[[nn.Module], float]
    new_score: Callable[[nn.Module], float]
    probes: Any
    held_out: Any
    optimizer: Optimizers
    steps: int
    batch: int = 32
    outputs: Callable[[Any], Tensor] = lambda output: output
    loss_is_score: bool = False
    divergence: str = "kl"
    schedule: Callable[[float], float] = lambda done: 1.0
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    rows: int = 1024

    def call(self, model: nn.Module, inputs: Any) -> Any:
        return model(**inputs) if isinstance(inputs, dict) else model(inputs)

    def split(self, inputs: Any) -> Iterator[Any]:
        """Inputs in parts of `rows` examples."""
        if not isinstance(inputs, dict):
            yield from inputs.split(self.rows)
            return
        for start in range(0, len(next(iter(inputs.values()))), self.rows):
            yield {name: tensor[start : start + self.rows] for name, tensor in inputs.items()}

    @contextmanager
    def evaluated(self, model: nn.Module) -> Iterator[None]:
        """A model in evaluation mode, without gradients."""
        training = model.training
        with torch.no_grad(), self.context():
            model.eval()
            yield
            model.train(training)


# ── text ──────────────────────────────────────────────────────────────────────────────────────────────────────


class ByteModel(nn.Module):
    """Predicts the next byte from the eight before it."""

    def __init__(self, hidden: int = 256) -> None:
        super().__init__()
        self.bytes = nn.Embedding(128, 16)
        self.layers = nn.Sequential(nn.Linear(16 * CONTEXT, hidden), nn.ReLU(), nn.Linear(hidden, 128))

    def forward(self, ids: Tensor) -> Tensor:
        logits: Tensor = self.layers(self.bytes(ids).unfold(1, CONTEXT, 1).flatten(2))
        return logits


def _bytes(text: str) -> tuple[Tensor, Tensor]:
    """Bytes to train on and bytes to test on."""
    ids = torch.tensor(list(text.encode("ascii", "ignore")))
    cut = int(0.9 * len(ids))
    return ids[:cut], ids[cut:]


def _rows(ids: Tensor, n: int, generator: torch.Generator, length: int = CONTEXT + 32) -> Tensor:
    starts = torch.randint(len(ids) - length, (n,), generator=generator)
    return ids[starts[:, None] + torch.arange(length)]


def _next_byte(model: nn.Module, rows: Tensor) -> Tensor:
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, CONTEXT:].flatten())


def text(seed: int, quick: bool = False) -> Task:
    from pydoc_data import topics

    code = (Path(torch.__file__).parent / "include" / "ATen" / "core" / "TensorBase.h").read_text(encoding="utf-8")
    old, old_test = _bytes("\n".join(topics.topics[name] for name in sorted(topics.topics)))
    new, new_test = _bytes(code)
    draw = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = ByteModel()
    _train(
        model,
        torch.optim.AdamW(model.parameters(), 3e-3),
        100 if quick else 2000,
        lambda: _next_byte(model, _rows(old, 8, draw)),
    )
    known, tested = (
        _rows(old, PROBES, draw),
        {"old": _rows(old_test, 128, draw), "new": _rows(new_test, 128, draw)},
    )
    return Task(
        model,
        new=lambda generator: _rows(new, 8, generator),
        batch=8,
        replayed=lambda n, generator: known[torch.randint(PROBES, (n,), generator=generator)],
        loss=_next_byte,
        old_score=lambda model: float(_next_byte(model, tested["old"])),
        new_score=lambda model: float(_next_byte(model, tested["new"])),
        probes=known[:, :-1],
        held_out=_rows(old, 2 * PROBES, draw)[:, :-1],
        optimizer=lambda parameters, factor: torch.optim.AdamW(parameters, 3e-3 * factor),
        steps=20 if quick else 400,
        loss_is_score=True,
    )


# ── images ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Images:
    """Images and their classes."""

    x: Tensor
    y: Tensor

    def only(self, classes: range) -> Images:
        chosen = torch.isin(self.y, torch.tensor(classes))
        return Images(self.x[chosen], self.y[chosen])

    def draw(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(self.y), (n,), generator=generator)
        return self.x[chosen], self.y[chosen]

    def split(self, n: int, generator: torch.Generator) -> tuple[Images, Images]:
        """Some of them at random, and all others."""
        order = torch.randperm(len(self.y), generator=generator)
        return Images(self.x[order[:n]], self.y[order[:n]]), Images(self.x[order[n:]], self.y[order[n:]])


def _digits(seed: int) -> tuple[Images, Images]:
    """Handwritten digits, 8 × 8: two thirds to train on, the others to test on."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    x, y = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)[order] / 16, torch.tensor(labels)[order]
    cut = len(y) * 2 // 3
    return Images(x[:cut], y[:cut]), Images(x[cut:], y[cut:])


def _network(outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, outputs),
    )  # fmt: skip


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, loss: Callable[[], Tensor]) -> None:
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def _accuracy(pick: Pick, images: Images, first: int = 0) -> Callable[[nn.Module], float]:
    """The percentage of images whose largest output is their class; `first` is the class of the first output."""
    return lambda model: 100 * float((pick(model(images.x)).argmax(1) + first == images.y).float().mean())


def _classify(
    seed: int, model: nn.Module, old: tuple[Images, Images], new: tuple[Images, Images], optimizer: Optimizers,
    outputs: Pick, new_outputs: Pick, first: int, steps: int, quick: bool,
) -> Task:  # fmt: skip
    """A classifier of old images that learns new ones; `first` is the class of the first new output."""
    draw = torch.Generator().manual_seed(seed)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        pick, x, y, offset = batch
        return F.cross_entropy(pick(model(x)), y - offset)

    def drawn(pick: Pick, images: Images, n: int, offset: int, generator: torch.Generator) -> Batch:
        return pick, *images.draw(n, generator), offset

    _train(
        model,
        torch.optim.Adam(model.parameters(), 3e-3),
        60 if quick else 300,
        lambda: loss(model, drawn(outputs, old[0], 64, 0, draw)),
    )
    known, others = old[0].split(PROBES, draw)
    return Task(
        model,
        new=lambda generator: drawn(new_outputs, new[0], 32, first, generator),
        replayed=lambda n, generator: drawn(outputs, known, n, 0, generator),
        loss=loss,
        old_score=_accuracy(outputs, old[1]),
        new_score=_accuracy(new_outputs, new[1], first),
        probes=known.x,
        held_out=others.x,
        outputs=outputs,
        optimizer=optimizer,
        steps=20 if quick else steps,
    )


def _all(output: Tensor) -> Tensor:
    return output


def _sgd(rate: float) -> Optimizers:
    return lambda parameters, factor: torch.optim.SGD(parameters, rate * factor, momentum=0.9)


def _adam(rate: float) -> Optimizers:
    return lambda parameters, factor: torch.optim.Adam(parameters, rate * factor)


def digits(seed: int, quick: bool = False) -> Task:
    train, test = _digits(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    low, high = range(5), range(5, 10)
    old, new = (train.only(low), test.only(low)), (train.only(high), test.only(high))
    return _classify(seed, model, old, new, _adam(1e-3), _all, _all, 0, 1000, quick)


def classes(seed: int, quick: bool = False) -> Task:
    train, test = _digits(seed)
    torch.manual_seed(seed)
    low, high = range(5), range(5, 10)
    old, new = (train.only(low), test.only(low)), (train.only(high), test.only(high))
    return _classify(
        seed,
        _network(10),
        old,
        new,
        _sgd(0.02),
        lambda output: output[:, :5],
        lambda output: output[:, 5:],
        5,
        300,
        quick,
    )


def rotated(seed: int, quick: bool = False) -> Task:
    train, test = _digits(seed)
    torch.manual_seed(seed)
    turned = [Images(images.x.rot90(1, (2, 3)), images.y) for images in (train, test)]
    return _classify(
        seed, _network(10), (train, test), (turned[0], turned[1]), _adam(1e-3), _all, _all, 0, 300, quick
    )


def index(seed: int, quick: bool = False) -> Task:
    train, test = _digits(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    low, high = range(5), range(5, 10)
    old, new, queries, new_queries = train.only(low), train.only(high), test.only(low), test.only(high)
    draw = torch.Generator().manual_seed(seed)

    def embedded(model: Any, x: Tensor) -> Tensor:
        return F.normalize(model(x), dim=-1)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        """Supervised contrastive: images of the same class are similar, all others are not."""
        x, y = batch
        vectors = embedded(model, x)
        same = (y[:, None] == y).float().fill_diagonal_(0)
        similar = (vectors @ vectors.T / 0.1).masked_fill(torch.eye(len(y), dtype=torch.bool), -1e9).log_softmax(1)
        return -(same * similar).sum(1).div(same.sum(1).clamp(min=1)).mean()

    _train(
        model,
        torch.optim.Adam(model.parameters(), 1e-3),
        60 if quick else 300,
        lambda: loss(model, old.draw(64, draw)),
    )
    with torch.no_grad():
        stored = embedded(model, old.x)

    def found(vectors: Tensor, labels: Tensor, model: nn.Module, asked: Images) -> float:
        nearest = (embedded(model, asked.x) @ vectors.T).argmax(1)
        return 100 * float((labels[nearest] == asked.y).float().mean())

    known, others = old.split(PROBES, draw)
    return Task(
        model,
        new=lambda generator: new.draw(32, generator),
        replayed=lambda n, generator: known.draw(n, generator),
        loss=loss,
        old_score=lambda model: found(stored, old.y, model, queries),
        new_score=lambda model: found(embedded(model, new.x), new.y, model, new_queries),
        probes=known.x,
        held_out=others.x,
        optimizer=_adam(1e-3),
        steps=20 if quick else 300,
        divergence="cosine",
    )


TASKS: dict[str, Callable[..., Task]] = {
    "text": text, "digits": digits, "classes": classes, "rotated": rotated, "index": index,
}  # fmt: skip
