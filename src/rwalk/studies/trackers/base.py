"""What a tracker is: a writer for one tool, which knows a run by the hash of its row.

Trackers do not listen to events themselves: `tracking.Tracking` feeds them while a study runs, and
`tracking.export` from the rows of a finished one, with the same calls and so with the same result.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

from rwalk.parts import defaults
from rwalk.showing import all_shown, shown
from rwalk.studies.specs import RunSpec, content_hash


class Subject(NamedTuple):
    """The study that is shown.

    folder  where its rows are
    name    the folder's name and its data, so that a study that grows keeps its name in every tool
    record  what is in study.json
    """

    folder: Path
    name: str
    record: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path, record: Mapping[str, Any]) -> Subject:
        return cls(folder, f"{shown(folder.resolve().name)}-{content_hash(record['data'])[:8]}", record)


class Tracker:
    """Base of all trackers.

    Every run is begun, logged and finished, in this order. A run that was begun but never finished, because a
    process died, is begun again from nothing.
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def __init__(self, subject: Subject) -> None:
        """Refuse, with InputError, what the user has to correct, such as a missing package; contact nobody yet."""
        self.subject = subject

    def __enter__(self) -> Self:
        """Contact the tool."""
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing more will be logged."""

    def known(self) -> Mapping[str, str]:
        """The runs that are finished there: the hash of each row, and the digest of its content."""
        raise NotImplementedError

    def begin(self, run: RunSpec) -> None:
        """A run begins; whatever the tool has of it is replaced."""
        raise NotImplementedError

    def log(self, run: RunSpec, values: Mapping[str, float], step: int) -> None:
        """Values at a step: `loss` at a training step, `HEAD/task N` after a task, counted from 1."""
        raise NotImplementedError

    def finish(self, run: RunSpec, row: Mapping[str, Any]) -> None:
        """The run's row is there: its A, F and I, and then the mark that `known` reads."""
        raise NotImplementedError

    def attach(self, page: Path) -> None:
        """The report page of the study, as it is now."""
        raise NotImplementedError


def digest(row: Mapping[str, Any]) -> str:
    """Of all that a row says: a run that was trained again has the same hash, but is another row."""
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()[:16]


def hyper_parameters(run: RunSpec) -> dict[str, Any]:
    """Defaults included; but of the user's own parts only what was set, as their code is not imported for this."""
    return {**defaults(run.method), **run.numbers}


def title(run: RunSpec) -> str:
    """A name that can be found in a list, and differs for every run."""
    lam = hyper_parameters(run).get("lam")
    strength = f" λ={lam if isinstance(lam, str) else format(lam, 'g')}" if lam else ""
    method = re.sub(r"[/\\:]", ".", shown(run.method))  # it names a folder too
    return f"{method}{shown(strength)} seed {run.seed} {run.hash()[:8]}"


def settings(run: RunSpec) -> dict[str, Any]:
    """All settings of a run under dotted names, hyper-parameters under their own."""
    record = run.to_json()
    del record["numbers"]
    flat: dict[str, Any] = {}

    def add(prefix: str, value: Any) -> None:
        if isinstance(value, dict):
            for name, each in value.items():
                add(f"{prefix}{name}.", each)
        elif value is not None:
            flat[prefix.rstrip(".")] = value if isinstance(value, str | int | float | bool) else json.dumps(value)

    add("", record)
    add("", hyper_parameters(run))
    return {shown(name): all_shown(value) for name, value in flat.items()}


def measures(row: Mapping[str, Any]) -> dict[str, float]:
    """A, F and I by head, as far as they are known."""
    return {
        f"{head}/{name}": value
        for head in ("single", "multi")
        for name, value in row[head].items()
        if value is not None
    }
