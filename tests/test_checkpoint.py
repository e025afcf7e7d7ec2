"""A checkpoint brings a fleet back bit for bit, or is refused; nothing in between."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import little
from rwalk import Fleet, InputError, MemorySpec, Training, learner
from rwalk.atomic_files import checked_json, with_checksum
from rwalk.engine import snapshots
from rwalk.engine.evaluation import MeasureOptions
from rwalk.studies import checkpoint as checkpoints
from rwalk.studies.checkpoint import Checkpointer, load, save

STREAM = little.stream()
TRAINING = Training(epochs=3, batch=8)  # 18 steps a task, 54 in all
MEMORY = MemorySpec(per_class=3)
LEARNERS: dict[str, tuple[str, MemorySpec | None, dict[str, Any]]] = {
    "vanilla": ("vanilla", None, {}),
    "rwalk with memory": ("rwalk", MEMORY, {"dt": 4}),  # windows that checkpoints cut through
    "pi with a shrinking memory": ("pi", MemorySpec(total=9, sampler="entropy"), {}),
}


MIXED = (("vanilla", {}), ("ewc++", {"penalty": "proximal"}), ("rwalk", {"dt": 4}))


def fleet(name: str = "rwalk with memory", runs: int = 1, training: Training = TRAINING) -> Fleet:
    if name == "several methods":
        learners = [learner(method, MEMORY, **numbers) for method, numbers in MIXED[:runs]]
    else:
        method, memory, numbers = LEARNERS[name]
        learners = [learner(method, memory, **numbers)] * runs
    return Fleet(STREAM, little.Network, learners, list(range(runs)), training)


def interrupted_at(steps: list[int]) -> Callable[[Checkpointer, Fleet], None]:
    """Makes a keeper stop its fleet after so many steps in all; the next ones belong to its successors."""

    def arm(keeper: Checkpointer, fleet: Fleet) -> None:
        if steps:
            task, step = divmod(steps.pop(0), 18)
            keeper.stop = lambda: (fleet.task, fleet.step) >= (task, step)

    return arm


def same(a: Fleet, b: Fleet) -> bool:
    one, other = snapshots.take(a), snapshots.take(b)
    ours, theirs = one.tensors(), other.tensors()
    alike = (torch.equal(ours[name].nan_to_num(-1), theirs[name].nan_to_num(-1)) for name in ours)
    return one.counters() == other.counters() and ours.keys() == theirs.keys() and all(alike)


def test_what_was_measured_within_tasks_is_not_lost_by_an_interruption(tmp_path: Path) -> None:
    measures = MeasureOptions(every=4, calibration=True)
    whole, part, rest = (
        Fleet(STREAM, little.Network, [learner("vanilla")], [0], TRAINING, measures=measures) for _ in range(3)
    )
    whole.train()
    keeper = Checkpointer(tmp_path, "run", every=7)
    interrupted_at([30])(keeper, part)
    with pytest.raises(KeyboardInterrupt):
        part.train(checkpoints=keeper)
    assert Checkpointer(tmp_path, "run", every=7).resume(rest) == []
    rest.train()
    assert same(whole, rest) and whole.measured["within.multi"].shape == (1, 3, 4, 3)


@pytest.mark.parametrize(
    ("name", "runs"),
    [*product(["rwalk with memory", "pi with a shrinking memory"], [1, 3]), ("several methods", 3)],
)
def test_interrupted_training_ends_bit_for_bit_as_if_it_had_not_been(name: str, runs: int, tmp_path: Path) -> None:
    whole = fleet(name, runs)
    whole.train()
    # In the first task, twice in the second (once inside a window of Δt), at a task's end, just before the end.
    arm = interrupted_at([5, 19, 30, 36, 53])
    interruptions = 0
    while True:
        part = fleet(name, runs)
        keeper = Checkpointer(tmp_path, "run", every=7)
        assert keeper.resume(part) == []
        arm(keeper, part)
        try:
            part.train(checkpoints=keeper)
            break
        except KeyboardInterrupt:
            interruptions += 1
    assert interruptions == 5
    assert same(whole, part)


def test_looking_at_the_losses_earlier_changes_no_verdict(tmp_path: Path) -> None:
    """A keeper cuts the steps between two looks short; which step is blamed must not depend on that."""
    training = Training(epochs=3, batch=8, lr=1e18)
    alone, kept = fleet("vanilla", 2, training), fleet("vanilla", 2, training)
    alone.train()
    kept.train(checkpoints=Checkpointer(tmp_path, "run", every=1))
    assert alone.stopped == kept.stopped != [None, None]


# ── the files ─────────────────────────────────────────────────────────────────────────────────────────────


def trained(folder: Path, name: str = "rwalk with memory", every: int = 7) -> Fleet:
    """A fleet stopped in its third task, and its last two checkpoints."""
    part = fleet(name)
    keeper = Checkpointer(folder, "run", every)
    keeper.stop = lambda: (part.task, part.step) >= (2, 5)
    with pytest.raises(KeyboardInterrupt):
        part.train(checkpoints=keeper)
    return part


def test_the_last_two_are_kept_and_nothing_else(tmp_path: Path) -> None:
    trained(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    stems = ["0002-00000000", "0002-00000005"]
    assert names == [f"{stem}.{suffix}" for stem in stems for suffix in ("json", "safetensors")]


def test_a_folder_that_another_process_has_cleared_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever took a run over clears up at its end, perhaps while its first owner is writing a checkpoint."""
    folder, rename, cleared = tmp_path / "run", os.replace, list[str]()

    def cleared_before(beside: Path, path: Path) -> None:
        if Path(path).parent == folder and not cleared:
            shutil.rmtree(folder)
            cleared.append(Path(path).name)
        rename(beside, path)

    monkeypatch.setattr(os, "replace", cleared_before)
    part, again = trained(folder), fleet()
    assert cleared and Checkpointer(folder, "run").resume(again) == [] and same(part, again)


def test_the_newest_is_known_by_its_name_whatever_the_clock_said(tmp_path: Path) -> None:
    part = trained(tmp_path)
    for path in tmp_path.glob("0002-00000005.*"):
        os.utime(path, (0, 0))
    again = fleet()
    assert Checkpointer(tmp_path, "run").resume(again) == []
    assert same(part, again)


def test_a_clock_that_jumps_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = iter(range(10**9))
    monkeypatch.setattr(time, "time", lambda: 1e9 * (-1) ** next(jumps))
    part = trained(tmp_path)
    again = fleet()
    Checkpointer(tmp_path, "run").resume(again)
    assert same(part, again)


def test_checkpoints_cost_a_fiftieth_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    saves: list[float] = []

    def slow_save(*_: object) -> None:
        nonlocal now
        now += 0.5
        saves.append(now)

    monkeypatch.setattr(checkpoints, "save", slow_save)
    part, keeper = fleet(), Checkpointer(tmp_path, "run")
    while now < 300:
        now += 0.01
        if keeper.due(part):
            keeper.save(part)
    assert len(saves) * 0.5 <= 0.02 * 300
    assert max(b - a for a, b in pairwise(saves)) < 50


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position % len(content)] ^= 1 << position % 8
    path.write_bytes(content)


@pytest.mark.parametrize("suffix", ["json", "safetensors"])
@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "gone"])
def test_the_one_before_serves_where_the_newest_is_damaged(damage: str, suffix: str, tmp_path: Path) -> None:
    trained(tmp_path)
    newest = tmp_path / f"0002-00000005.{suffix}"
    if damage == "torn":
        os.truncate(newest, newest.stat().st_size // 2)
    elif damage == "flipped":
        flip(newest, 300)
    elif damage == "empty":
        newest.write_bytes(b"")
    else:
        newest.unlink()
    again, whole = fleet(), fleet()
    told = Checkpointer(tmp_path, "run").resume(again)
    assert (again.task, again.step) == (2, 0)
    if (damage, suffix) != ("gone", "json"):  # without a record there never was a checkpoint
        assert len(told) == 1 and "0002-00000005.json" in told[0] and "\n" not in told[0]
    again.train()
    whole.train()
    assert same(whole, again)


def test_with_all_damaged_it_begins_again_and_says_so(tmp_path: Path) -> None:
    trained(tmp_path)
    for path in tmp_path.glob("*.safetensors"):
        flip(path, 999)
    again = fleet()
    assert len(Checkpointer(tmp_path, "run").resume(again)) == 2
    assert same(again, fleet())


def test_another_machine_is_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    part = trained(tmp_path)
    elsewhere = {**checkpoints.environment("cpu"), "torch": "9.9"}
    monkeypatch.setattr(checkpoints, "environment", lambda device: elsewhere)
    again = fleet()
    (told,) = Checkpointer(tmp_path, "run").resume(again)
    assert "torch" in told and "9.9" in told
    assert same(part, again)


# ── files made to harm: every checksum is right, what they say is not ─────────────────────────────────────


def rewritten(folder: Path, change: Callable[[dict[str, Tensor], dict[str, Any]], None]) -> Path:
    """The newest checkpoint with other contents, signed as if they were right."""
    record = folder / "0002-00000005.json"
    tensors = safetensors.torch.load_file(record.with_suffix(".safetensors"))
    content = checked_json(record.read_bytes())[0]
    change(tensors, content)
    return signed(record, safetensors.torch.save(tensors), content)


def signed(record: Path, packed: bytes, content: Any) -> Path:
    record.with_suffix(".safetensors").write_bytes(packed)
    content["tensors"] = {"bytes": len(packed), "sha256": hashlib.sha256(packed).hexdigest()}
    record.write_text(with_checksum(content))
    return record


def put(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    return lambda tensors, content: tensors.update({name: make(tensors[name])})


def count(name: str, value: Any) -> Callable[[dict[str, Tensor], dict[str, Any]], None]:
    return lambda tensors, content: content["counters"].update({name: value})


def poisoned(value: float) -> Callable[[Tensor], Tensor]:
    def poison(tensor: Tensor) -> Tensor:
        tensor[..., -1] = value
        return tensor

    return poison


HOSTILE = {
    "wrong shape": (put("theta", lambda t: t[:, :-1].clone()), "theta is float32"),
    "more runs": (put("theta", lambda t: t.repeat(2, 1)), "theta is float32"),
    "wrong type": (put("theta", Tensor.double), "float64"),
    "no number": (put("method.score", poisoned(float("nan"))), "method.score holds something"),
    "infinite": (put("optimizer.square", poisoned(float("inf"))), "optimizer.square"),
    "no accuracy": (put("accuracy.single", poisoned(1.5)), "accuracy.single"),
    "examples out of range": (put("exemplars.1", lambda t: t + 10**9), "exemplars.1"),
    "negative examples": (put("exemplars.0", lambda t: t - 10**9), "exemplars.0"),
    "task beyond": (count("task", 10**6), "task"),
    "negative step": (count("step", -1), "step"),
    "step beyond": (count("step", 10**9), "step"),
    "truth as a number": (count("task", True), "task"),
    "text as a number": (count("step", "5"), "step"),
    "nobody stopped": (count("stopped", []), "stopped"),
    "stopped by a number": (count("stopped", [3]), "stopped"),
    "other classes": (count("groups", [[0, 5]]), "exemplars"),
    "other run": (lambda t, c: c.update(identity="other"), "another run"),
    "other format": (lambda t, c: c.update(format=99), "format 99"),
    "environment": (lambda t, c: c.update(environment=["x"]), "environment"),
}


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_checkpoint_made_to_harm_is_refused_and_changes_nothing(attack: str, tmp_path: Path) -> None:
    trained(tmp_path)
    change, reason = HOSTILE[attack]
    record = rewritten(tmp_path, change)
    victim = fleet()
    with pytest.raises(InputError) as caught:
        load(record, victim, "run")
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert same(victim, fleet())


def test_a_huge_shape_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    trained(tmp_path)
    record = tmp_path / "0002-00000005.json"
    header = json.dumps({"theta": {"dtype": "F32", "shape": [1, 2**40], "data_offsets": [0, 2**42]}}).encode()
    for packed in (len(header).to_bytes(8, "little") + header, (2**62).to_bytes(8, "little") + header):
        signed(record, packed, checked_json(record.read_bytes())[0])
        with pytest.raises(InputError, match="damaged"):
            load(record, fleet(), "run")


def test_a_sound_checkpoint_is_taken_by_the_same_door(tmp_path: Path) -> None:
    part, again = trained(tmp_path), fleet()
    load(rewritten(tmp_path, lambda tensors, content: None), again, "run")
    assert same(part, again)


def test_a_state_that_is_about_to_stop_is_not_saved(tmp_path: Path) -> None:
    broken = fleet()
    broken.theta[0, 0] = float("nan")
    save(tmp_path, broken, "run", "eager")
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes]:
    folder = tmp_path_factory.mktemp("sound")
    trained(folder)
    return (folder / "0002-00000005.json").read_bytes(), (folder / "0002-00000005.safetensors").read_bytes()


@settings(max_examples=150)
@given(data=st.data())
def test_no_bytes_make_loading_fail_otherwise(
    sound: tuple[bytes, bytes], data: st.DataObject, tmp_path: Path
) -> None:
    """Bytes at random, anywhere, with checksums that fit: taken or refused, in one line."""
    record, packed = (bytearray(part) for part in sound)
    # The header decides about allocations, so it is hit more often than the numbers.
    for place in data.draw(st.lists(st.integers(0, 3000) | st.integers(0, len(packed) - 1), max_size=8)):
        packed[place] = data.draw(st.integers(0, 255))
    packed = packed[: data.draw(st.just(len(packed)) | st.integers(0, len(packed)))]
    path = tmp_path / "0002-00000005.json"
    signed(path, bytes(packed), checked_json(bytes(record))[0])
    if data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(record) - 1))
        path.write_bytes(bytes(record[:place]) + data.draw(st.binary(max_size=20)) + bytes(record[place + 1 :]))
    try:
        load(path, fleet(), "run")
    except InputError as error:
        assert "\n" not in str(error)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(
    where=st.sampled_from(
        ["format", "identity", "environment", "counters", *("task", "step", "stopped", "groups"), "new"]
    ),
    value=JSON,
)
def test_no_record_makes_loading_fail_otherwise(
    sound: tuple[bytes, bytes], where: str, value: Any, tmp_path: Path
) -> None:
    record, packed = sound
    content = checked_json(record)[0]
    (content["counters"] if where in content["counters"] else content)[where] = value
    path = signed(tmp_path / "0002-00000005.json", packed, content)
    try:
        load(path, fleet(), "run")
    except InputError as error:
        assert "\n" not in str(error)
