"""How long to train, and with which λ and α: chosen by one rule, on validation data.

The paper does not say how long it trained. It does name a λ for every cell, and α = 0.9 for all of them; but what
a λ does depends on the time, on the form of the penalty and on the scale of the importances, and α = 0.9 leaves
EWC++ almost without a Fisher (docs/design.md). So we choose them ourselves. RWalk keeps the paper's α and Δt.

THE RULE. A tenth of every class's training data is held out; neither the test set nor any published value is used.
A setting is a block of a table: a dataset, a network, with or without exemplars, and the head that the block
reports. In each, every method is trained with every combination in its grid: training time, λ, the form of the
penalty, and for EWC++ α. A method's hyper-parameters are those with the highest validation A_K under the setting's
own head; the training time is the one at which the methods, each at its best, are best on average.

WHERE IT IS NARROWER THAN IT SOUNDS. CIFAR-100 is tuned with three seeds (one seed with samples and with
ResNet-18), in the proximal form and with α = 0.01 only, over decades of λ found in a first trial (λ 1, 100, 10⁴ at
1000 steps; not among the scores). Its grids were widened three times, by longer trainings, more decades and more
seeds, after results on the test set were known; the choice from them was made by validation alone. With samples,
4000 steps were tried and not adopted: with one seed A rises only slightly, and all sweeps would have to be
repeated. iCaRL has nothing to tune, and trains as long as the block with samples, because it has exemplars. With
ResNet-18 only RWalk is tuned, between GEM's own training (one epoch, batches of 10, SGD) and 400 or 800 steps like
those of the other tables (batches of 64, Adam).

The result is `budgets.json` next to this file, with the validation scores of everything in the grids. Tuning again
writes another file, which `rwalk reproduce --budgets` reads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from rwalk.data.memory import MemorySpec
from rwalk.errors import InputError, unknown
from rwalk.files import parse_json, write_atomically
from rwalk.studies.specs import DT, NETWORK, RunSpec, StreamSpec
from rwalk.studies.store import Row
from rwalk.training import Training

FILE = Path(__file__).with_name("budgets.json")  # read, never written
_preferred: dict[str, Any] = {}  # a file of the user's, while there is one
METHODS = ("vanilla", "ewc++", "pi", "rwalk")
EXEMPLARS = {"mnist": 10, "cifar100": 25}  # per class, as in the paper
BLOCKS = {"multi": "multi", "single": "single", "samples": "single"}  # a block of table 1 → the head it is read by
HELD_OUT = 0.1

Numbers = Mapping[str, Any]


@dataclass(frozen=True)
class Setting:
    """A block of a table: its run without the method, the head that decides, and the grid."""

    run: RunSpec
    head: str
    trainings: tuple[Training, ...]
    grid: Mapping[str, tuple[Numbers, ...]]  # method → its hyper-parameters
    seeds: int

    def candidates(self) -> Iterator[RunSpec]:
        """Every run the rule compares."""
        held_out = replace(self.run, stream=replace(self.run.stream, validation=HELD_OUT))
        for training, (method, tried), seed in product(self.trainings, self.grid.items(), range(self.seeds)):
            for numbers in tried:
                yield replace(held_out, method=method, numbers=numbers, training=training, seed=seed)


def _numbers(**values: Iterable[Any]) -> tuple[Numbers, ...]:
    """Every combination."""
    return tuple(dict(zip(values, combination, strict=True)) for combination in product(*values.values()))


def _decades(first: int, last: int) -> tuple[float, ...]:
    return tuple(10.0**exponent for exponent in range(first, last + 1))


FORMS = ("gradient", "proximal")
GRIDS: dict[str, dict[str, tuple[Numbers, ...]]] = {
    "mnist": {
        "vanilla": ({},),
        "ewc++": _numbers(lam=_decades(-1, 7), penalty=FORMS, alpha=(0.9, 0.01)),
        "pi": _numbers(lam=_decades(-1, 7), penalty=FORMS),
        "rwalk": _numbers(lam=_decades(-1, 7), penalty=FORMS),
    },
    # Convolutions cost a hundred times more: only the form that is stable for every λ, and the decades in which
    # each method had an effect in a first trial.
    "cifar100": {
        "vanilla": ({},),
        "ewc++": _numbers(lam=_decades(4, 7), penalty=("proximal",), alpha=(0.01,)),
        "pi": _numbers(lam=_decades(-1, 2), penalty=("proximal",)),
        "rwalk": _numbers(lam=_decades(1, 5), penalty=("proximal",), dt=(DT["cifar100"],)),
    },
    "cifar100-samples": {
        "vanilla": ({},),
        "ewc++": _numbers(lam=_decades(4, 8), penalty=("proximal",), alpha=(0.01,)),
        "pi": _numbers(lam=_decades(0, 3), penalty=("proximal",)),
        "rwalk": _numbers(lam=_decades(2, 5), penalty=("proximal",), dt=(DT["cifar100"],)),
    },
    "cifar100-resnet": {
        "rwalk": _numbers(lam=_decades(1, 4), penalty=("proximal",), dt=(DT["cifar100"],)),
    },
}
STEPS = {
    ("mnist", False): (500, 1000, 2000),
    ("mnist", True): (100, 200, 400),
    ("cifar100", False): (2000, 4000),
    ("cifar100", True): (1000, 2000),
}
SEEDS = {("mnist", False): 5, ("mnist", True): 5, ("cifar100", False): 3, ("cifar100", True): 1}
BFLOAT16 = {"cifar100"}  # the convolutions' precision; parameters and updates stay in float32


def base(dataset: str, exemplars: int | None, sampler: str = "mof") -> RunSpec:
    """The paper's stream and network; everything else at its default."""
    memory = None if exemplars is None else MemorySpec(exemplars, sampler=sampler)
    network = NETWORK.get(dataset, "mlp")
    return RunSpec(StreamSpec(dataset), network, memory=memory, autocast=dataset in BFLOAT16)


def _setting(dataset: str, block: str) -> Setting:
    samples = block == "samples"
    trainings = tuple(Training(steps=steps) for steps in STEPS[dataset, samples])
    run = base(dataset, EXEMPLARS[dataset] if samples else None)
    grid = GRIDS.get(f"{dataset}-{block}", GRIDS[dataset])
    return Setting(run, BLOCKS[block], trainings, grid, SEEDS[dataset, samples])


def resnet(method: str, per_class: int, dataset: str = "cifar100") -> RunSpec:
    """Table S1's run under GEM's own budget: 20 tasks, one epoch, batches of 10, plain SGD at 0.1."""
    memory = MemorySpec(per_class, sampler="uniform" if method == "gem" else "mof")
    return RunSpec(
        StreamSpec(dataset, classes_per_task=5), "resnet18", method, memory=memory, training=GEMS_TRAINING
    )


GEMS_TRAINING = Training(epochs=1, batch=10, lr=0.1, optimizer="sgd")
SETTINGS = {f"{dataset}-{block}": _setting(dataset, block) for dataset in EXEMPLARS for block in BLOCKS} | {
    "cifar100-resnet": Setting(
        resnet("rwalk", 50),
        "multi",
        (GEMS_TRAINING, *(Training(steps=steps) for steps in (400, 800))),
        GRIDS["cifar100-resnet"],
        seeds=1,
    ),
    # The other learners of the yardstick of that name that have a strength to choose; they train as long as RWalk.
    "cifar100-methods": Setting(
        base("cifar100", None),
        "single",
        (Training(steps=4000),),
        {
            "lwf": _numbers(lam=(0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)),
            "mas": _numbers(lam=_decades(-1, 4), penalty=("proximal",)),
            "ewc-online": _numbers(lam=_decades(2, 8), penalty=("proximal",)),
            "l2": _numbers(lam=_decades(-3, 2), penalty=("proximal",)),
        },
        seeds=1,
    ),
    # The yardstick of that name, whose strengths the papers choose by a grid of their own.
    "permuted-mnist": Setting(
        RunSpec(StreamSpec("mnist", permuted=10), "mlp-1000"),
        "single",
        (Training(steps=5000, batch=128, lr=1e-4, keep_optimizer=True),),
        {
            "ewc": _numbers(lam=(10.0, 30.0, 100.0, 300.0, 1e3, 3e3, 1e4), fisher=("exact",)),
            "pi": _numbers(lam=(0.3, 1.0, 3.0, 10.0, 30.0, 100.0), xi=(0.1,)),
        },
        seeds=1,
    ),
}


def find(name: str) -> dict[str, Setting]:
    """Settings by the beginning of their names: a dataset, or one of them."""
    found = {each: setting for each, setting in SETTINGS.items() if each.startswith(name)}
    if not found:
        raise unknown("setting", name, [*EXEMPLARS, *SETTINGS])
    return found


def choose(setting: Setting, rows: Iterable[Row]) -> dict[str, Any]:
    """Apply the rule to the rows of a setting's candidates."""
    scores: dict[str, dict[str, dict[str, list[float]]]] = {}  # training → method → numbers → A per seed
    for row in rows:
        spec = row["spec"]
        cell = scores.setdefault(_text(spec["training"]), {}).setdefault(row["method"], {})
        a = row[setting.head]["A"]
        cell.setdefault(_text(spec["numbers"]), []).append(0.0 if a is None else a)  # none: it did not train
    means = {
        training: {m: {n: float(np.mean(a)) for n, a in tried.items()} for m, tried in methods.items()}
        for training, methods in scores.items()
    }
    training = max(means, key=lambda each: float(np.mean([max(tried.values()) for tried in means[each].values()])))
    best = {method: max(tried, key=lambda n: tried[n]) for method, tried in means[training].items()}
    return {
        "training": json.loads(training),
        "numbers": {method: json.loads(numbers) for method, numbers in best.items()},
        "validation": {method: round(100 * means[training][method][n], 2) for method, n in best.items()},
        "tried": [
            [brief(json.loads(t)), method, json.loads(n), round(100 * a, 2)]
            for t, methods in means.items()
            for method, tried in methods.items()
            for n, a in tried.items()
        ],
    }


def _text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, sort_keys=True)


def brief(training: Mapping[str, Any]) -> str:
    """The training time, in words."""
    epochs = training["epochs"]
    return f"{training['steps']} steps" if training["steps"] else f"{epochs} epoch{'s' * (epochs != 1)}"


def decide(name: str, rows: Iterable[Row], file: Path) -> str:
    """Add the rule's choice from a setting's rows to a file of budgets, and describe it."""
    chosen = read(file) if file.exists() else {}
    chosen[name] = choose(SETTINGS[name], rows)
    try:
        write_atomically(file, written(chosen))
    except OSError as error:
        raise InputError(f"cannot write {file}: {error.strerror or error}; choose another --budgets") from error
    return f"chosen: {brief(chosen[name]['training'])} {chosen[name]['numbers']} {chosen[name]['validation']}"


@contextmanager
def taken_from(file: Path | None) -> Iterator[None]:
    """Prefer the budgets in a user's file; settings that it does not name keep theirs."""
    global _preferred
    before = _preferred
    _preferred = {} if file is None else read(file)
    try:
        yield
    finally:
        _preferred = before


def load() -> dict[str, Any]:
    """What the rule chose."""
    return {**read(FILE), **_preferred}


def read(file: Path) -> dict[str, Any]:
    """The budgets in a file."""
    try:
        chosen = parse_json(file.read_bytes())
        for name, setting in chosen.items():
            if name not in SETTINGS or set(setting) != {"training", "numbers", "validation", "tried"}:
                raise ValueError(f"{name!r} does not describe a setting")
            Training(**setting["training"])
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except (AttributeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{file} holds no budgets ({reason}): write it with `rwalk reproduce --tune`") from None
    return dict(chosen)


def written(chosen: Mapping[str, Any]) -> str:
    """The file's text: JSON, one line per run that was tried."""
    lines = []
    for name, setting in chosen.items():
        tried = ",\n   ".join(json.dumps(each) for each in setting["tried"])
        rest = json.dumps({key: value for key, value in setting.items() if key != "tried"})
        lines.append(f' {json.dumps(name)}: {rest[:-1]}, "tried": [\n   {tried}\n ]}}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def budgeted(dataset: str, method: str, block: str, exemplars: int | None = None, sampler: str = "mof") -> RunSpec:
    """A run of the paper under its block's budget; a learner without hyper-parameters gets the training alone."""
    return under_budget(f"{dataset}-{block}", replace(base(dataset, exemplars, sampler), method=method))


def under_budget(setting: str, run: RunSpec) -> RunSpec:
    chosen = load().get(setting)
    if chosen is None:
        raise InputError(f"no budget has been chosen for {setting}: run `rwalk reproduce --tune {setting}`")
    numbers = chosen["numbers"].get(run.method, {})
    return replace(run, numbers=numbers, training=Training(**chosen["training"]))
