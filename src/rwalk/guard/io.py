"""What a guard has learned, as a file or a dictionary: written once, and believed only after it was checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rwalk import sealed
from rwalk.errors import InputError
from rwalk.guard.drift.anchor import Anchor
from rwalk.guard.select import some
from rwalk.guard.state.grow import check_fits
from rwalk.guard.state.parameter import Piece
from rwalk.methods import METHODS, Method
from rwalk.sealed import expect, is_whole, shown

FORMAT = "rwalk.Guard/2"
FIRST_FORMAT = "rwalk.guard.1"  # without a checksum; still read
PRECISIONS = (torch.float64, torch.float32, torch.bfloat16)
KEYS = {"method", "tasks", "steps", "tensors"}
KEPT = "@"  # before the names of tensors that are no method's vectors: probes, and what was predicted on them

Vectors = dict[str, dict[str, Tensor]]  # by parameter, by vector


def write(path: Path, state: Mapping[str, Any]) -> None:
    record = {key: value for key, value in state.items() if key not in ("tensors", "keeper")}
    tensors = dict(state["tensors"])
    if "keeper" in state:
        kept = dict(state["keeper"])
        tensors |= {KEPT + name: tensor for name, tensor in kept.pop("tensors").items()}
        record["keeper"] = kept
    # Tensors may share memory (rows of one batch), which safetensors refuses.
    sealed.write(path, FORMAT, record, {name: tensor.cpu().clone() for name, tensor in tensors.items()})


def read(path: Path) -> dict[str, Any]:
    """A state, as somebody wrote it: whole, but not checked."""
    metadata, tensors = sealed.read(path)
    if FIRST_FORMAT in metadata:
        record = sealed.parsed(metadata[FIRST_FORMAT])
    elif metadata.get("format") == FORMAT:
        record = sealed.unsealed(metadata, tensors)
    else:
        raise InputError("it was not written by Guard.save: give a file that was")
    state = {**record, "tensors": {name: each for name, each in tensors.items() if not name.startswith(KEPT)}}
    if isinstance(record.get("keeper"), dict):
        kept = {name.removeprefix(KEPT): each for name, each in tensors.items() if name.startswith(KEPT)}
        state["keeper"] = {**record["keeper"], "tensors": kept}
    return state


# ── the method ───────────────────────────────────────────────────────────────────────────────────────────────


def description(method: Method | Anchor) -> dict[str, Any]:
    """What a file says of a method: of one of the user's own, its name alone, for the rest is code."""
    if isinstance(method, Anchor):
        return {"name": method.name, "weight": method.weight, "every": method.every, "batch": method.batch}
    kind = type(method)
    if METHODS.get(getattr(method, "name", "")) is kind:
        return {"name": method.name, **asdict(method)}
    return {"name": f"{kind.__module__}:{kind.__qualname__}"}


def method_in(state: Mapping[str, Any]) -> Method | Anchor:
    """The method a state was saved with, its hyper-parameters checked."""
    name = _name_of_method(state)
    if name == Anchor.name:
        expect(state["method"].keys() == {"name", "weight", "every", "batch"}, "its method")
        return Anchor(**{key: value for key, value in state["method"].items() if key != "name"})
    if name not in METHODS:
        raise InputError(f"its method {shown(name)} is none of {', '.join(METHODS)}: give method=, your own")
    kind = METHODS[name]
    given = {key: value for key, value in state["method"].items() if key != "name"}
    expected = {field.name: field.default for field in fields(kind)}
    for key in given.keys() ^ expected.keys():
        problem = "lacks the" if key in expected else "has an unknown"
        raise InputError(f"its method {name} {problem} hyper-parameter {shown(key)}: give method=")
    return kind(**{key: _like(value, expected[key], key) for key, value in given.items()})


def _like(value: Any, default: Any, name: str) -> Any:
    """A hyper-parameter of the type that its default has; its range is the method's to check."""
    if isinstance(default, float) and type(value) in (int, float):
        try:
            return float(value)
        except OverflowError:
            pass
    expect(type(value) is type(default), f"the hyper-parameter {name}")
    return value


def _name_of_method(state: Mapping[str, Any]) -> str:
    method = state.get("method")
    expect(isinstance(method, dict) and isinstance(method.get("name"), str), "its method")
    return str(state["method"]["name"])


# ── what was learned ─────────────────────────────────────────────────────────────────────────────────────────


def checked(state: Any, method: Method | Anchor, pieces: Mapping[str, Piece]) -> Vectors:
    """The vectors of a state, if this method could have made them for these parameters."""
    said = state.keys() - {"keeper"} if isinstance(state, Mapping) else None
    if said != KEYS or not isinstance(state["tensors"], Mapping):
        raise InputError("this is no guard's state: give what guard.state_dict() returned")
    name = _name_of_method(state)
    ours = isinstance(method, Anchor) or type(method) in METHODS.values()
    if name != description(method)["name"] and name in (*METHODS, Anchor.name) and ours:
        raise InputError(f"what was saved is {name}'s, this guard's method is {method.name}: use the same")
    expect(is_whole(state["tasks"], 0), "the number of tasks")
    expect(is_whole(state["steps"], 0), "the number of steps")
    vectors = _by_parameter(state["tensors"])
    strangers = [name for name in vectors if name not in pieces]
    if strangers:
        raise InputError(
            f"{len(strangers)} of {len(vectors)} parameters saved are not guarded here ({some(strangers)}; "
            f"guarded: {some(pieces)}): give the model they came from, and the same params= and lora="
        )
    if isinstance(method, Anchor):
        expect(not vectors, "the vectors of an anchor, which has none")
        return vectors
    for name, of_parameter in vectors.items():
        _check_numbers(pieces[name], of_parameter)
    _check_names(vectors, method, state["tasks"], state["steps"])
    for name, of_parameter in vectors.items():
        springs = method.springs({key: vector[None] for key, vector in of_parameter.items()})
        expect(all(bool((importance >= 0).all()) for _, importance, _ in springs), f"the importance of {name}")
    return vectors


def _by_parameter(tensors: Mapping[Any, Any]) -> Vectors:
    vectors: Vectors = {}
    for key, tensor in tensors.items():
        sound = isinstance(key, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
        expect(sound and tensor.dtype in PRECISIONS, f"its tensor {shown(key)}")
        vector, _, parameter = key.partition("/")
        vectors.setdefault(parameter, {})[vector] = tensor
    return vectors


def _check_numbers(piece: Piece, vectors: Mapping[str, Tensor]) -> None:
    check_fits(piece, vectors, piece.parameter)
    shapes = {vector.shape for vector in vectors.values()}
    expect(len(shapes) == 1, f"the shapes of {piece.name}'s vectors")
    empty = 0 in next(iter(shapes))
    expect(not empty or 0 in piece.parameter.shape, f"the shape of {piece.name}'s vectors")
    for name, vector in vectors.items():
        # In the precision they will be used in: what is finite in float64 need not be in float32.
        if not vector.to(piece.storage.worked_in).isfinite().all():
            raise InputError(
                f"{name}/{piece.name} is not finite: it was saved after a gradient was not; take an older copy"
            )


def _check_names(vectors: Vectors, method: Method, tasks: int, steps: int) -> None:
    """Each parameter has the vectors of some number of tasks, and one at least was consolidated."""
    most = max((len(of_parameter) for of_parameter in vectors.values()), default=0)
    # Every task may add vectors: one round more than there are vectors shows all that there can be.
    made = vectors_made(method, min(tasks, most + 1))
    # A parameter may have joined in the task under way; EWC's pass may not have reached one.
    not_yet = [made[0]] if steps or method.data_pass or not tasks else []
    possible = [*not_yet, *made[1:]]
    for name, of_parameter in vectors.items():
        if of_parameter.keys() not in possible:
            wrong = min((names ^ of_parameter.keys() for names in reversed(possible)), key=len)
            raise InputError(
                f"{name} has not the vectors that {type(method).__name__} makes in {tasks} tasks: "
                f"{some(sorted(wrong))} cannot be right; use another copy"
            )
    holds = any(of_parameter.keys() in made[1:] for of_parameter in vectors.values())
    grows = vectors_made(method, 1)[-1] != made[0]
    expect(holds or not tasks or not grows, f"{tasks} tasks without an anchor")


def vectors_made(method: Method, tasks: int) -> list[set[str]]:
    """The names of the vectors a method holds after 0, 1, … tasks: found by asking it, on one parameter."""
    theta = torch.zeros(1, 1)
    state = method.start(theta)
    names = [set(state)]
    zero = torch.zeros((), dtype=torch.float64)
    for _ in range(tasks):
        ranges = dict.fromkeys(method.scales, (zero, zero + 1))
        method.consolidate(state, theta, torch.zeros(1, 1) if method.data_pass else None, ranges)
        names.append(set(state))
    return names
