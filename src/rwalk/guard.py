"""Guard: the same methods in the user's own loop, around the user's own model and optimizer.

It works through the optimizer's step hooks, because there, and only there, the gradient is what the optimizer will
use: accumulated, unscaled, clipped. The pull goes into that gradient for the length of one step (or is taken as a
proximal step after it), never into the loss, and the method observes the gradient of the task's loss alone.

What could go wrong silently is an error or a warning here: see `_meet`, `_match`, `_ranges` and `_check_loaded`.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, Literal
from weakref import WeakSet

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rwalk.errors import InputError, unknown
from rwalk.methods import METHODS, Method, RWalk
from rwalk.methods.base import Ranges
from rwalk.pieces import Group, Piece
from rwalk.private_torch import calls_step_hooks

Params = str | Iterable[str] | Callable[[str, nn.Parameter], bool]
FORMAT = "rwalk.guard.1"
WANTS_LOSSES = (
    "consolidate() wants each batch's loss, one number with its graph, in a generator: "
    "guard.consolidate(criterion(model(x), y) for x, y in loader)"
)
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # what torch's wrappers put into parameters' names


class Guard:
    """Keep what a model has learned while it learns something new.

    model      any nn.Module; wrap it (DistributedDataParallel, fully_shard) before
    optimizer  any torch optimizer of its parameters that evaluates a closure at most once a step
    method     RWalk, EWCpp, PI, EWC or Vanilla, or the name of one
    params     which parameters to guard: patterns such as "*lora_*", or a function of name and parameter; all
    dtype      what the state is kept in: float32 (float64 for float64 parameters) or torch.bfloat16
    offload    "cpu" keeps the state, and works the equations out, on the CPU
    hooks      False for a loop that calls `before_step` and `after_step` around `optimizer.step()` itself

    >>> model = nn.Linear(2, 2)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> guard = Guard(model, optimizer, method=RWalk(lam=1.0))
    >>> for task in (torch.eye(2), torch.ones(2, 2)):
    ...     for x in task:
    ...         model(x).square().sum().backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()
    ...     guard.consolidate()
    >>> guard.tasks
    2
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method | str = RWalk(),  # noqa: B008 - frozen
        *,
        params: Params | None = None,
        dtype: torch.dtype | None = None,
        offload: Literal["cpu"] | None = None,
        hooks: bool = True,
    ) -> None:
        self.method = _method(method)
        _check_arguments(model, optimizer, self.method, dtype, offload)
        self.model = model
        self.tasks = 0  # consolidated so far
        self._steps = 0  # observed in the current task
        self._params = params if params is None or isinstance(params, str) or callable(params) else tuple(params)
        self._dtype = dtype
        self._offload = None if offload is None else torch.device(offload)
        self._hooked = hooks
        self._handles: list[Any] = []
        self._pieces: dict[nn.Parameter, Piece | None] = {}  # None: not guarded
        self._taking_part: list[tuple[Piece, float]] | None = None  # with learning rates; None between steps
        self.attach(optimizer)

    def __repr__(self) -> str:
        return f"Guard({self.method}, {len(self.names)} parameters, {self.tasks} tasks)"

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters guarded, under the names they have in the model without wrappers."""
        return tuple(piece.name for piece in self._guarded())

    @property
    def nbytes(self) -> int:
        """What the guard holds now, on this rank; docs/guard.md says how much it can become."""
        return sum(piece.nbytes for piece in self._guarded())

    # ── the optimizer ─────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, optimizer: Optimizer, model: nn.Module | None = None) -> None:
        """Follow another optimizer, or another model with the same parameters; what was learned is kept."""
        if self._hooked:
            optimizer = _stepping(optimizer)
        if isinstance(optimizer, LBFGS):
            raise InputError("LBFGS evaluates its closure many times a step: Guard needs one gradient a step")
        if self.method.penalty == "proximal" and any("lr" not in group for group in optimizer.param_groups):
            raise InputError("this optimizer has no learning rate 'lr': use penalty='gradient'")
        self.detach()
        self.optimizer = optimizer
        self.model = self.model if model is None else model
        self._match()
        for other in _ATTACHED:
            shared = any(other._pieces.get(parameter) for parameter, piece in self._pieces.items() if piece)
            if shared and other.optimizer is optimizer:
                raise InputError(
                    f"{other} guards these parameters already, and both would pull: go on with that one, or "
                    "detach() it before"
                )
        if self._hooked:
            self._handles = [
                optimizer.register_step_pre_hook(self._before_hook),
                optimizer.register_step_post_hook(self._after_hook),
            ]
        _watch_all_optimizers()
        _ATTACHED.add(self)

    def detach(self) -> None:
        """Stop guarding; `attach` goes on."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        _ATTACHED.discard(self)

    def _match(self) -> None:
        """Find the guarded parameters in the model; they may have been replaced, have grown or be new."""
        named = {_plain(name): p for name, p in _unwrapped(self.model).named_parameters()}
        chosen = _selected(named, self._params)
        held = {parameter for group in self.optimizer.param_groups for parameter in group["params"]}
        if held.isdisjoint(chosen.values()):
            raise InputError(
                f"the optimizer holds none of the {len(chosen)} parameters to guard ({_some(chosen)}): "
                "make it from the parameters of this very model, then guard.attach(optimizer)"
            )
        known = {piece.name: piece for piece in self._guarded()}
        self._pieces = {}
        for name, parameter in chosen.items():
            piece = known.pop(name, None) or Piece(name, parameter, self._dtype, self._offload)
            if piece.parameter is not parameter:
                piece.adopt(parameter, self.method)
            self._pieces[parameter] = piece
        self._pieces |= {parameter: None for parameter in held if parameter not in self._pieces}
        lost = [name for name, piece in known.items() if piece.started]
        if lost:
            _warn(f"{_some(lost)} left the model: its importance is gone; keep the module in the model to keep it")

    def _guarded(self) -> list[Piece]:
        return [piece for piece in self._pieces.values() if piece]

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────

    def before_step(self) -> None:
        """In a Guard without hooks: right before `optimizer.step()`, gradients complete, unscaled and clipped."""
        if self._hooked:
            raise InputError("the optimizer's hooks do this already: leave the call out, or use hooks=False")
        self._before_step()

    def after_step(self) -> None:
        """In a Guard without hooks: right after an `optimizer.step()` that was not skipped."""
        if self._taking_part is None:
            raise InputError("after_step() without before_step(): call both, around every optimizer.step()")
        self._after_step()

    def _before_hook(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The gradients are complete now; with a closure, only once that has run."""
        if self._taking_part is not None:  # a step within a step, of a class that calls super().step()
            return None
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._before_step()
            return None
        self._taking_part = []
        evaluated = False

        def guarded() -> Any:
            nonlocal evaluated
            if evaluated:
                raise InputError(
                    f"{type(optimizer).__name__} evaluates its closure more than once a step: Guard needs one "
                    "gradient a step; use an optimizer that evaluates it once"
                )
            evaluated = True
            loss = closure()
            self._before_step()
            return loss

        if len(args) > 1:
            return (args[0], guarded, *args[2:]), kwargs
        return args, {**kwargs, "closure": guarded}

    def _after_hook(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._taking_part is not None:
            self._after_step()

    @torch.no_grad()
    def _before_step(self) -> None:
        self._taking_part = None
        if not _will_step(self.optimizer):
            return
        groups = self.optimizer.param_groups
        if any(parameter not in self._pieces for group in groups for parameter in group["params"]):
            self._match()
        self._taking_part = []
        for group in groups:
            for parameter in group["params"]:
                piece = self._pieces[parameter]
                # Without a gradient the optimizer leaves a parameter alone, and so does the guard.
                if piece is not None and parameter.grad is not None:
                    piece.before_step(self.method)
                    self._taking_part.append((piece, group.get("lr", 0.0)))

    @torch.no_grad()
    def _after_step(self) -> None:
        taking_part, self._taking_part = self._taking_part or [], None
        for piece, lr in taking_part:
            piece.after_step(self.method, lr)
        self._steps += 1
        if self.method.window and self._steps % self.method.window == 0:
            self._score()

    # ── a task ────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def penalty(self) -> float:
        """The penalty's value now, for logging; where parameters are sharded, all ranks must ask for it."""
        costs: dict[tuple[Group, ...], float] = {}
        for piece in self._started():
            costs[piece.groups] = costs.get(piece.groups, 0.0) + piece.cost(self.method)
        return sum(_reduced([cost], groups, "SUM")[0] for groups, cost in costs.items())

    @torch.no_grad()
    def consolidate(self, losses: Iterable[Tensor] | None = None) -> None:
        """A task ended: what it needed is important from now on.

        EWC asks for a pass over the task's data: give the loss of each batch, in a generator, so that one graph
        lives at a time: `guard.consolidate(criterion(model(x), y) for x, y in loader)`. The model is in
        evaluation mode meanwhile.
        """
        if self.method.data_pass and losses is None:
            raise InputError(
                f"{self.method.name} measures importance in a pass over the task's data: "
                "guard.consolidate(criterion(model(x), y) for x, y in loader)"
            )
        if isinstance(losses, Tensor):
            raise InputError(WANTS_LOSSES)
        if losses is not None and not self.method.data_pass:
            raise InputError(f"{self.method.name} measured while training: call consolidate() without losses")
        if not self.method.data_pass and not (self._steps and self._started()):
            raise InputError(
                "no guarded parameter took a step since the last task, so nothing is known of this one: train "
                "with the guarded optimizer (guard.attach(optimizer) for a new one); a trained model needs EWC"
            )
        fishers = self._data_fisher(losses) if losses is not None else {}
        self._score()  # what is left of the last window; the ranges must see it
        ranges = self._ranges(fishers.values())
        for piece in fishers or self._started():
            piece.consolidate(self.method, fishers.get(piece), ranges)
        self.tasks += 1
        self._steps = 0

    def _started(self) -> list[Piece]:
        """The pieces that ever had a gradient; the others hold no memory."""
        return [piece for piece in self._guarded() if piece.started]

    def _score(self) -> None:
        if self.method.window:
            for piece in self._started():
                piece.score(self.method)

    def _ranges(self, fishers: Iterable[Tensor]) -> Ranges:
        """Extrema of the vectors to normalise, over the whole network; and a look at all that was measured.

        All as minima, the largest negated, so that ranks that share a network out have to talk only once.
        """
        pieces = self._started()
        finite = all(
            bool(vector.isfinite().all()) for vector in (*fishers, *(v for p in pieces for v in p.state.values()))
        )
        minima = [float(finite), -sum(piece.cost(self.method) for piece in pieces)]
        for name in self.method.scales:
            pairs = [piece.extrema(name) for piece in pieces]
            minima += [min(low for low, _ in pairs), min(-high for _, high in pairs)]
        groups = dict.fromkeys(group for piece in self._guarded() for group in piece.groups)
        finite_everywhere, penalty, *bounds = _reduced(minima, groups, "MIN")
        if not finite_everywhere:
            raise InputError(
                "a gradient of this task was not finite, so what was measured of it is not either: go back to "
                "weights and guard as they were saved before (Guard.load), and train the task again"
            )
        if penalty == 0 and self._steps and any(self.method.springs(piece.state) for piece in pieces):
            _warn(
                "the penalty stayed exactly 0 through the whole task, so nothing was protected: set lam above 0, "
                "and let params= select parameters that every task trains"
            )
        low, negated_high = (torch.tensor(each, dtype=torch.float64) for each in (bounds[::2], bounds[1::2]))
        return dict(zip(self.method.scales, zip(low, -negated_high, strict=True), strict=True))

    def _data_fisher(self, losses: Iterable[Tensor]) -> dict[Piece, Tensor]:
        """Mean over the batches of the squared gradients, eq. (1); the model is left as it was."""
        gradients = {parameter: parameter.grad for parameter in self.model.parameters()}
        modes = {module: module.training for module in self.model.modules()}
        total: dict[Piece, Tensor] = {}
        batches = 0
        try:
            self.model.eval()
            for parameter in gradients:
                parameter.grad = None
            with torch.enable_grad():
                for loss in losses:
                    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
                        raise InputError(WANTS_LOSSES)
                    loss.backward()
                    batches += 1
                    self._add_squares(total)
                    for parameter in gradients:
                        parameter.grad = None
        finally:
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
            for module, training in modes.items():
                module.training = training
        if not total:
            raise InputError(
                f"no gradient reached a guarded parameter in {batches} batches: check the losses given"
            )
        return {piece: square.div_(batches) for piece, square in total.items()}

    @torch.no_grad()
    def _add_squares(self, total: dict[Piece, Tensor]) -> None:
        for piece in self._guarded():
            square = piece.square_of_gradient()
            if square is not None:
                if not piece.started:
                    piece.start(self.method)
                total[piece] = total[piece].add_(square) if piece in total else square

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, for a checkpoint of your own; of sharded parameters, called on all ranks."""
        tensors = {
            f"{vector}/{piece.name}": tensor
            for piece in self._started()
            for vector, tensor in piece.whole_state().items()
        }
        method = {"name": self.method.name, **asdict(self.method)}
        return {"method": method, "tasks": self.tasks, "steps": self._steps, "tensors": tensors}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` or a file; the model has its weights already, and may have grown since."""
        try:
            name, tensors = state["method"]["name"], state["tensors"]
        except (KeyError, TypeError):
            raise InputError("this is no guard's state: give what guard.state_dict() returned") from None
        if name != self.method.name:
            raise InputError(
                f"what was saved is {name}'s, this guard's method is {self.method.name}: use the same"
            )
        vectors: dict[str, dict[str, Tensor]] = {}
        for key, tensor in tensors.items():
            vector, _, parameter = key.partition("/")
            if not tensor.isfinite().all():
                raise InputError(f"{key} is not finite: it was saved after a gradient was not; take an older copy")
            vectors.setdefault(parameter, {})[vector] = tensor
        pieces = {piece.name: piece for piece in self._guarded()}
        strangers = [name for name in vectors if name not in pieces]
        if strangers:
            raise InputError(
                f"{len(strangers)} of {len(vectors)} parameters saved are not guarded here ({_some(strangers)}; "
                f"guarded: {_some(pieces)}): give the model they came from, and the same params="
            )
        for name, saved in vectors.items():
            pieces[name].check_fits(saved, pieces[name].parameter)
        for name, saved in vectors.items():
            pieces[name].restore(saved, self.method)
        self.tasks, self._steps = state["tasks"], state["steps"]
        self._check_loaded(vectors)

    def _check_loaded(self, vectors: Mapping[str, object]) -> None:
        free = [p.name for p in self._guarded() if p.parameter.requires_grad and p.name not in vectors]
        if vectors and free:
            _warn(f"nothing was saved for {_some(free)}: they start free")
        moved = [piece.name for piece in self._started() if not piece.is_at_anchor(self.method)]
        if self._steps == 0 and moved:
            _warn(
                f"the model is not where its last task left it ({_some(moved)}): load its weights before the "
                "guard's, or it will be pulled towards weights it never had"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a safetensors file, all of it or nothing; the model's weights are yours to save."""
        state = self.state_dict()
        tensors = {name: tensor.contiguous().cpu() for name, tensor in state.pop("tensors").items()}
        sharded = any(piece.groups for piece in self._guarded())
        if not sharded or dist.get_rank() == 0:
            path = Path(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                beside.touch()  # with the rights that new files have here; safetensors' own are its owner's alone
                rights = beside.stat().st_mode
                save_file(tensors, beside, {FORMAT: json.dumps(state)})
                beside.chmod(rights)
                os.replace(beside, path)
            finally:
                beside.unlink(missing_ok=True)
        if sharded:
            dist.barrier()

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        optimizer: Optimizer,
        method: Method | str | None = None,
        **options: Any,
    ) -> Guard:
        """A guard that goes on from a file; `options` are those of `Guard`, the method's numbers the file's."""
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - no mapping
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"{os.fspath(path)} cannot be read ({error}): give a file written by Guard.save"
            ) from None
        if FORMAT not in metadata:
            raise InputError(f"{os.fspath(path)} was not written by Guard.save: give one that was")
        state = json.loads(metadata[FORMAT])
        numbers = dict(state["method"])
        name = numbers.pop("name")
        if name not in METHODS:
            raise unknown("method", name, METHODS)
        guard = cls(model, optimizer, method or METHODS[name](**numbers), **options)
        try:
            guard.load_state_dict({**state, "tensors": tensors})
        except InputError:
            guard.detach()  # or the optimizer's hooks would keep it at work
            raise
        return guard


# ── what goes wrong silently elsewhere ───────────────────────────────────────────────────────────────────────

_ATTACHED: WeakSet[Guard] = WeakSet()


def _meet(optimizer: Optimizer, args: object, kwargs: object) -> None:
    """Before a step of any optimizer: does one that nobody watches move guarded parameters?"""
    guards = list(_ATTACHED)
    if any(guard.optimizer is optimizer for guard in guards):
        return
    moved = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for guard in guards:
        within_a_step = guard._taking_part is not None  # of an optimizer that wraps this one
        if not within_a_step and any(guard._pieces.get(parameter) for parameter in moved):
            raise InputError(
                f"an optimizer ({type(optimizer).__name__}) that the guard does not follow moves guarded "
                "parameters: guard.attach(optimizer) follows a new one, guard.detach() stops guarding"
            )


@cache
def _watch_all_optimizers() -> None:
    register_optimizer_step_pre_hook(_meet)


def _method(method: Any) -> Method:
    if isinstance(method, str):
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        return METHODS[method]()
    if not isinstance(method, Method):
        raise InputError(
            f"method must be {', '.join(METHODS)}, or one made like rwalk.RWalk(lam=1.0), not {method!r}"
        )
    return method


def _check_arguments(
    model: Any, optimizer: Any, method: Method, dtype: torch.dtype | None, offload: str | None
) -> None:
    if not isinstance(model, nn.Module) or not hasattr(optimizer, "param_groups"):
        given = f"{type(model).__name__} and {type(optimizer).__name__}"
        raise InputError(f"Guard takes a model and its optimizer, Guard(model, optimizer), not {given}")
    if method.fisher == "example" and ("square" in method.wants or method.data_pass):
        hint = " and give consolidate() batches of one example" if method.data_pass else ""
        raise InputError(f"Guard sees the gradients of batches, not of examples: use fisher='batch'{hint}")
    if dtype not in (None, torch.float32, torch.bfloat16):
        raise InputError(f"dtype must be torch.float32 or torch.bfloat16, not {dtype}")
    if offload not in (None, "cpu"):
        raise InputError(f"offload must be 'cpu' or None, not {offload!r}")


# ── the user's model and optimizer ───────────────────────────────────────────────────────────────────────────


def _unwrapped(model: nn.Module) -> nn.Module:
    """The model whose names a file should carry: without DistributedDataParallel around it."""
    while isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise InputError("FullyShardedDataParallel hides the parameters: shard with torch's fully_shard (FSDP2)")
    return model


def _plain(name: str) -> str:
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _selected(named: Mapping[str, nn.Parameter], params: Params | None) -> dict[str, nn.Parameter]:
    if params is None:
        chosen = dict(named)
    elif callable(params):
        chosen = {name: parameter for name, parameter in named.items() if params(name, parameter)}
    else:
        patterns = [params] if isinstance(params, str) else list(params)
        for pattern in patterns:
            if not isinstance(pattern, str):
                raise InputError("params takes names of parameters, or patterns of names, not parameters")
            if not any(fnmatchcase(name, pattern) for name in named):
                raise InputError(
                    f"params: {pattern!r} matches none of the model's parameters ({_some(named)}): "
                    "patterns match whole names, as in '*lora_*'"
                )
        chosen = {name: p for name, p in named.items() if any(fnmatchcase(name, each) for each in patterns)}
    if not chosen:
        raise InputError(f"params selects none of the model's {len(named)} parameters ({_some(named)})")
    return chosen


def _stepping(optimizer: Optimizer) -> Optimizer:
    """The optimizer whose step calls hooks: Accelerate's and Lightning's are wrappers that do not."""
    while not calls_step_hooks(optimizer):
        inner = getattr(optimizer, "optimizer", None)
        if not isinstance(inner, Optimizer):
            raise InputError(
                f"{type(optimizer).__name__} calls no step hooks: use hooks=False, and guard.before_step() and "
                "guard.after_step() around its step"
            )
        optimizer = inner
    return optimizer


def _will_step(optimizer: Any) -> bool:
    """Whether GradScaler lets this step happen; if so, the gradients are unscaled from here on.

    Of most optimizers it does not even call the step otherwise. To those that are fused it hands the scale and the
    verdict, to be used inside the kernel, where nobody can see the gradient.
    """
    found_inf = getattr(optimizer, "found_inf", None)
    if found_inf is not None and found_inf.item():
        return False
    scale = getattr(optimizer, "grad_scale", None)
    if scale is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.div_(scale.to(parameter.grad.device))
        optimizer.grad_scale = None
    return True


def _reduced(numbers: list[float], groups: Iterable[Group], op: Literal["MIN", "SUM"]) -> list[float]:
    """Numbers reduced over all ranks of these process groups."""
    for device, group in groups:
        tensor = torch.tensor(numbers, dtype=torch.float64, device=device)
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op), group)
        numbers = tensor.tolist()
    return numbers


def _some(names: Iterable[str], most: int = 3) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=2)
