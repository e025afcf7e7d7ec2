"""A guard and the optimizer it follows: another may take its place, with what was learned kept."""

from __future__ import annotations

from torch import nn
from torch.optim import Optimizer

from rwalk.errors import InputError
from rwalk.guard import select as selection
from rwalk.guard.hooks import Following, check_is_alone
from rwalk.guard.select import Params
from rwalk.guard.state import adapters
from rwalk.guard.state.guard_state import Pieces
from rwalk.guard.work import Work


class Attached:
    """Follows one optimizer of one model, by its hooks or by calls of the user's.

    params  which parameters of whatever model comes
    hooks   whether the optimizer's hooks call this; else the user does
    """

    optimizer: Optimizer

    def __init__(self, model: nn.Module, params: Params | None, hooks: bool, work: Work) -> None:
        self.model = model
        self._params = params
        self._hooked = hooks
        self._work = work
        self._following: Following | None = None  # the optimizer, step by step

    def attach(self, optimizer: Optimizer, model: nn.Module | None = None) -> None:
        """Follow another optimizer, or another model with the same parameters; what was learned is kept.

        A guard that cannot follow them goes on as before.
        """
        model, learned = self.model if model is None else model, self._work.learned
        optimizer = selection.followed(optimizer, learned.method, self._hooked)

        def match() -> Pieces:
            chosen = selection.selected(model, self._params)
            return learned.matched(adapters.targets(self._work, model, chosen), optimizer)

        pieces = match()
        check_is_alone(self, pieces)
        adapters.follow(self._work, model, pieces)
        self.detach()
        self.model, self.optimizer = model, optimizer
        self._following = Following(self, optimizer, model, self._work, match)
        self._following.begin(self._hooked)
        self._work.keeper.look_at(model)

    def detach(self) -> None:
        """Stop guarding; `attach` goes on."""
        if self._following is not None:
            self._following.end()

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
