"""Measurements, with their place and time: results.json has the last of every section, history.jsonl has all."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import rwalk

HERE = Path(__file__).parent
Sections = Mapping[str, Mapping[str, Any]]


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )
    found = {
        "cpu": model,
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    return found | ({"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {})


def commit() -> str:
    """The commit of the imported rwalk, wherever it lies; with a + if its files differ from that commit."""

    def git(*asked: str) -> str:
        package = Path(rwalk.__file__).parent
        return subprocess.run(
            ["git", *asked], cwd=package, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD") + "+" * bool(git("status", "--porcelain", "."))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def origin() -> dict[str, Any]:
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "commit": commit(), "machine": machine()}


def keep(sections: Sections, measured: Mapping[str, Any], folder: Path = HERE) -> None:
    """Into results.json, whose other sections stay as they are."""
    results = load(folder) | {name: {**section, "measured": measured} for name, section in sections.items()}
    # All of it beside the old file first: a run that is killed must not cost the figures of others.
    folder.mkdir(parents=True, exist_ok=True)
    written = folder / "results.json.new"
    written.write_text(json.dumps(results, indent=1) + "\n")
    written.replace(folder / "results.json")


def log(sections: Sections, measured: Mapping[str, Any], folder: Path = HERE) -> None:
    """The run as one more line of history.jsonl."""
    with (folder / "history.jsonl").open("a") as history:
        history.write(json.dumps({**measured, "sections": sections}) + "\n")


def load(folder: Path = HERE) -> dict[str, Any]:
    file = folder / "results.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    return found
