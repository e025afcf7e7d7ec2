"""Figures with matplotlib, an extra: accuracy of every task over time, as the paper's figure 2 draws it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk import metrics
from rwalk.report.summary import Summary

HEAD_NAMES = {"multi": "multi-head", "single": "single-head"}
# Okabe and Ito's palette, with a grey for their black and their yellow darkened: one colour a method.
COLOURS = ("#4c4c4c", "#0072b2", "#56b4e9", "#e69f00", "#d55e00", "#009e73", "#cc79a7", "#8c6bb1", "#8a7a00")
MARKERS = "osD^vPX*"


def accuracy_over_time(summaries: Sequence[Summary], path: Path) -> None:
    """A row of panels a head: accuracy of task 1 … K while later tasks are learned, and A_k last."""
    from matplotlib.figure import Figure

    tasks = summaries[0].accuracy["single"].shape[-1]
    figure = Figure(figsize=(2.2 * (tasks + 1), 5.2), layout="constrained")
    grid: Any = figure.subplots(2, tasks + 1, sharex=True, sharey="row", squeeze=False)
    for row, (head, name) in zip(grid, HEAD_NAMES.items(), strict=True):
        for j, axes in enumerate(row[:-1]):
            _curves(axes, summaries, [summary.accuracy[head][..., j] for summary in summaries])
            axes.set_title(f"Task {j + 1}", fontsize=9)
        _curves(row[-1], summaries, [metrics.average_accuracies(summary.accuracy[head]) for summary in summaries])
        row[-1].set_title("Average $A_k$", fontsize=9)
        row[0].set_ylabel(f"{name}\naccuracy %")
    for axes in grid[-1]:
        axes.set_xlabel("tasks learned")
        axes.set_xticks(range(1, tasks + 1))
    handles, labels = grid[0][-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 8), frameon=False)
    figure.savefig(path, dpi=130)


def _curves(axes: Any, summaries: Sequence[Summary], values: Sequence[NDArray[np.float64]]) -> None:
    """Mean over the seeds with a band of one standard deviation, from the first task measured on."""
    several = len({summary.label for summary in summaries}) < len(summaries)
    for i, (summary, curves) in enumerate(zip(summaries, values, strict=True)):
        curves = curves[~np.isnan(curves[:, -1])] * 100
        if not len(curves):
            continue
        steps = np.arange(1, curves.shape[1] + 1)
        there = ~np.isnan(curves).any(0)
        mean, spread = curves[:, there].mean(0), curves[:, there].std(0)
        label = f"{summary.label} λ={summary.lam:g}" if several else summary.label
        style = {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)], "markersize": 3.5}
        axes.plot(steps[there], mean, label=label, linewidth=1.3, **style)
        axes.fill_between(
            steps[there], mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0
        )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
