"""What made a result: versions, commit, machine, and the code that a run names.

A run's identity is its settings (their hash), the source of the user's code that they name, our own numerics, and
the data. The last three are in every row under "made", so that a row that would come out differently today is
noticed and can say what has changed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rwalk.engine.execution import NO_COMPILER, lacked
from rwalk.programs import compiler_works
from rwalk.studies import numerics
from rwalk.studies.environment import commit, environment
from rwalk.studies.sources import source_digest
from rwalk.studies.specs import RunSpec
from rwalk.studies.store import MACHINE

Made = dict[str, Any]


def made(run: RunSpec, device: str, data: str, execution: str) -> Made:
    """The provenance of a row trained here and now; `data` is the stream's fingerprint.

    `execution` says how its steps were executed (`rwalk.engine.execution.executed`).
    """
    around = environment(device)
    machine = {name: around[name] for name in MACHINE if name in around}
    if device != "cpu":
        machine.pop("processor", None)
        machine.pop("instructions", None)
    ours = {"rwalk": around["rwalk"], "commit": commit(), "numerics": numerics.number_of(run)}
    return {**ours, "code": code_of(run), "data": data[:16], "execution": execution, **machine}


def outdated(row_made: Mapping[str, Any], run: RunSpec, data: str | None, device: str) -> list[str]:
    """Why a row is not what its run would give today; nothing if only versions and machines differ.

    How steps are executed counts on one kind of machine: a row from a time when its compiler did not work is not
    what the run gives now.

    A row written before rows recorded their provenance is assumed to be current.
    """
    reasons = [f"rwalk computes it differently: {what}" for what in
               numerics.changes_since(row_made.get("numerics", numerics.FIRST), run)]  # fmt: skip
    before = row_made.get("code", {})
    reasons += [
        f"the source of {name} has changed"
        for name, digest in code_of(run).items()
        if before.get(name, digest) != digest
    ]
    if data is not None and row_made.get("data", data[:16]) != data[:16]:
        reasons.append(f"the data of {run.stream.dataset} have changed")
    without = lacked(row_made.get("execution", "")) == NO_COMPILER and machine_of(row_made) == machine_here(device)
    if without and compiler_works(device.partition(":")[0]):
        reasons.append("it was trained without a compiler, and there is one now")
    return reasons


def makers(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """What made these rows, most frequent first: one line if all come from the same code and kind of machine."""
    counts = Counter(_maker(row.get("made") or {}) for row in rows)
    total = counts.total()
    if len(counts) < 2:
        return list(counts)
    return [f"{count} of {total} rows: {maker}" for maker, count in counts.most_common()]


def mixture(rows: Sequence[Mapping[str, Any]]) -> str:
    """A sentence saying that rows come from different code or machines; nothing if they do not."""
    lines = makers(rows)
    return f"These rows come from different code or machines: {'; '.join(lines)}." if len(lines) > 1 else ""


def strangers(rows: Iterable[Mapping[str, Any]], device: str) -> list[str]:
    """One line for every other kind of machine that made some of these rows, which are reused here."""
    here = machine_here(device)
    counts = Counter(machine_of(row["made"]) for row in rows)
    return [
        f"{count} finished runs are reused from another study, made on {there} (this is {here}): "
        "between machines the last digits of an accuracy differ"
        for there, count in counts.items()
        if there != here
    ]


def machine_here(device: str) -> str:
    """This machine, as `machine_of` says it of a row trained here and now."""
    return machine_of(environment(device) | ({"processor": "", "instructions": ""} if device != "cpu" else {}))


def machine_of(row_made: Mapping[str, Any]) -> str:
    """The kind of machine that made a row, in words: what determines floating-point rounding."""
    name = row_made.get("gpu") or " ".join(filter(None, (row_made.get("processor"), row_made.get("instructions"))))
    return f"{name or 'an unknown machine'}, torch {row_made.get('torch', 'of an unknown version')}"


def _maker(row_made: Mapping[str, Any]) -> str:
    if "numerics" not in row_made:
        return f"an earlier rwalk (its rows do not name the version) on {machine_of(row_made)}"
    at = f" ({_short(row_made['commit'])})" if row_made.get("commit") else ""
    without = lacked(row_made.get("execution", ""))
    code = "".join(f", {name} {digest[:8]}" for name, digest in row_made.get("code", {}).items())
    name = row_made.get("rwalk") or "of an unknown version"
    return f"rwalk {name}{at}{code} on {machine_of(row_made)}{without and f', {without}'}"


def _short(commit: str) -> str:
    """Ten digits name a commit as well as forty do."""
    return re.sub(r"^([0-9a-f]{10})[0-9a-f]{30}", r"\1", commit)


def code_of(run: RunSpec) -> dict[str, str]:
    """A digest of the source of everything that a run names as `package.module:name`."""
    return {name: source_digest(name.partition(":")[0]) for name in run.own_code()}
