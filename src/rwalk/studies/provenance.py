"""The provenance of a result: versions, commit, machine, and the code that a run names.

A run's identity is its settings (their hash), the source of the user's code that they name, our own numerics, and
the data. The last three are in every row under "made": a row that would come out differently today is noticed, and
the change is named.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import rwalk
from rwalk.compiled_programs import compiler_works
from rwalk.engine.choose_execution import NO_COMPILER, lacked
from rwalk.studies import numerics_history
from rwalk.studies.rows import MACHINE, Made, Row
from rwalk.studies.specs import RunSpec
from rwalk.studies.user_code import source_digest


def made(run: RunSpec, device: str, data: str, execution: str, commit: str | None) -> Made:
    """The provenance of a row trained here and now; `commit` is that of when the study began to train."""
    numerics, code = numerics_history.number_of(run), code_of(run)
    return Made(rwalk.__version__, commit, numerics, code, data[:16], execution, **_machine(device))


def _machine(device: str) -> dict[str, Any]:
    """What decides how this machine rounds, as a row names it: on a GPU the processor does not."""
    around, irrelevant = environment(device), () if device == "cpu" else ("processor", "instructions")
    return {name: around[name] for name in MACHINE if name in around and name not in irrelevant}


def outdated(row_made: Made, run: RunSpec, data: str | None, device: str) -> list[str]:
    """The reasons why a run would give another row today; none if only versions and machines differ.

    The execution of steps counts on one kind of machine: where a compiler works now, a row from a time when it did
    not is outdated. A row without provenance is assumed to be current.
    """
    reasons = [f"rwalk computes it differently: {what}" for what in
               numerics_history.changes_since(row_made.numerics or numerics_history.FIRST, run)]  # fmt: skip
    before = row_made.code or {}
    reasons += [
        f"the source of {name} has changed"
        for name, digest in code_of(run).items()
        if before.get(name, digest) != digest
    ]
    if data is not None and row_made.data not in (None, data[:16]):
        reasons.append(f"the data of {run.stream.dataset} have changed")
    without = lacked(row_made.execution or "") == NO_COMPILER and machine_of(row_made) == machine_here(device)
    if without and compiler_works(device.partition(":")[0]):
        reasons.append("it was trained without a compiler, and there is one now")
    return reasons


def makers(made: Iterable[Made]) -> list[str]:
    """The makers of rows, most frequent first: one line if all come from one code and kind of machine."""
    counts = Counter(map(_maker, made))
    total = counts.total()
    if len(counts) < 2:
        return list(counts)
    return [f"{count} of {total} rows: {maker}" for maker, count in counts.most_common()]


def mixture(made: Iterable[Made]) -> str:
    """A sentence saying that rows come from different code or machines; empty if they do not."""
    lines = makers(made)
    return f"These rows come from different code or machines: {'; '.join(lines)}." if len(lines) > 1 else ""


def strangers(rows: Iterable[Row], device: str) -> list[str]:
    """One line for every other kind of machine that made some of these rows, which are reused here."""
    here = machine_here(device)
    counts = Counter(machine_of(row.made) for row in rows)
    return [
        f"{count} finished runs are reused from another study, made on {there} (this is {here}): "
        "between machines the last digits of an accuracy differ"
        for there, count in counts.items()
        if there != here
    ]


def machine_here(device: str) -> str:
    """This machine, as `machine_of` names it for a row trained here and now."""
    return machine_of(Made(**_machine(device)))


def machine_of(row_made: Made) -> str:
    """The kind of machine that made a row, in words: it determines floating-point rounding."""
    name = row_made.gpu or " ".join(filter(None, (row_made.processor, row_made.instructions)))
    return f"{name or 'an unknown machine'}, torch {row_made.torch or 'of an unknown version'}"


def _maker(row_made: Made) -> str:
    if row_made.numerics is None:
        return f"an earlier rwalk (its rows do not name the version) on {machine_of(row_made)}"
    at = f" ({_short(row_made.commit)})" if row_made.commit else ""
    without = lacked(row_made.execution or "")
    code = "".join(f", {name} {digest[:8]}" for name, digest in (row_made.code or {}).items())
    name = row_made.rwalk or "of an unknown version"
    return f"rwalk {name}{at}{code} on {machine_of(row_made)}{without and f', {without}'}"


def _short(commit: str) -> str:
    """Ten digits name a commit as well as forty do."""
    return re.sub(r"^([0-9a-f]{10})[0-9a-f]{30}", r"\1", commit)


def code_of(run: RunSpec) -> dict[str, str]:
    """A digest of the source of everything that a run names as `package.module:name`."""
    return {name: source_digest(name.partition(":")[0]) for name in run.own_code()}


# ── the machine ─────────────────────────────────────────────────────────────────────────────────────────────────


@cache
def environment(device: str) -> dict[str, str]:
    """Versions and machine: enough to explain why two studies differ."""
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


SLOWEST = 600  # seconds of a call of git: what a busy machine takes must not change a row


@cache
def commit() -> str | None:
    """The commit that rwalk is run from, "+changes" where files differ from it; None where it was installed.

    For a copy without version control (an image, a batch job) RWALK_COMMIT names it.
    """
    here = Path(__file__).parents[1]
    with suppress(OSError, subprocess.SubprocessError):
        # Only if this file itself is under version control: rwalk may be installed inside another repository.
        _git(here, "ls-files", "--error-unmatch", "__init__.py")
        changed = _git(here, "status", "--porcelain", "--untracked-files=no", "--", ".")
        return _git(here, "rev-parse", "--short=10", "HEAD") + ("+changes" if changed else "")
    return os.environ.get("RWALK_COMMIT") or None


def _git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=SLOWEST).stdout.strip()
