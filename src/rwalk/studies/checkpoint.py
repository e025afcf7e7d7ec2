"""A fleet on disk: exact, atomic, and checked before it is used.

A checkpoint is two files. TASK-STEP.safetensors holds all vectors; TASK-STEP.json the counters and the checksums
of both. The record is written last and removed first: tensors without a record do not count. The last two
checkpoints are kept, in case one is damaged. Nothing in them names a file or a function, and nothing is unpickled.
Checksums find damage; they are no signature, so forms and values that would stop the training are checked too.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from rwalk import model_file
from rwalk.atomic_files import checked_json, with_checksum, write_atomically, writing
from rwalk.engine import snapshots
from rwalk.engine.choose_execution import executed, lacked
from rwalk.engine.fleet import Fleet
from rwalk.engine.snapshots import Snapshot
from rwalk.errors import InputError, first_line
from rwalk.model_file import TensorForm
from rwalk.studies.json_records import UNREADABLE
from rwalk.studies.provenance import environment

FORMAT = 3
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
            check_is_there(self.folder.parents[1])
            how, cure = (
                self.executed(fleet),
                "; earlier ones are kept: make room, and the same command resumes there",
            )
            with writing(f"a checkpoint to {self.folder}", cure):
                try:
                    save(self.folder, fleet, self.identity, how)
                except FileNotFoundError:  # another process took the run over, finished it, and cleared up
                    save(self.folder, fleet, self.identity, how)
        cost = time.monotonic() - begun
        self._spent += cost
        self._next_at = self._planned(cost)
        if self.stop():
            raise KeyboardInterrupt

    def _planned(self, cost: float) -> float:
        """When all checkpoints so far and one more, at this cost, are within their share of the time."""
        return self._begun + max(AT_LEAST, (self._spent + cost) / SHARE)


def check_is_there(study: Path) -> None:
    """Refuse to bring a part of a removed study back, which would keep the same command from beginning again."""
    if not study.is_dir():
        raise InputError(f"{study} was removed while its runs were trained: the same command begins again")


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
    write_atomically(record, with_checksum(content) + "\n")
    for old in list(_records(folder))[KEPT:]:
        old.unlink(missing_ok=True)
        old.with_suffix(".safetensors").unlink(missing_ok=True)


def load(record: Path, fleet: Fleet, identity: str) -> Mapping[str, str]:
    """Restore a fleet from a checkpoint, if every length, name, type, shape and number in it fits this fleet.

    Returns the environment it was written in. An error leaves the fleet unchanged.
    """
    try:
        content = _content(record, identity)
        _check_counters(content["counters"], fleet)
        tensors = _tensors(record.with_suffix(".safetensors"), content["tensors"], fleet)
        _check_values(tensors, content["counters"]["stopped"], fleet)
        snapshot = Snapshot.of(tensors, content["counters"])
        written_in = {name: str(value) for name, value in content["environment"].items()}
    except (OSError, safetensors.SafetensorError, *UNREADABLE) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        raise InputError(f"the checkpoint {record} is damaged or not of this run ({reason})") from None
    snapshots.restore(fleet, snapshot)
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


def _need(condition: bool, reason: str) -> None:
    if not condition:
        raise ValueError(reason)


def _content(record: Path, identity: str) -> dict[str, Any]:
    _need(record.stat().st_size <= LARGEST_RECORD, "its record is too long")
    content, sealed = checked_json(record.read_bytes())
    _need(sealed, "its record has no checksum")
    _need(content["format"] == FORMAT, f"it has format {content['format']!r}, not {FORMAT}")
    _need(content["identity"] == identity, "it belongs to another run")
    _need(isinstance(content["environment"], dict), "its environment is not a record")
    return dict(content)


def _check_counters(counters: Mapping[str, Any], fleet: Fleet) -> None:
    task, step, stopped = counters["task"], counters["step"], counters["stopped"]
    tasks = fleet.stream.tasks
    _need(_is_count(task, len(tasks)), "its task is not one of the stream's")
    last = fleet.learner.steps(fleet.training, fleet.stream, task) if task < len(tasks) else 0
    _need(_is_count(step, last), "its step is not one of the task's")
    reasons = isinstance(stopped, list) and all(isinstance(why, str | None) for why in stopped)
    _need(reasons and len(stopped) == fleet.runs, "it does not say which runs have stopped")
    classes = {(k, label) for k in range(len(tasks)) for label in tasks[k].classes} if fleet.memory else set()
    _need({(k, label) for k, label in counters["groups"]} <= classes, "its exemplars are of unknown classes")


def _is_count(value: Any, largest: int) -> bool:
    return type(value) is int and 0 <= value <= largest


def _tensors(path: Path, recorded: Mapping[str, Any], fleet: Fleet) -> dict[str, Tensor]:
    """The tensors of a file; those that every fleet like this has must have this fleet's forms."""
    _need(path.stat().st_size == recorded["bytes"], "its tensors are truncated")
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    _need(digest == recorded["sha256"], "its tensors' checksum is wrong")
    with model_file.opened(path) as file:  # reads the header alone, and checks it against the length
        found = model_file.forms(file)
        for name, own in snapshots.take(fleet).tensors().items():
            if not name.startswith(("method.", "loss.", "exemplars.")):  # these grow with the tasks
                form = TensorForm(own.dtype, tuple(own.shape))
                _need(found.get(name) == form, f"{name} is {found.get(name)}, not {form}")
        return {name: file.get_tensor(name) for name in found}


def _check_values(tensors: Mapping[str, Tensor], stopped: list[str | None], fleet: Fleet) -> None:
    examples = len(fleet.stream.y) * (1 if fleet.stream.views is None else len(fleet.stream.views))
    for name, tensor in tensors.items():
        if _NUMBERS.fullmatch(name):
            inside = tensor.dtype == torch.int64 and bool(((tensor >= 0) & (tensor < examples)).all())
            _need(inside, f"{name} refers to examples that do not exist")
        if name.startswith(("accuracy.", "measured.")):
            fractions = tensor.isnan() | ((tensor >= 0) & (tensor <= 1))
            _need(bool(fractions.all()), f"{name} holds something that is not an accuracy")
    culprit = _unsound(fleet, tensors, stopped)
    _need(culprit is None, f"{culprit} holds something that is not a number")


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
