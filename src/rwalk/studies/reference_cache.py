"""The accuracies of reference models, kept between studies: they are the same for every method."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rwalk.atomic_files import at_home, checked_json, with_checksum, write_atomically
from rwalk.compiled_programs import compiler_works
from rwalk.engine.choose_execution import NO_COMPILER, lacked
from rwalk.metrics import HEADS
from rwalk.studies.executor import Context
from rwalk.studies.json_records import UNREADABLE, content_hash, from_json
from rwalk.studies.provenance import environment
from rwalk.studies.rows import ReferenceOutcome
from rwalk.studies.specs import RunSpec


class ReferenceCache(NamedTuple):
    """One small file per reference model, named after everything its accuracy depends on."""

    context: Context
    folder: Path | None = None  # by default $RWALK_CACHE, or a folder in the user's home

    def recall(self, spec: RunSpec) -> ReferenceOutcome | None:
        """Its accuracies by head, if it has been trained; a damaged file counts as missing.

        A model that lacked its compiler is used as long as no compiler works.
        """
        found = self._read(spec, without=False)
        if found is not None:
            return found
        found = self._read(spec, without=True)
        return None if found is None or compiler_works(self.context.device.partition(":")[0]) else found

    def recall_all(self, specs: Iterable[RunSpec]) -> dict[str, ReferenceOutcome]:
        """Those of these models that have been trained, by the hashes of their runs."""
        return {spec.hash(): found for spec in specs if (found := self.recall(spec)) is not None}

    def remember(self, spec: RunSpec, found: ReferenceOutcome) -> None:
        record = {"run": spec.hash(), **{head: getattr(found, head) for head in HEADS}}
        with suppress(OSError):  # a cache that cannot be written must not stop a study
            write_atomically(self._file(spec, bool(lacked(found.execution))), with_checksum(record))

    def _read(self, spec: RunSpec, without: bool) -> ReferenceOutcome | None:
        try:
            record, sealed = checked_json(self._file(spec, without).read_bytes())
            # Files of 0.2.0 have no checksum and do not name their run.
            named = not sealed or record.pop("run") == spec.hash()
            found = from_json(ReferenceOutcome, record, "a reference")
        except (OSError, *UNREADABLE):
            return None
        return found if named and found.stopped is None else None

    def _file(self, spec: RunSpec, without: bool) -> Path:
        """`without`: of a model that was to be compiled, but was not."""
        folder = self.folder or at_home(os.environ.get("RWALK_CACHE") or "~/.cache/rwalk")
        if self.folder is None and str(folder).startswith("~"):
            raise FileNotFoundError(f"{folder}: this user has no home")
        device = self.context.device
        around = environment(device)
        key = [self.context.identity([spec]), around["torch"], device, around.get("gpu")]
        key += [NO_COMPILER] if without else []
        return folder / "references" / f"{content_hash(key)}.json"
