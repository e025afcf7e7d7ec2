"""The user's model and optimizer: which parameters to guard, and the optimizer that really steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase

from torch import nn
from torch.optim import LBFGS, Optimizer

from rwalk.errors import InputError
from rwalk.escaping import shown
from rwalk.methods import Method
from rwalk.private_torch import calls_step_hooks

Params = str | Iterable[str] | Callable[[str, nn.Parameter], bool]
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # what torch's wrappers put into parameters' names


def selected(model: nn.Module, params: Params | None) -> dict[str, nn.Parameter]:
    """The parameters to guard, under the names they have in the model without wrappers."""
    named = {plain(name): parameter for name, parameter in unwrapped(model).named_parameters()}
    chosen = _chosen(named, params)
    if not chosen:
        raise InputError(f"params selects none of the model's {len(named)} parameters ({some(named)})")
    return chosen


def _chosen(named: dict[str, nn.Parameter], params: Params | None) -> dict[str, nn.Parameter]:
    if params is None:
        return named
    if callable(params):
        return {name: parameter for name, parameter in named.items() if params(name, parameter)}
    patterns = [params] if isinstance(params, str) else list(params)
    for pattern in patterns:
        _check_pattern(pattern, named)
    return {name: p for name, p in named.items() if any(fnmatchcase(name, each) for each in patterns)}


def _check_pattern(pattern: object, named: Mapping[str, nn.Parameter]) -> None:
    if not isinstance(pattern, str):
        raise InputError("params takes names of parameters, or patterns of names, not parameters")
    if not any(fnmatchcase(name, pattern) for name in named):
        raise InputError(
            f"params: {pattern!r} matches none of the model's parameters ({some(named)}): "
            "patterns match whole names, as in '*lora_*'"
        )


def unwrapped(model: nn.Module) -> nn.Module:
    """The model without DistributedDataParallel and torch.compile around it."""
    while True:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(inner := getattr(model, "_orig_mod", None), nn.Module):
            model = inner
        else:
            break
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise InputError("FullyShardedDataParallel hides the parameters: shard with torch's fully_shard (FSDP2)")
    return model


def plain(name: str) -> str:
    """Without what torch's wrappers put into it."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def followed(optimizer: Optimizer, method: Method) -> Optimizer:
    """The optimizer to follow, if the method can be used with it."""
    optimizer = _with_hooks(optimizer)
    if isinstance(optimizer, LBFGS):
        raise InputError("LBFGS evaluates its closure many times per step: Guard needs one gradient per step")
    if any(group.get("maximize") for group in optimizer.param_groups):
        raise InputError("with maximize=True drift would be maximised too: leave it out, and negate the loss")
    if method.penalty == "proximal" and any("lr" not in group for group in optimizer.param_groups):
        raise InputError(
            "this optimizer has no learning rate 'lr': a budget needs one, and penalty='proximal' does; "
            "use penalty='gradient' and a lam of your own"
        )
    return optimizer


def _with_hooks(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose step calls hooks: Accelerate's and Lightning's are wrappers that do not."""
    while not calls_step_hooks(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            raise InputError(
                f"{type(optimizer).__name__} calls no step hooks: derive it from torch.optim.Optimizer, whose "
                "__init__ sets them up"
            )
        optimizer = inner
    return optimizer


def some(names: Iterable[str], most: int = 3) -> str:
    """A few names, fit to be printed."""
    names = list(names)
    listed = ", ".join(shown(name, 80) for name in names[:most])
    return listed + (f" and {len(names) - most} more" if len(names) > most else "")
