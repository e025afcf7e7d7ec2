"""
An embedding model keeps an old index
=====================================

A small embedding model finds the text that belongs to a question, among torch's docstrings. All texts are in an
index. The model learns scikit-learn's docstrings too. Is the old index still good, or must all texts be embedded
again?

.. code-block:: console

   $ python examples/guard_embedder.py

The question is the first sentence of a docstring, and the text is the rest of it. Both packages are installed with
rwalk, so nothing is downloaded."""

from __future__ import annotations

import copy
import re
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import sklearn
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rwalk

HASHES, WORDS = 8192, 48
TEMPERATURE = 0.05
OLD = [
    "nn",
    "optim",
    "distributions",
    "utils",
    "fx",
    "distributed",
    "ao",
    "_refs",
    "export",
    "autograd",
]  # folders


# %%
# Questions and texts
# -------------------


class Pairs(NamedTuple):
    """Numbers of words of questions, and of the texts that answer them, [n, words]; 0 is no word."""

    questions: Tensor
    texts: Tensor

    def __getitem__(self, chosen: Any) -> Pairs:  # type: ignore[override]
        return Pairs(self.questions[chosen], self.texts[chosen])


def numbers(text: str) -> list[int]:
    words = re.findall(r"[a-z]{2,}", text.lower())[:WORDS]
    return [1 + zlib.crc32(word.encode()) % (HASHES - 1) for word in words] + [0] * (WORDS - len(words))


def docstrings(package: Any, folders: list[str]) -> Pairs:
    """First sentences and the rest, of docstrings in which both are long enough."""
    root, found = Path(package.__file__).parent, {}
    for file in sorted(file for folder in folders for file in (root / folder).rglob("*.py")):
        for text in re.findall(r'"""(.*?)"""', file.read_text(encoding="utf-8"), re.DOTALL):
            first, _, rest = text.strip().partition("\n\n")
            if len(first.split()) >= 5 and len(rest.split()) >= 30 and "tests" not in file.parts:
                found[first] = numbers(first), numbers(rest)
    return Pairs(*(torch.tensor([pair[side] for pair in found.values()]) for side in (0, 1)))


# %%
# A small embedding model
# -----------------------


class Embedder(nn.Module):
    """The mean of words' vectors, then two layers; the result has length 1."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(HASHES, width, mode="mean", padding_idx=0)
        self.inner = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, width)

    def forward(self, words: Tensor) -> Tensor:
        mean = self.words(words)
        return F.normalize(self.head(mean + self.inner(mean)), dim=-1)


def loss_of(model: Embedder, pairs: Pairs) -> Tensor:
    """Each question is most like its own text, among the texts of the batch."""
    found = model(pairs.questions) @ model(pairs.texts).T / TEMPERATURE
    return F.cross_entropy(found, torch.arange(len(found)))


def train(
    model: Embedder, optimizer: torch.optim.Optimizer, data: Pairs, steps: int, replayed: Pairs | None = None
) -> None:
    for _ in range(steps):
        loss = loss_of(model, data[torch.randint(len(data.texts), (64,))])
        if replayed is not None:
            loss = (loss + loss_of(model, replayed[torch.randint(len(replayed.texts), (64,))])) / 2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def recall(model: Embedder, index: Tensor, pairs: Pairs, k: int = 5) -> float:
    """The share of questions whose text is among the k nearest in the index, in %."""
    with torch.no_grad():
        nearest = (model(pairs.questions) @ index.T).topk(k, 1).indices
    return 100 * float((nearest == torch.arange(len(nearest))[:, None]).any(1).float().mean())


# %%
# The new domain
# --------------


class Task(NamedTuple):
    model: Embedder  # knows the old domain
    old: Pairs
    new: Pairs
    tested: dict[str, tuple[Pairs, Pairs]]  # old and new ones
    steps: int
    rate: float = 3e-3

    def scores(self, model: Any, part: str = "test") -> dict[str, float]:
        """Recall in the index that the old model made, in one that is made again, and of the new domain."""
        old, new = self.tested[part]
        with torch.no_grad():
            index, again, found = self.model(old.texts), model(old.texts), model(new.texts)
        recalls = recall(model, index, old), recall(model, again, old), recall(model, found, new)
        return dict(zip(("old index", "index made again", "new"), recalls, strict=True))

    def probes(self, which: str, n: int = 128) -> Tensor:
        """Half of them questions, half of them texts."""
        questions, texts = (self.old if which == "old" else self.new)[: n // 2]
        return torch.cat([questions, texts])


def prepare(seed: int, quick: bool = False) -> Task:
    torch.manual_seed(seed)
    old, new = docstrings(torch, OLD), docstrings(sklearn, [""])
    old, new = old[torch.randperm(len(old.texts))], new[torch.randperm(len(new.texts))]
    tested = {"validation": (old[:400], new[:300]), "test": (old[400:800], new[300:600])}
    model = Embedder()
    train(model, torch.optim.Adam(model.parameters(), 2e-3), old[800:], 4 if quick else 900)
    return Task(model, old[800:], new[600:], tested, 4 if quick else 300)


def learn(
    task: Task, probes: Any = None, rate: float = 1.0, frozen: bool = False, replay: int = 0, **options: Any
) -> Embedder:
    """The model after training on the new domain. Vectors of length 1 are compared by their angles: no option."""
    model = copy.deepcopy(task.model)
    if frozen:
        model.requires_grad_(False)
        model.head.requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), rate * task.rate)
    guard = None if probes is None else rwalk.Guard(model, optimizer, probes=probes, **options)
    train(model, optimizer, task.new, task.steps, task.old[:replay] if replay else None)
    if guard is not None:
        guard.finish()
    return model


# %%
# What comes out
# --------------


def compare(task: Task) -> dict[str, dict[str, float]]:
    ways = {
        "no guard": {},
        "guard, 128 new": {"probes": task.probes("new")},
        "guard, 128 old": {"probes": task.probes("old")},
        "guard, 512 old": {"probes": task.probes("old", 512)},
    }
    found = {"before": task.scores(task.model)}
    for name, options in ways.items():
        torch.manual_seed(0)
        found[name] = task.scores(learn(task, **options))
    for name, scores in found.items():
        print(f"{name:16}", "   ".join(f"{part} {score:5.1f}" for part, score in scores.items()))
    return found


def picture(found: dict[str, dict[str, float]]) -> None:
    """Recall in the old index against recall in the new domain: top right is best."""
    _, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for name, scores in found.items():
        axes.plot(scores["old index"], scores["new"], "o", label=name)
    axes.set(xlabel="old questions, old index: recall@5, %", ylabel="new questions: recall@5, %")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    plt.show()


if __name__ == "__main__":
    torch.set_num_threads(1)
    picture(compare(prepare(0)))
