"""The parts that learners are made of: methods, losses, projectors, solvers; by name, and stacked for a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar, get_type_hints

import torch
from torch import Tensor

from rwalk.errors import InputError, unknown
from rwalk.losses import LOSSES, Loss
from rwalk.methods import METHODS, Method
from rwalk.part_names import in_order
from rwalk.projectors import PROJECTORS, Projector
from rwalk.registry import MOVED, full_name, imported, installed
from rwalk.solvers import SOLVERS, Solver

Part = Method | Loss | Projector | Solver
SomePart = TypeVar("SomePart")
# Published variants outside the package, and the parts whose settings and defaults they share.
VARIANTS = {
    "rwalk-2018": "rwalk",
    "rwalk-euclidean": "rwalk",
    "rwalk-undivided": "rwalk",
    "icarl-2020": "icarl",
    "er-tasks": "er",
}


@cache
def parts() -> dict[str, type[Part]]:
    """All our named parts, oldest first, so that colours in reports do not change."""
    found: dict[str, type[Part]] = {**METHODS, **LOSSES, **PROJECTORS, **SOLVERS}
    return {name: found[name] for name in in_order(found)}


def find(name: str) -> type[Part]:
    """A part by its name, or by `package.module:Name`."""
    if name in parts():
        return parts()[name]
    name = full_name("methods", name, parts())
    if ":" not in name and name not in MOVED:
        raise unknown("method", name, [*parts(), *installed("methods"), "package.module:Name"])
    kind = imported(name, "method")
    if not (isinstance(kind, type) and issubclass(kind, Part)):
        raise InputError(f"method {name!r} is no Method, Loss, Projector or Solver of rwalk: make it one")
    return kind


def like(name: str) -> type[Part] | None:
    """Our part of a name, or the one that a published variant shares its settings with; None for a user's own."""
    return parts().get(VARIANTS.get(name, name))


@cache
def variant(name: str) -> type[Part] | None:
    """A published variant, if Python finds it."""
    try:
        return find(name) if name in VARIANTS else None
    except InputError:
        return None


def made(name: str, settings: dict[str, Any]) -> Part:
    """A part with these hyper-parameters; unknown ones are refused by name."""
    kind = find(name)
    known = [field.name for field in fields(kind)]
    for setting in settings:
        if setting not in known:
            raise InputError(f"{name} has no {setting!r} (it has: {', '.join(known) or 'nothing to set'})")
    return kind(**settings)


def defaults(name: str) -> dict[str, Any]:
    """The defaults of a part's hyper-parameters; none for a user's own part, whose defaults may change."""
    kind = like(name)
    return {} if kind is None else {each.name: each.default for each in fields(kind)}


def stack(each: Sequence[SomePart], like: Tensor, columns: bool = False) -> SomePart:
    """One part for a fleet: a hyper-parameter that differs between runs becomes a tensor.

    [R, 1] in a method, whose vectors are [R, P]; [R] in a loss, whose values are [R]. With `columns` every
    hyper-parameter of a method becomes one, so that compiled code is not specialised to any value.
    """
    first: Any = each[0]
    if any(type(one) is not type(first) for one in each):
        raise InputError("the runs of one fleet share their method; put different methods into different fleets")
    stacked: dict[str, Any] = {}
    numbers = per_run(type(first))
    for field in fields(first):
        values = [getattr(one, field.name) for one in each]
        differ = any(value != values[0] for value in values)
        if differ and field.name not in numbers:
            raise InputError(
                f"the runs of one fleet must agree on {field.name}, got {values}: put them into different fleets"
            )
        if differ or (columns and field.name in numbers):
            tensor = torch.tensor(values, dtype=like.dtype, device=like.device)
            stacked[field.name] = tensor if isinstance(first, Loss) else tensor[:, None]
    return replace(first, **stacked)  # type: ignore[no-any-return]


def per_run(kind: type[Any]) -> frozenset[str]:
    """The hyper-parameters in which the runs of one fleet may differ: the numeric ones of methods and losses."""
    if issubclass(kind, Projector | Solver):
        return frozenset()
    try:
        types = get_type_hints(kind)  # not the fields' own: those are strings in some modules, types in others
    except NameError as error:
        raise InputError(f"the fields of {kind.__name__} cannot be read ({error}): import their types") from error
    return frozenset(each.name for each in fields(kind) if types[each.name] in (float, float | Tensor))
