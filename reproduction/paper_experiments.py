"""The paper's tables and figures as data: which runs, which head, which published values, at which cost."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from reproduction.budgets import budgeted, under_budget
from reproduction.published_values import TABLE1, TABLE_S1, TABLE_S2, Published
from reproduction.tuning_settings import BLOCKS, EXEMPLARS, METHODS, SWEEPS, resnet
from rwalk.studies.specs import RunSpec

SAMPLE_SIZES = {"mnist": (1, 5, 10, 20, 50, 100), "cifar100": (5, 10, 25, 50, 100, 200)}
SAMPLERS = ("uniform", "plane", "entropy", "mof")
LAMBDA_DECADES = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
# Trained when a teacher used the student's batch norm statistics, and marked so until they are trained again.
OUTDATED = {"icarl": "icarl, earlier teacher"}


@dataclass(frozen=True)
class Entry:
    """One cell group: a run (its seed varies), the head it is evaluated with, and the paper's value."""

    label: str
    run: RunSpec
    head: str
    block: str
    published: Published | None = None

    def run_of(self, seed: int) -> RunSpec:
        """The run of a seed."""
        return replace(self.run, seed=seed)


@dataclass(frozen=True)
class Experiment:
    """A table or a figure."""

    name: str
    title: str
    cost: str  # on a GPU: of three processes (--workers 3) under MPS
    entries: Callable[[], Iterable[Entry]]
    seeds: int = 5
    reference: str = "final"  # of which tasks intransigence is measured


def table1(dataset: str) -> Iterator[Entry]:
    """Each block under its own budget; where two blocks have the same budget, they share runs."""
    size = EXEMPLARS[dataset]
    for block, head in BLOCKS.items():
        published = TABLE1[dataset, block]
        for method in dict.fromkeys([*published, *METHODS]):
            if method.startswith("icarl"):  # it cannot do without exemplars, and needs a length of its own
                run = budgeted(dataset, method, "icarl", size)
            elif block == "samples":
                run = budgeted(dataset, method, "samples", size)
            else:
                run = budgeted(dataset, method, block)
            label = f"{method}-S" if block == "samples" else method
            yield Entry(label, run, head, block, published.get(method))


def table_s1() -> Iterator[Entry]:
    """20 tasks of 5 classes; GEM and iCaRL under GEM's own budget, RWalk under the one that the rule chose."""
    for method, (total, published) in TABLE_S1.items():
        run = resnet(method, total // 100, masked=method == "rwalk")  # its exemplars under their own task's head
        run = under_budget("cifar100-resnet-masked", run) if method == "rwalk" else run
        yield Entry(OUTDATED.get(method, method), run, "multi", f"{total} samples", published)


def table_s2(dataset: str) -> Iterator[Entry]:
    """The published λ's, and for RWalk every decade between, in both forms of the penalty."""
    for method in ("ewc++", "pi", "rwalk"):
        run = budgeted(dataset, method, SWEEPS[dataset], EXEMPLARS[dataset])
        published = TABLE_S2[dataset, method]
        wanted = sorted({*published, *(LAMBDA_DECADES if method == "rwalk" else ())})
        for form in ("gradient", "proximal") if method == "rwalk" else (run.numbers["penalty"],):
            for lam in wanted:
                numbers = {**run.numbers, "lam": lam, "penalty": form}
                label = f"{method} λ={lam:g}"
                yield Entry(label, replace(run, numbers=numbers), "single", form, published.get(lam))


def figure4(dataset: str) -> Iterator[Entry]:
    """The number of samples; uniform sampling, as in the paper's caption."""
    for size in SAMPLE_SIZES[dataset]:
        for method in METHODS:
            run = budgeted(dataset, method, SWEEPS[dataset], size, "uniform")
            yield Entry(f"{method}-S", run, "single", f"{size} per class")


def figure5(dataset: str) -> Iterator[Entry]:
    """The sampling strategies at the paper's memory size."""
    for sampler in SAMPLERS:
        for method in METHODS:
            run = budgeted(dataset, method, SWEEPS[dataset], EXEMPLARS[dataset], sampler)
            yield Entry(f"{method}-S", run, "single", sampler)


def listed(kind: str, entries: Mapping[str, Callable[[], Iterable[Entry]]]) -> dict[str, Experiment]:
    """The experiments of a kind in `experiments.csv`, by name, each with its cells."""
    with open(Path(__file__).with_name("experiments.csv"), newline="", encoding="utf-8") as file:
        rows = {row["name"]: row for row in csv.DictReader(file) if row["kind"] == kind}
    return {
        name: Experiment(name, row["title"], row["cost"], entries[name], int(row["seeds"]), row["reference"])
        for name, row in rows.items()
    }


EXPERIMENTS = listed(
    "paper",
    {
        **{f"table1-{dataset}": partial(table1, dataset) for dataset in EXEMPLARS},
        **{f"tableS2-{dataset}": partial(table_s2, dataset) for dataset in EXEMPLARS},
        **{f"figure4-{dataset}": partial(figure4, dataset) for dataset in EXEMPLARS},
        **{f"figure5-{dataset}": partial(figure5, dataset) for dataset in EXEMPLARS},
        "tableS1": table_s1,
    },
)


def runs_of(experiment: Experiment, seeds: int | None = None) -> list[RunSpec]:
    """Every run of an experiment, without repeats."""
    count = experiment.seeds if seeds is None else seeds
    found = {}
    for entry in experiment.entries():
        for run in map(entry.run_of, range(count)):
            found[run.hash()] = run
    return list(found.values())
