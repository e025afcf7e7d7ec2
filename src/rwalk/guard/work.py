"""A guard's work, on whichever model and optimizer: what was learned, what holds it, what is watched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.guard import io as files
from rwalk.guard import watch
from rwalk.guard.drift import files as keeping
from rwalk.guard.drift.anchor import Anchor
from rwalk.guard.drift.controller import Keeper, Watching
from rwalk.guard.drift.forces import Springs
from rwalk.guard.drift.probes import Probes
from rwalk.guard.drift.pull import Anchoring
from rwalk.guard.importance import begin as beginning
from rwalk.guard.report import Report, sets_of
from rwalk.guard.state import lora as products
from rwalk.guard.state.guard_state import Learned
from rwalk.guard.state.quantized import Precision
from rwalk.methods import Method, Vanilla


class Work:
    """The parts of a guard, and what each moment of training means to them."""

    def __init__(
        self,
        method: Method | Anchor,
        watching: Watching,
        dtype: Precision | None,
        offload: str | None,
        lora: str,
    ) -> None:
        self.lora = lora
        home = None if offload is None else torch.device(offload)
        self.force: Anchoring | Springs
        if isinstance(method, Anchor):
            self.learned = Learned(Vanilla(), dtype, home)
            self.force = Anchoring(method, self.learned)
            watching = replace(watching, apart=True)
        else:
            if watching.budget is not None and type(method).pull is Method.pull:
                method = replace(method, penalty="proximal")  # λ is ours; no optimizer gets to see it change
            self.learned = Learned(method, dtype, home)
            self.force = Springs(self.learned)
        self.keeper = Keeper(watching)

    @property
    def method(self) -> Method | Anchor:
        """With the λ it has now."""
        if isinstance(self.force, Anchoring):
            return replace(self.force.anchor, weight=self.force.lam)
        return self.learned.method

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.learned.guarded) + self.keeper.nbytes(self.learned.anchors())

    def pulls(self, model: nn.Module, optimizer: Optimizer) -> Mapping[nn.Parameter, Tensor]:
        """Gradients to add to those of the task before a step, beside the springs' pull."""
        if not isinstance(self.force, Anchoring):
            return {}
        return self.force.pulls(model, self.keeper.sets, optimizer)

    def observed(self, model: nn.Module, optimizer: Optimizer) -> None:
        """A step is over."""
        learned = self.learned
        learned.stepped()
        if learned.steps % watch.EVERY == 0 and learned.holds() and not watch.are_finite(learned.started):
            raise watch.not_finite("parameters are no numbers any more")
        self.keeper.stepped(model, optimizer, self.force, learned.tasks, learned.steps)

    def begin(self, model: nn.Module, known: Any) -> None:
        """The model was trained elsewhere."""
        with products.measured(piece.storage.product for piece in self.learned.guarded):
            fishers = beginning.begun(self.learned, self.keeper, model, known, self._rows)
        self.learned.begin(fishers)
        self._keep(model)

    def consolidate(self, model: nn.Module, losses: Iterable[Tensor] | None, probes: Any) -> None:
        """A task ended."""
        added = [] if probes is None else [self.probes(model, probes)]  # refused before anything has changed
        with products.measured(piece.storage.product for piece in self.learned.guarded):
            fishers = beginning.measured(self.learned, model, losses)
        self.learned.consolidate(fishers)
        self.keeper.sets += added
        self._keep(model)

    def probes(self, model: nn.Module, given: Any) -> Probes:
        """Inputs with the predictions that the model makes of them now."""
        probes = Probes(given, self.keeper.watching.predict, self._rows, self.keeper.watching.apart)
        probes.keep(model)
        return probes

    def watch_instead(self, model: nn.Module, probes: Any) -> None:
        """These probes, in place of all others."""
        self.keeper.sets = [self.probes(model, probes)]
        self._keep(model)

    def _keep(self, model: nn.Module) -> None:
        """From here on the model is held, and drift is counted."""
        if self.keeper.watching.budget is not None:
            self.learned.hold_all(beginning.HELD)
        self.keeper.begin(model, self.learned.anchors())
        self.keeper.control_of(self.force)

    @property
    def _rows(self) -> int | None:
        return self.force.anchor.batch if isinstance(self.force, Anchoring) else None

    # ── what is said of it ────────────────────────────────────────────────────────────────────────────────────

    def report(self, model: nn.Module) -> Report:
        learned, keeper = self.learned, self.keeper
        counts = (learned.tasks, learned.steps, keeper.watching.budget, learned.penalty())
        return Report(self.method.name, self.force.lam, *counts, sets_of(keeper, model), tuple(keeper.history))

    def log(self) -> dict[str, float]:
        found = {"guard/lam": self.force.lam, "guard/penalty": self.learned.penalty()}
        if self.keeper.history:
            last = self.keeper.history[-1]
            found |= {"guard/drift": last.drift, "guard/pull": last.pull}
        return found

    def state_dict(self) -> dict[str, Any]:
        state = {**self.learned.state_dict(), "method": files.description(self.method)}
        kept = keeping.state_of(self.keeper, self.learned.anchors())
        return state if kept is None else {**state, "keeper": kept}

    def load_state_dict(self, state: Mapping[str, Any], model: nn.Module) -> None:
        """Whatever cannot be right is refused before anything changes."""
        learned = self.learned
        vectors = files.checked(state, self.method, {piece.name: piece for piece in learned.guarded})
        kept = keeping.restored(state["keeper"], self.keeper, vectors) if "keeper" in state else None
        learned.load(state, vectors)
        if kept is not None:
            self.keeper, held = kept
            self.keeper.go_on(model, learned.anchors(exact=False), held, self.force)
