"""How much a model keeps and learns, with a guard and in other ways: five small tasks.

    python -m benchmarks.guard_skills                      five small tasks on a CPU, three seeds
    python -m benchmarks.guard_skills --quick              every task and way for a few steps: does it run?

`benchmarks.language_ways` does the same with a language model.

Each task begins with a trained model, which then learns something new in every way: without a guard, at a smaller
learning rate, with guards, by weight interpolation and with replay. All ways see the same batches and the same old
inputs. Rows go to rows.json and tables to tables.md, both in --out; rows that are already there are not measured
again, so a run that was stopped continues. The time of a step is the median over every eight steps in a row, after
the first ones; beside it stands the shortest, because a busy host delays steps.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.guard_tasks import TASKS, Task
from rwalk import Anchor, Guard
from rwalk.errors import InputError

BUDGETS = (0.05, 0.1, 0.02, 0.2)
RATES = (1.0, 0.3, 3.0)  # times the task's learning rate
WEIGHTS = (0.3, 1.0, 3.0, 10.0)
WINDOW, WARM_UP = 8, 16  # steps that are timed together, and those before the first
HALVINGS = 12  # of the way between old and new weights, in the search for the point that keeps a budget


@dataclass(frozen=True)
class Way:
    """A way to learn something new.

    Attributes:
        method: A key of `NAMES`.
        rate: The learning rate, as a multiple of the task's.
        weight: The weight of an anchor, if it is not the default.
        every: The steps between two pulls of an anchor, if it is not the default.
        budget: The drift that is allowed.
        share: The share of replayed inputs in the loss, or the share of the new weights that is kept.
    """

    method: str
    rate: float = 1.0
    weight: float | None = None
    every: int | None = None
    budget: float | None = None
    share: float | None = None

    @property
    def training(self) -> Way:
        """The way that interpolation starts from; a way without interpolation itself."""
        trained = {"rewind": "none", "wise-ft": "none", "anchor, rewind": "anchor"}.get(self.method)
        return self if trained is None else replace(self, method=trained, budget=None, share=None)

    def __str__(self) -> str:
        numbers = ((name, getattr(self, name)) for name in ("weight", "every", "budget", "share"))
        given = [f"{name} {number:g}" for name, number in numbers if number is not None]
        rate = [] if self.rate == 1 else [f"learning rate × {self.rate:g}"]
        return ", ".join([NAMES[self.method], *given, *rate])


NAMES = {
    "none": "no guard",
    "anchor": "`Guard(probes)`",
    "anchor, rewind": "`Guard(probes)`, then rewind",
    "ewc": "EWC",
    "replay": "replay",
    "rewind": "no guard, then rewind",
    "wise-ft": "WiSE-FT",
}


def main_ways() -> list[Way]:
    """One way each, at the task's learning rate; no guard comes first because ratios refer to it."""
    ways = [Way("none"), Way("rewind", budget=0.05), Way("wise-ft", share=0.5)]
    ways += [Way("anchor"), Way("none", rate=0.3), Way("replay", share=0.05), Way("replay", share=0.25)]
    ways += [Way("ewc"), *(Way("anchor", every=every) for every in (4, 16))]
    return ways + [Way("anchor", weight=weight) for weight in WEIGHTS if weight != 1]


def budget_ways() -> list[Way]:
    """Budgets at three learning rates; fixed weights and interpolation to compare them with."""
    ways: list[Way] = []
    for rate in RATES:
        ways += [Way("none", rate), Way("anchor", rate)]
        ways += [Way("anchor, rewind", rate, budget=budget) for budget in BUDGETS]
        ways += [Way("anchor", rate, budget=budget) for budget in BUDGETS]
        ways += [Way("anchor", rate, weight=weight) for weight in WEIGHTS if weight != 1]
    return ways


# ── one run ───────────────────────────────────────────────────────────────────────────────────────────────────


def divergence(name: str, old: Tensor, new: Tensor) -> Tensor:
    """How far new outputs are from old ones, for each prediction."""
    if name == "cosine":
        return 1 - F.cosine_similarity(old, new, dim=-1)
    logs = old.float().log_softmax(-1)
    return (logs.exp() * (logs - new.float().log_softmax(-1))).sum(-1)


class Run:
    """A task and a seed."""

    def __init__(self, task: Task, seed: int) -> None:
        self.task, self.seed = task, seed
        self._trained: dict[Way, tuple[nn.Module, list[float]]] = {}  # the last one or two, for interpolation

    def row(self, way: Way) -> dict[str, Any]:
        """Train, and measure both tasks and the drift on other old inputs."""
        task = self.task
        model, times = self._train(way.training)
        if way != way.training:
            model = deepcopy(model)
            self._interpolate(model, way)
        with task.evaluated(model):
            scores = {"old": task.old_score(model), "new": task.new_score(model)}
        drift = self._drift(model, task.held_out)
        return {
            **asdict(way),
            "seed": self.seed,
            **scores,
            "drift": drift,
            "step_ms": median(times),
            "fastest_ms": min(times),
        }

    def _drift(self, model: nn.Module, inputs: Any) -> float:
        task, parts = self.task, []
        with task.evaluated(model), task.evaluated(task.model):
            for batch in task.split(inputs):
                old, new = (task.outputs(task.call(each, batch)) for each in (task.model, model))
                parts.append(divergence(task.divergence, old, new).flatten())
        return float(torch.cat(parts).mean())

    def _train(self, way: Way) -> tuple[nn.Module, list[float]]:
        """The model after training, and the milliseconds of a step in every few steps in a row."""
        if way in self._trained:
            return self._trained[way]
        task, model = self.task, deepcopy(self.task.model).train()
        torch.manual_seed(self.seed)
        optimizer = task.optimizer(model.parameters(), way.rate)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: task.schedule(step / task.steps))
        generator = torch.Generator().manual_seed(self.seed + 1)
        guard = _guard(task, way, model, optimizer)
        clock = Clock(next(model.parameters()).is_cuda)
        for _ in range(task.steps):
            clock.tick()
            with task.context():  # anew in every step: autocast keeps rounded weights until it ends
                loss = task.loss(model, task.new(generator))
                if way.method == "replay":
                    share = way.share or 0.0
                    old = task.replayed(max(1, round(task.batch * share)), generator)
                    loss = (1 - share) * loss + share * task.loss(model, old)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        clock.tick()
        if guard is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a budget that could not be met is visible in the row
                guard.finish()
        self._trained = {way: (model, clock.times())}
        return self._trained[way]

    def _interpolate(self, model: nn.Module, way: Way) -> None:
        """Move to a point between the old and the new weights: halfway, or as far as a budget allows."""
        old, new = self.task.model.state_dict(), deepcopy(model.state_dict())

        def move(share: float) -> None:
            for name, tensor in model.state_dict().items():
                moved = torch.lerp(old[name], new[name], share) if tensor.is_floating_point() else new[name]
                tensor.copy_(moved)

        if way.budget is None:
            return move(way.share or 0.5)
        within, beyond = 0.0, 2.0  # the first point to try is the end of training
        for _ in range(HALVINGS):
            middle = (within + beyond) / 2
            move(middle)
            if self._drift(model, self.task.probes) > way.budget:
                beyond = middle
            elif middle == 1:
                return None
            else:
                within = middle
        return move(within)


def _guard(task: Task, way: Way, model: nn.Module, optimizer: torch.optim.Optimizer) -> Guard | None:
    if way.method not in ("anchor", "ewc"):
        return None
    given = (("weight", way.weight), ("every", way.every))
    options: dict[str, Any] = {name: value for name, value in given if value is not None}
    method: Any = "ewc" if way.method == "ewc" else Anchor(**options) if options else None
    outputs: dict[str, Any] = {"divergence": task.divergence, "outputs": task.outputs}
    return Guard(model, optimizer, method, probes=task.probes, budget=way.budget, **outputs)


class Clock:
    """Notes the time between steps; on a GPU by events, so that the host does not wait."""

    def __init__(self, cuda: bool) -> None:
        self.cuda = cuda
        self.ticks: list[Any] = []

    def tick(self) -> None:
        if not self.cuda:
            self.ticks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.ticks.append(event)

    def times(self) -> list[float]:
        """Milliseconds per step, of every `WINDOW` steps in a row after the first ones: each has one pull."""
        if self.cuda:
            torch.cuda.synchronize()
        ticks = self.ticks[WARM_UP::WINDOW]
        if len(ticks) < 2:
            ticks = [self.ticks[0], self.ticks[-1]]
        steps = WINDOW if len(self.ticks) > WARM_UP + WINDOW else len(self.ticks) - 1
        return [
            (start.elapsed_time(end) if self.cuda else 1e3 * (end - start)) / steps
            for start, end in itertools.pairwise(ticks)
        ]


# ── rows and tables ───────────────────────────────────────────────────────────────────────────────────────────


def key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["task"], row["seed"], *(row[name] for name in Way.__dataclass_fields__)


def way_of(row: Mapping[str, Any]) -> Way:
    return Way(*(row[name] for name in Way.__dataclass_fields__))


def table(task: str, rows: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Mean ± standard deviation over seeds; ratios are to training without a guard at the same seed."""
    plain = {row["seed"]: row for row in rows if way_of(row) == Way("none")}
    lines = [
        f"## {task} ({unit}; {len(plain)} seeds)",
        "",
        "| | old | new | drift | drift ÷ no guard | time of a step ÷ no guard |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for way in dict.fromkeys(map(way_of, rows)):
        of_way = [row for row in rows if way_of(row) == way]
        digits = 3 if unit == "loss" else 1
        cells = [
            _spread([row[name] for row in of_way], d)
            for name, d in (("old", digits), ("new", digits), ("drift", 4))
        ]
        for name in ("drift", "step_ms"):
            ratios = [
                row[name] / plain[row["seed"]][name]
                for row in of_way
                if row["seed"] in plain and plain[row["seed"]][name] > 0
            ]
            cells.append(f"{mean(ratios):.2f}" if ratios else "")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def budgets(task: str, rows: Sequence[Mapping[str, Any]], unit: str) -> str:
    """Drift ÷ budget, and the new task beside the fixed weight that would end at the same drift."""
    lines = [
        f"### {task}: budgets",
        "",
        "| | drift ÷ budget, largest | new, minus that of a fixed weight with the same drift |",
        "|---|---:|---:|",
    ]
    budgeted = {way_of(row) for row in rows if row["budget"]}
    for way in sorted(budgeted, key=lambda way: (way.method, way.budget or 0.0, way.rate)):
        of_way = [row for row in rows if way_of(row) == way]
        gaps = [gap for row in of_way if (gap := _gap(row, rows)) is not None]
        over = max(row["drift"] for row in of_way) / (way.budget or 1.0)
        gap = _spread(gaps, 3 if unit == "loss" else 1) if gaps else ""
        lines.append(f"| {way} | {over:.2f} | {gap} |")
    return "\n".join(lines)


def _gap(row: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> float | None:
    """New score minus the one that fixed weights have at the same drift, interpolated in log drift."""
    same = [each for each in rows if (each["seed"], each["rate"]) == (row["seed"], row["rate"])]
    fixed = [
        each
        for each in same
        if each["method"] in ("none", "anchor") and each["budget"] is None and each["every"] is None
    ]
    points = sorted((math.log(max(each["drift"], 1e-9)), each["new"]) for each in fixed)
    at = math.log(max(row["drift"], 1e-9))
    for (left, low), (right, high) in itertools.pairwise(points):
        if left <= at <= right and right > left:
            return float(row["new"] - (low + (high - low) * (at - left) / (right - left)))
    return None


def _spread(values: Sequence[float], digits: int) -> str:
    return f"{mean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")


Plan = list[tuple[int, str, list[Way]]]  # by seed and task


def planned(tasks: Iterable[str], seeds: int, only: str | None) -> Plan:
    """The runs, in an order in which the first ones are worth the most if time runs out."""
    each = [(seed, name) for seed in range(seeds) for name in tasks]
    groups = {"ways": main_ways(), "budgets": budget_ways(), "quick": [*main_ways(), Way("anchor", budget=0.05)]}
    ways = groups[only] if only else [*main_ways(), *budget_ways()]
    return [(*at, list(dict.fromkeys(ways))) for at in each]


def measure(
    tasks: Mapping[str, Callable[[int], Task]], plan: Plan, out: Path, minutes: float = math.inf
) -> list[dict[str, Any]]:
    """Every run of a plan, unless its row is in `out` already."""
    out.mkdir(parents=True, exist_ok=True)
    file = out / "rows.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.exists() else []
    start = time.perf_counter()
    for seed, name, ways in plan:
        done = {key(row) for row in rows}
        missing = [way for way in ways if key({"task": name, "seed": seed, **asdict(way)}) not in done]
        run = None
        for way in missing:
            if time.perf_counter() - start > 60 * minutes:
                print("time is up: the same command continues", flush=True)
                return rows
            run = run or Run(tasks[name](seed), seed)
            try:
                row = {"task": name, "unit": "loss" if run.task.loss_is_score else "%", **run.row(way)}
            except InputError as error:
                print(f"{name}, seed {seed}, {way}: {error}", flush=True)
                continue
            rows.append(row)
            file.write_text(json.dumps(rows, indent=0))
            found = f"old {row['old']:.3f} new {row['new']:.3f} drift {row['drift']:.4f}"
            found += f" step {row['step_ms']:.1f} ms"
            print(f"{time.perf_counter() - start:6.0f} s  {name}, seed {seed}, {way}: {found}", flush=True)
    return rows


def page(rows: Sequence[Mapping[str, Any]]) -> str:
    parts: list[str] = []
    for name in dict.fromkeys(row["task"] for row in rows):
        of_task = [row for row in rows if row["task"] == name]
        parts.append(table(name, of_task, of_task[0]["unit"]))
        if any(row["method"] == "anchor" and row["budget"] for row in of_task):
            parts.append(budgets(name, of_task, of_task[0]["unit"]))
    return "\n\n".join(parts) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=", ".join(TASKS))
    parser.add_argument(
        "--out", type=Path, default=Path("build/guard-skills"), help="the folder for rows and tables"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("ways", "budgets"), help="one group of ways")
    parser.add_argument("--quick", action="store_true", help="one seed, few steps")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no run after so long")
    options = parser.parse_args(arguments)
    known = {name: _small(name, options.quick) for name in TASKS}
    if unknown := [name for name in options.tasks if name not in TASKS]:
        parser.error(f"there is no task {unknown[0]!r}: choose from {', '.join(TASKS)}")
    known = {name: known[name] for name in options.tasks or TASKS}
    plan = planned(
        known, 1 if options.quick else options.seeds, options.only or ("quick" if options.quick else None)
    )
    rows = measure(known, plan, options.out, options.minutes)
    text = page(rows)
    (options.out / "tables.md").write_text(text, encoding="utf-8")
    print(text)


def _small(name: str, quick: bool) -> Callable[[int], Task]:
    return lambda seed: TASKS[name](seed, quick)


if __name__ == "__main__":
    main()
