"""A guard's file brings it back exactly, or is refused in one line; nothing in between."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import SGD, Adam

from rwalk import model_file
from rwalk.errors import InputError
from rwalk.guard import Guard, Probes
from rwalk.guard import guard_file as files
from rwalk.methods import EWC, METHODS, PI, Method, RWalk, State
from test_guard import EVERY_METHOD, RWALK, assert_same, data, made, network, plain_step, saved, walk

Saved = dict[str, Any]
Change = Callable[[Saved], object]


def forged(path: Path, change: Change) -> Path:
    """The file with other contents, sealed as if they were right."""
    state = files.read(path)
    change(state)
    tensors = state.pop("tensors")
    record = state.pop("record", json.dumps(state))
    save_file(tensors, path, model_file.metadata(files.FORMAT, record, tensors))
    return path


def vectors(make: Callable[[Tensor], Tensor], *names: str) -> Change:
    """All vectors of these names, of the parameter "0.weight"."""

    def change(state: Saved) -> None:
        for name in names:
            state["tensors"][f"{name}/0.weight"] = make(state["tensors"][f"{name}/0.weight"]).contiguous()

    return change


def without(*names: str) -> Change:
    """All vectors of these names, of every parameter."""
    return lambda state: [state["tensors"].pop(key) for key in [*state["tensors"]] if key.split("/")[0] in names]


def poisoned(value: float) -> Callable[[Tensor], Tensor]:
    def poison(tensor: Tensor) -> Tensor:
        tensor.view(-1)[-1] = value
        return tensor

    return poison


def says(key: str, value: Any) -> Change:
    return lambda state: state.update({key: value})


def says_of_method(key: str, value: Any) -> Change:
    return lambda state: state["method"].update({key: value})


ALL = ("fisher", "path", "score", "origin", "importance", "anchor")
HOSTILE: dict[str, tuple[Change, str]] = {
    # vectors
    "no anchors": (without("anchor"), "anchor cannot be right"),
    "no importances": (without("importance"), "importance cannot be right"),
    "neither": (without("importance", "anchor"), "has not the vectors that RWalk makes in 1 tasks"),
    "neither, within a task": (
        lambda state: (without("importance", "anchor")(state), says("steps", 1)(state)),
        "1 tasks without an anchor",
    ),
    "no vectors at all": (says("tensors", {}), "1 tasks without an anchor"),
    "one parameter without an anchor": (lambda s: s["tensors"].pop("anchor/2.bias"), "2.bias has not the vectors"),
    "an extra vector": (lambda s: s["tensors"].update({"x/2.bias": torch.zeros(3)}), "x cannot be right"),
    "another method's vector": (
        lambda s: s["tensors"].update({"fisher.0/2.bias": torch.zeros(3)}),
        "fisher.0 cannot be right",
    ),
    "a name without a parameter": (
        lambda s: s["tensors"].update(anchor=torch.zeros(3)),
        "1 of 5 parameters saved",
    ),
    "a name that leads elsewhere": (
        lambda s: s["tensors"].update({"anchor/../../evil": torch.zeros(3)}),
        "../../evil; guarded",
    ),
    "a name a terminal obeys": (
        lambda s: s["tensors"].update({"anchor/\x1b[2J\nevil": torch.zeros(3)}),
        r"(\x1b[2J\nevil; guarded",
    ),
    "other dimensions": (vectors(lambda t: t.T, *ALL), "(6, 8)"),
    "one dimension less": (vectors(lambda t: t[0], *ALL), "(6,)"),
    "an importance of one row": (vectors(lambda t: t[:1], "importance"), "the shapes of 0.weight's vectors"),
    "nothing in every vector": (vectors(lambda t: t[:0], *ALL), "the shape of 0.weight's vectors"),
    "whole numbers": (vectors(Tensor.long, "importance"), "importance/0.weight"),
    "truth values": (vectors(Tensor.bool, *ALL), "0.weight"),
    "half precision": (vectors(Tensor.half, "score"), "score/0.weight"),
    "no number": (vectors(poisoned(float("nan")), "score"), "score/0.weight is not finite"),
    "an infinite anchor": (vectors(poisoned(float("-inf")), "anchor"), "anchor/0.weight is not finite"),
    "an importance that pushes away": (vectors(poisoned(-1e-3), "importance"), "the importance of 0.weight"),
    # counters
    "tasks as text": (says("tasks", "x"), "number of tasks"),
    "tasks below 0": (says("tasks", -1), "number of tasks"),
    "half a task": (says("tasks", 1.5), "number of tasks"),
    "truth as a number": (says("tasks", True), "number of tasks"),
    "tasks without number": (says("tasks", None), "number of tasks"),
    "more tasks than fit": (says("tasks", 2**63), "number of tasks"),
    "anchors before the first task": (says("tasks", 0), "has not the vectors"),
    "steps as text": (says("steps", "3"), "number of steps"),
    "steps below 0": (says("steps", -3), "number of steps"),
    "no steps": (lambda state: state.pop("steps"), "no guard's state"),
    "more than a guard says": (says("path", "/etc/passwd"), "no guard's state"),
    "unused parameters as a number": (says("unused", 5), "its unused parameters"),
    # the method
    "no method": (says("method", None), "its method"),
    "a method as a list": (says("method", ["rwalk"]), "its method"),
    "a method that is code": (says_of_method("name", "os:system"), "its method os:system is none of"),
    "a method with a number for a name": (says_of_method("name", 3), "its method"),
    "another method": (says_of_method("name", "pi"), "its method pi"),
    "an unknown hyper-parameter": (says_of_method("nonsense", 1), "unknown hyper-parameter nonsense"),
    "a missing hyper-parameter": (lambda state: state["method"].pop("lam"), "lacks the hyper-parameter lam"),
    "a hyper-parameter as text": (says_of_method("lam", "1"), "the hyper-parameter lam"),
    "a negative hyper-parameter": (says_of_method("lam", -1.0), "lam must be at least 0"),
    "a hyper-parameter beyond all numbers": (says_of_method("lam", 10**400), "the hyper-parameter lam"),
    "a window of truth": (says_of_method("dt", True), "the hyper-parameter dt"),
    "a penalty as a list": (says_of_method("penalty", []), "the hyper-parameter penalty"),
    "a Fisher that a guard cannot have": (says_of_method("fisher", "example"), "use fisher='batch'"),
    # the record
    "no object": (says("record", "[]"), "its record"),
    "no JSON": (says("record", "{"), "no JSON"),
    "JSON that only Python takes": (says("record", '{"tasks": NaN}'), "no JSON"),
    "JSON nested too deeply": (says("record", "[" * 100_000), "no JSON"),
}


def refused(path: Path, model: nn.Module, **options: Any) -> str:
    """One line that names the file; no guard stays active."""
    optimizer = Adam(model.parameters(), lr=0.02)
    with pytest.raises(InputError) as caught:
        Guard.load(path, model, optimizer, **options)
    assert str(path) in str(caught.value) and str(caught.value).isprintable()
    Guard(model, optimizer, RWALK).detach()
    return str(caught.value)


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_file_made_to_harm_is_refused(attack: str, tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    change, reason = HOSTILE[attack]
    assert reason in refused(forged(path, change), model)


EWC_HOSTILE: dict[str, tuple[Change, str]] = {
    "a Fisher without its anchor": (without("anchor.0"), "anchor.0 cannot be right"),
    "a task that is not counted": (
        lambda s: s["tensors"].update({f"{v}.1/2.bias": torch.zeros(3) for v in ("fisher", "anchor")}),
        "2.bias has not the vectors that EWC makes in 1 tasks",
    ),
    "tasks without end": (lambda state: (says("tasks", 2**62)(state), says("tensors", {})(state)), "without an"),
    "a Fisher that pushes away": (vectors(poisoned(-1.0), "fisher.0"), "the importance of 0.weight"),
}


@pytest.mark.parametrize("attack", EWC_HOSTILE)
def test_a_file_of_ewc_made_to_harm_is_refused(attack: str, tmp_path: Path) -> None:
    path, model = saved(tmp_path, EWC())
    change, reason = EWC_HOSTILE[attack]
    assert reason in refused(forged(path, change), model)


def test_a_number_too_large_for_the_parameters_is_refused(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    forged(path, vectors(poisoned(1e300), "anchor"))
    assert "anchor/0.weight is not finite" in refused(path, model.float())


def test_a_refused_state_changes_nothing(tmp_path: Path) -> None:
    """Also where the guard has learned something of its own, and only the last vector is wrong."""
    path, _ = saved(tmp_path)
    state = files.read(path)
    poisoned(float("nan"))(state["tensors"]["anchor/2.bias"])
    expected = walk(*made())
    model, optimizer, guard = made()
    walk(model, optimizer, guard, tasks=(0,))
    with pytest.raises(InputError, match=r"anchor/2\.bias is not finite"):
        guard.load_state_dict(state)
    assert guard.tasks == 1
    assert_same(expected, walk(model, optimizer, guard, tasks=(1,)))


def test_a_forged_file_with_nothing_forged_is_taken(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    before = files.read(path)
    guard = Guard.load(forged(path, lambda state: None), model, Adam(model.parameters(), lr=0.02))
    after = guard.state_dict()
    assert all(torch.equal(after["tensors"][name], tensor) for name, tensor in before["tensors"].items())
    assert {**after, "tensors": 0} == {**before, "tensors": 0}


def test_a_file_from_before_a_hyper_parameter_has_its_default(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    forged(path, lambda state: state["method"].pop("fisher_at"))
    guard = Guard.load(path, model, Adam(model.parameters(), lr=0.02))
    assert guard.state_dict()["method"]["fisher_at"] == "end"


@EVERY_METHOD
def test_what_joined_late_is_no_forgery(method: Method, tmp_path: Path) -> None:
    """Unfrozen in the second task: it has fewer vectors than the others, within that task and after it."""
    model, optimizer, guard = made(method)
    model[0].requires_grad_(False)
    walk(model, optimizer, guard, tasks=(0,))
    model[0].requires_grad_(True)
    for x, y in data(1, steps=2):
        plain_step(model, optimizer, guard, x, y)
    guard.save(tmp_path / "within")
    walk(model, optimizer, guard, tasks=(1,))
    guard.save(tmp_path / "after")
    guard.detach()
    for name, tasks in (("after", 2), ("within", 1)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("warnings.warn", lambda *_, **__: None)  # the weights are those after the task
            loaded = Guard.load(tmp_path / name, model, Adam(model.parameters(), lr=0.02))
        assert loaded.tasks == tasks
        loaded.detach()


# Damage


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    sound = path.read_bytes()
    for length in (0, 4, 8, 100, len(sound) // 2, len(sound) - 1):
        path.write_bytes(sound[:length])
        refused(path, model)
    draws = np.random.default_rng(0)
    for place in [*draws.integers(len(sound), size=30), len(sound) - 1]:
        flipped = bytearray(sound)
        flipped[place] ^= 1 << int(draws.integers(8))
        path.write_bytes(flipped)
        refused(path, model)
    path.write_bytes(pickle.dumps({"tasks": 1}))
    refused(path, model)
    save_file({"weight": torch.zeros(3)}, path)
    assert "not written by Guard.save" in refused(path, model)
    path.unlink()
    path.mkdir()
    assert "no such file" in refused(path, model)


def test_a_huge_shape_is_refused_before_anything_is_allocated(tmp_path: Path) -> None:
    path, model = saved(tmp_path)
    huge = {"anchor/0.weight": {"dtype": "F32", "shape": [2**20, 2**20], "data_offsets": [0, 2**42]}}
    header = json.dumps({"__metadata__": {"format": files.FORMAT}, **huge}).encode()
    for length in (len(header), 2**62):
        path.write_bytes(length.to_bytes(8, "little") + header)
        assert "damaged" in refused(path, model)


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, model = saved(tmp_path)
    before = path.read_bytes()
    guard = Guard.load(path, model, SGD(model.parameters(), lr=0.02))
    walk(model, guard.optimizer, guard, tasks=(1,))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*No space left"):
        guard.save(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_is_on_the_disk_when_save_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole file is flushed, and then the folder that names it."""
    flushed = []
    really = os.fsync

    def fsync(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").resolve() if Path("/proc/self/fd").exists() else None)
        flushed.append(os.fstat(descriptor).st_size)
        really(descriptor)

    monkeypatch.setattr("os.fsync", fsync)
    path, _ = saved(tmp_path)
    assert flushed[1] == path.stat().st_size
    assert len(flushed) == 4 and flushed[2] in (tmp_path.resolve(), None)


# Files of 0.2.0, and methods of one's own


@pytest.mark.parametrize("kind", ["anchor", "rwalk"])
def test_files_of_0_2_0_load_with_probes_and_old_outputs(kind: str) -> None:
    """Written by that version, five steps into the second task after begin()."""
    path = Path(__file__).parent / "files" / f"guard-0.2.0-{kind}.safetensors"
    old = "@old/" if kind == "anchor" else "anchor/"
    weights = {name.removeprefix(old): t for name, t in load_file(path).items() if name.startswith(old)}
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
    model.load_state_dict(weights)
    guard = Guard.load(path, model, Adam(model.parameters(), lr=0.02))
    assert (guard.method.name, guard.tasks, guard.steps) == (kind, 2, 5)
    assert guard.drift() < 1e-6 and guard.penalty() == pytest.approx(0, abs=1e-6)
    with torch.no_grad():
        model[0].weight += 0.5
    assert guard.drift() > 0.01 and guard.rewind(0.01) < 1
    assert guard.drift() <= 0.01


@dataclass(frozen=True)
class Careful(RWalk):
    """A method of one's own, with a hyper-parameter and a vector more."""

    care: float = 2.0

    def start(self, theta: Tensor) -> State:
        return {**super().start(theta), "care": torch.full_like(theta, self.care)}


@dataclass(frozen=True)
class Renamed(PI):
    """One that is like another in all but its name."""


def test_a_method_of_ones_own_comes_back_when_it_is_given(tmp_path: Path) -> None:
    method = Careful(lam=5.0, dt=3, care=3.0)
    whole = made(method)
    expected = walk(*whole)
    model, optimizer, guard = made(method)
    walk(model, optimizer, guard, tasks=(0,))
    guard.save(tmp_path / "file")
    guard.detach()
    assert refused(tmp_path / "file", model).endswith(
        f"its method test_guard_files:Careful is none of {', '.join(METHODS)}: give method=, your own"
    )
    assert "care cannot be right" in refused(tmp_path / "file", model, method=RWALK)
    guard = Guard.load(tmp_path / "file", model, optimizer, method)
    assert guard.method is method
    assert_same(expected, walk(model, optimizer, guard, tasks=(1,)))


def test_a_subclass_does_not_come_back_as_its_parent(tmp_path: Path) -> None:
    path, model = saved(tmp_path, Renamed())
    assert "give method=" in refused(path, model)
    assert Guard.load(path, model, Adam(model.parameters()), Renamed(lam=3.0)).method.lam == 3.0


# At random


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, nn.Module]:
    path, model = saved(tmp_path_factory.mktemp("sound"))
    return path.read_bytes(), model


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = [
    "method",
    "tasks",
    "steps",
    "options",
    "drift",
    "keeper",
    "new",
    *(f"method.{each}" for each in ("name", "lam", "dt", "penalty", "new")),
]


@settings(max_examples=150)
@given(where=st.sampled_from(KEYS), value=JSON)
def test_no_record_makes_loading_fail_otherwise(
    sound: tuple[bytes, nn.Module], where: str, value: Any, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    path.write_bytes(sound[0])

    def change(state: Saved) -> None:
        holder = state["method"] if where.startswith("method.") else state
        holder[where.removeprefix("method.")] = value

    try:
        Guard.load(forged(path, change), sound[1], SGD(sound[1].parameters(), lr=0.02)).detach()
    except InputError as error:
        assert "\n" not in str(error)


def test_state_in_a_checkpoint_is_read_by_torch_with_weights_only(tmp_path: Path) -> None:
    """A default λ is a float of a kind of its own, which torch.load refuses."""
    model, optimizer, guard = made(RWalk())
    walk(model, optimizer, guard)
    torch.save({"guard": guard.state_dict()}, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["guard"]
    guard.load_state_dict(state)


def test_load_takes_a_state_dict_with_its_options() -> None:
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    probes = data(1)[0][0]
    guard = Guard(model, optimizer, probes=probes, budget=0.02, params="0.*")
    state = guard.state_dict()
    guard.detach()
    again = Guard.load(state, model, optimizer, probes=probes)
    assert (again.budget, again.names, again.steps) == (0.02, guard.names, 0)
    again.detach()
    with pytest.raises(InputError, match="this state cannot be loaded: its probes were left out"):
        Guard.load(state, model, optimizer)


def test_load_with_probes_that_say_how_outputs_are_compared_takes_them(tmp_path: Path) -> None:
    """The file has divergence= beside probes=; it must not be read as given beside rwalk.Probes."""
    model = network()
    optimizer = SGD(model.parameters(), 0.1)
    inputs = data(1)[0][0]
    guard = Guard(model, optimizer, probes=inputs, divergence="mse")
    guard.save(tmp_path / "guard.safetensors")
    guard.detach()
    probes = Probes(inputs, divergence="mse")
    assert Guard.load(tmp_path / "guard.safetensors", model, optimizer, probes=probes).drift() == 0
