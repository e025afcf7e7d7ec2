"""A guard's state as a dictionary and as a file: every value is checked when it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from rwalk import model_file
from rwalk.errors import InputError
from rwalk.escaping import shown
from rwalk.guard.drift import batches
from rwalk.guard.drift.anchor import Anchor, Schedule
from rwalk.guard.drift.batches import Batch
from rwalk.guard.drift.divergences import DIVERGENCES, Divergence, Kept
from rwalk.guard.drift.probes import Probes
from rwalk.guard.select import some
from rwalk.guard.state.parameter import ParameterState, check_fits
from rwalk.guard.state.sharded import fitted, gathered, is_sharded
from rwalk.methods import METHODS, Method
from rwalk.model_file import expect, is_whole

FORMAT = "rwalk.Guard/3"
SECOND_FORMAT = "rwalk.Guard/2"  # of 0.2: with probes, without options; still read
PRECISIONS = (torch.float64, torch.float32, torch.bfloat16)
KEYS = {"method", "tasks", "steps", "tensors"}
KEPT = "@"  # before the names of tensors of the drift state: probes, old outputs, old weights

Vectors = dict[str, dict[str, Tensor]]  # by parameter, by vector


def write(path: Path, state: Mapping[str, Any]) -> None:
    """One file: tensors, and the rest as a record."""
    record = {key: value for key, value in state.items() if key not in ("tensors", "drift")}
    tensors = dict(state["tensors"])
    if "drift" in state:
        drift = dict(state["drift"])
        tensors |= {KEPT + name: tensor for name, tensor in drift.pop("tensors").items()}
        record["drift"] = drift
    # Tensors may share memory (rows of one batch), which safetensors refuses.
    model_file.write(path, FORMAT, record, {name: tensor.cpu().clone() for name, tensor in tensors.items()})


def read(path: Path) -> dict[str, Any]:
    """A state as it was written, with the right checksum; its values are not checked yet."""
    metadata, tensors = model_file.read(path)
    if metadata.get("format") not in (FORMAT, SECOND_FORMAT):
        raise InputError("it was not written by Guard.save of rwalk 0.2 or later: give a file that was")
    record = model_file.unsealed(metadata, tensors)
    state = {**record, "tensors": {name: each for name, each in tensors.items() if not name.startswith(KEPT)}}
    for name in ("drift", "keeper"):
        if isinstance(record.get(name), dict):
            kept = {key.removeprefix(KEPT): each for key, each in tensors.items() if key.startswith(KEPT)}
            state[name] = {**record[name], "tensors": kept}
    return state


def current(state: Any) -> Mapping[str, Any]:
    """Convert a state of 0.2 to today's form."""
    if not isinstance(state, Mapping) or "keeper" not in state:
        return cast(Mapping[str, Any], state)
    state = dict(state)
    old = state.pop("keeper")
    expect(isinstance(old, Mapping) and isinstance(old.get("tensors"), Mapping), "its probes")
    forms, sets, held = old.get("forms"), old.get("sets"), old.get("held")
    expect(isinstance(forms, list) and isinstance(sets, list) and len(forms) == len(sets), "its probes")
    vectors = _by_parameter(state["tensors"])
    expect(isinstance(held, list) and all(name in vectors for name in held), "the anchors of its probes")
    tensors: dict[str, Tensor] = {}
    for name, tensor in old["tensors"].items():
        kind, _, rest = name.partition("/")
        if kind in ("logs", "classes"):
            tensors[f"kept/{rest}/logits/{kind}"] = tensor
        else:
            tensors[f"{'reference' if kind == 'old' else kind}/{rest}"] = tensor
    for name in held:  # their old values are the method's own anchors
        last = max((key for key in vectors[name] if key.startswith("anchor")), key=_task_of, default=None)
        expect(last is not None, "the anchors of its probes")
        tensors[f"reference/{name}"] = vectors[name][cast(str, last)]
    alike = {"own": False, "fingerprint": None, "divergences": {"logits": "kl"}}
    found = [{"form": form, **alike} for form in forms]
    return {**state, "drift": {"readings": [], "schedule": [1, 1, 0], "sets": found, "tensors": tensors}}


def _task_of(name: str) -> int:
    number = name.partition(".")[2]
    return int(number) if number.isdigit() else 0


# ── the method ───────────────────────────────────────────────────────────────────────────────────────────────


def description(method: Method | Anchor) -> dict[str, Any]:
    """A method as a record; for a method of the user's own the name alone, because the rest is code."""
    if isinstance(method, Anchor):
        return {"name": method.name, "weight": method.weight, "every": method.every, "batch": method.batch}
    kind = type(method)
    if METHODS.get(getattr(method, "name", "")) is kind:
        values = {
            key: float(value) if isinstance(value, float) else value for key, value in asdict(method).items()
        }
        return {"name": method.name, **values}  # plain, or torch.load(weights_only=True) refuses a checkpoint
    return {"name": f"{kind.__module__}:{kind.__qualname__}"}


def method_in(state: Mapping[str, Any]) -> Method | Anchor:
    """The method a state was saved with, its hyper-parameters checked."""
    name = _name_of_method(state)
    if name == Anchor.name:
        expect(state["method"].keys() == {"name", "weight", "every", "batch"}, "its method")
        return Anchor(**{key: value for key, value in state["method"].items() if key != "name"})
    if name not in METHODS:
        raise InputError(f"its method {shown(name, 80)} is none of {', '.join(METHODS)}: give method=, your own")
    kind = METHODS[name]
    given = {key: value for key, value in state["method"].items() if key != "name"}
    expected = {field.name: field.default for field in fields(kind)}
    given = {field.name: field.default for field in fields(kind) if field.metadata.get("later")} | given
    for key in given.keys() ^ expected.keys():
        problem = "lacks the" if key in expected else "has an unknown"
        raise InputError(f"its method {name} {problem} hyper-parameter {shown(key, 80)}: give method=")
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


# ── vectors ─────────────────────────────────────────────────────────────────────────────────────────────────


def checked(state: Any, method: Method | Anchor, parameters: Mapping[str, ParameterState]) -> Vectors:
    """The vectors of a state, if this method could have made them for these parameters."""
    names = state.keys() - {"drift", "options", "unused"} if isinstance(state, Mapping) else None
    if names != KEYS or not isinstance(state["tensors"], Mapping):
        raise InputError("this is no guard's state: give what guard.state_dict() returned")
    name = _name_of_method(state)
    ours = isinstance(method, Anchor) or type(method) in METHODS.values()
    if name != description(method)["name"] and name in (*METHODS, Anchor.name) and ours:
        raise InputError(f"what was saved is {name}'s, this guard's method is {method.name}: use the same")
    expect(is_whole(state["tasks"], 0), "the number of tasks")
    expect(is_whole(state["steps"], 0), "the number of steps")
    unused = state.get("unused", [])
    expect(isinstance(unused, list) and all(isinstance(each, str) for each in unused), "its unused parameters")
    vectors = _by_parameter(state["tensors"])
    strangers = [name for name in vectors if name not in parameters]
    if strangers:
        raise InputError(
            f"{len(strangers)} of {len(vectors)} parameters saved are not guarded here ({some(strangers)}; "
            f"guarded: {some(parameters)}): give the model they came from, and the same params="
        )
    if isinstance(method, Anchor):
        expect(not vectors, "the vectors of an anchor, which has none")
        return vectors
    for name, of_parameter in vectors.items():
        _check_numbers(parameters[name], of_parameter)
    _check_names(vectors, method, state["tasks"], state["steps"])
    for name, of_parameter in vectors.items():
        springs = method.springs({key: vector[None] for key, vector in of_parameter.items()})
        expect(all(bool((importance >= 0).all()) for _, importance, _ in springs), f"the importance of {name}")
    return vectors


def _by_parameter(tensors: Mapping[Any, Any]) -> Vectors:
    vectors: Vectors = {}
    for key, tensor in tensors.items():
        sound = isinstance(key, str) and isinstance(tensor, Tensor) and tensor.layout == torch.strided
        expect(sound and tensor.dtype in PRECISIONS, f"its tensor {shown(key, 80)}")
        vector, _, parameter = key.partition("/")
        vectors.setdefault(parameter, {})[vector] = tensor
    return vectors


def _check_numbers(state: ParameterState, vectors: Mapping[str, Tensor]) -> None:
    check_fits(state.name, vectors, state.parameter)
    shapes = {vector.shape for vector in vectors.values()}
    expect(len(shapes) == 1, f"the shapes of {state.name}'s vectors")
    empty = 0 in next(iter(shapes))
    expect(not empty or 0 in state.parameter.shape, f"the shape of {state.name}'s vectors")
    for name, vector in vectors.items():
        # In the precision of the equations: a number that is finite in float64 can be infinite in float32.
        if not vector.to(state.work_dtype).isfinite().all():
            raise InputError(
                f"{name}/{state.name} is not finite: it was saved after a gradient was not; take an older copy"
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


# ── probes and old outputs ───────────────────────────────────────────────────────────────────────────────────

PLAIN = (str, int, float, bool, type(None))
ToProbes = Callable[[Any], Probes]


def drift_state(sets: Sequence[Probes], schedule: Schedule, with_inputs: bool) -> dict[str, Any]:
    """Old outputs and readings; a model's own samples, and other inputs if `with_inputs`."""
    tensors: dict[str, Tensor] = {}
    found = []
    for number, probes in enumerate(sets):
        for index, kept in enumerate(probes.kept):
            tensors |= {
                f"kept/{number}/{index}/{output}/{key}": tensor.clone()
                for output, tensors_of in kept.items()
                for key, tensor in tensors_of.items()
            }
        written = with_inputs or probes.own
        if written:
            for index, batch in enumerate(probes.batches):
                leaves = enumerate(batches.tensors(batch))
                tensors |= {f"probe/{number}/{index}/{leaf}": tensor.clone() for leaf, tensor in leaves}
        found.append(
            {
                "form": [_form(batch) for batch in probes.batches] if written else None,
                "own": probes.own,
                "fingerprint": probes.fingerprint,
                "divergences": {name: each.name for name, each in probes.divergences.items()},
                **({"guessed": sorted(probes.guessed)} if probes.guessed else {}),  # before the first step
                **({} if probes.fitted is None else {"fitted": probes.fitted}),
            }
        )
    readings = [list(reading) for reading in schedule.readings]
    return {"readings": readings, "schedule": schedule.state, "sets": found, "tensors": tensors}


def whole(kind: str, tensors: Mapping[str, Tensor], parameters: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """Tensors by name as a file holds them; those of sharded parameters from all ranks."""
    return {
        f"{kind}/{name}": gathered(tensor, parameters[name]).clone() if name in parameters else tensor.clone()
        for name, tensor in tensors.items()
    }


def restored(
    state: Any,
    given: Sequence[Probes],
    to_probes: ToProbes,
    model: nn.Module,
    parameters: Mapping[str, ParameterState],
) -> tuple[list[Probes], dict[str, Tensor], dict[str, Tensor]]:
    """Probes with their old outputs, the reference's tensors and the last pull, all checked.

    Args:
        given: probes whose inputs a state may have left out.
        to_probes: makes probes of inputs, with the guard's own options.
        parameters: those guarded.
    """
    known = {"readings", "schedule", "sets", "tensors"}
    expect(isinstance(state, Mapping) and state.keys() == known, "its drift")
    tensors = state["tensors"]
    expect(
        isinstance(tensors, Mapping) and all(isinstance(each, Tensor) for each in tensors.values()), "its drift"
    )
    expect(isinstance(state["sets"], list) and bool(state["sets"]), "its probes")
    sets = [
        _restored_set(tensors, number, record, given, to_probes, model)
        for number, record in enumerate(state["sets"])
    ]
    old = _by_name(tensors, "reference/")
    for name, tensor in old.items():
        if name in parameters and is_sharded(parameters[name].parameter):
            old[name] = fitted(tensor, parameters[name].parameter).cpu()
    pulls = _by_name(tensors, "pull/")
    expect(pulls.keys() <= parameters.keys(), "its pull")
    for name, tensor in pulls.items():
        parameter = parameters[name].parameter
        check_fits(name, {"pull": tensor}, parameter)
        pulls[name] = fitted(tensor.to(parameter.dtype), parameter).to(parameter.device, copy=True)
    return sets, old, pulls


def _by_name(tensors: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    found = {name.removeprefix(kind): each for name, each in tensors.items() if name.startswith(kind)}
    expect(all(bool(tensor.isfinite().all()) for tensor in found.values()), "the old weights or the last pull")
    return found


def _restored_set(
    tensors: Mapping[str, Tensor],
    number: int,
    record: Any,
    given: Sequence[Probes],
    to_probes: ToProbes,
    model: nn.Module,
) -> Probes:
    expect(isinstance(record, Mapping), "its probes")
    expect(record.keys() - {"guessed", "fitted"} == {"form", "own", "fingerprint", "divergences"}, "its probes")
    fitted = record.get("fitted")
    expect(fitted is None or (type(fitted) is int and fitted > 0), "its probes")
    if record["form"] is not None:
        form = record["form"]
        expect(isinstance(form, list) and bool(form), "its probes")
        inputs = [_batch(each, _leaves(tensors, f"probe/{number}/{i}"), 0) for i, each in enumerate(form)]
        probes = to_probes(inputs) if number >= len(given) else given[number]
        probes.batches, probes.given, probes.fitted = inputs, None, fitted
        probes.own = bool(record["own"])
        changed = record["fingerprint"] is not None and probes.fingerprint != record["fingerprint"]
        expect(not changed, "the fingerprint of its probes")
    else:
        if number >= len(given):
            raise InputError("its probes were left out, being your data: give the same ones as probes=")
        probes = given[number]
        probes.read(model)
        probes.fitted = fitted
        probes.cut()
        if probes.fingerprint != record["fingerprint"]:
            raise InputError(
                "these are not the probes it was saved with: give the same inputs in the same order and batches, "
                "a DataLoader with shuffle=False; or write them into the file, guard.save(path, probes=True)"
            )
    named = record["divergences"]
    expect(isinstance(named, Mapping) and bool(named), "its divergences")
    probes.kept = [_kept(tensors, f"kept/{number}/{index}", named) for index in range(len(probes.batches))]
    probes.divergences = _divergences(probes, named)
    if list(named) == ["logits"] and record["fingerprint"] is None:  # of 0.2, which knew one output
        _rename_output(probes, model)
    guessed = record.get("guessed", [])
    expect(isinstance(guessed, list) and all(each in [*probes.divergences] for each in guessed), "its divergences")
    probes.guessed = set(guessed)
    return probes


def _divergences(probes: Probes, named: Mapping[str, Any]) -> dict[str, Divergence]:
    """By output. A function of the user's has to be given again."""
    chosen, found = probes.chosen(named), {}
    for output, name in named.items():
        expect(isinstance(name, str), "its divergences")
        each = DIVERGENCES.get(name) or chosen.get(output)
        if each is None or each.name != name:
            raise InputError(
                f"its outputs are compared by {shown(name, 80)}, a function of yours: give divergence= again"
            )
        found[str(output)] = each
    return found


def _rename_output(probes: Probes, model: nn.Module) -> None:
    name = probes.output_name(model)
    probes.kept = [{name: each["logits"]} for each in probes.kept]
    probes.divergences = {name: DIVERGENCES["kl"]}


def _kept(tensors: Mapping[str, Tensor], at: str, named: Mapping[str, Any]) -> dict[str, Kept]:
    found: dict[str, Kept] = {str(output): {} for output in named}
    for name, tensor in tensors.items():
        if name.startswith(at + "/"):
            output, _, key = name.removeprefix(at + "/").rpartition("/")
            expect(output in found, "its old outputs")
            found[output][key] = tensor
    for output, kept in found.items():
        expect(bool(kept), "its old outputs")
        if named[output] == "kl":
            _check_logs(kept)
        else:
            sound = all(not each.is_floating_point() or bool(each.isfinite().all()) for each in kept.values())
            expect(sound, "its old outputs")
    return found


def _check_logs(kept: Kept) -> None:
    logs, classes = kept.get("logs"), kept.get("classes")
    expect(logs is not None and logs.ndim == 2 and logs.is_floating_point(), "its old outputs")
    assert logs is not None
    expect(not logs.isnan().any() and bool((logs <= 0.01).all()), "its old outputs")
    if classes is not None:
        alike = classes.shape == (len(logs), logs.shape[1] - 1) and classes.dtype == torch.int32
        expect(alike and bool((classes >= 0).all()), "its predicted classes")
        columns = kept.get("columns")
        if columns is not None:
            expect(columns.ndim == 2 and bool((classes < len(columns)).all()), "its predicted classes")


# ── the structure of a batch ─────────────────────────────────────────────────────────────────────────────────


def _form(batch: Any) -> Any:
    if isinstance(batch, Tensor):
        return "tensor"
    if isinstance(batch, Mapping):
        return {"dict": {key: _form(value) for key, value in batch.items()}}
    if isinstance(batch, tuple | list):
        return {type(batch).__name__: [_form(value) for value in batch]}
    if isinstance(batch, PLAIN):
        return {"value": batch}
    raise InputError(
        f"probes with a {type(batch).__name__} in them cannot be saved: give tensors and plain values"
    )


def _batch(form: Any, leaves: Iterator[Tensor], depth: int) -> Batch:
    expect(depth < 10, "the form of its probes")
    if form == "tensor":
        leaf = next(leaves, None)
        expect(leaf is not None, "the tensors of its probes")
        return leaf
    expect(isinstance(form, Mapping) and len(form) == 1, "the form of its probes")
    ((kind, content),) = form.items()
    if kind == "dict" and isinstance(content, Mapping):
        return {key: _batch(value, leaves, depth + 1) for key, value in content.items()}
    if kind in ("tuple", "list") and isinstance(content, list):
        values = [_batch(value, leaves, depth + 1) for value in content]
        return tuple(values) if kind == "tuple" else values
    expect(kind == "value" and isinstance(content, PLAIN), f"the form of its probes ({shown(kind, 80)})")
    return content


def _leaves(tensors: Mapping[str, Tensor], at: str) -> Iterator[Tensor]:
    number = 0
    while (leaf := tensors.get(f"{at}/{number}")) is not None:
        yield leaf
        number += 1
