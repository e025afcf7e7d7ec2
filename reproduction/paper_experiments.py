"""The paper's tables and figures as data: which runs, which head, which published values, at which cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from reproduction.budgets import budgeted, load, under_budget
from reproduction.paper_values import TABLE1, TABLE_S1, TABLE_S2, Published
from reproduction.tuning_settings import BLOCKS, EXEMPLARS, METHODS, SWEEPS, resnet
from rwalk.studies.specs import RunSpec

SAMPLE_SIZES = {"mnist": (1, 5, 10, 20, 50, 100), "cifar100": (5, 10, 25, 50, 100, 200)}
SAMPLERS = ("uniform", "plane", "entropy", "mof")
LAMBDA_DECADES = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)


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
    tuned: tuple[str, ...] = ()  # settings whose budgets must have been chosen first, beside those of table 1

    @property
    def awaits(self) -> tuple[str, ...]:
        """The settings that are still to be tuned before it can be run."""
        chosen = load()
        return tuple(setting for setting in self.tuned if setting not in chosen)


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
        run = _resnet_rwalk(total // 100) if method == "rwalk" else resnet(method, total // 100)
        yield Entry(method, run, "multi", f"{total} samples", published)


def _resnet_rwalk(per_class: int) -> RunSpec:
    """Exemplars are trained under their own task's head, as networks are evaluated."""
    return under_budget("cifar100-resnet-masked", resnet("rwalk", per_class, masked=True))


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


EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment(
            "table1-mnist",
            "Table 1, MNIST (and figures 2 and 3)",
            "20 s on an H200, 20 min on two CPU cores",
            partial(table1, "mnist"),
            seeds=20,
        ),
        Experiment(
            "tableS2-mnist",
            "Table S2, MNIST: sensitivity to λ",
            "17 s on an H200, 11 min on two CPU cores",
            partial(table_s2, "mnist"),
            seeds=20,
        ),
        Experiment(
            "figure4-mnist",
            "Figure 4, MNIST: number of samples",
            "18 s on an H200, 9 min on two CPU cores",
            partial(figure4, "mnist"),
            seeds=20,
        ),
        Experiment(
            "figure5-mnist",
            "Figure 5, MNIST: sampling strategies",
            "12 s on an H200, 9 min on two CPU cores",
            partial(figure5, "mnist"),
            seeds=20,
        ),
        Experiment(
            "table1-cifar100",
            "Table 1, CIFAR-100 (and figures 2 and 3)",
            "6 min on an H200",
            partial(table1, "cifar100"),
        ),
        Experiment(
            "tableS2-cifar100",
            "Table S2, CIFAR-100: sensitivity to λ",
            "6 min on an H200",
            partial(table_s2, "cifar100"),
        ),
        Experiment(
            "figure4-cifar100",
            "Figure 4, CIFAR-100: number of samples",
            "7 min on an H200",
            partial(figure4, "cifar100"),
        ),
        Experiment(
            "figure5-cifar100",
            "Figure 5, CIFAR-100: sampling strategies",
            "2 min on an H200 after figure 4 and table S2, which share its runs",
            partial(figure5, "cifar100"),
        ),
        Experiment(
            "tableS1",
            "Table S1: ResNet-18, 20 tasks, GEM and iCaRL",
            "26 min on an H200 beside all other tables; most of it is GEM's",
            table_s1,
            seeds=3,
            reference="none",
        ),
    )
}


def runs_of(experiment: Experiment, seeds: int | None = None) -> list[RunSpec]:
    """Every run of an experiment, without repeats."""
    count = experiment.seeds if seeds is None else seeds
    found = {}
    for entry in experiment.entries():
        for run in map(entry.run_of, range(count)):
            found[run.hash()] = run
    return list(found.values())
