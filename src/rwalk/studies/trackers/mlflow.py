"""MLflow: one run per row, nested in the run of its study."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from rwalk.escaping import shown
from rwalk.studies.rows import Row
from rwalk.studies.trackers.tracker import Tracker, Values, digest, run_title, settings

STUDY, ROW, DIGEST = "rwalk.study", "rwalk.row", "rwalk.digest"  # tags of a run
PARENT = "mlflow.parentRunId"  # the tag by which MLflow nests runs
BATCH = 1000  # metrics that a server takes at a time
# Defaults for the user's variables: a dead server is noticed in seconds, and MLflow prints nothing.
QUICK_AND_QUIET = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}


class MLflow(Tracker):
    """Writes to MLFLOW_TRACKING_URI, into the experiment MLFLOW_EXPERIMENT_NAME (default: rwalk)."""

    name: ClassVar[str] = "mlflow"
    summary: ClassVar[str] = "nested runs in MLflow: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME"
    package: ClassVar[str] = "mlflow"

    def __enter__(self) -> Self:
        for variable, value in QUICK_AND_QUIET.items():
            os.environ.setdefault(variable, value)
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self._experiment = self._experiment_id(os.environ.get("MLFLOW_EXPERIMENT_NAME") or "rwalk")
        there = list(self._found(f"tags.`{STUDY}` = '{self._quoted()}'"))
        self._rows = {run.data.tags[ROW]: run for run in there if ROW in run.data.tags}
        parents = [run.info.run_id for run in there if ROW not in run.data.tags]
        self._parent = parents[0] if parents else self._new_run(self.subject.name, {})
        return self

    def __exit__(self, *error: object) -> None:
        self._client.set_terminated(self._parent)

    def known(self) -> Mapping[str, str]:
        return {key: run.data.tags[DIGEST] for key, run in self._rows.items() if DIGEST in run.data.tags}

    def show(self, row: Row, history: Sequence[Values]) -> None:
        from mlflow.entities import Metric, Param

        if earlier := self._rows.pop(row.hash, None):
            self._client.delete_run(earlier.info.run_id)
        this = self._new_run(run_title(row.spec), {PARENT: self._parent, ROW: row.hash})
        params = [Param(name, str(value)) for name, value in settings(row.spec).items()]
        self._client.log_batch(this, params=params)
        now = int(1000 * time.time())
        metrics = [Metric(name, each, now, step) for step, values in history for name, each in values.items()]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(this, metrics=metrics[start : start + BATCH])
        if row.stopped:
            self._client.set_tag(this, "rwalk.stopped", shown(row.stopped))
        self._client.set_terminated(this)
        self._client.set_tag(this, DIGEST, digest(row))

    def attach(self, page: Path) -> None:
        self._client.log_artifact(self._parent, str(page))

    def _experiment_id(self, name: str) -> str:
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _new_run(self, name: str, tags: Mapping[str, str]) -> str:
        made = self._client.create_run(self._experiment, run_name=name, tags={STUDY: self._quoted(), **tags})
        return str(made.info.run_id)

    def _found(self, query: str) -> Iterator[Any]:
        token = None
        while True:
            page = self._client.search_runs([self._experiment], query, max_results=1000, page_token=token)
            yield from page
            if not (token := page.token):
                return

    def _quoted(self) -> str:
        """The study's name, fit to stand in a query."""
        return self.subject.name.replace("'", "_")
