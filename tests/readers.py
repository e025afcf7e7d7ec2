"""What the tools people watch read back: TensorBoard's event reader, an MLflow client, W&B's offline files."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from processes import until

Curve = list[tuple[int, float]]  # (step, value)


class Shown(NamedTuple):
    """A run as a tool shows it."""

    settings: dict[str, str]
    values: dict[str, Curve]


class Study(NamedTuple):
    """All runs of a study by the first eight digits of their row's hash, and the pages beside them."""

    runs: dict[str, Shown]
    pages: list[str]


def tensorboard(folder: Path) -> Study:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    runs = {}
    for each in (folder / "tensorboard").iterdir():
        events = EventAccumulator(str(each), size_guidance={"scalars": 0}).Reload()
        values = {tag: [(s.step, s.value) for s in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
        begun = HParamsPluginData.FromString(events.PluginTagToContent("hparams")["_hparams_/session_start_info"])
        settings = {
            name: str(getattr(value, value.WhichOneof("kind")))
            for name, value in begun.session_start_info.hparams.items()
        }
        assert each.name[-8:] not in runs
        runs[each.name[-8:]] = Shown(settings, values)
    return Study(runs, [])


def mlflow(folder: Path) -> Study:
    """From the server at MLFLOW_TRACKING_URI: runs are found as children of the study's run."""
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("rwalk")
    assert experiment is not None
    everything = client.search_runs([experiment.experiment_id])
    (parent,) = [run for run in everything if run.info.run_name.startswith(f"{folder.name}-")]
    runs = {}
    for run in everything:
        if run.data.tags.get("mlflow.parentRunId") != parent.info.run_id:
            continue
        assert run.info.status == "FINISHED" and run.info.run_name[-8:] not in runs
        values = {
            key: sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, key))
            for key in run.data.metrics
        }
        runs[run.info.run_name[-8:]] = Shown(dict(run.data.params), values)
    pages = [each.path for each in client.list_artifacts(parent.info.run_id)]
    return Study(runs, pages)


def wandb(folder: Path) -> Study:
    """Once W&B's own process, which writes the files, has written the last of them: the page."""
    until(lambda: _offline(folder).pages, pause=0.1)
    return _offline(folder)


def _offline(folder: Path) -> Study:
    runs, pages = {}, []
    for file in (folder / "wandb").glob("offline-run-*/*.wandb"):
        name, settings, values = "", {}, dict[str, Curve]()
        for record in _records(file):
            if record.HasField("run"):
                assert record.run.run_group.startswith(f"{folder.name}-")
                name = record.run.display_name
                settings = {each.key: str(json.loads(each.value_json)) for each in record.run.config.update}
            elif record.HasField("history"):
                row = {each.key or each.nested_key[0]: json.loads(each.value_json) for each in record.history.item}
                step = row.pop("step", None) or row.pop("task")
                for key, value in row.items():
                    if not key.startswith("_"):
                        values.setdefault(key, []).append((step, value))
            elif record.HasField("artifact"):
                pages += [each.path for each in record.artifact.manifest.contents]
            elif record.HasField("request") and record.request.HasField("log_artifact"):
                pages += [each.path for each in record.request.log_artifact.artifact.manifest.contents]
        if values:
            assert name[-8:] not in runs
            runs[name[-8:]] = Shown(settings, values)
    return Study(runs, pages)


def _records(file: Path) -> Iterator[Any]:
    """The records of an offline file: a log in LevelDB's format, after a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    block, header = 32768, 7
    content, place, parts = file.read_bytes(), header, b""
    assert content[:4] == b":W&B"
    while place + header <= len(content):
        left = block - place % block
        if left < header:  # the rest of a block is padding
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", content[place : place + header])
        parts += content[place + header : place + header + length]
        place += header + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield wandb_internal_pb2.Record.FromString(parts)
            parts = b""


READERS = {"tensorboard": tensorboard, "mlflow": mlflow, "wandb": wandb}
