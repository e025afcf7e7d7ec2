"""A fleet on disk: exact, atomic, and checked before it is used.

A checkpoint is two files. TASK-STEP.safetensors holds all vectors; TASK-STEP.json the counters and the checksums
of both. The record is written last and removed first: tensors without a record do not count. The last two
checkpoints are kept, in case one is damaged. Nothing in them names a file or a function, and nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from rwalk import model_file
from rwalk.atomic_files import parse_json, write_atomically
from rwalk.engine import evaluation, snapshots, teachers
from rwalk.engine.choose_execution import executed, lacked
from rwalk.engine.fleet import Fleet
from rwalk.engine.method_groups import MethodGroup
from rwalk.engine.snapshots import Snapshot
from rwalk.errors import InputError
from rwalk.metrics import HEADS
from rwalk.model_file import Form
from rwalk.studies.provenance import environment

FORMAT = 2
KEPT = 2
SHARE = 0.02  # The fraction of the training time that checkpoints may take.
AT_LEAST = 1.0  # Seconds of training worth saving.
ASSUMED_SPEED = 1e8  # Bytes per second, until the first save has shown the real speed.
LARGEST_RECORD = 1 << 24  # Bytes; a record is counters, a few thousand at most.

_NAME = re.compile(r"(\d{4,})-(\d{8,})\.json")
_NUMBERS = re.compile(r"exemplars\.\d+|held\.examples")


class Checkpointer:
    """Saves a fleet's checkpoints in a folder of its own, and ends the training at a stop.

    Args:
        folder: The folder; None to save nothing.
        identity: A hash of everything that the results depend on. A checkpoint of another identity is not used.
        every: Steps between checkpoints, which are then also made at every task's end. Without it, one is made as
            soon as all of them together cost no more than 2 % of the time.
        stop: Checked after every step. Where it is true, the fleet is saved and KeyboardInterrupt is raised.
    """

    def __init__(
        self,
        folder: Path | None,
        identity: str,
        every: int | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.folder = folder
        self.identity = identity
        self.every = every
        self.stop = stop
        self._before = ""  # how the steps before its checkpoint were executed
        self._begun = time.monotonic()  # not the time of day, which jumps
        self._spent = 0.0
        self._next_at: float | None = None

    def resume(self, fleet: Fleet) -> list[str]:
        """Restore the fleet from its newest valid checkpoint, if there is one; returns remarks for the user."""
        told = []
        for record in _records(self.folder) if self.folder else []:
            try:
                written_in = load(record, fleet, self.identity)
            except InputError as error:
                told.append(f"{error}: falling back to an older checkpoint, or to the beginning")
                continue
            now = environment(fleet.theta.device.type)
            self._before, how = written_in.get("execution", ""), executed(fleet)
            if lacked(self._before) != lacked(how):
                now = {**now, "execution": how}
            changes = [f"{k} {written_in[k]} → {now[k]}" for k in now if written_in.get(k, now[k]) != now[k]]
            if changes:
                told.append(f"{record} is resumed elsewhere ({', '.join(changes)}): last digits may differ")
            break
        return told

    def executed(self, fleet: Fleet) -> str:
        """How all steps of the fleet were executed, those before its checkpoint included."""
        now = executed(fleet)
        return now if self._before in ("", now) else f"{self._before}, then {now}"

    def due(self, fleet: Fleet) -> bool:
        if self.stop():
            return True
        if self.folder is None:
            return False
        if self.every is not None:
            return fleet.step % self.every == 0  # a task's end is step 0 of the next
        if self._next_at is None:
            self._next_at = self._planned(cost=_size(fleet) / ASSUMED_SPEED)
        return time.monotonic() >= self._next_at

    def save(self, fleet: Fleet) -> None:
        begun = time.monotonic()
        if self.folder is not None:
            if not (study := self.folder.parents[1]).is_dir():  # saving must not bring a part of it back
                raise InputError(f"{study} was removed while its runs were trained: the same command begins again")
            try:
                how = self.executed(fleet)
                try:
                    save(self.folder, fleet, self.identity, how)
                except FileNotFoundError:  # another process took the run over, finished it, and cleared up
                    save(self.folder, fleet, self.identity, how)
            except OSError as error:
                raise InputError(
                    f"cannot write a checkpoint to {self.folder}: {error.strerror or error}; earlier ones are "
                    "kept: make room, and the same command resumes from there"
                ) from error
        cost = time.monotonic() - begun
        self._spent += cost
        self._next_at = self._planned(cost)
        if self.stop():
            raise KeyboardInterrupt

    def _planned(self, cost: float) -> float:
        """When all checkpoints so far and one more, at this cost, are within their share of the time."""
        return self._begun + max(AT_LEAST, (self._spent + cost) / SHARE)


def _size(fleet: Fleet) -> int:
    """About how many bytes a checkpoint has."""
    return fleet.theta.nbytes * (3 + len(fleet.state)) + sum(each.nbytes for each in fleet.held.values())


def save(folder: Path, fleet: Fleet, identity: str, execution: str) -> None:
    """Write a checkpoint, then drop all but the last two; `execution` names how its steps were executed."""
    snapshot = snapshots.take(fleet)
    tensors, counters = snapshot.tensors(), snapshot.counters()
    if _unsound(fleet, tensors, counters["stopped"]) is not None:
        return  # its next loss stops it, and the previous checkpoint leads there too
    packed = safetensors.torch.save(tensors)
    content = {
        "format": FORMAT,
        "identity": identity,
        "environment": {**environment(fleet.theta.device.type), "execution": execution},
        "counters": counters,
        "tensors": {"bytes": len(packed), "sha256": hashlib.sha256(packed).hexdigest()},
    }
    record = folder / f"{fleet.task:04d}-{fleet.step:08d}.json"
    write_atomically(record.with_suffix(".safetensors"), packed)
    write_atomically(record, json.dumps({"sha256": _checksum(content), "content": content}) + "\n")
    for old in list(_records(folder))[KEPT:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load(record: Path, fleet: Fleet, identity: str) -> Mapping[str, str]:
    """Restore a fleet from a checkpoint, if every length, name, type, shape and number in it fits this fleet.

    Returns the environment it was written in. An error leaves the fleet unchanged.
    """
    try:
        content = _content(record, identity)
        counters = _checked_counters(content["counters"], fleet)
        tensors = _checked_tensors(record.with_suffix(".safetensors"), content["tensors"], fleet, counters)
    except (_Damaged, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InputError(f"the checkpoint {record} is damaged or not of this run ({reason})") from None
    snapshots.restore(fleet, Snapshot.of(tensors, counters))
    written_in: Mapping[str, str] = content["environment"]
    return written_in


def _records(folder: Path) -> Iterator[Path]:
    """Records in a folder, newest first: by name, because file times depend on clocks that may jump."""
    found = [(match, path) for path in _listed(folder) if (match := _NAME.fullmatch(path.name))]
    for _, path in sorted(found, key=lambda item: (int(item[0][1]), int(item[0][2])), reverse=True):
        yield path


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


# ── checks of files: sizes before they are read, values before they are used ───────────────────────────────────


class _Damaged(Exception):
    """Why a checkpoint cannot be used."""


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise _Damaged(reason)


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _content(record: Path, identity: str) -> dict[str, Any]:
    _need(record.stat().st_size <= LARGEST_RECORD, "its record is too long")
    try:
        outer = parse_json(record.read_bytes())
    except ValueError:
        raise _Damaged("its record is not JSON") from None
    _need(isinstance(outer, dict) and set(outer) == {"sha256", "content"}, "its record is incomplete")
    content = outer["content"]
    _need(isinstance(content, dict) and outer["sha256"] == _checksum(content), "its record's checksum is wrong")
    _need(content.get("format") == FORMAT, f"it has format {content.get('format')!r}, not {FORMAT}")
    keys = {"format", "identity", "environment", "counters", "tensors"}
    _need(set(content) == keys, "its record has the wrong keys")
    _need(content["identity"] == identity, "it belongs to another run")
    written_in = content["environment"]
    sound = isinstance(written_in, dict) and all(isinstance(value, str) for value in written_in.values())
    _need(sound, "its environment is not a record")
    return dict(content)


def _checked_counters(counters: Any, fleet: Fleet) -> dict[str, Any]:
    keys = {"task", "step", "stopped", "groups"}
    _need(isinstance(counters, dict) and set(counters) == keys, "its record has the wrong counters")
    task, step, stopped = counters["task"], counters["step"], counters["stopped"]
    tasks = fleet.stream.tasks
    _need(_is_count(task, len(tasks)), "its task is not one of the stream's")
    last = fleet.learner.steps(fleet.training, fleet.stream, task) if task < len(tasks) else 0
    _need(_is_count(step, last), "its step is not one of the task's")
    reasons = isinstance(stopped, list) and all(isinstance(why, str | None) for why in stopped)
    _need(reasons and len(stopped) == fleet.runs, "it does not say which runs have stopped")
    chosen = task + 1 if fleet.memory and fleet.memory.spec.is_all and step else task
    kept = range(chosen) if fleet.memory else ()
    groups = [[k, label] for k in kept for label in tasks[k].classes]
    _need(counters["groups"] == groups, "its exemplars are not of the classes seen")
    return dict(counters)


def _is_count(value: Any, largest: int) -> bool:
    return type(value) is int and 0 <= value <= largest


def _checked_tensors(path: Path, recorded: Any, fleet: Fleet, counters: Mapping[str, Any]) -> dict[str, Tensor]:
    _need(isinstance(recorded, dict) and set(recorded) == {"bytes", "sha256"}, "its record is incomplete")
    _need(path.stat().st_size == recorded["bytes"], "its tensors are truncated")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _need(digest == recorded["sha256"], "its tensors' checksum is wrong")
    try:
        with safe_open(path, framework="pt") as file:  # reads the header alone, and checks it against the length
            found = model_file.forms(file)
            _check_forms(found, _expected(fleet, counters))
            tensors = {name: file.get_tensor(name) for name in found}
    except safetensors.SafetensorError as error:
        raise _Damaged(str(error)) from None
    examples = len(fleet.stream.y) * (1 if fleet.stream.views is None else len(fleet.stream.views))
    for name, tensor in tensors.items():
        if _NUMBERS.fullmatch(name):
            inside = bool(((tensor >= 0) & (tensor < examples)).all())
            _need(inside, f"{name} refers to examples that do not exist")
        if name.startswith(("accuracy.", "measured.")):
            fractions = tensor.isnan() | ((tensor >= 0) & (tensor <= 1))
            _need(bool(fractions.all()), f"{name} holds something that is not an accuracy")
    culprit = _unsound(fleet, tensors, counters["stopped"])
    _need(culprit is None, f"{culprit} holds something that is not a number")
    return tensors


def _expected(fleet: Fleet, counters: Mapping[str, Any]) -> dict[str, Form]:
    """Every tensor a snapshot of this fleet has at this point."""
    runs, tasks = fleet.runs, len(fleet.stream)
    vector = Form(fleet.theta.dtype, tuple(fleet.theta.shape))
    expected = {"theta": vector}
    expected |= {f"optimizer.{name}": Form(t.dtype, tuple(t.shape)) for name, t in fleet.optimizer.state.items()}
    expected |= {f"buffer.{name}": Form(t.dtype, tuple(t.shape)) for name, t in fleet.net.buffers.items()}
    expected |= {f"held.{name}": Form(t.dtype, tuple(t.shape)) for name, t in fleet.held.items()}
    expected |= {f"accuracy.{head}": Form(torch.float64, (runs, tasks, tasks)) for head in HEADS}
    expected |= {f"measured.{name}": Form(torch.float64, each.shape) for name, each in fleet.measured.items()}
    for part, state in _states(fleet, counters["task"], counters["step"]).items():
        expected |= {f"{part}.{name}": Form(each.dtype, tuple(each.shape)) for name, each in state.items()}
    for number, (task, label) in enumerate(counters["groups"]):
        held = int((fleet.stream.labels(fleet.stream.tasks[task].train) == label).sum())
        assert fleet.memory is not None
        size = min(fleet.memory.spec.quota(len(counters["groups"])), held)
        expected[f"exemplars.{number}"] = Form(torch.int64, (runs, size))
        for name, tail in _stored(fleet).items():
            expected[f"exemplars.{number}.{name}"] = Form(fleet.theta.dtype, (runs, size, *tail))
    return expected


def _states(fleet: Fleet, tasks: int, step: int) -> dict[str, dict[str, Tensor]]:
    """The states of the method and the loss after so many tasks and steps, as tensors without values.

    Found by running them on a θ without values (the device "meta"), which takes no memory.
    """
    theta = torch.empty_like(fleet.theta, device="meta")
    loss = fleet.learner.loss
    held, taught = dict[str, Tensor](), dict[str, Tensor]()
    for group in fleet.method_groups:
        method, rows = fleet.learners[group.rows.start].method, theta[group.rows]
        group = MethodGroup(group.rows, method, method.start(rows), group.prefix)
        for _ in range(tasks):
            method.consolidate(group.state, rows, rows)
        held |= group.named()
    buffers = {name: torch.empty_like(each, device="meta") for name, each in fleet.net.buffers.items()}
    for task in range(tasks + 1 if step else tasks):
        teachers.begin_task(loss, taught, theta, buffers, task)
    return {"method": held, "loss": taught}


def _stored(fleet: Fleet) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors that the loss stores with every exemplar."""
    if not fleet.loss.keeps:
        return {}
    features, logits = evaluation.outputs(fleet, torch.zeros(fleet.runs, 1, dtype=torch.int64))
    return {name: tuple({"features": features, "logits": logits}[name].shape[2:]) for name in fleet.loss.keeps}


def _check_forms(found: Mapping[str, Form], expected: Mapping[str, Form]) -> None:
    if missing := expected.keys() - found.keys():
        raise _Damaged(f"it lacks {min(missing)}")
    if extra := found.keys() - expected.keys():
        raise _Damaged(f"it has a tensor {min(extra)[:80]!r} that does not belong there")
    for name, form in found.items():
        _need(form == expected[name], f"{name} is {form}, not {expected[name]}")


def _unsound(fleet: Fleet, tensors: Mapping[str, Tensor], stopped: list[str | None]) -> str | None:
    """A tensor that is not finite in an active run; accuracies may be NaN, as some are still to be measured."""
    everyone = torch.tensor([why is None for why in stopped])
    rows_of = {f"method.{group.prefix}": group.rows for group in fleet.method_groups}
    for name, tensor in tensors.items():
        if name.startswith(("accuracy.", "measured.")) or not tensor.is_floating_point():
            continue
        alive = next((everyone[rows] for prefix, rows in rows_of.items() if name.startswith(prefix)), everyone)
        if not (tensor[alive] if tensor.dim() else tensor).isfinite().all():
            return name
    return None
