"""Summaries → the data behind a report: one section per stream and network, everything in it comparable.

The result is plain JSON. Seeds are kept apart, so that a reader can recompute every mean and deviation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rwalk import parts
from rwalk.metrics import HEADS
from rwalk.part_names import spelled
from rwalk.part_names import summaries as learners
from rwalk.report import method_colours, wording
from rwalk.report.result_folders import Results
from rwalk.report.seed_summaries import Summary, heads_agree
from rwalk.report.verdict import families, how_chosen, representatives, verdict
from rwalk.report.welch_test import mean_and_deviation
from rwalk.studies.json_records import content_hash

DIGITS = 6  # decimals of an accuracy: finer than one example in a test set of 100 000

Json = dict[str, Any]
Studies = Mapping[str, Results]  # by name
POINTS = (24, 160)  # of a loss curve: least and most
ALL_POINTS = 60_000  # of all curves of a page


def methods(summaries: Iterable[Summary]) -> list[Json]:
    """Every method with its name, colour and symbol."""
    return [
        {
            "id": method,
            "name": spelled(method),
            "colour": place,
            "symbol": method_colours.SYMBOLS[method_colours.symbol(place)],
        }
        for method, place in method_colours.palette_places(each.method for each in summaries).items()
    ]


def title(found: Sequence[Json]) -> str:
    """The title of a page: which methods were compared on which data."""
    if not found:
        return "No finished run yet"
    names = list(dict.fromkeys(spelled(each["method"]) for section in found for each in section["configurations"]))
    data = list(dict.fromkeys(section["title"] for section in found))
    compared = wording.listed(names) if len(names) <= 3 else f"{len(names)} methods"
    where = wording.listed(data) if len(data) <= 3 else f"{len(data)} datasets"
    return f"{wording.capital(compared)} on {where}"


def sections(summaries: Sequence[Summary], studies: Studies = MappingProxyType({})) -> list[Json]:
    """Summaries by stream and network, in the order of first appearance; `studies` hold losses."""
    groups: dict[str, list[Summary]] = {}
    held_out = {_tested(each): each for each in summaries if each.spec.stream.validation is not None}
    for summary in summaries:
        key = content_hash([asdict(summary.spec.stream), summary.spec.network, summary.tasks])
        groups.setdefault(key, []).append(summary)
    few, many = POINTS
    points = max(few, min(many, ALL_POINTS // max(1, len(summaries))))
    return [_section(group, held_out, studies, points) for group in groups.values()]


def _tested(summary: Summary) -> str:
    """The name of a configuration, whether it was tested on held-out training data or on the test set."""
    return content_hash(asdict(replace(summary.spec, stream=replace(summary.spec.stream, validation=None))))


def _section(summaries: Sequence[Summary], held_out: Mapping[str, Summary], studies: Studies, points: int) -> Json:
    first = summaries[0]
    settings = [_settings(summary) for summary in summaries]
    order = list(learners())
    agree = heads_agree(summaries)
    heads = HEADS[:1] if agree else HEADS
    configurations = [
        {
            **_configuration(summary, told),
            "losses": _losses(summary, studies.get(summary.study), points),
            **{head: _results(summary, head, held_out) for head in heads},
        }
        for summary, told in zip(summaries, differences(summaries), strict=True)
    ]
    configurations.sort(
        key=lambda c: (order.index(c["method"]) if c["method"] in order else len(order), c["size"] or 0, c["lam"])
    )
    for head in heads:
        for each in representatives(configurations, head):
            each[head]["represents"] = True
        for family in families(configurations):
            for each in family:
                each[head]["choice"] = how_chosen(each, head, family)
    section = {
        "title": first.spec.stream.dataset,
        "titles": dict.fromkeys(HEADS, wording.BOTH) if agree else wording.TITLES,
        "heads": heads,
        "facts": _facts(first),
        "setup": _setup(summaries, settings),
        "tasks": first.tasks,
        "classes": [", ".join(map(str, task)) for task in first.spec.stream.tasks or []],
        "configurations": configurations,
        "choice": _choice(configurations, heads, first.spec.stream.validation is not None),
        "memory": _usual_memory(configurations),
    }
    return section | {"verdicts": {head: verdict(section, head)._asdict() for head in heads}}


def _usual_memory(configurations: Sequence[Json]) -> str:
    """The memory that most methods were run with; all memories, if no method has more than two."""
    methods: dict[str, set[str]] = {}
    memories: dict[str, set[str]] = {}
    for each in configurations:
        methods.setdefault(each["method"], set()).add(each["memory"])
        memories.setdefault(each["memory"], set()).add(each["method"])
    several = any(len(found) > 2 for found in methods.values())
    return max(memories, key=lambda memory: len(memories[memory])) if several else ""


def _choice(configurations: Sequence[Json], heads: Sequence[str], on_validation: bool) -> str:
    """How one configuration of each method is chosen, where there are several."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for each in configurations:
        groups.setdefault((each["method"], each["memory"]), []).append(each)
    several = [each for group in groups.values() if len(group) > 1 for each in group]
    if not several:
        return ""
    if on_validation:
        return "For each method, the configuration with the best A on held-out training data."
    if all(each[head]["validation"] is not None for each in several for head in heads):
        return "For each method, the configuration that was best on held-out training data, not on this test data."
    return (
        "For each method, the configuration with the best A on this same test data, which flatters it. "
        "To choose on held-out data instead, add runs with --validation to the same folder."
    )


def _configuration(summary: Summary, settings: str) -> Json:
    """One method with its hyper-parameters, and the settings that no other configuration shares."""
    memory = summary.spec.memory
    size = None if memory is None else memory.per_class if memory.per_class is not None else memory.total
    unit = None if memory is None else "per class" if memory.per_class is not None else "in all"
    return {
        "label": summary.name,
        "method": summary.method,
        "study": summary.study,
        "lam": summary.lam,
        "strength": wording.number(summary.lam),
        "memory": wording.memory(memory),
        "size": size,
        "unit": unit,
        "sampler": memory and wording.sampler(memory.sampler),
        "settings": settings,
        **_hyper_parameters(summary),
        "seeds": list(summary.seeds),
    }


def _hyper_parameters(summary: Summary) -> Json:
    """Every hyper-parameter of the method: those given, those at their defaults, and who chose λ."""
    given = {name: value for name, value in summary.spec.numbers.items() if not (summary.chosen and name == "lam")}
    usual = {name: value for name, value in parts.defaults(summary.method).items() if name not in given}
    if summary.chosen:
        usual.pop("lam", None)
    if summary.method == "vanilla":  # has λ and the rest of a method, but no penalty
        given, usual = {}, {}
    chosen = f"λ {summary.chosen}: each run chose it by trials on its own training data" if summary.chosen else ""
    return {"given": _told(given), "usual": _told(usual), "chosen": chosen}


def _told(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{wording.setting_name(name)} {wording.number(value)}" for name, value in settings.items())


def _losses(summary: Summary, study: Results | None, points: int) -> Json | None:
    """The means of the losses of these runs, from the study's folder."""
    by_step: dict[int, list[float]] = {}
    for key in summary.hashes if study else ():
        for step, loss in study.losses(key):  # type: ignore[union-attr]
            by_step.setdefault(step, []).append(loss)
    steps = sorted(by_step)
    steps = [steps[round(i)] for i in np.linspace(0, len(steps) - 1, min(points, len(steps)))]
    return _curve({step: by_step[step] for step in steps}) if steps else None


def _curve(by_step: Mapping[int, Sequence[float]]) -> Json:
    means, deviations = zip(*(mean_and_deviation(np.array(losses)) for losses in by_step.values()), strict=True)
    return {"step": list(by_step), "mean": _digits(means), "deviation": _digits(deviations)}


def _digits(values: Sequence[float]) -> list[float | None]:
    """Four significant digits; JSON has no NaN."""
    return [float(f"{value:.4g}") if np.isfinite(value) else None for value in values]


def _results(summary: Summary, head: str, held_out: Mapping[str, Summary]) -> Json:
    """The measures under one head: over the seeds, and on held-out training data if any."""
    twin = held_out.get(_tested(summary))
    validation = None if twin is None else _numbers(np.array([mean_and_deviation(twin.A[head])[0]]))[0]
    accuracy = summary.accuracy[head]
    return {
        "A": _numbers(summary.A[head]),
        "F": _numbers(summary.F[head]),
        "I": _numbers(summary.I[head]),
        "more": {name: _numbers(values[head]) for name, values in summary.more.items()},
        "accuracy": [[_numbers(row[: k + 1]) for k, row in enumerate(run)] for run in accuracy],
        "validation": validation,
        "represents": False,
    }


def _facts(summary: Summary) -> list[str]:
    """The settings that all runs of a section share, in words."""
    stream = summary.spec.stream
    facts = [wording.counted(summary.tasks, "task"), f"network {summary.spec.network}"]
    if stream.permuted is not None:
        facts.append("permuted pixels")
    if stream.rotated is not None:
        facts.append("rotated images")
    if stream.scenario:
        facts.append(f"{stream.scenario}-incremental")
    if stream.blurry is not None:
        facts.append(f"blurry boundaries, {stream.blurry:.0%}")
    if stream.classes_per_task is not None:
        facts.append(f"{stream.classes_per_task} classes per task")
    if stream.order_seed is not None:
        facts.append(f"order seed {stream.order_seed}")
    if stream.validation is not None:
        facts.append(f"tested on {stream.validation:.0%} of the training data")
    return facts


def _setup(summaries: Sequence[Summary], settings: Sequence[Mapping[str, str]]) -> list[tuple[str, str]]:
    """How the runs of a section were trained, setting by setting; every value that occurs."""
    rows = [
        {
            "dataset": summary.spec.stream.dataset,
            "network": summary.spec.network,
            "training": values["budget"],
            "batch": str(summary.spec.training.batch),
            "optimizer": summary.spec.training.optimizer,
            "learning rate": f"{summary.spec.training.lr:g}",
        }
        for summary, values in zip(summaries, settings, strict=True)
    ]
    setup = [(name, wording.listed(list(dict.fromkeys(row[name] for row in rows)), "or")) for name in rows[0]]
    setup[2] = ("training", f"{setup[2][1]} per task")
    counts = sorted({len(summary.seeds) for summary in summaries})
    return [*setup, ("seeds", str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}")]


def _settings(summary: Summary) -> dict[str, str]:
    """All else that a result depends on besides stream, network, memory and λ, in words."""
    spec = summary.spec
    training = asdict(spec.training)
    steps, epochs = training.pop("steps"), training.pop("epochs")
    named = {**training, "dtype": spec.dtype, "autocast": spec.autocast}
    named |= {"measure_every": spec.measure_every, "calibration": spec.calibration}
    if spec.memory:
        named |= {"replay": spec.memory.replay, "beside": spec.memory.beside}
    named |= {name: value for name, value in spec.numbers.items() if name != "lam"}
    if summary.chosen:
        named["lam"] = f"chosen: {summary.chosen}"
    budget = wording.counted(epochs, "epoch") if steps is None else f"{steps} steps"
    return {"budget": budget, **{name: f"{wording.setting_name(name)} {value}" for name, value in named.items()}}


def differences(summaries: Sequence[Summary]) -> list[str]:
    """The settings of every configuration, besides λ and memory, that distinguish it from the others."""
    settings = [_settings(summary) for summary in summaries]
    names = {method: _differing(method, settings, summaries) for method in {each.method for each in summaries}}
    return [
        ", ".join(values[name] for name in names[summary.method] if name in values)
        for summary, values in zip(summaries, settings, strict=True)
    ]


def _differing(method: str, settings: Sequence[Mapping[str, str]], summaries: Sequence[Summary]) -> list[str]:
    """The names of the settings worth showing for a method's runs.

    Training settings are shown if two runs of the section differ in them, a method's own hyper-parameters if two
    runs of this method do. A default counts as different from a value that was given.
    """
    own = [values for values, summary in zip(settings, summaries, strict=True) if summary.method == method]
    numbers = {name for summary in summaries for name in summary.spec.numbers}

    def differs(name: str) -> bool:
        if name in numbers:
            return len({values.get(name) for values in own}) > 1
        return len({values[name] for values in settings if name in values}) > 1

    return [name for name in dict.fromkeys(name for values in own for name in values) if differs(name)]


def _numbers(values: NDArray[np.float64]) -> Any:
    """Nested lists; JSON has no NaN."""
    return np.where(np.isnan(values), None, np.round(values, DIGITS)).tolist()  # type: ignore[call-overload]
