"""`make bench`: every measurement, or those named; the table on the screen, the numbers into files."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import bars, gpu, growth, guard, guard_gpu, record, steps
from benchmarks.rounds import Missing

SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "solo": steps.solo,
    "fleet": steps.fleet_on_all_cores,
    "guard": guard.bench,
    "guard-gpu": guard_gpu.bench,
    "growth": growth.bench,
    "gpu": gpu.bench,
}


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="section",
        help=f"of {', '.join(SECTIONS)}; without any: all that can be measured here",
    )
    parser.add_argument("--device", default="cpu", help="where growth is measured; the others stay on the CPU")
    parser.add_argument(
        "--results", type=Path, default=record.HERE, help="folder of results.json and history.jsonl"
    )
    asked = parser.parse_args(arguments)
    if unknown := [name for name in asked.sections if name not in SECTIONS]:
        parser.error(f"there is no section {unknown[0]!r} (there are: {', '.join(SECTIONS)})")
    if not asked.sections:
        asked.sections = [name for name in SECTIONS if "gpu" not in name or torch.cuda.is_available()]
    return asked


def main(arguments: Sequence[str] | None = None) -> int:
    asked = parsed(arguments)
    console = Console()
    measured, results = record.origin(), {}
    try:
        for name, measure in planned(asked).items():
            console.print(f"{name} …")
            results[name] = measure()
            record.keep({name: results[name]}, measured, asked.results)
    except Missing as reason:
        print(reason, file=sys.stderr)
        return 2
    finally:  # an interrupted run leaves its line too
        if results:
            record.log(results, measured, asked.results)
    console.print(measured, bars.table(results))
    console.print("kept in results.json; a line added to history.jsonl")
    return 0


def planned(asked: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    """The chosen measurements, by the names of their sections in the files."""
    plan: dict[str, Callable[[], dict[str, Any]]] = {}
    for name in asked.sections:
        if name == "growth" and asked.device != "cpu":
            plan[f"growth on {asked.device}"] = partial(growth.bench, asked.device)
        else:
            plan[name] = SECTIONS[name]
    return plan


if __name__ == "__main__":
    sys.exit(main())
