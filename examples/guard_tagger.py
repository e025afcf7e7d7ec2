"""
A tagger gets a new entity
==========================

A tagger finds arguments and functions in texts. It learns a third entity, classes, from sentences in which nothing
but classes is annotated. What becomes of the other two?

.. code-block:: console

   $ python examples/guard_tagger.py

The texts are torch's own docstrings. Their authors marked names, as in ``:attr:`dim```, so the entities were
annotated by hand. The marks are taken out, and the tagger has to find the names again."""

from __future__ import annotations

import copy
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import rwalk

TAGS = {"attr": 1, "func": 2, "meth": 2, "class": 3}  # 0 is a word that is no entity
OLD, NEW = [1, 2], 3
LENGTH, HASHES = 40, 4096
FOLDERS = (
    "nn/modules",
    "nn/functional.py",
    "_torch_docs.py",
    "_tensor_docs.py",
    "optim",
    "distributions",
    "utils",
)


# %%
# Sentences with entities
# -----------------------


class Texts(NamedTuple):
    """Features of words [texts, words, features], which words are no padding, and tags [texts, words]."""

    words: Tensor
    mask: Tensor
    tags: Tensor

    def __getitem__(self, chosen: Any) -> Texts:  # type: ignore[override]
        return Texts(*(each[chosen] for each in (self.words, self.mask, self.tags)))

    def inputs(self) -> dict[str, Tensor]:
        """What the model takes: no tags."""
        return {"words": self.words, "attention_mask": self.mask}

    def annotated(self, tags: list[int]) -> Texts:
        """Sentences with at least one of these tags, and no other tags."""
        known = torch.where(torch.isin(self.tags, torch.tensor(tags)), self.tags, 0)
        return self._replace(tags=known)[(known > 0).any(1)]


def features(word: str) -> list[int]:
    """A word, its beginning, its end and its form, each as a number."""
    form = re.sub(r"(.)\1+", r"\1", re.sub("[a-z]", "a", re.sub("[A-Z]", "A", re.sub("[0-9]", "0", word))))
    parts = (word.lower(), "^" + word[:3], word[-3:] + "$", "=" + form)
    return [zlib.crc32(part.encode()) % HASHES for part in parts]


def sentences() -> list[list[tuple[str, int]]]:
    """Words with tags, from the docstrings of torch."""
    root = Path(torch.__file__).parent
    files = [
        file for each in FOLDERS for file in ([root / each] if each[-3:] == ".py" else (root / each).rglob("*.py"))
    ]
    found = []
    for file in sorted(files):
        for text in re.findall(r'"""(.*?)"""', file.read_text(encoding="utf-8"), re.DOTALL):
            for sentence in re.split(r"\n\s*\n|(?<=[a-z`)])\.\s", text):
                words: list[tuple[str, int]] = []
                for role, name, word in re.findall(
                    r":(\w+):`~?\.?([^`]*)`|([A-Za-z_][\w.]*|\d+|[^\s`])", sentence
                ):
                    parts = re.findall(r"[A-Za-z_][\w.]*|\d+|\S", name) if role else [word]
                    words += [(part, TAGS.get(role, 0)) for part in parts]
                found += [words[:LENGTH]] if any(tag for _, tag in words[:LENGTH]) else []
    return found


def texts() -> Texts:
    rows = sentences()
    words, tags = (
        torch.zeros(len(rows), LENGTH, 4, dtype=torch.long),
        torch.zeros(len(rows), LENGTH, dtype=torch.long),
    )
    mask = torch.zeros(len(rows), LENGTH, dtype=torch.long)
    for number, row in enumerate(rows):
        words[number, : len(row)] = torch.tensor([features(word) for word, _ in row])
        tags[number, : len(row)] = torch.tensor([tag for _, tag in row])
        mask[number, : len(row)] = 1
    return Texts(words, mask, tags)


# %%
# A small tagger
# --------------


class Tagger(nn.Module):
    """Sums of features of words, then convolutions over neighbouring words."""

    def __init__(self, tags: int, width: int = 64) -> None:
        super().__init__()
        self.features = nn.EmbeddingBag(HASHES, width, mode="sum")
        self.near, self.far = nn.Conv1d(width, width, 3, padding=1), nn.Conv1d(width, width, 5, padding=2)
        self.dropout = nn.Dropout(0.3)
        self.head = nn.Linear(width, tags)

    def forward(self, words: Tensor, attention_mask: Tensor) -> Tensor:
        x = self.dropout(self.features(words.flatten(0, 1)).view(*words.shape[:2], -1) * attention_mask[..., None])
        x = x + self.near(x.transpose(1, 2)).relu().transpose(1, 2)
        x = x + self.far(x.transpose(1, 2)).relu().transpose(1, 2)
        logits: Tensor = self.head(self.dropout(x))
        return logits


def grow(model: Tagger) -> None:
    """A head with one more tag."""
    head = nn.Linear(model.head.in_features, model.head.out_features + 1)
    with torch.no_grad():
        head.weight[:-1], head.bias[:-1] = model.head.weight, model.head.bias
        head.weight[-1], head.bias[-1] = 0.0, model.head.bias.min() - 2  # it is hardly ever found yet
    model.head = head


# %%
# The loss
# --------
# A word without annotation is no entity, or one that nobody annotated in these sentences. A loss that takes it for
# no entity teaches the tagger to forget the old entities.


def loss_of(logits: Tensor, tags: Tensor, annotated: list[int]) -> Tensor:
    """Cross entropy; a word without annotation may have any of the other tags."""
    logs = logits.log_softmax(-1)
    others = [tag for tag in range(logits.shape[-1]) if tag not in annotated]
    right = torch.where(tags > 0, logs.gather(-1, tags[..., None])[..., 0], logs[..., others].logsumexp(-1))
    return -right.mean()


def train(
    model: Tagger, optimizer: torch.optim.Optimizer, data: Texts, steps: int, annotated: list[int],
    replayed: Texts | None = None,
) -> None:  # fmt: skip
    model.train()
    for _ in range(steps):
        batch = data[torch.randint(len(data.words), (32,))]
        here = batch.mask > 0
        loss = loss_of(model(**batch.inputs())[here], batch.tags[here], annotated)
        if replayed is not None:  # as many old sentences as new ones
            batch = replayed[torch.randint(len(replayed.words), (32,))]
            here = batch.mask > 0
            loss = (loss + loss_of(model(**batch.inputs())[here], batch.tags[here], OLD)) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def f1(model: Tagger, data: Texts) -> list[float]:
    """F1 of every entity, in %."""
    model.eval()
    with torch.no_grad():
        found = torch.where(data.mask > 0, model(**data.inputs()).argmax(-1), 0)
    pairs = [(found == tag, data.tags == tag) for tag in (*OLD, NEW)]
    return [float(200 * (a & b).sum() / (a.sum() + b.sum()).clamp(min=1)) for a, b in pairs]


# %%
# The new entity
# --------------


class Task(NamedTuple):
    model: Tagger  # knows the old entities
    old: Texts
    new: Texts
    tested: dict[str, Texts]
    steps: int
    rate: float = 2e-3

    def scores(self, model: nn.Module, part: str = "test") -> dict[str, float]:
        """F1 of the old entities, on average, and of the new one."""
        *old, new = f1(model, self.tested[part])  # type: ignore[arg-type]
        return {"old": sum(old) / len(old), "new": new}

    def probes(self, which: str, n: int = 128) -> dict[str, Tensor]:
        return (self.old if which == "old" else self.new)[:n].inputs()


def prepare(seed: int, quick: bool = False) -> Task:
    """A tagger that knows the old entities, and other sentences in which only the new one is annotated."""
    torch.manual_seed(seed)
    data = texts()
    data = data[torch.randperm(len(data.words))[: 300 if quick else None]]
    first, then, last = (round(share * len(data.words)) for share in (0.5, 0.8, 0.9))
    old, new = data[:first].annotated(OLD), data[first:then].annotated([NEW])
    model = Tagger(NEW)
    train(model, torch.optim.Adam(model.parameters(), 2e-3), old, 4 if quick else 600, OLD)
    return Task(model, old, new, {"validation": data[then:last], "test": data[last:]}, 4 if quick else 300)


def learn(
    task: Task, probes: Any = None, rate: float = 1.0, naive: bool = False, frozen: bool = False, replay: int = 0,
    **options: Any,
) -> Tagger:  # fmt: skip
    """The tagger after training on the new entity.

    The guard is made before the head grows. So it keeps outputs of the old tags alone, and a word that was no
    entity may become a new one.
    """
    model = copy.deepcopy(task.model)
    model.requires_grad_(not frozen)
    optimizer = torch.optim.Adam(model.parameters(), rate * task.rate)
    guard = (
        None if probes is None else rwalk.Guard(model, optimizer, probes=probes, divergence="tagging", **options)
    )
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


def compare(task: Task) -> dict[str, dict[str, float]]:
    ways = {
        "no guard, all else is no entity": {"naive": True},
        "no guard": {},
        "guard, new sentences": {"probes": task.probes("new")},
        "guard, old sentences": {"probes": task.probes("old")},
    }
    found = {"before": task.scores(task.model)}
    for name, options in ways.items():
        torch.manual_seed(0)
        found[name] = task.scores(learn(task, **options))
        print(f"{name:33} F1 of old entities {found[name]['old']:5.1f}   new entity {found[name]['new']:5.1f}")
    return found


def picture(found: dict[str, dict[str, float]]) -> None:
    """Old entities and the new one, side by side."""
    _, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    for place, part in enumerate(("old", "new")):
        rows = [each + 0.38 * place for each in range(len(found))]
        label = "old entities" if part == "old" else "new entity"
        axes.barh(
            rows,
            [each[part] for each in found.values()],
            0.36,
            label=label,
            color=("tab:blue", "tab:orange")[place],
        )
    axes.set(
        yticks=[each + 0.19 for each in range(len(found))], yticklabels=list(found), xlabel="F1, %", xlim=(0, 100)
    )
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.15), ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    plt.show()


if __name__ == "__main__":
    torch.set_num_threads(1)
    picture(compare(prepare(0)))
