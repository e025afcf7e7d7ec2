"""Guard: the same methods in the user's own loop, around the user's own model and optimizer.

It works through the optimizer's step hooks, because there, and only there, the gradient is what the optimizer will
use: accumulated, unscaled, clipped. The pull goes into that gradient for the length of one step (or is taken as a
proximal step after it), never into the loss, and the method observes the gradient of the task's loss alone.

What could go wrong silently is an error or a warning here, or in `watch` and `files`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.errors import InputError, unknown
from rwalk.guard import beginning, files, keeping, report, selection, watch
from rwalk.guard.anchoring import Anchoring
from rwalk.guard.anchors import Anchor
from rwalk.guard.drift import Predict, Probes
from rwalk.guard.following import Following, check_is_alone
from rwalk.guard.forces import Springs
from rwalk.guard.keeper import Keeper, Watching
from rwalk.guard.learned import Learned, Pieces
from rwalk.guard.report import Report
from rwalk.guard.selection import Params
from rwalk.methods import METHODS, Method, RWalk, Vanilla


class Guard:
    """Keep what a model has learned while it learns something new.

    model      any nn.Module; wrap it (DistributedDataParallel, fully_shard) before
    optimizer  any torch optimizer of its parameters that evaluates a closure at most once per step
    method     RWalk, EWCpp, PI, EWC, Anchor or Vanilla, or the name of one
    budget     how far predictions may drift while a task is learned, in nats: λ is found, not given
    probes     inputs that the model knows as it is now, to measure drift on; see `begin`
    share      of the time that measuring may take
    every      steps between two readings of the drift, instead of a share: what makes a run repeatable
    predict    from the model and a batch of probes to logits; calling the model, unless told otherwise
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
        method: Method | Anchor | str = RWalk(),  # noqa: B008 - frozen
        *,
        budget: float | None = None,
        probes: Any = None,
        share: float = 0.05,
        every: int | None = None,
        predict: Predict | None = None,
        params: Params | None = None,
        dtype: torch.dtype | None = None,
        offload: Literal["cpu"] | None = None,
        hooks: bool = True,
    ) -> None:
        method = _method(method)
        held = Vanilla() if isinstance(method, Anchor) else method
        _check_arguments(model, optimizer, held, dtype, offload)
        self.model = model
        self._params = params if params is None or isinstance(params, str) or callable(params) else tuple(params)
        self._hooked = hooks
        self._learned = Learned(held, dtype, None if offload is None else torch.device(offload))
        self._force = Anchoring(method, self._learned) if isinstance(method, Anchor) else Springs(self._learned)
        self._keeper = Keeper(Watching(budget, predict, share, every))
        self._following: Following | None = None  # the optimizer, step by step
        self.attach(optimizer)
        if isinstance(method, Anchor) and probes is None:
            probes = method.probes
        if probes is not None:
            self.begin(probes)

    def __repr__(self) -> str:
        return f"Guard({self.method}, {len(self.names)} parameters, {self.tasks} tasks)"

    @property
    def method(self) -> Method | Anchor:
        """The method, with the λ it has now."""
        if isinstance(self._force, Anchoring):
            return replace(self._force.anchor, weight=self._force.lam)
        return self._learned.method

    @property
    def tasks(self) -> int:
        """The number of tasks consolidated so far."""
        return self._learned.tasks

    @property
    def _anchor_batch(self) -> int | None:
        return self._force.anchor.batch if isinstance(self._force, Anchoring) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters guarded, under the names they have in the model without wrappers."""
        return tuple(piece.name for piece in self._learned.guarded)

    @property
    def nbytes(self) -> int:
        """What the guard holds now, on this rank; docs/guard.md says how much it can become."""
        return sum(piece.nbytes for piece in self._learned.guarded)

    # ── the optimizer ─────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, optimizer: Optimizer, model: nn.Module | None = None) -> None:
        """Follow another optimizer, or another model with the same parameters; what was learned is kept.

        A guard that cannot follow them goes on as before.
        """
        model = self.model if model is None else model
        optimizer = selection.followed(optimizer, self._learned.method, self._hooked)
        pieces = self._learned.matched(selection.selected(model, self._params), optimizer)
        check_is_alone(self, pieces)
        self.detach()
        self.model, self.optimizer, self._learned.pieces = model, optimizer, pieces
        self._following = Following(
            self, optimizer, self._learned, self._matched_again, self._pulls, self._observed
        )
        self._following.begin(self._hooked)
        self._keeper.look_at(model)

    def detach(self) -> None:
        """Stop guarding; `attach` goes on."""
        if self._following is not None:
            self._following.end()

    def _matched_again(self) -> Pieces:
        return self._learned.matched(selection.selected(self.model, self._params), self.optimizer)

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

    def _pulls(self) -> Mapping[nn.Parameter, Tensor]:
        """Gradients to add to those of the task, beside the springs' pull."""
        if not isinstance(self._force, Anchoring):
            return {}
        return self._force.pulls(self.model, self._keeper.sets, self.optimizer)

    def _observed(self) -> None:
        """A step is over."""
        learned = self._learned
        learned.stepped()
        if learned.steps % watch.EVERY == 0 and learned.holds() and not watch.are_finite(learned.started):
            raise watch.not_finite("parameters are no numbers any more")
        self._keeper.stepped(self.model, self.optimizer, self._force, learned.tasks, learned.steps)

    # ── a task ────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def penalty(self) -> float:
        """The penalty's value now, for logging; where parameters are sharded, all ranks must ask for it."""
        return self._learned.penalty()

    def drift(self) -> float:
        """How far predictions on the probes are from what they were, in nats: the mean of KL(old ‖ new)."""
        return self._keeper.drift(self.model)

    @torch.no_grad()
    def begin(self, known: Any) -> None:
        """The model has learned something elsewhere: from here on it is kept.

        known  inputs that it knows, its probes: a tensor, a dict of keywords, a tuple of arguments, or a list of
               such batches. Importance is measured on them, by the Fisher of the model's own predictions, and from
               now on drift. Or losses, one per batch, in a generator, as `consolidate` takes them for EWC.
        """
        beginning.begin(self._learned, self._keeper, self.model, known, self._anchor_batch)
        self._keeper.control_of(self._force)

    @torch.no_grad()
    def consolidate(self, losses: Iterable[Tensor] | None = None, probes: Any = None) -> None:
        """A task ended: what it needed is important from now on.

        EWC asks for a pass over the task's data: give the loss of each batch, in a generator, so that one graph
        lives at a time: `guard.consolidate(criterion(model(x), y) for x, y in loader)`. The model is in
        evaluation mode meanwhile. `probes` are inputs of this task, to be watched beside those there are.
        """
        fishers = beginning.measured(self._learned, self.model, losses)
        self._learned.consolidate(fishers)
        if probes is not None:
            self._keeper.sets.append(Probes(probes, self._keeper.watching.predict, self._anchor_batch))
        beginning.keep(self._learned, self._keeper, self.model)
        self._keeper.control_of(self._force)

    @torch.no_grad()
    def rewind(self, budget: float | None = None) -> float:
        """Go back on the way from the last task's end to here until the drift is within a budget, for certain.

        Buffers go back as parameters do; the optimizer's state stays. Returns how much of the way is left.
        """
        return self._keeper.rewind(self.model, budget)

    def report(self) -> Report:
        """What was kept since the last task ended: a table when printed, `to_dict()`, `picture()`."""
        learned, keeper = self._learned, self._keeper
        probes, readings = report.sets_of(keeper, self.model), tuple(keeper.history)
        counts = (learned.tasks, learned.steps, keeper.watching.budget)
        return Report(self.method.name, self._force.lam, *counts, self.penalty(), probes, readings)

    def log(self) -> dict[str, float]:
        """A few numbers for a tracker: λ, the penalty, and drift and pull where they were last read."""
        found = {"guard/lam": self._force.lam, "guard/penalty": self.penalty()}
        if self._keeper.history:
            last = self._keeper.history[-1]
            found |= {"guard/drift": last.drift, "guard/pull": last.pull}
        return found

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self) -> dict[str, Any]:
        """All that was learned, for a checkpoint of your own; of sharded parameters, called on all ranks."""
        state = {**self._learned.state_dict(), "method": files.description(self.method)}
        kept = keeping.state_of(self._keeper, self._learned.anchors())
        return state if kept is None else {**state, "keeper": kept}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state_dict` or a file; the model has its weights already, and may have grown since.

        Whatever cannot be right is refused before anything changes.
        """
        learned, pieces = self._learned, {piece.name: piece for piece in self._learned.guarded}
        vectors = files.checked(state, self.method, pieces)
        kept = keeping.restored(state["keeper"], self._keeper, vectors) if "keeper" in state else None
        assert self._following is not None
        self._following.forget_failed_step(at_once=False)
        learned.load(state, vectors)
        if kept is not None:
            self._keeper, held = kept
            self._keeper.go_on(self.model, learned.anchors(exact=False), held, self._force)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one checked file, all of it or nothing; the model's weights are yours to save."""
        state = self.state_dict()
        sharded = any(piece.groups for piece in self._learned.guarded)
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
        method: Method | Anchor | str | None = None,
        **options: Any,
    ) -> Guard:
        """A guard that goes on from a file; `options` are those of `Guard`.

        Without `method`, it is the file's, with the hyper-parameters it had. One of your own has to be given.
        Probes are in the file; others may be given in their place, of which the model's predictions are kept as
        they are now.
        """
        guard = None
        try:
            state = files.read(Path(path))
            probes = options.pop("probes", None)
            guard = cls(model, optimizer, files.method_in(state) if method is None else method, **options)
            guard.load_state_dict(state)
            if probes is not None:
                guard._keeper.sets = [Probes(probes, guard._keeper.watching.predict, guard._anchor_batch)]
                beginning.keep(guard._learned, guard._keeper, model)
        except BaseException as error:
            if guard is not None:
                guard.detach()  # or the optimizer's hooks would keep it at work
            if isinstance(error, InputError):
                raise InputError(f"{os.fspath(path)} cannot be loaded: {error}") from None
            raise
        return guard


def _method(method: Any) -> Method | Anchor:
    if method == Anchor.name:
        return Anchor()
    if isinstance(method, str):
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        return METHODS[method]()
    if not isinstance(method, Method | Anchor):
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
