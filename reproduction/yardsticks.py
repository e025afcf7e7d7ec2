"""The yardsticks as data: which runs, which head, which published values, and where every hyper-parameter is from.

Nothing here was chosen by looking at test data: hyper-parameters are those that the authors' own code names, or
were chosen on validation data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from reproduction import budgets, tuning_settings
from reproduction.paper_experiments import Entry, listed
from reproduction.published_values import TABLE1, Value, yardstick
from rwalk.data.memory import MemorySpec
from rwalk.studies.specs import RunSpec, StreamSpec
from rwalk.training import Training

ORDERS = 5  # of the classes, so that the seeds of one order are one fleet


@dataclass(frozen=True)
class Cell(Entry):
    """A cell of a published table.

    theirs  the published value
    others  values of other people's code, by its name
    tuned   the source of the hyper-parameters
    orders  the number of orders of the classes, used seed after seed; by default one
    """

    theirs: Value | None = None
    others: tuple[tuple[str, Value], ...] = field(default=())
    tuned: str = ""
    orders: int | None = None

    def run_of(self, seed: int) -> RunSpec:
        run = super().run_of(seed)
        if self.orders is None:
            return run
        return replace(run, stream=replace(run.stream, order_seed=seed % self.orders))


# ── van de Ven et al. 2022: Split MNIST in three scenarios ────────────────────────────────────────────────────

HEADS = {"task": "multi", "domain": "single", "class": "single"}  # how a scenario's accuracy is read
THEIR_CODE = "as in their code (params/param_values.py)"
EWC_LAMBDA = {"task": 1e5, "domain": 1e10, "class": 1e9}
SI_STRENGTH = {"task": 10.0, "domain": 5e4, "class": 5e3}
BUDGET = 100  # exemplars of every class


def split_mnist() -> Iterator[Cell]:
    """2000 steps per task, batches of 128, Adam at 0.001, kept from task to task."""
    exemplars = MemorySpec(BUDGET, sampler="uniform")
    for scenario, head in HEADS.items():
        base = RunSpec(
            StreamSpec("mnist", scenario=scenario),
            "mlp-400",
            training=Training(steps=2000, batch=128, keep_optimizer=True),
        )
        ewc = {"lam": EWC_LAMBDA[scenario], "fisher": "exact"}
        si = {"lam": SI_STRENGTH[scenario], "xi": 0.1}
        # Their distillation has temperature 2 and no factor T².
        lwf = {"lam": 0.25, "temperature": 2.0}
        learners: dict[str, tuple[str, dict[str, Any], MemorySpec | None, str]] = {
            "none": ("vanilla", {}, None, "nothing to tune"),
            "joint": ("joint", {}, None, "nothing to tune"),
            "ewc": ("ewc", ewc, None, f"λ {THEIR_CODE}"),
            "si": ("pi", si, None, f"c and ξ {THEIR_CODE}"),
            "lwf": ("lwf", lwf, None, f"{THEIR_CODE}"),
            "er": ("er-tasks", {}, exemplars, "nothing to tune"),
            "a-gem": ("a-gem", {}, exemplars, "nothing to tune"),
        }
        if scenario == "class":
            learners["icarl"] = ("icarl", {"temperature": 2.0}, MemorySpec(BUDGET), THEIR_CODE)
        published = yardstick("split-mnist-2022").get(scenario, {})
        for label, (method, numbers, memory, tuned) in learners.items():
            run = replace(base, method=method, numbers=numbers, memory=memory)
            yield Cell(label, run, head, scenario, None, published.get(label), (), tuned, ORDERS)


# ── Permuted MNIST ────────────────────────────────────────────────────────────────────────────────────────────


def permuted_mnist() -> Iterator[Cell]:
    """Ten tasks, as van de Ven et al. train: 5000 steps of 128, Adam at 0.0001, kept from task to task."""
    training = Training(steps=5000, batch=128, lr=1e-4, keep_optimizer=True)
    base = RunSpec(StreamSpec("mnist-32", permuted=10), "mlp-1000", training=training)
    chosen = budgets.load()["permuted-mnist"]["numbers"]
    theirs, avalanche = (yardstick(table)["domain"] for table in ("permuted-mnist", "permuted-mnist-avalanche"))
    for label, method in {"none": "vanilla", "ewc": "ewc", "si": "pi"}.items():
        run = replace(base, method=method, numbers=chosen.get(method, {}))
        tuned = "validation" if method in chosen else "nothing to tune"
        others = (("Avalanche", avalanche[label]),) if label in avalanche else ()
        yield Cell(label, run, "single", "domain", None, theirs.get(label), others, tuned)


# ── Mammoth: DER's Split MNIST ────────────────────────────────────────────────────────────────────────────────

RATES = {  # of SGD, by buffer
    "er": {200: 0.01, 500: 0.1, 5120: 0.1},
    "gem": {200: 0.01, 500: 0.03, 5120: 0.1},
    "a-gem": {200: 0.1, 500: 0.1, 5120: 0.1},
    "icarl-2020": {200: 0.1, 500: 0.1, 5120: 0.1},
    "der": {200: 0.03, 500: 0.03, 5120: 0.1},
    "der++": {200: 0.03, 500: 0.03, 5120: 0.1},
    # Beside theirs, iCaRL as it was meant: its loss is a sum over ten outputs, where theirs is a mean.
    "icarl": {200: 0.01, 500: 0.01, 5120: 0.01},
}
MNIST_CLASSES = 10
MARGINS = {200: 1.0, 500: 0.5, 5120: 1.0}
ALPHAS = {"der": {200: 0.2, 500: 1.0, 5120: 0.5}, "der++": {200: 0.2, 500: 1.0, 5120: 0.2}}
BETAS = {200: 1.0, 500: 0.5, 5120: 0.5}
BESIDE = {"der": {200: 10, 500: 128, 5120: 128}, "der++": {200: 128, 500: 10, 5120: 64}}


def mammoth_mnist() -> Iterator[Cell]:
    """One epoch of batches of ten, plain SGD; every run is read by both heads."""
    for how, buffer, method in product(("class", "task"), MARGINS, RATES):
        run = RunSpec(
            StreamSpec("mnist", scenario="class"),
            "mlp-100",
            method,
            _of_mammoth(method, buffer),
            _buffer(method, buffer),
            Training.online(lr=RATES[method][buffer], optimizer="sgd"),
        )
        tuned = "a tenth of their rate" if method == "icarl" else "as in their code (utils/best_args.py)"
        yield Cell(method, run, HEADS[how], f"{how}, {buffer}", tuned=tuned)


def _of_mammoth(method: str, buffer: int) -> dict[str, Any]:
    if method == "gem":
        return {"margin": MARGINS[buffer]}
    if method == "der":
        return {"alpha": ALPHAS["der"][buffer]}
    if method == "der++":
        return {"alpha": ALPHAS["der++"][buffer], "beta": BETAS[buffer]}
    return {}


def _buffer(method: str, total: int) -> MemorySpec:
    if method in ("gem", "a-gem"):  # every task has its share from the start, however few have come
        beside = 128 if method == "a-gem" else None
        return MemorySpec(total // MNIST_CLASSES, sampler="uniform", replay="none", beside=beside)
    if method in ("icarl", "icarl-2020"):
        return MemorySpec(total=total, sampler="mof" if method == "icarl" else "mof-plain")
    beside = BESIDE[method][total] if method in BESIDE else None
    return MemorySpec(total=total, sampler="reservoir", replay="beside", beside=beside)


# ── CIFAR-100 in ten tasks, as in RWalk's table 1 ─────────────────────────────────────────────────────────────

REPLAYING = ("er", "er-ace", "der", "der++", "a-gem", "gdumb", "icarl")  # with the table's exemplars


def cifar100_methods() -> Iterator[Cell]:
    """The methods of the paper's table beside other learners, all with one network, trained equally long."""
    for head in ("single", "multi"):
        for method in tuning_settings.METHODS:
            run, theirs = _under("cifar100-methods-table1", method, None), _of_table1(head, method)
            tuned = "validation, multi-head" if run.numbers else "nothing to tune"
            yield Cell(method, run, head, f"no exemplars, {head}-head", None, theirs, (), tuned)
        for method in tuning_settings.SETTINGS["cifar100-methods"].grid:
            run = _under("cifar100-methods", method, None)
            yield Cell(method, run, head, f"no exemplars, {head}-head", None, None, (), "validation")
    size = tuning_settings.EXEMPLARS["cifar100"]
    for method in (*tuning_settings.METHODS, *REPLAYING):
        run = _under("cifar100-sweeps" if method in tuning_settings.METHODS else "cifar100-replay", method, size)
        # iCaRL stands in the table's block without samples, though it has as many.
        theirs = _of_table1("single" if method == "icarl" else "samples", method)
        tuned = "validation" if run.numbers else "nothing to tune"
        yield Cell(method, run, "single", f"{size} exemplars per class, single-head", None, theirs, (), tuned)
    joint = _under("cifar100-replay", "joint", None)
    for head in ("single", "multi"):
        yield Cell("joint", joint, head, f"all data, {head}-head", None, None, (), "nothing to tune")


def _under(setting: str, method: str, exemplars: int | None) -> RunSpec:
    return budgets.under_budget(setting, replace(tuning_settings.base("cifar100", exemplars), method=method))


def _of_table1(block: str, method: str) -> Value | None:
    published = TABLE1["cifar100", block].get(method)
    return None if published is None else Value(published.A, None)


YARDSTICKS = listed(
    "yardstick",
    {
        "split-mnist-2022": split_mnist,
        "permuted-mnist": permuted_mnist,
        "mammoth-mnist": mammoth_mnist,
        "cifar100-methods": cifar100_methods,
    },
)
