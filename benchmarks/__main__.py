"""`make bench`: every measurement, one after another; the table on the screen, the numbers in results.json."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import guard, herding, steps

RESULTS = Path(__file__).with_name("results.json")


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    return {"cpu": model, "cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()}


def main() -> None:
    console = Console()
    results: dict[str, Any] = {"machine": machine()}
    console.print(results["machine"])
    table = Table("what", "measured", "at most", title="Ratios to the minimal loop, medians of interleaved rounds")
    results["solo"] = solo = steps.solo()
    table.add_row("minimal PyTorch loop, ms a step", f"{solo['minimal_ms']:.2f}", "")
    limits = {"vanilla": "1.10×", "rwalk": "1.35×"}
    for name in [name for name in solo if name not in ("minimal", "minimal_ms")]:
        table.add_row(f"{name}: a solo step", f"{solo[name]:.2f}×", limits.get(name, ""))
    results["fleet"] = fleet = steps.fleet_on_all_cores()
    table.add_row(f"{fleet['runs']} RWalk runs on all cores, wall time a run", f"{fleet['ratio']:.2f}×", "0.75×")
    results["guard"] = guarded = guard.bench()
    for name, value in guarded.items():
        table.add_row(f"Guard(RWalk), ResNet-18: {name}", f"{value:.3g}", "1.15" if name == "ratio" else "")
    results["herding"] = herded = herding.bench()
    table.add_row(
        "herding 500 of 5,000 for 10 runs, against Algorithm 4", f"{herded['speedup']:.0f}× faster", "≥ 20×"
    )
    console.print(table)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"written to {RESULTS.name}")


if __name__ == "__main__":
    main()
