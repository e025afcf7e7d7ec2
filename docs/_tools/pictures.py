"""Draws the pictures of docs/concepts from small real runs on scikit-learn's digits.

    OMP_NUM_THREADS=1 python docs/_tools/pictures.py [NAME ...]

All of them take a few minutes on one core. They show real results, with the seeds given here.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import rwalk
from rwalk.studies.specs import RunSpec, StreamSpec

FOLDER = Path(__file__).parents[1] / "concepts"
LEFT, HELD, GREY = "#c0392b", "#1f6fb2", "#555555"  # nothing done; held by a method; everything else
SEEDS = range(5)
plt.rcParams.update(
    {
        "svg.fonttype": "none",  # text stays text: small, sharp and searchable
        "svg.hashsalt": "rwalk",
        "font.size": 11,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
)


def rows(runs: list[RunSpec], reference: str = "none") -> list[dict[str, Any]]:
    return rwalk.Study(tuple(runs), reference=reference, workers=1).execute()


def forgetting() -> None:
    """The first of five tasks, while the other four are learned."""
    stream, every, steps = StreamSpec("digits", permuted=5, scenario="domain"), 20, 200
    training = rwalk.Training(steps=steps)
    _, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for method, label, colour in (("vanilla", "no protection", LEFT), ("rwalk", "held by RWalk", HELD)):
        settings = {"method": method, "training": training, "measure_every": every}
        found = rows([RunSpec(stream, seed=seed, **settings) for seed in SEEDS])
        within = np.array([row.within["single"] for row in found], dtype=float)[..., 0]  # on the first task
        curves = 100 * within.reshape(len(found), -1)
        x = every * np.arange(1, curves.shape[1] + 1)
        axes.plot(x, curves.mean(0), color=colour, label=label)
        axes.fill_between(x, curves.min(0), curves.max(0), color=colour, alpha=0.15, linewidth=0)
        _say(axes, x[-1], curves[:, -1].mean(), colour)
    for task in range(1, 5):
        axes.axvline(task * steps, color=GREY, linewidth=0.8, linestyle=":")
    for task in range(5):
        axes.text((task + 0.5) * steps, 103, f"task {task + 1}", ha="center", color=GREY)
    axes.set(xlabel="training steps", ylabel="accuracy on task 1, %", ylim=(0, 102), xlim=(0, 5 * steps))
    axes.legend(loc="lower left")
    _save("forgetting")


def intransigence() -> None:
    """Held more strongly, less is forgotten and less is learned."""
    strengths = [0.01, 0.1, 1.0, 10.0, 100.0, 1e3, 1e4]
    stream, training = StreamSpec("digits", permuted=5, scenario="domain"), rwalk.Training(steps=100)
    runs = [
        RunSpec(stream, method="rwalk", numbers={"lam": lam}, training=training, seed=seed)
        for lam in strengths
        for seed in SEEDS
    ]
    found = rows(runs, reference="final")
    measures = np.array([[row.single.F, row.single.I] for row in found])
    lost, refused = measures.reshape(len(strengths), len(SEEDS), 2).mean(1).T
    _, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for values, label, colour in ((lost, "forgetting", LEFT), (refused, "intransigence", HELD)):
        axes.plot(strengths, values, marker="o", color=colour, label=label)
    axes.axhline(0, color=GREY, linewidth=0.8)
    axes.set(xscale="log", xlabel="λ: how strongly the old is held", ylabel="fraction of examples lost")
    axes.legend(loc="upper center")
    _save("intransigence")


def drift() -> None:
    """The scores of an old digit before and after a network has learned new ones."""
    x, y, old, new = _digits()
    start = _trained(x[old], y[old])
    probes = x[old][:128]
    said, drifts = {"before": start(probes).detach().softmax(-1)}, {}
    for label, guarded in (("no guard", False), ("guard", True)):
        model = _network()
        model.load_state_dict(start.state_dict())
        drifts[label] = _learned(model, x[new], y[new], probes, guarded)
        said[label] = model(probes).detach().softmax(-1)
    moved = (said["before"] * (said["before"] / said["no guard"]).log()).sum(-1)
    probe = int(moved.argsort(descending=True)[len(moved) // 10])  # among those that moved most, but not the first

    _, axes = plt.subplots(1, 5, figsize=(9.5, 2.9), layout="constrained", width_ratios=[0.8, 1, 1, 1, 1.7])
    axes[0].imshow(probes[probe].reshape(8, 8), cmap="Greys")
    axes[0].set(xticks=[], yticks=[], title="an old digit")
    axes[0].spines[:].set_visible(False)
    colours = {"before": GREY, "no guard": LEFT, "guard": HELD}
    for cell, (label, colour) in zip(axes[1:4], colours.items(), strict=True):
        cell.bar(range(10), said[label][probe], color=colour)
        cell.set(title=label, ylim=(0, 1.02), xticks=[0, 5, 9], yticks=[0, 1])
    axes[1].set_ylabel("probability")
    axes[2].set_xlabel("digit")
    for label, line in drifts.items():
        axes[4].plot(range(1, len(line) + 1), line, color=colours[label])
        height = line[-1] * (1.4 if label == "no guard" else 0.35)  # above the one line, below the other
        axes[4].text(len(line), height, label, color=colours[label], ha="right", va="bottom")
    axes[4].set(yscale="log", ylim=(None, 6), xlabel="steps on new digits", title="drift, nats")
    _save("drift")


def single_head() -> None:
    """One network, scored in two ways; and its answers when it may name any class."""
    stream, training = StreamSpec("digits", classes_per_task=2), rwalk.Training(epochs=20)
    found = rows([RunSpec(stream, method="vanilla", training=training, seed=seed) for seed in SEEDS])
    _, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained", width_ratios=[1.3, 1])
    asked = (("multi", "which of its task's two?", HELD), ("single", "which of all so far?", LEFT))
    for head, label, colour in asked:
        accuracies = np.array([row.accuracy[head] for row in found], dtype=float)
        curve = 100 * rwalk.metrics.average_accuracies(accuracies).mean(0)
        left.plot(range(1, 6), curve, marker="o", color=colour, label=label)
        _say(left, 5, curve[-1], colour)
    left.set(xlabel="tasks learned", ylabel="accuracy, %", ylim=(0, 104), xticks=range(1, 6))
    left.set_title("the same network")
    left.legend(loc="lower left")
    answers = _answers()
    right.imshow(answers, cmap="Reds", vmin=0, vmax=100)
    for (true, answer), share in np.ndenumerate(answers):
        if share >= 1:
            colour = "white" if share > 50 else "black"
            right.text(answer, true, f"{share:.0f}", ha="center", va="center", fontsize=8, color=colour)
    right.set(xlabel="answer", ylabel="true digit", xticks=range(10), yticks=range(10))
    right.set_title("answers after task 5, %")
    right.spines[:].set_visible(False)
    _save("single-head")


def _answers() -> NDArray[np.float64]:
    """Percent of each digit's test images by answer: a network, two digits at a time, unprotected."""
    from sklearn.datasets import load_digits
    from sklearn.metrics import confusion_matrix
    from sklearn.model_selection import train_test_split

    x, x_test, y, y_test = train_test_split(*load_digits(return_X_y=True), random_state=0)
    warnings.filterwarnings("ignore", "without exemplars no batch shows")
    network = rwalk.IncrementalClassifier(method=None, epochs=20, random_state=0)
    for task in range(5):
        network.partial_fit(x[y // 2 == task], y[y // 2 == task])
    return 100 * confusion_matrix(y_test, network.predict(x_test), normalize="true")


def _digits() -> tuple[torch.Tensor, ...]:
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = torch.tensor(data.data / 16).float(), torch.tensor(data.target)
    return x, y, y < 5, y >= 5


def _network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))


def _trained(x: torch.Tensor, y: torch.Tensor) -> torch.nn.Module:
    model = _network()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for _ in range(300):
        _step(model, optimizer, x, y)
    return model


def _learned(
    model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, probes: torch.Tensor, guarded: bool
) -> list[float]:
    """Train on the new digits; the drift after every step."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    before = model(probes).detach().log_softmax(-1)
    guard = rwalk.Guard(model, optimizer, probes=probes) if guarded else None
    found = []
    for _ in range(100):
        _step(model, optimizer, x, y)
        now = model(probes).detach().log_softmax(-1)
        found.append(F.kl_div(now, before, log_target=True, reduction="batchmean").item())
    if guard is not None:
        guard.finish()
    return found


def _step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    batch = torch.randint(len(x), (32,))
    F.cross_entropy(model(x[batch]), y[batch]).backward()
    optimizer.step()
    optimizer.zero_grad()


def _say(axes: Any, x: float, percent: float, colour: str) -> None:
    """The value at a curve's end."""
    place = {"textcoords": "offset points", "annotation_clip": False}
    axes.annotate(f"{percent:.0f} %", (x, percent), (6, -4), color=colour, **place)


def _save(name: str) -> None:
    path = FOLDER / f"{name}.svg"
    plt.savefig(path, metadata={"Date": None})
    plt.close()
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KB")


PICTURES: dict[str, Callable[[], None]] = {
    "forgetting": forgetting,
    "intransigence": intransigence,
    "drift": drift,
    "single-head": single_head,
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for chosen in sys.argv[1:] or PICTURES:
        PICTURES[chosen]()
