"""Models that are no classifiers, with a guard and in other ways: the tables of four how-tos.

    python -m benchmarks.guard_families tagger embedder segmenter regressor --out FOLDER
    python -m benchmarks.guard_families forecaster  # real time series; needs statsmodels

A task and its loop are those of examples/guard_NAME.py; the forecaster has the regressor's loop. The lower
learning rate is chosen on validation data, and tables are of test data. Rows that are in the folder already are
not measured again. `--rates` prints validation scores of a few learning rates without a guard.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import sys
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

import rwalk

EXAMPLES = Path(__file__).parent.parent / "examples"
RATES = (0.3, 0.1, 0.03)
OFTEN = rwalk.Anchor(every=2)


PAST, FUTURE = 36, 12  # months

NAMES = ["tagger", "embedder", "segmenter", "regressor", "forecaster"]


def example(name: str) -> ModuleType:
    if name == "forecaster":
        module = example("regressor")
        module.prepare = partial(forecasts, module)  # type: ignore[attr-defined]
        return module
    spec = importlib.util.spec_from_file_location(f"guard_{name}", EXAMPLES / f"guard_{name}.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forecasts(module: ModuleType, seed: int, quick: bool = False) -> Any:
    """Twelve months are predicted from 36: the sea's temperature off Peru is old, carbon dioxide in Hawaii new."""
    torch.manual_seed(seed)
    cut = [windows(months) for months in series()]
    units = [float(first.std()) for first, *_ in cut]
    (old, *old_tests), (new, *new_tests) = (
        [module.Halves(*(part / unit).split([PAST, FUTURE], 1)) for part in parts]
        for parts, unit in zip(cut, units, strict=True)
    )
    tested = dict(zip(("validation", "test"), zip(old_tests, new_tests, strict=True), strict=True))
    return module.trained(old, new, tested, quick)._replace(units=units)


def series() -> tuple[Tensor, Tensor]:
    """By month: temperatures in °C from 1950 on, and carbon dioxide in ppm from 1958 on."""
    from statsmodels.datasets import co2, elnino

    temperatures = elnino.load_pandas().data.drop(columns="YEAR").to_numpy().ravel()
    carbon = co2.load_pandas().data["co2"].resample("MS").mean().interpolate().to_numpy()
    return torch.tensor(temperatures).float(), torch.tensor(carbon).float()


def windows(months: Tensor) -> list[Tensor]:
    """[windows, PAST + FUTURE] of the first 60 %, the next 20 % and the last 20 %, less the mean of their past."""
    parts = []
    first, second = (round(share * len(months)) for share in (0.6, 0.8))
    for part in months.tensor_split([first, second]):
        found = part.unfold(0, PAST + FUTURE, 1)
        parts.append((found - found[:, :PAST].mean(1, keepdim=True))[torch.randperm(len(found))])
    return parts


def ways(module: ModuleType, task: Any) -> dict[str, dict[str, Any]]:
    """The options of `learn`, by way."""
    found: dict[str, dict[str, Any]] = {"no guard": {}}
    if hasattr(module, "grow"):
        found["no guard, the rest is background"] = {"naive": True}
        found["128 old as probes, the rest is background"] = {"naive": True, "probes": task.probes("old")}
    found["lower learning rate"] = {"rate": RATES}
    found["frozen backbone"] = {"frozen": True}
    found["interpolated halfway"] = {"halfway": True}
    found["replay of 128 old, with labels"] = {"replay": 128}
    for which in ("new", "old"):
        found[f"guard, 128 {which}"] = {"probes": task.probes(which)}
        found[f"guard, 128 {which}, every=2"] = {"probes": task.probes(which), "method": OFTEN}
    found["guard, 32 old"] = {"probes": task.probes("old", 32)}
    found["guard, 512 old"] = {"probes": task.probes("old", 512)}
    return found


def learned(module: ModuleType, task: Any, seed: int, halfway: bool = False, **options: Any) -> nn.Module:
    torch.manual_seed(seed)
    model: nn.Module = module.learn(task, **options)
    if halfway:
        before = copy.deepcopy(task.model)
        torch.manual_seed(seed)
        getattr(module, "grow", lambda model: None)(before)
        with torch.no_grad():
            for each, old in zip(model.state_dict().values(), before.state_dict().values(), strict=True):
                each.lerp_(old, 0.5)
    return model


def both(scores: dict[str, float]) -> float:
    first, *_, last = scores.values()
    return first + last


def measure(name: str, seed: int, file: Path, quick: bool) -> None:
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    done = {row["way"] for row in rows if row["seed"] == seed}
    module = example(name)
    task = module.prepare(seed, quick)

    def write(way: str, model: nn.Module, **more: Any) -> None:
        row = {"seed": seed, "way": way, **more, **task.scores(model)}
        print(name, row, flush=True)
        with file.open("a") as out:
            out.write(json.dumps(row) + "\n")

    if "before" not in done:
        write("before", task.model)
    for way, options in ways(module, task).items():
        if way in done:
            continue
        if "rate" in options:
            models = {rate: learned(module, task, seed, rate=rate) for rate in RATES}
            best = max(models, key=lambda rate: both(task.scores(models[rate], "validation")))
            write(way, models[best], rate=best)
        else:
            write(way, learned(module, task, seed, **options))


def table(file: Path) -> str:
    """Mean ± standard deviation over seeds."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    names = [name for name in rows[0] if name not in ("seed", "way", "rate")]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for way in dict.fromkeys(row["way"] for row in rows):
        cells = []
        for name in names:
            values = [row[name] for row in rows if row["way"] == way]
            digits = 2 if max(abs(row[name]) for row in rows) < 10 else 1
            spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
            cells.append(f"{mean(values):.{digits}f}{spread}")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=NAMES)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("build/guard_families"))
    parser.add_argument("--quick", action="store_true", help="a few steps each: does it run?")
    parser.add_argument("--rates", action="store_true")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        if options.rates:
            module = example(name)
            task = module.prepare(0, options.quick)
            for rate in (0.3, 1.0, 3.0):
                model = learned(module, task, 0, rate=rate)
                print(name, task.rate * rate, task.scores(model, "validation"), flush=True)
            continue
        for seed in range(options.seeds):
            measure(name, seed, options.out / f"{name}.jsonl", options.quick)
        print(table(options.out / f"{name}.jsonl"), flush=True)


if __name__ == "__main__":
    main()
