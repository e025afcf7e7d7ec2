"""Guard: the same methods in the user's own loop, around the user's own model and optimizer.

It works through the optimizer's step hooks, because there, and only there, the gradient is what the optimizer will
use: accumulated, unscaled, clipped. The pull goes into that gradient for the length of one step (or is taken as a
proximal step after it), never into the loss, and the method observes the gradient of the task's loss alone.

What could go wrong silently is an error or a warning here, or in `watch` and `files`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.errors import InputError, unknown
from rwalk.guard import files, measure, selection, watch
from rwalk.guard.following import Following, Pieces
from rwalk.guard.pieces import Piece
from rwalk.guard.selection import Params, some
from rwalk.guard.shards import Group
from rwalk.methods import METHODS, Method, RWalk
from rwalk.methods.base import Ranges


class Guard:
    """Keep what a model has learned while it learns something new.

    model      any nn.Module; wrap it (DistributedDataParallel, fully_shard) before
    optimizer  any torch optimizer of its parameters that evaluates a closure at most once per step
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
        self._following: Following | None = None  # the optimizer, step by step
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
        """Follow another optimizer, or another model with the same parameters; what was learned is kept.

        A guard that cannot follow them goes on as before.
        """
        model = self.model if model is None else model
        optimizer = selection.followed(optimizer, self.method, self._hooked)
        pieces = self._matched(model, optimizer)
        following = Following(self, optimizer, pieces, self.method, self._matched_again, self._observed)
        following.check_is_alone()
        self.detach()
        self.model, self.optimizer, self._following = model, optimizer, following
        following.begin(self._hooked)

    def detach(self) -> None:
        """Stop guarding; `attach` goes on."""
        if self._following is not None:
            self._following.end()

    def _matched_again(self) -> Pieces:
        return self._matched(self.model, self.optimizer)

    def _matched(self, model: nn.Module, optimizer: Optimizer) -> Pieces:
        """The guarded parameters of a model; they may have been replaced, have grown or be new."""
        chosen = selection.selected(model, self._params)
        held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        if held.isdisjoint(chosen.values()):
            raise InputError(
                f"the optimizer holds none of the {len(chosen)} parameters to guard ({some(chosen)}): "
                "make it from the parameters of this very model, then guard.attach(optimizer)"
            )
        known = {piece.name: piece for piece in self._guarded()}
        pieces: dict[nn.Parameter, Piece | None] = {}
        for name, parameter in chosen.items():
            piece = known.pop(name, None) or Piece(name, parameter, self._dtype, self._offload)
            pieces[parameter] = piece.of(parameter, self.method)
        lost = [name for name, piece in known.items() if piece.started]
        if lost:
            watch.warn(
                f"{some(lost)} left the model: its importance is gone; keep the module in the model to keep it"
            )
        return pieces | {parameter: None for parameter in held if parameter not in pieces}

    def _guarded(self) -> list[Piece]:
        return [] if self._following is None else self._following.guarded

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────────

    def before_step(self) -> None:
        """In a Guard without hooks: right before `optimizer.step()`, gradients complete, unscaled and clipped."""
        if self._hooked:
            raise InputError("the optimizer's hooks do this already: leave the call out, or use hooks=False")
        assert self._following is not None
        self._following.before_step()

    def after_step(self) -> None:
        """In a Guard without hooks: right after an `optimizer.step()` that was not skipped."""
        assert self._following is not None
        self._following.after_step()

    def _observed(self) -> None:
        """A step is over."""
        self._steps += 1
        if self.method.window and self._steps % self.method.window == 0:
            self._score()
        if self._steps % watch.EVERY == 0 and self._pulls() and not watch.are_finite(self._started()):
            raise self._not_finite("parameters are no numbers any more")

    def _score(self) -> None:
        if self.method.window:
            for piece in self._started():
                piece.score(self.method)

    def _pulls(self) -> bool:
        return any(self.method.springs(piece.state) for piece in self._started())

    def _not_finite(self, what: str) -> InputError:
        return watch.not_finite(what, self.method, self.optimizer, self._pulls())

    # ── a task ────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def penalty(self) -> float:
        """The penalty's value now, for logging; where parameters are sharded, all ranks must ask for it."""
        costs: dict[tuple[Group, ...], float] = {}
        for piece in self._started():
            costs[piece.groups] = costs.get(piece.groups, 0.0) + piece.cost(self.method)
        return sum(measure.reduced([cost], groups, "SUM")[0] for groups, cost in costs.items())

    @torch.no_grad()
    def consolidate(self, losses: Iterable[Tensor] | None = None) -> None:
        """A task ended: what it needed is important from now on.

        EWC asks for a pass over the task's data: give the loss of each batch, in a generator, so that one graph
        lives at a time: `guard.consolidate(criterion(model(x), y) for x, y in loader)`. MAS looks at outputs, not
        at labels: `guard.consolidate(model(x).square().sum(1).mean() for x, _ in loader)`. The model is in
        evaluation mode meanwhile.
        """
        if self.method.data_pass and losses is None:
            each = "model(x).square().sum(1).mean()" if self.method.of_outputs else "criterion(model(x), y)"
            raise InputError(
                f"{self.method.name} measures importance in a pass over the task's data: "
                f"guard.consolidate({each} for x, y in loader)"
            )
        if isinstance(losses, Tensor):
            raise InputError(measure.WANTS_LOSSES)
        if losses is not None and not self.method.data_pass:
            raise InputError(f"{self.method.name} measured while training: call consolidate() without losses")
        if not self.method.data_pass and not (self._steps and self._started()):
            raise InputError(
                "no guarded parameter took a step since the last task, so nothing is known of this one: train "
                "with the guarded optimizer (guard.attach(optimizer) for a new one); a trained model needs EWC"
            )
        fishers = {}
        if losses is not None:
            fishers = measure.data_fisher(self.model, self._guarded(), self.method, losses)
        self._score()  # what is left of the last window; the ranges must see it
        ranges = self._ranges(fishers.values())
        for piece in fishers or self._started():
            piece.consolidate(self.method, fishers.get(piece), ranges)
        self.tasks += 1
        self._begin_task(steps=0)

    def _started(self) -> list[Piece]:
        """The pieces that ever had a gradient; the others hold no memory."""
        return [piece for piece in self._guarded() if piece.started]

    def _begin_task(self, steps: int) -> None:
        assert self._following is not None
        self._steps = steps
        self._following.may_overshoot = True

    def _ranges(self, fishers: Iterable[Tensor]) -> Ranges:
        """Extrema of the vectors to normalise, over the whole network; and a look at all that was measured."""
        measured = measure.all_of_it(self._guarded(), self.method, fishers)
        if not measured.finite:
            raise self._not_finite("a gradient of this task was not finite, so what it measured is not either")
        if measured.penalty == 0 and self._steps and self._pulls():
            watch.warn(
                "the penalty stayed exactly 0 through the whole task, so nothing was protected: set lam above 0, "
                "and let params= select parameters that every task trains"
            )
        return measured.ranges

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, for a checkpoint of your own; of sharded parameters, called on all ranks."""
        tensors = {
            f"{vector}/{piece.name}": tensor
            for piece in self._started()
            for vector, tensor in piece.whole_state().items()
        }
        method = files.description(self.method)
        return {"method": method, "tasks": self.tasks, "steps": self._steps, "tensors": tensors}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` or a file; the model has its weights already, and may have grown since.

        Whatever cannot be right is refused before anything changes.
        """
        pieces = {piece.name: piece for piece in self._guarded()}
        vectors = files.checked(state, self.method, pieces)
        restored = [
            pieces[name].restored(saved, pieces[name].parameter, self.method) for name, saved in vectors.items()
        ]
        assert self._following is not None
        self._following.forget_failed_step(at_once=False)
        self._following.pieces = {**self._following.pieces, **{piece.parameter: piece for piece in restored}}
        self.tasks = state["tasks"]
        self._begin_task(state["steps"])
        self._check_loaded(vectors)

    def _check_loaded(self, vectors: Mapping[str, object]) -> None:
        free = [p.name for p in self._guarded() if p.parameter.requires_grad and p.name not in vectors]
        if vectors and free:
            watch.warn(f"nothing was saved for {some(free)}: they start free")
        moved = [piece.name for piece in self._started() if not piece.is_at_anchor(self.method)]
        if self._steps == 0 and moved:
            watch.warn(
                f"the model is not where its last task left it ({some(moved)}): load its weights before the "
                "guard's, or it will be pulled towards weights it never had"
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one checked file, all of it or nothing; the model's weights are yours to save."""
        state = self.state_dict()
        sharded = any(piece.groups for piece in self._guarded())
        try:
            if not sharded or dist.get_rank() == 0:
                files.write(Path(path), state)
        finally:
            if sharded:
                dist.barrier()  # whoever reads it next finds it whole

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        model: nn.Module,
        optimizer: Optimizer,
        method: Method | str | None = None,
        **options: Any,
    ) -> Guard:
        """A guard that goes on from a file; `options` are those of `Guard`.

        Without `method`, it is the file's, with the hyper-parameters it had. One of your own has to be given.
        """
        guard = None
        try:
            state = files.read(Path(path))
            guard = cls(model, optimizer, files.method_in(state) if method is None else method, **options)
            guard.load_state_dict(state)
        except BaseException as error:
            if guard is not None:
                guard.detach()  # or the optimizer's hooks would keep it at work
            if isinstance(error, InputError):
                raise InputError(f"{os.fspath(path)} cannot be loaded: {error}") from None
            raise
        return guard


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
