"""A guard's options: as they were given, in files, and under the names they had in 0.2."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from rwalk.errors import InputError
from rwalk.guard.drift.anchor import Anchor
from rwalk.guard.drift.divergences import DIVERGENCES
from rwalk.guard.drift.probes import Call, Probes
from rwalk.guard.guard_file import method_in
from rwalk.guard.select import Params
from rwalk.methods import Method
from rwalk.model_file import expect


@dataclass(frozen=True)
class StateOptions:
    """Where and how precisely a guard keeps its per-parameter state.

    Args:
        dtype: "8bit" for less than half the memory; by default that of the parameters, float32 at least.
        device: "cpu" keeps state in host memory, and brings it to the parameters a chunk at a time.
    """

    dtype: Literal["8bit"] | None = None
    device: Literal["cpu"] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in (None, "8bit"):
            raise InputError(f"dtype must be '8bit' or None, not {self.dtype!r}")
        if self.device not in (None, "cpu"):
            raise InputError(f"device must be 'cpu' or None, not {self.device!r}")


@dataclass(frozen=True)
class Given:
    """The options of `Guard`.

    Args:
        call: a function of the model and a batch, from 0.2's `predict=`; `rwalk.Probes` has it now.
    """

    method: Method | Anchor | str | None
    probes: Any
    budget: float | None
    params: Params | None
    divergence: Any
    outputs: Any
    state: StateOptions | None
    call: Call | None = None

    def __post_init__(self) -> None:
        if self.state is not None and not isinstance(self.state, StateOptions):
            raise InputError(f"state must be rwalk.StateOptions(dtype=…, device=…), not {self.state!r}")
        if not (self.params is None or isinstance(self.params, str) or callable(self.params)):
            object.__setattr__(self, "params", tuple(self.params))


# Names of 0.2, and what to write now. They work for one release.
OLD = {
    "share": "leave it out: drift is read at every pull",
    "every": "method=rwalk.Anchor(every=…)",
    "step_back": "leave it out: guard.finish() keeps the budget",
    "predict": "probes=rwalk.Probes(inputs, call=…)",
    "dtype": "state=rwalk.StateOptions(dtype='8bit'), which replaces torch.bfloat16",
    "offload": "state=rwalk.StateOptions(device=…)",
    "lora": "leave it out: adapters are held by their factors",
    "compile": "leave it out: steps on a CPU are no longer compiled",
    "hooks": "leave it out: all steps are guarded by the optimizer's hooks",
}


def translated(given: Given, old: Mapping[str, Any]) -> Given:
    """The options with those under old names among them."""
    for name in old:
        if name not in OLD:
            known = "method, probes, budget, params, divergence, outputs and state"
            raise InputError(f"Guard has no option {name!r}: it has {known}")
        warnings.warn(f"Guard's option {name}= is deprecated: {OLD[name]}", FutureWarning, stacklevel=4)
    state = given.state or StateOptions()
    fields = {"dtype": "dtype", "offload": "device"}
    changed = {field: old[name] for name, field in fields.items() if old.get(name) not in (None, torch.float32)}
    if changed.get("dtype") == torch.bfloat16:
        changed["dtype"] = "8bit"
    given = replace(given, state=replace(state, **changed)) if changed else given
    if old.get("predict") is not None:
        given = replace(given, call=old["predict"])
    if old.get("every") is not None and (given.method is None or isinstance(given.method, Anchor)):
        given = replace(given, method=replace(given.method or Anchor(), every=old["every"]))
    return given


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────


def saved(given: Given, names: Sequence[str]) -> dict[str, Any]:
    """Plain values, fit for JSON; of functions nothing can be written, so they have to be given again."""
    state = given.state or StateOptions()
    params = list(names) if callable(given.params) else given.params
    return {
        "budget": given.budget,
        "params": list(params) if isinstance(params, tuple) else params,
        "divergence": given.divergence if _is_plain(given.divergence) else None,
        "outputs": given.outputs if _is_plain(given.outputs) else None,
        "state": {"dtype": state.dtype, "device": state.device},
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(each) for key, each in value.items())
    return value is None or isinstance(value, str)


def restored(
    state: Mapping[str, Any], method: Method | Anchor | str | None, probes: Any, given: Mapping[str, Any]
) -> Given:
    """The options of a file, where none are given."""
    names = {"budget", "params", "divergence", "outputs", "state"}
    for name in given.keys() - names:
        raise InputError(f"Guard.load has no option {name!r}: it has method, probes, {', '.join(sorted(names))}")
    found = dict(_checked(state.get("options")))
    if isinstance(probes, Probes):  # these hold their divergence and outputs
        found.update(divergence=None, outputs=None)
    found.update(given)
    method = method_in(state) if method is None else method
    return Given(method, probes, **found)


def _checked(found: Any) -> dict[str, Any]:
    if found is None:  # files of 0.2 hold none
        return dict.fromkeys(("budget", "params", "divergence", "outputs", "state"))
    expect(isinstance(found, Mapping), "its options")
    expect(found.keys() == {"budget", "params", "divergence", "outputs", "state"}, "its options")
    budget, params, state = found["budget"], found["params"], found["state"]
    expect(budget is None or (type(budget) in (int, float) and 0 < budget < 1e300), "its budget")
    listed = isinstance(params, list) and all(isinstance(each, str) for each in params)
    expect(params is None or isinstance(params, str) or listed, "its params")
    expect(isinstance(state, Mapping) and state.keys() == {"dtype", "device"}, "its state options")
    for each in (found["divergence"], found["outputs"]):
        expect(_is_plain(each), "its divergence")
    named = found["divergence"]
    expect(not isinstance(named, str) or named in DIVERGENCES, "its divergence")
    return {**found, "state": StateOptions(**state)}
