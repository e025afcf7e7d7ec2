"""RESULTS.md: every cell beside the published value, and every claim of the paper's text with a verdict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rwalk.files import write_atomically
from rwalk.paper import budgets, figures
from rwalk.paper.claims import CLAIMS, DATASETS
from rwalk.paper.experiments import EXPERIMENTS, Entry, Experiment
from rwalk.paper.measured import Measured
from rwalk.paper.published import BETTER, Published
from rwalk.report.summary import Summary, mean_and_deviation

OPENING = """
# The paper, reproduced

Made by `rwalk reproduce`; do not edit. Ours is mean ± standard deviation over the seeds, A in percent; Δ is ours
minus the paper's. A cell of ours that says – has not been run. Training budgets and hyper-parameters were chosen
by one rule, on validation data and without looking at published values; the rule is under "Budgets" below.

## The claims of the paper's text

Yes and no are with 95 % confidence over our seeds (Welch's t-test, each margin by itself); otherwise a claim is
undecided. Where the paper names no threshold, ours is given in parentheses.
""".strip()


def write_results(folder: Path) -> list[Path]:
    """RESULTS.md beside the results folder, and the figures in it."""
    measured = Measured(folder)
    drawn = figures.draw_all(measured.entries, folder / "figures")
    page = folder.parent / "RESULTS.md"
    write_atomically(page, "\n".join(_page(measured, [path.relative_to(folder.parent) for path in drawn])) + "\n")
    return [page, *drawn]


def _page(measured: Measured, drawn: list[Path]) -> Iterator[str]:
    yield OPENING
    yield ""
    yield from _row("claim", "dataset", "confirmed here?", "what we saw")
    for claim in CLAIMS:
        for dataset in claim.datasets:
            judged = claim.judge(measured, dataset) or ("not run", "")
            yield from _row(claim.text, DATASETS[dataset], *judged, head=False)
    yield ""
    yield "## Budgets"
    yield ""
    yield (budgets.__doc__ or "").strip()
    yield ""
    yield "A value marked * is the smallest or the largest of those that were tried."
    yield ""
    yield from _row("setting", "how long", "method", "hyper-parameters", "validation A, %")
    for setting, chosen in budgets.load().items():
        for method in chosen["numbers"]:
            shown = _numbers(setting, method, chosen["numbers"][method])
            yield from _row(
                setting, _long(setting, chosen), method, shown, chosen["validation"][method], head=False
            )
    for experiment in EXPERIMENTS.values():
        yield ""
        yield f"## {experiment.title}"
        yield ""
        if said := " ".join(filter(None, (measured.machine(experiment.name), experiment.note))):
            yield said
            yield ""
        yield from _table(experiment, measured)
    yield ""
    yield "## Figures"
    yield ""
    for path in drawn:
        yield f"![{path.stem}]({path.as_posix()})"


def _row(*cells: object, head: bool = True) -> Iterator[str]:
    yield "| " + " | ".join(map(str, cells)) + " |"
    if head:
        yield "|---" * len(cells) + "|"


def _long(setting: str, chosen: dict[str, dict[str, int | None]]) -> str:
    steps = chosen["training"]["steps"]
    tried = [each.steps for each in budgets.SETTINGS[setting].trainings]
    return budgets.brief(chosen["training"]) + _edge(steps, [each for each in tried if each])


def _numbers(setting: str, method: str, chosen: budgets.Numbers) -> str:
    grid = budgets.SETTINGS[setting].grid[method]
    shown = []
    for name, value in sorted(chosen.items()):
        tried = [each[name] for each in grid]
        written = value if isinstance(value, str) else f"{value:g}{_edge(value, tried)}"
        shown.append(f"{name} {written}")
    return ", ".join(shown) or "–"


def _edge(value: object, tried: Sequence[float]) -> str:
    return "*" if len(set(tried)) > 1 and value in (min(tried), max(tried)) else ""


def _table(experiment: Experiment, measured: Measured) -> Iterator[str]:
    rows = measured.entries(experiment.name)
    if not any(summary for _, summary in rows):
        yield f"Not run yet: `rwalk reproduce {experiment.name}`."
        return
    compared = any(entry.published for entry, _ in rows)
    columns = [
        [f"{name} {'↑' if better == 'higher' else '↓'}", *([f"{name} paper", "Δ"] if compared else [])]
        for name, better in BETTER.items()
    ]
    yield from _row("", "", "trained", "λ (paper's)", "seeds", *(name for names in columns for name in names))
    for entry, summary in rows:
        yield from _row(*_cells(entry, summary, compared), head=False)


def _cells(entry: Entry, summary: Summary | None, compared: bool) -> Iterator[str]:
    published = entry.published or Published(float("nan"))
    yield from (entry.block, entry.label, budgets.brief(entry.run.to_json()["training"]))
    lam = entry.run.numbers.get("lam")
    yield ("–" if lam is None else f"{lam:g}") + ("" if published.lam is None else f" ({published.lam:g})")
    yield "–" if summary is None else str(len(summary.A[entry.head]))
    for measure, scale, digits in (("A", 100, 1), ("F", 1, 3), ("I", 1, 3)):
        ours = None if summary is None else scale * getattr(summary, measure)[entry.head]
        yield "–" if ours is None else _spread(ours, digits)
        if compared:
            paper = getattr(published, measure)
            known = paper is not None and not np.isnan(paper)
            yield _plain(paper, digits) if known else ""
            yield f"{mean_and_deviation(ours)[0] - paper:+.{digits}f}" if known and ours is not None else ""


def _spread(values: NDArray[np.float64], digits: int) -> str:
    mean, deviation = mean_and_deviation(values)
    if np.isnan(mean):
        return ""  # not measured here: table S1 has no reference models
    return _plain(mean, digits) + ("" if np.isnan(deviation) else f" ± {_plain(deviation, digits)}")


def _plain(value: float, digits: int) -> str:
    """With so many digits, or with one significant digit if none would be left."""
    return f"{value:.0e}" if 0 < abs(value) < 0.5 * 10**-digits else f"{value:.{digits}f}"
