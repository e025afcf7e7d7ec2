"""Figures with matplotlib, an extra: accuracy of every task over time, as the paper's figure 2 draws it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rwalk import metrics
from rwalk.report.method_colours import MARKERS, PALETTE, colour, marker
from rwalk.report.seed_summaries import Summary


class Block(NamedTuple):
    """Summaries that are evaluated with one head, drawn together."""

    head: str
    summaries: Sequence[Summary]
    title: str


def accuracy_over_time(blocks: Sequence[Block], path: Path, columns: int | None = None) -> None:
    """Draw a row of panels per block: accuracy of task 1 … K while later tasks are learned, and A_k last.

    A row of more than six panels is wrapped, unless the number of columns is given.
    """
    from matplotlib.figure import Figure

    tasks = blocks[0].summaries[0].accuracy["single"].shape[-1]
    columns = columns or min(tasks + 1, 6)
    rows = -(-(tasks + 1) // columns)
    figure = Figure(figsize=(2.2 * columns, 2.3 * len(blocks) * rows + 0.6), layout="constrained")
    # A figure within the figure for each block: its panels share their height, and no empty ones are left over.
    parts: Any = figure.subfigures(len(blocks), 1, squeeze=False)[:, 0]
    legend: dict[str, Any] = {}
    for part, (head, summaries, title) in zip(parts, blocks, strict=True):
        shared: Any = None
        for j in range(tasks + 1):
            axes = shared = part.add_subplot(rows, columns, j + 1, sharex=shared, sharey=shared)
            last = j == tasks
            values = [
                metrics.average_accuracies(summary.accuracy[head]) if last else summary.accuracy[head][..., j]
                for summary in summaries
            ]
            _curves(axes, summaries, values)
            axes.set_title("Average $A_k$" if last else f"Task {j + 1}", fontsize=9)
            axes.set_xticks(range(1, tasks + 1))
            axes.tick_params(labelbottom=j + columns > tasks, labelleft=j % columns == 0, labelsize=8)
        part.supylabel(title, fontsize=9)
        part.supxlabel("tasks learned", fontsize=9)
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    figure.legend(legend.values(), legend, loc="outside lower center", ncols=min(len(legend), 8), frameon=False)
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    """As PNG or SVG, by the path's suffix; the same figure gives the same file, byte for byte."""
    import matplotlib

    with matplotlib.rc_context({"svg.hashsalt": path.name}):
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def _curves(axes: Any, summaries: Sequence[Summary], values: Sequence[NDArray[np.float64]]) -> None:
    """Mean over the seeds with a band of one standard deviation, from the first task measured on."""
    several = len({summary.name for summary in summaries}) < len(summaries)  # of one method, at several λ
    for i, (summary, curves) in enumerate(zip(summaries, values, strict=True)):
        curves = curves[~np.isnan(curves[:, -1])] * 100
        if not len(curves):
            continue
        steps = np.arange(1, curves.shape[1] + 1)
        there = ~np.isnan(curves).any(0)
        mean = curves[:, there].mean(0)
        spread = curves[:, there].std(0, ddof=1) if len(curves) > 1 else np.zeros_like(mean)
        label = f"{summary.name} λ={summary.lam:g}" if several and summary.lam else summary.name
        style = {"color": colour(summary.method), "marker": marker(summary.method)}
        if several:
            style |= {"color": PALETTE[i % len(PALETTE)][0], "marker": MARKERS[i % len(MARKERS)]}
        axes.plot(steps[there], mean, label=label, linewidth=1.3, markersize=3.5, **style)
        if len(mean) == 1:  # the last task: a point has no band
            axes.errorbar(steps[there], mean, spread, color=style["color"], capsize=2, linewidth=1)
        axes.fill_between(
            steps[there], mean - spread, mean + spread, color=style["color"], alpha=0.15, linewidth=0
        )
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
