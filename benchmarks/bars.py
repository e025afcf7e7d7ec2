"""The table at the end: measured figures beside promised ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rich.table import Table

STEP = {"vanilla": 1.05, "pi": 1.15, "ewc++": 1.12, "rwalk": 1.20}
FLEET = 0.65
GUARD = 1.15
GUARDED_MLP = 1.20
GUARDED_MODEL = {"RWalk": 1.10, "RWalk, proximal": 1.10, "EWC": 1.06, "PI": 1.06}  # on a GPU
VECTORS = {"RWalk": 8, "RWalk, proximal": 7}  # beside one tensor
ALL_VECTORS = {"RWalk, 8 bit": 3.5}  # with all that is passing
BUFFERS = 6.0
SCALARS = 0.01  # of a vector: counters, biases' corrections and a batch of two are not vectors
FLAT = 1.10  # the most a step may take longer after many tasks to be called flat
GPU = {
    "rwalk: mlp, 1 run": 0.22,
    "rwalk: mlp, 100 runs": 1.0,
    "rwalk: cnn, 1 run": 0.6,
    "rwalk: cnn, 10 runs": 2.5,
}


class Row(NamedTuple):
    what: str
    measured: str
    bar: str = ""
    met: bool | None = None


def at_most(what: str, value: float, bar: float | None, unit: str, digits: int = 2, slack: float = 0.0) -> Row:
    measured = f"{value:.{digits}f}{unit}"
    return Row(what, measured) if bar is None else Row(what, measured, f"≤ {bar:g}{unit}", value <= bar + slack)


def rows(results: Mapping[str, Any]) -> Iterator[Row]:
    """The rows of all sections that are present."""
    for name, section in results.items():
        kind = name.partition(" on ")[0]
        if kind in ROWS:
            yield from ROWS[kind](section)


def _solo(solo: Mapping[str, Any]) -> Iterator[Row]:
    yield Row("the minimal PyTorch loop, a step", f"{solo['minimal_ms']:.2f} ms")
    for name, value in solo.items():
        if isinstance(value, float) and name not in ("minimal", "minimal_ms"):
            yield at_most(f"{name}: a solo step", value, STEP.get(name), "×")


def _fleet(fleet: Mapping[str, Any]) -> Iterator[Row]:
    yield at_most(f"{fleet['runs']} RWalk runs on all cores, wall time a run", fleet["ratio"], FLEET, "×")


def vectors(form: str, largest: float) -> float | None:
    """The most a guard may hold at the peak, in parameters; `largest` is the largest tensor's share of them."""
    return VECTORS[form] + largest if form in VECTORS else ALL_VECTORS.get(form)


def _guard(guard: Mapping[str, Any]) -> Iterator[Row]:
    yield at_most("Guard(RWalk), a ResNet-18 step", guard["ratio"], GUARD, "×")
    for moment, ratio in guard["mlp"].items():
        yield at_most(f"Guard(RWalk), a step of a 2 × 256 MLP, {moment}", ratio, GUARDED_MLP, "×")
    for form, peak in guard["vectors"].items():
        yield at_most(f"{form}: its memory at the peak, in parameters", peak, vectors(form, guard["largest"]), "")
    if "ratio_8bit" in guard:  # not measured before there was such a state
        yield at_most("Guard(RWalk, 8 bit), a ResNet-18 step", guard["ratio_8bit"], None, "×")


def _guard_gpu(found: Mapping[str, Any]) -> Iterator[Row]:
    for name, measured in found.items():
        if not isinstance(measured, Mapping):
            continue
        yield Row(f"a language model of {found['tensors']} tensors, a step", f"{measured['plain_ms']:.1f} ms")
        for moment in ("before", "after"):
            if moment in measured:
                what = f"Guard({name}), a step {moment} something is held"
                yield at_most(what, measured[moment], GUARDED_MODEL.get(name), "×", digits=3)
        bar = vectors(name, found["largest"])
        yield at_most("… its memory at the peak, in parameters", measured["vectors"], bar, "")
        if "kernels" in measured:
            yield Row("… kernels that it adds to a step", f"{measured['kernels']:.0f}")
            yield Row("… the device's own time for a step, by that without it", f"{measured['busy']:.3f}×")
            waits = measured["waits"]
            yield Row("… whether the host waits for the device", "yes" if waits else "no", "no", not waits)


def _growth(growth: Mapping[str, Any]) -> Iterator[Row]:
    where = growth["device"]
    for name, value in growth["milliseconds"]["most_by_fewest_tasks"].items():
        what = f"{name} on {where}: a step after the most tasks by one after the fewest"
        yield at_most(what, value, None if name == "ewc" else FLAT, "×")
    for name, by_tasks in growth["buffers"].items():
        bar = BUFFERS if name.startswith("rwalk") else None
        for moment, words in (("held", "vectors held"), ("step", "… at the peak of a step")):
            most = max(row[moment] for row in by_tasks.values())
            yield at_most(f"{name} on {where}: {words}, at most", most, bar, "", slack=SCALARS)


def _gpu(gpu: Mapping[str, Any]) -> Iterator[Row]:
    for name, spent in gpu.items():
        if name != "measured":
            yield at_most(f"{name}, a step on a GPU", spent["ms"], GPU.get(name), " ms")


ROWS = {
    "solo": _solo,
    "fleet": _fleet,
    "guard": _guard,
    "guard-gpu": _guard_gpu,
    "growth": _growth,
    "gpu": _gpu,
}


def table(results: Mapping[str, Any]) -> Table:
    made = Table(
        "what", "measured", "bar", "", title="× of steps are by the minimal loop's, medians of interleaved rounds"
    )
    for row in rows(results):
        made.add_row(row.what, row.measured, row.bar, {True: "✓", False: "✗", None: ""}[row.met])
    return made
