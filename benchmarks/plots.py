"""Pictures of results.json, into benchmarks/pictures: `python -m benchmarks.plots`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator

from benchmarks import bars, record
from benchmarks.peers import PEERS

# Okabe and Ito's colours, distinct for colour-blind eyes too; marks differ as well, for printing in grey.
STYLE = {
    "vanilla": ("#000000", "o", "vanilla"),
    "ewc": ("#D55E00", "s", "EWC"),
    "ewc++": ("#E69F00", "^", "EWC++"),
    "pi": ("#0072B2", "D", "PI"),
    "rwalk": ("#009E73", "v", "RWalk"),
    "rwalk, 4 runs": ("#CC79A7", "P", "RWalk, 4 runs"),
    "rwalk, compiled": ("#56B4E9", "X", "RWalk, compiled"),
}
TITLES = {"vanilla": "Vanilla", "pi": "PI / SI", "ewc++": "EWC++ / online EWC", "rwalk": "RWalk"}
OURS, TENSORS, DATASET = "#009E73", "#0072B2", "#E69F00"


def steps(results: Mapping[str, Any]) -> Figure:
    """Our step beside the given figures of others, one panel a method; the scale is logarithmic."""
    figure, panels = plt.subplots(1, len(TITLES), figsize=(13, 4.6), sharey=False, layout="constrained")
    for axes, (method, title) in zip(panels, TITLES.items(), strict=True):
        entries: list[tuple[str, float, str]] = [
            ("ours", results["solo"][method], OURS),
            ("ours, eager", results["solo"][f"{method}, eager"], OURS),
        ]
        for peer, (tensors, dataset) in PEERS[method].items():
            entries += [(peer, tensors, TENSORS)] if tensors is not None else []
            entries += [(peer, dataset, DATASET)] if dataset is not None else []
        for row, (_, value, colour) in enumerate(entries):
            # Points, not bars: on a logarithmic scale a bar's length has no meaning.
            axes.hlines(row, 0.5, value, color="#cccccc", linewidth=1, zorder=1)
            axes.plot(value, row, "o", color=colour, markersize=9)
            axes.text(
                value * 1.18, row, f"{value:.2f}" if colour == OURS else f"{value:.1f}", va="center", fontsize=9
            )
        axes.set_yticks(range(len(entries)), [name for name, *_ in entries])
        axes.invert_yaxis()
        axes.set(title=title, xscale="log", xlim=(0.5, 80), xlabel="time of a step ÷ minimal loop's")
        axes.xaxis.set_major_locator(FixedLocator([0.5, 1, 2, 5, 10, 30]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
        axes.axvline(1, color="grey", linewidth=1, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    colours = {
        "ours, fed tensors": OURS,
        "theirs, fed tensors": TENSORS,
        "theirs, usual dataset pipeline": DATASET,
    }
    patches = [Patch(color=colour, label=label) for label, colour in colours.items()]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(
        "A training step: MLP 784-256-256-10, batches of 64, one CPU thread (others: given figures, peers.py)"
    )
    return figure


def against(results: Mapping[str, Any]) -> Figure:
    """Avalanche and ours measured in the same rounds."""
    section = results["against avalanche"]
    entries = [(name, value) for name, value in section.items() if isinstance(value, float) and "'s" in name]
    figure, axes = plt.subplots(figsize=(8.5, 5.6), layout="constrained")
    for row, (name, value) in enumerate(entries):
        colour = OURS if name.startswith("rwalk") else DATASET if name.endswith("dataset") else TENSORS
        axes.barh(row, value, color=colour)
        axes.text(value + 0.08, row, f"{value:.2f}", va="center", fontsize=9)
    axes.set_xlim(0, 1.1 * max(value for _, value in entries))
    axes.set_yticks(range(len(entries)), [name for name, _ in entries])
    axes.invert_yaxis()
    axes.axvline(1, color="grey", linewidth=1, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)
    axes.set(xlabel="time of a step ÷ minimal loop's, same rounds", title="Avalanche beside us: the last run")
    return figure


def growth_of_time(results: Mapping[str, Any]) -> Figure:
    found = results["growth"]["milliseconds"]
    figure, panels = plt.subplots(1, 3, figsize=(13, 4.4), layout="constrained")
    for axes, (what, label) in zip(
        panels,
        {
            "by_parameters": "parameters P",
            "by_runs": "runs in the fleet R",
            "by_tasks": "tasks consolidated k",
        }.items(),
        strict=True,
    ):
        _lines(axes, found[what], lambda row, name: row[name], [name for name in STYLE if "," not in name])
        axes.set(xlabel=label, ylabel="milliseconds a step", ylim=(0, None))
    for axes in panels[:2]:
        axes.set(xscale="log", yscale="log", ylim=(1, 100))
        axes.yaxis.set_major_locator(FixedLocator([1, 2, 5, 10, 20, 50, 100]))
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter("{x:g}")
    runs = [int(count) for count in found["by_runs"]]
    panels[1].set_xticks(runs, [str(count) for count in runs])
    panels[1].xaxis.set_minor_locator(NullLocator())
    panels[2].set_xticks([int(k) for k in found["by_tasks"]])
    panels[0].set_title("one run, one task consolidated")
    panels[1].set_title("MLP 784-256-256-42, one task consolidated")
    panels[2].set_title("MLP 784-256-256-42, one run")
    panels[0].legend(frameon=False)
    figure.suptitle(f"Time of a step, eager, on {results['growth']['device']}, one thread")
    return figure


def growth_of_memory(results: Mapping[str, Any]) -> Figure:
    found = results["growth"]["buffers"]
    by_tasks = {k: {name: found[name][k] for name in found} for k in next(iter(found.values()))}
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.8), sharey=True, layout="constrained")
    for axes, moment, title in zip(
        panels, ("held", "step"), ("held between steps", "at the peak inside a step"), strict=True
    ):
        _lines(axes, by_tasks, lambda row, name, moment=moment: row[name][moment], list(found))
        axes.axhline(bars.BUFFERS, color="grey", linestyle="--", linewidth=1)
        axes.text(7.5, bars.BUFFERS + 0.1, "RWalk's bar: 6", color="dimgrey", ha="center", va="bottom", fontsize=9)
        axes.set(xlabel="tasks consolidated k", title=title, ylim=(0, 25))
        axes.set_xticks([int(k) for k in by_tasks])
    panels[0].set_ylabel("vectors beyond θ, its gradient, Adam's two")
    panels[0].legend(frameon=False)
    figure.suptitle(f"Memory by the allocator's count, on {results['growth']['device']}")
    return figure


def _lines(axes: Axes, rows: Mapping[str, Any], value: Callable[..., float], names: list[str]) -> None:
    for name in names:
        colour, marker, label = STYLE[name]
        xs = [int(x) for x in rows]
        axes.plot(xs, [value(row, name) for row in rows.values()], color=colour, marker=marker, label=label)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


PICTURES: dict[str, tuple[str, Callable[[Mapping[str, Any]], Figure]]] = {
    "steps": ("solo", steps),
    "against": ("against avalanche", against),
    "growth_time": ("growth", growth_of_time),
    "growth_memory": ("growth", growth_of_memory),
}


def draw(results: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every picture whose section was measured."""
    matplotlib.use("agg")
    folder.mkdir(exist_ok=True)
    files = []
    for name, (section, picture) in PICTURES.items():
        if section in results:
            files.append(folder / f"{name}.png")
            figure = picture(results)
            figure.savefig(files[-1], dpi=110)
            plt.close(figure)
    return files


if __name__ == "__main__":
    for file in draw(record.load(), record.HERE / "pictures"):
        print(file)
