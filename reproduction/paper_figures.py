"""The paper's figures 2 to 5, and one of our own, from our rows, as PNG (matplotlib)."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reproduction.measured_cells import Measured, NotRun
from reproduction.own_questions import SURFACE_LAMBDAS, SURFACE_STEPS
from reproduction.paper_experiments import SAMPLE_SIZES, SAMPLERS, Entry
from reproduction.question_tables import Surface, decade
from reproduction.tuning_settings import BLOCKS, METHODS
from rwalk import metrics
from rwalk.report.method_colours import OWNERS, PALETTE, UNKNOWN, colour, symbol
from rwalk.report.seed_summaries import Summary
from rwalk.report.welch_test import mean_and_deviation
from rwalk.report.wording import HEAD_NAMES

DATASETS = ("mnist", "cifar100")
MARKERS = "osD^vPX*h"  # matplotlib's, in the order of `method_colours.SYMBOLS`

logger = logging.getLogger(__name__)


def draw_all(measured: Measured, folder: Path) -> list[Path]:
    """Draw every figure whose rows exist; without matplotlib, draw nothing and say so."""
    entries = measured.entries
    try:
        import matplotlib as _  # noqa: F401
    except ImportError:
        logger.warning("no figures are drawn: pip install matplotlib")
        return []
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for dataset in DATASETS:
        table = _there(entries(f"table1-{dataset}"))
        drawn += _over_time(table, folder / f"figure2-{dataset}") if table else []
        singles = [(e, s) for e, s in table if e.head == "single"]
        drawn += _plane(singles, folder / f"figure3-{dataset}") if singles else []
        sizes = _complete(entries(f"figure4-{dataset}"))
        drawn += _sizes(sizes, dataset, folder / f"figure4-{dataset}") if sizes else []
        samplers = _complete(entries(f"figure5-{dataset}"))
        drawn += _samplers(samplers, folder / f"figure5-{dataset}") if samplers else []
    with suppress(NotRun):
        surfaces = Surface.all_of(measured)
        for replays, name in ((True, "surface-mnist"), (False, "surface-mnist-multi")):
            if chosen := [each for each in surfaces if each.replays == replays]:
                drawn += _surfaces(chosen, folder / name)
    return drawn


def _there(entries: list[tuple[Entry, Summary | None]]) -> list[tuple[Entry, Summary]]:
    return [(entry, summary) for entry, summary in entries if summary is not None]


def _complete(entries: list[tuple[Entry, Summary | None]]) -> list[tuple[Entry, Summary]]:
    """All of them or none: an incomplete comparison would mislead."""
    there = _there(entries)
    return there if len(there) == len(entries) else []


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _save(figure: Any, path: Path) -> list[Path]:
    figure.savefig(path.with_suffix(".png"), dpi=130)
    return [path.with_suffix(".png")]


def marker(method: str) -> str:
    """The marker of a method in a figure."""
    return MARKERS[symbol(OWNERS.index(method) if method in OWNERS else UNKNOWN)]


def _over_time(entries: list[tuple[Entry, Summary]], path: Path) -> list[Path]:
    """Figure 2 and its twin for CIFAR-100: one row per block of table 1, one column per task, and A_k last."""
    from matplotlib.figure import Figure

    rows = []
    for block, head in BLOCKS.items():
        # The title mentions the samples; a method is the same in every row.
        if chosen := [replace(s, label=s.method) for entry, s in entries if entry.block == block]:
            rows.append((head, chosen, f"{HEAD_NAMES[head]}{', samples' * (block == 'samples')}: accuracy %"))
    tasks = entries[0][1].tasks
    figure = Figure(figsize=(2.2 * (tasks + 1), 2.3 * len(rows) + 0.6), layout="constrained")
    # A figure within the figure for each row: its panels share their height.
    parts: Any = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    legend: dict[str, Any] = {}
    for part, (head, summaries, title) in zip(parts, rows, strict=True):
        shared: Any = None
        for j in range(tasks + 1):
            axes = shared = part.add_subplot(1, tasks + 1, j + 1, sharex=shared, sharey=shared)
            last = j == tasks
            for summary in summaries:
                accuracy = summary.accuracy[head]
                _curve(axes, summary, metrics.average_accuracies(accuracy) if last else accuracy[..., j])
            axes.set_title("Average $A_k$" if last else f"Task {j + 1}", fontsize=9)
            axes.set_xticks(range(1, tasks + 1))
            axes.tick_params(labelleft=j == 0, labelsize=8)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        part.supylabel(title, fontsize=9)
        part.supxlabel("tasks learned", fontsize=9)
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    figure.legend(legend.values(), legend, loc="outside lower center", ncols=min(len(legend), 8), frameon=False)
    return _save(figure, path)


def _curve(axes: Any, summary: Summary, curves: NDArray[np.float64]) -> None:
    """Mean over the seeds with a band of one standard deviation, from the first task measured on."""
    curves = curves[~np.isnan(curves[:, -1])] * 100
    if not len(curves):
        return
    there = ~np.isnan(curves).any(0)
    steps = np.arange(1, curves.shape[1] + 1)[there]
    mean = curves[:, there].mean(0)
    spread = curves[:, there].std(0, ddof=1) if len(curves) > 1 else np.zeros_like(mean)
    shade, symbol = colour(summary.method), marker(summary.method)
    axes.plot(steps, mean, label=summary.name, linewidth=1.3, markersize=3.5, color=shade, marker=symbol)
    if len(mean) == 1:  # the last task: a point has no band
        axes.errorbar(steps, mean, spread, color=shade, capsize=2, linewidth=1)
    axes.fill_between(steps, mean - spread, mean + spread, color=shade, alpha=0.15, linewidth=0)


def _plane(entries: list[tuple[Entry, Summary]], path: Path) -> list[Path]:
    """Figure 3: forgetting against intransigence in single-head evaluation, the quadrants named."""
    figure, axes = _figure(5.2, 4.4)
    for entry, summary in entries:
        (i, i_spread), (f, f_spread) = (mean_and_deviation(v["single"]) for v in (summary.I, summary.F))
        method, filled = summary.method, entry.run.memory is not None
        style = {"color": colour(method), "marker": marker(method), "ms": 7}
        face = style["color"] if filled else "none"
        axes.errorbar(i, f, xerr=i_spread, yerr=f_spread, capsize=2, mfc=face, label=entry.label, lw=1, **style)
    axes.axhline(0, color="grey", lw=0.8)
    axes.axvline(0, color="grey", lw=0.8)
    for x, y, text in (
        (0.99, 0.99, "NBT, NFT"),
        (0.01, 0.99, "NBT, PFT"),
        (0.99, 0.01, "PBT, NFT"),
        (0.01, 0.01, "PBT, PFT"),
    ):
        across, up = "right" if x > 0.5 else "left", "top" if y > 0.5 else "bottom"
        axes.text(x, y, text, transform=axes.transAxes, ha=across, va=up, fontsize=8, color="grey")
    axes.set_xlabel("intransigence I")
    axes.set_ylabel("forgetting F")
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    return _save(figure, path)


def _sizes(entries: list[tuple[Entry, Summary]], dataset: str, path: Path) -> list[Path]:
    """Figure 4: average accuracy against the number of samples per class."""
    figure, axes = _figure(5.2, 3.8)
    for method in dict.fromkeys(summary.method for _, summary in entries):
        points = [
            (int(e.block.split()[0]), *mean_and_deviation(s.A["single"])) for e, s in entries if s.method == method
        ]
        sizes, means, spreads = zip(*sorted(points), strict=True)
        style = {"color": colour(method), "marker": marker(method), "ms": 4}
        axes.errorbar(
            sizes, [100 * m for m in means], [100 * s for s in spreads], capsize=2, label=f"{method}-S", **style
        )
    axes.set_xscale("log")
    axes.set_xticks(SAMPLE_SIZES[dataset], [str(size) for size in SAMPLE_SIZES[dataset]])
    axes.minorticks_off()
    axes.set_xlabel("samples per class (uniform)")
    axes.set_ylabel("average accuracy $A_K$ %")
    axes.legend(frameon=False)
    return _save(figure, path)


def _samplers(entries: list[tuple[Entry, Summary]], path: Path) -> list[Path]:
    """Figure 5: A_k over the tasks by sampling strategy, one panel per method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 2.9), layout="constrained")
    panels = figure.subplots(1, len(METHODS), sharex=True, sharey=True)
    for axes, method in zip(panels, METHODS, strict=True):
        for number, sampler in enumerate(SAMPLERS):
            (curves,) = (
                100 * metrics.average_accuracies(summary.accuracy["single"])
                for entry, summary in entries
                if (entry.block, summary.method) == (sampler, method)
            )
            means, spreads = zip(*(mean_and_deviation(curves[:, k]) for k in range(curves.shape[1])), strict=True)
            steps = range(1, curves.shape[1] + 1)
            style = {"color": PALETTE[number + 1][0], "marker": MARKERS[number], "ms": 4, "lw": 1.3}
            axes.errorbar(steps, means, spreads, capsize=2, elinewidth=0.8, label=sampler, **style)
        axes.set_title(f"{method}-S", fontsize=10)
        axes.set_xticks(steps)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("tasks learned", fontsize=10)
    figure.supylabel("average accuracy $A_k$ %", fontsize=10)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)
    return _save(figure, path)


def _surfaces(surfaces: list[Surface], path: Path) -> list[Path]:
    """A over steps × λ as heat maps with their numbers; the last column is each row's spread over λ."""
    from matplotlib.figure import Figure

    columns = min(2, len(surfaces))
    rows = -(-len(surfaces) // columns)
    figure = Figure(figsize=(5.4 * columns, 0.6 + 3.3 * rows), layout="constrained")
    low = min(float(each.accuracy.min()) for each in surfaces)
    high = max(float(each.accuracy.max()) for each in surfaces)
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, each in zip(panels.flat, surfaces, strict=False):
        shades = axes.imshow(each.accuracy, vmin=low, vmax=high, cmap="cividis", aspect="auto", origin="lower")
        for (steps, lam), a in np.ndenumerate(each.accuracy):
            dark = a < (low + high) / 2
            axes.text(lam, steps, f"{a:.1f}", ha="center", va="center", fontsize=8, color="w" if dark else "k")
        beside = len(SURFACE_LAMBDAS)
        for steps, spread in enumerate(each.spread):
            axes.text(beside, steps, f"{spread:.1f}", ha="center", va="center", fontsize=8)
        axes.set_xlim(-0.5, beside + 0.5)
        axes.set_title(each.panel, fontsize=10)
        axes.set_xticks(range(beside + 1), [*map(decade, SURFACE_LAMBDAS), "spread"])
        axes.set_yticks(range(len(SURFACE_STEPS)), [str(steps) for steps in SURFACE_STEPS])
        axes.spines[["top", "right"]].set_visible(False)
    for axes in list(panels.flat)[len(surfaces) - columns : len(surfaces)]:
        axes.tick_params(labelbottom=True)  # the last of its column, maybe above a gap
    for axes in list(panels.flat)[len(surfaces) :]:
        axes.set_visible(False)
    figure.supxlabel("λ", fontsize=10)
    figure.supylabel("steps per task", fontsize=10)
    figure.colorbar(shades, ax=panels, label="average accuracy $A_5$ %", shrink=0.8)
    return _save(figure, path)
