"""Guard: the same methods in the user's own loop, around the user's own model and optimizer.

It works through the optimizer's step hooks, because there, and only there, the gradient is what the optimizer will
use: accumulated, unscaled, clipped. The pull goes into that gradient for the length of one step (or is taken as a
proximal step after it), never into the loss, and the method observes the gradient of the task's loss alone.

What could go wrong silently is an error or a warning here, or in `watch` and `files`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.errors import InputError, unknown
from rwalk.guard import io as files
from rwalk.guard.drift.anchor import Anchor
from rwalk.guard.drift.controller import Watching
from rwalk.guard.drift.probes import Predict
from rwalk.guard.report import Report
from rwalk.guard.saved import Saved
from rwalk.guard.select import Params
from rwalk.guard.state.quantized import Precision
from rwalk.guard.work import Work
from rwalk.methods import METHODS, Method, RWalk


class Guard(Saved):
    """Keep what a model has learned while it learns something new.

    model      any nn.Module; wrap it (DistributedDataParallel, fully_shard) before
    optimizer  any torch optimizer of its parameters that evaluates a closure at most once per step
    method     RWalk, EWCpp, PI, EWC, Anchor or Vanilla, or the name of one
    budget     how far predictions may drift while a task is learned, in nats: λ is found, not given
    probes     inputs that the model knows as it is now, to measure drift on; see `begin`
    share      of the time that measuring may take
    every      steps between two readings of the drift, instead of a share: what makes a run repeatable
    step_back  whoever is found beyond the budget is taken back to it at once; False leaves it to λ alone
    predict    from the model and a batch of probes to logits; calling the model, unless told otherwise
    params     which parameters to guard: patterns such as "*lora_*", or a function of name and parameter; all
    dtype      what the state is kept in: float32 (float64 for float64 parameters), torch.bfloat16, or "8bit": in
               codes of 8 bits, block by block, and of 16 where rounding would do harm
    offload    "cpu" keeps the state there; it is brought to the parameters' device a portion at a time
    lora       "product": springs hold what an adapter adds to its weight, ΔW = BA; "factors": A and B, each
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
        step_back: bool = True,
        predict: Predict | None = None,
        params: Params | None = None,
        dtype: Precision | None = None,
        offload: Literal["cpu"] | None = None,
        lora: Literal["product", "factors"] = "product",
        hooks: bool = True,
    ) -> None:
        method = _method(method)
        _check_arguments(model, optimizer, method, dtype, offload)
        if lora not in ("product", "factors"):
            raise InputError(f"lora must be 'product' or 'factors', not {lora!r}")
        super().__init__(
            model,
            params if params is None or isinstance(params, str) or callable(params) else tuple(params),
            hooks,
            Work(method, Watching(budget, predict, share, every, step_back), dtype, offload, lora),
        )
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
        return self._work.method

    @property
    def tasks(self) -> int:
        """The number of tasks consolidated so far."""
        return self._work.learned.tasks

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters guarded, under the names they have in the model without wrappers."""
        return tuple(piece.name for piece in self._work.learned.guarded)

    @property
    def nbytes(self) -> int:
        """What the guard holds now, on this rank; docs/guard.md says how much it can become."""
        return self._work.nbytes

    # ── a task ────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def penalty(self) -> float:
        """The penalty's value now, for logging; where parameters are sharded, all ranks must ask for it."""
        return self._work.learned.penalty()

    def drift(self) -> float:
        """How far predictions on the probes are from what they were, in nats: the mean of KL(old ‖ new)."""
        return self._work.keeper.drift(self.model)

    @torch.no_grad()
    def begin(self, known: Any) -> None:
        """The model has learned something elsewhere: from here on it is kept.

        known  inputs that it knows, its probes: a tensor, a dict of keywords, a tuple of arguments, or a list of
               such batches. Importance is measured on them, by the Fisher of the model's own predictions, and from
               now on drift. Or losses, one per batch, in a generator, as `consolidate` takes them for EWC.
        """
        self._work.begin(self.model, known)

    @torch.no_grad()
    def consolidate(self, losses: Iterable[Tensor] | None = None, probes: Any = None) -> None:
        """A task ended: what it needed is important from now on.

        EWC asks for a pass over the task's data: give the loss of each batch, in a generator, so that one graph
        lives at a time: `guard.consolidate(criterion(model(x), y) for x, y in loader)`. MAS looks at outputs, not
        at labels: `guard.consolidate(model(x).square().sum(1).mean() for x, _ in loader)`. The model is in
        evaluation mode meanwhile. `probes` are inputs of this task, to be watched along with those given before.
        """
        self._work.consolidate(self.model, losses, probes)

    @torch.no_grad()
    def rewind(self, budget: float | None = None) -> float:
        """Go back on the way from the last task's end to here until the drift is within a budget, for certain.

        Buffers go back as parameters do; the optimizer's state stays. Returns how much of the way is left.
        """
        return self._work.keeper.rewind(self.model, budget)

    def report(self) -> Report:
        """What was kept since the last task ended: a table when printed, `to_dict()`, `picture()`."""
        return self._work.report(self.model)

    def log(self) -> dict[str, float]:
        """A few numbers for a tracker: λ, the penalty, and drift and pull where they were last read."""
        return self._work.log()

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

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
                guard._work.watch_instead(model, probes)
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
    model: Any, optimizer: Any, method: Method | Anchor, dtype: Precision | None, offload: str | None
) -> None:
    if not isinstance(model, nn.Module) or not hasattr(optimizer, "param_groups"):
        given = f"{type(model).__name__} and {type(optimizer).__name__}"
        raise InputError(f"Guard takes a model and its optimizer, Guard(model, optimizer), not {given}")
    if isinstance(method, Method) and method.fisher != "batch" and ("square" in method.wants or method.data_pass):
        hint = " and give consolidate() batches of one example" if method.data_pass else ""
        raise InputError(f"Guard sees the gradients of batches, not of examples: use fisher='batch'{hint}")
    if dtype not in (None, torch.float32, torch.bfloat16, "8bit"):
        raise InputError(f"dtype must be torch.float32, torch.bfloat16 or '8bit', not {dtype!r}")
    if offload not in (None, "cpu"):
        raise InputError(f"offload must be 'cpu' or None, not {offload!r}")
