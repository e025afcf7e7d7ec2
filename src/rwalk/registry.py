"""Parts by name: ours, found automatically, one file each, and the user's own, named `package.module:Name`.

An installed package may declare short names for its parts, as entry points of the groups `rwalk.methods`,
`rwalk.networks`, `rwalk.samplers`, `rwalk.augmentations` and `rwalk.encoders`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Container
from functools import cache
from importlib.metadata import entry_points
from typing import Any, TypeVar

from rwalk.errors import InputError, unknown

Kind = TypeVar("Kind")
# Published variants, which are part of the repository's `reproduction`, not of the package. Rows and studies name
# them by their names alone.
MOVED = {
    "rwalk-2018": "reproduction.variants:RWalk2018",
    "rwalk-euclidean": "reproduction.variants:RWalkEuclidean",
    "rwalk-undivided": "reproduction.variants:RWalkUndivided",
    "icarl-2020": "reproduction.variants:ICaRL2020",
    "er-tasks": "reproduction.variants:ERByTasks",
    "mof-plain": "reproduction.variants:MOF_PLAIN",
    "mlp-100": "reproduction.variants:mlp_100",
    "mlp-400": "reproduction.variants:mlp_400",
    "mlp-1000": "reproduction.variants:mlp_1000",
    "mlp-normal": "reproduction.variants:mlp_normal",
    "cnn-normal": "reproduction.variants:cnn_normal",
    "cnn-5": "reproduction.variants:cnn_5",
    "cnn-5-normal": "reproduction.variants:cnn_5_normal",
}


def discovered(package: str, base: type[Kind]) -> dict[str, type[Kind]]:
    """By name, the named subclasses of `base` that the modules of a package define."""
    found: dict[str, type[Kind]] = {}
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        content = importlib.import_module(f"{package}.{module.name}")
        for kind in vars(content).values():
            defined_here = isinstance(kind, type) and kind.__module__ == content.__name__
            if defined_here and issubclass(kind, base) and (name := vars(kind).get("name")):
                found[name] = kind
    return found


@cache
def installed(group: str) -> dict[str, str]:
    """`package.module:Name` by the short names that installed packages declare; nothing is imported."""
    return {each.name: each.value for each in entry_points(group=f"rwalk.{group}") if ":" in each.value}


def full_name(group: str, name: str, ours: Container[str]) -> str:
    """`package.module:Name` for the short name of an installed part; any other name as it is."""
    return name if name in ours or name in MOVED or ":" in name else installed(group).get(name, name)


def imported(name: str, what: str) -> Any:
    """The object that `package.module:name` names, or a published variant by its name."""
    module, _, attribute = MOVED.get(name, name).partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        if name in MOVED:
            raise InputError(
                f"{what} {name!r} is {MOVED[name]} now: use it in a clone of rwalk's repository, from its root"
            ) from None
        raise InputError(
            f"{what} {name!r} cannot be imported ({error}): name a module that Python finds"
        ) from error
    return found


def found(what: str, name: str, known: dict[str, type[Kind]], base: type[Kind]) -> type[Kind]:
    """One of ours by its name, or the user's own by `package.module:Name`."""
    if name in known:
        return known[name]
    name = full_name(f"{what}s", name, known)
    if ":" not in name:
        raise unknown(what, name, [*known, *installed(f"{what}s"), "package.module:Name"])
    kind = imported(name, what)
    if not (isinstance(kind, type) and issubclass(kind, base)):
        article = "an" if base.__name__[0] in "AEIOU" else "a"
        raise InputError(f"{what} {name!r} is not {article} {base.__name__} of rwalk: make it a subclass")
    return kind
