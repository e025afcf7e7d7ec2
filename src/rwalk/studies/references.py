"""The accuracies of reference models, kept between studies: they are the same for every method."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from rwalk.engine.execution import NO_COMPILER, lacked
from rwalk.files import checked_json, with_checksum, write_atomically
from rwalk.metrics import HEADS
from rwalk.programs import compiler_works
from rwalk.studies.environment import environment
from rwalk.studies.executors import Context, Job, Outcomes
from rwalk.studies.specs import RunSpec, content_hash


class ReferenceCache(NamedTuple):
    """One small file per reference model, named after everything its accuracy depends on."""

    context: Context
    folder: Path | None = None  # by default $RWALK_CACHE, or a folder in the user's home

    def recall(self, spec: RunSpec) -> Mapping[str, float] | None:
        """Its accuracies by head, if it has been trained."""
        found = self._read(spec, without=False)
        if found is not None:
            return found
        found = self._read(spec, without=True)
        return None if found is None or compiler_works(self.context.device.partition(":")[0]) else found

    def _read(self, spec: RunSpec, without: bool) -> Mapping[str, float] | None:
        try:
            outcome, sealed = checked_json(self._file(spec, without).read_bytes())
        except (OSError, ValueError):
            return None  # it does not exist or is damaged: it is trained (again)
        # Files of 0.2.0 have no checksum, and nothing but accuracies.
        keys = {"run", *HEADS} if sealed else {*HEADS}
        if not isinstance(outcome, dict) or outcome.keys() - {"stopped"} != keys:
            return None
        if outcome.get("stopped") is not None or outcome.get("run", spec.hash()) != spec.hash():
            return None
        found = {head: outcome[head] for head in HEADS}
        return found if all(type(each) in (int, float) and 0 <= each <= 1 for each in found.values()) else None

    def remember(self, spec: RunSpec, outcome: Mapping[str, Any]) -> None:
        found, without = {head: outcome[head] for head in HEADS}, bool(lacked(outcome.get("execution", "")))
        with suppress(OSError):  # a cache that cannot be written must not stop a study
            write_atomically(self._file(spec, without), with_checksum({"run": spec.hash(), **found}))

    def _file(self, spec: RunSpec, without: bool) -> Path:
        """`without`: of a model that was to be compiled, but was not."""
        folder = self.folder or Path(os.environ.get("RWALK_CACHE", Path.home() / ".cache" / "rwalk"))
        device = self.context.device
        around = environment(device)
        key = [self.context.identity([spec]), around["torch"], device, around.get("gpu")]
        key += [NO_COMPILER] if without else []
        return folder / "references" / f"{content_hash(key)}.json"


def once_known(
    trained: Iterable[Outcomes],
    untrained: Iterable[RunSpec],
    references_of: Callable[[Job], Iterable[RunSpec]],
    learn: Callable[[Job, Sequence[Any]], None],
) -> Iterator[Outcomes]:
    """Of runs and references trained together the runs, each once none of its references is still to come."""
    awaited = {spec.hash() for spec in untrained}
    held: list[Outcomes] = []
    for job, outcomes in trained:
        if job[0].reference is None:
            held.append((job, outcomes))
        else:
            learn(job, outcomes)
            awaited -= {spec.hash() for spec in job}
        waiting = [any(spec.hash() in awaited for spec in references_of(runs)) for runs, _ in held]
        yield from (each for each, waits in zip(held, waiting, strict=True) if not waits)
        held = [each for each, waits in zip(held, waiting, strict=True) if waits]
