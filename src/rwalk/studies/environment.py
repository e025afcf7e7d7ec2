"""The machine, the versions on it, and the commit that rwalk is run from."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import rwalk


@cache
def environment(device: str) -> dict[str, str]:
    """What it takes to explain why two studies differ."""
    versions = {"rwalk": rwalk.__version__}  # also where it is not installed, only put on the path
    for package in ("torch", "numpy", "scikit-learn"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    found = {
        "device": device,
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),  # decides which kernels round how
        "machine": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        **versions,
    }
    if torch.device(device).type == "cpu":  # a compiled step rounds differently from an eager one
        found["compiler"] = Path(shutil.which(os.environ.get("CXX", "g++")) or "none").name
    if torch.device(device).type == "cuda":
        found |= {"gpu": torch.cuda.get_device_name(device), "cuda": str(torch.version.cuda)}
    return found


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


@cache
def commit() -> str | None:
    """The commit that rwalk is run from, "+changes" where files differ from it; None where it was installed.

    A copy without version control (an image, a batch job) may say it: RWALK_COMMIT.
    """
    here = Path(__file__).parents[1]
    with suppress(OSError, subprocess.SubprocessError):
        # Only if this file itself is under version control: rwalk may be installed inside somebody's repository.
        _git(here, "ls-files", "--error-unmatch", "__init__.py")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".")
        return _git(here, "rev-parse", "--short=10", "HEAD") + ("+changes" if changed else "")
    return os.environ.get("RWALK_COMMIT") or None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
