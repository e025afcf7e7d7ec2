"""Guard: fine-tune a model without forgetting, in the user's own training loop.

It works through the optimizer's step hooks, because only there the gradient is the one that the optimizer uses:
accumulated, unscaled, clipped. Penalties go into that gradient for the length of one step, never into the loss.
`hooks` is called by the optimizer, `drift` holds outputs on probes, `state` and `step` hold parameters.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from rwalk.errors import InputError, unknown, warn_caller
from rwalk.escaping import shown
from rwalk.guard import guard_file, importance, options, select
from rwalk.guard.drift import anchor as anchors
from rwalk.guard.drift.anchor import Anchor, Pull, Schedule
from rwalk.guard.drift.batch_norm import BatchNorm
from rwalk.guard.drift.batches import device_of
from rwalk.guard.drift.eval_mode import TrainingPass
from rwalk.guard.drift.probes import Probes, weighted_mean
from rwalk.guard.drift.reference import Reference
from rwalk.guard.hooks import OptimizerHooks, check_is_alone
from rwalk.guard.options import StateOptions
from rwalk.guard.report import Point, ProbeReport, Report
from rwalk.guard.select import Params
from rwalk.guard.state.guard_state import GuardState, ParameterStates, not_finite
from rwalk.guard.state.parameter import ParameterState
from rwalk.guard.state.sharded import groups
from rwalk.methods import METHODS, Method, Vanilla

MOVED = 0.01  # drift beyond which a model is not the one that a task ended with; merging an adapter costs rounding
FEW = 0.5  # share of the way to the trained weights below which a new task is usually lost
CHECKED = 100  # steps between two checks that parameters are finite: each waits for the device


class Guard:
    """Fine-tunes a model without forgetting, in the user's own training loop.

    Probes are inputs from before. With them, the model's outputs on the probes are held from the first step on
    (`Anchor`). Without them, a method such as RWalk measures during one task which parameters matter, and holds
    them in the next.

    Args:
        model: any nn.Module; wrap it (DistributedDataParallel, fully_shard) first.
        optimizer: any torch optimizer of its parameters.
        method: `Anchor()` by default if there are probes; otherwise "rwalk", "ewc", "ewc++", "pi" and others, by
            name or made like `rwalk.RWalk(lam=1.0)`.
        probes: inputs from before: a tensor, a dict, a tuple, a DataLoader, a dataset, "own-samples" for a
            language model, or `rwalk.Probes(…)` for texts and for outputs of other kinds. Labels are not needed.
        budget: how far outputs may have drifted in the end, in the unit of the divergence (nats for "kl");
            `finish` interpolates back to it. A quarter of the probes is then held out to measure drift on.
        params: which parameters to guard: patterns such as "*lora_*", or a function of name and parameter.
        divergence: how outputs are compared; see `rwalk.Probes`.
        outputs: which outputs are compared; see `rwalk.Probes`.
        state: where and how precisely per-parameter state is kept; see `rwalk.StateOptions`.

    >>> model = nn.Linear(2, 3)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> guard = Guard(model, optimizer, probes=torch.randn(16, 2))
    >>> for x in torch.randn(24, 4, 2):
    ...     model(x).square().sum().backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> report = guard.finish()
    >>> report.steps
    24
    """

    optimizer: Optimizer

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        method: Method | Anchor | str | None = None,
        *,
        probes: Any = None,
        budget: float | None = None,
        params: Params | None = None,
        divergence: Any = None,
        outputs: Any = None,
        state: StateOptions | None = None,
        **old: Any,
    ) -> None:
        given = options.Given(method, probes, budget, params, divergence, outputs, state)
        given = options.translated(given, old)
        self._set_up(model, optimizer, given)
        try:
            if given.probes is not None:
                self.begin(given.probes)
            elif self._anchor is not None:
                raise InputError("an anchor holds a model's outputs on familiar inputs: give probes=")
        except BaseException:
            self.detach()  # or the optimizer's hooks would keep it at work
            raise

    def _set_up(self, model: nn.Module, optimizer: Optimizer, given: options.Given) -> None:
        _check_kinds(model, optimizer)
        method = _method(given)
        _check(method, given)
        self.model = model
        self.budget = given.budget
        self.last_report: Report | None = None  # of the task that was consolidated last
        self._given = given
        self._anchor = method if isinstance(method, Anchor) else None
        kept = given.state or StateOptions()
        device = None if kept.device is None else torch.device(kept.device)
        self._state = GuardState(Vanilla() if isinstance(method, Anchor) else method, kept.dtype == "8bit", device)
        self._sets: list[Probes] = []
        self._reference: Reference | None = None  # None until there are probes
        self._frozen: set[str] = set()
        self._first_pass = TrainingPass()
        self._schedule = Schedule(1 if self._anchor is None else self._anchor.every)
        self._pull_added: dict[nn.Parameter, Tensor] = {}  # the last one, which fades
        self._pulled_for: int | None = None  # the step that it was made or faded for
        self._hooks: OptimizerHooks | None = None
        self._warned = False
        self.attach(optimizer)

    def __repr__(self) -> str:
        return f"Guard({self.method}, {len(self.names)} parameters, {self.tasks} tasks)"

    def __deepcopy__(self, memo: Any) -> Guard:
        raise InputError("a guard belongs to one model and one optimizer: make another for a copy (Guard.load)")

    def __reduce__(self) -> Any:
        raise InputError("a guard is not pickled: guard.save(path) writes it, Guard.load(path, …) continues")

    @property
    def method(self) -> Method | Anchor:
        """The method."""
        return self._anchor or self._state.method

    @property
    def tasks(self) -> int:
        """The number of tasks consolidated so far."""
        return self._state.tasks

    @property
    def steps(self) -> int:
        """The number of steps observed in the current task."""
        return self._state.steps

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters guarded, under the names they have in the model without wrappers."""
        return tuple(each.name for each in self._state.guarded)

    @property
    def nbytes(self) -> int:
        """Bytes that the guard holds now, on this rank; docs/guard-parameters.md lists the most it can hold."""
        kept = [each for probes in self._sets for batch in probes.kept for each in batch.values()]
        predictions = sum(tensor.nbytes for each in kept for tensor in each.values())
        reference = 0 if self._reference is None else self._reference.nbytes
        pulled = sum(each.nbytes for each in self._pull_added.values())
        return sum(each.nbytes for each in self._state.guarded) + predictions + reference + pulled

    # ── the optimizer ─────────────────────────────────────────────────────────────────────────────────────────

    def attach(self, optimizer: Optimizer, model: nn.Module | None = None) -> None:
        """Continue with another optimizer, or another model with the same parameters; all state is kept.

        Parameters may have grown, as a head does with new classes. If the new ones are refused, the guard
        continues as before.

        Args:
            optimizer: takes the steps from here on.
            model: whose parameters it holds; by default the guard's.
        """
        model = self.model if model is None else model
        optimizer = select.followed(optimizer, self._state.method)
        before, states = set(self._parameters), self._matched(model, optimizer)
        check_is_alone(self, states)
        self._state.by_parameter = states
        self.detach()
        self.model, self.optimizer = model, optimizer
        self._batch_norm = BatchNorm(model)
        self._hooks = OptimizerHooks(self, optimizer, self._state)
        self._hooks.begin()
        if self._anchor is not None:
            self._first_pass.watch(model)
        if before and before != set(self._parameters) and not self._state.steps:
            self._check_replaced()

    def _matched(self, model: nn.Module, optimizer: Optimizer) -> ParameterStates:
        return self._state.matched(select.selected(model, self._given.params), optimizer)

    def _check_replaced(self) -> None:
        """Between two tasks parameters were replaced: an adapter was merged and another made, a head has grown."""
        otherwise = "merge an adapter (merge_and_unload) before you make another, and load weights before attach()"
        if self._reference is None:
            self._state.warn_if_moved(f"{otherwise}; adapters one after another need probes=")
            return
        self._reference = Reference.of(self.model, self._moving)
        if (drift := self.drift()) > MOVED:
            warn_caller(
                f"the model is not where its last task left it (drift {drift:.3g}): {otherwise}; if its head has "
                "grown, give the new outputs a small bias"
            )

    def detach(self) -> None:
        """Stop guarding and remove every hook; `attach` continues."""
        self._first_pass.release()
        self._pull_added = {}
        if self._hooks is not None:
            self._hooks.end()

    def _pulls(self) -> Mapping[nn.Parameter, Tensor]:
        """Gradients to add to those of the task before this step."""
        if self._anchor is None or not self._sets:
            return {}
        for probes in self._sets:
            if probes.guessed:
                probes.settle(self._inner, self._first_pass.evidence, always=True)
            self._fit(probes)
        if self._pulled_for == self.steps:  # a step that failed is taken again
            return self._pull_added
        self._pulled_for = self.steps
        if not self._schedule.is_due(self.steps):
            return anchors.faded(self._pull_added)
        self._pull_added = {}  # its memory is free for the next one
        self._pull_added = anchors.added(self._anchor, self._pull())
        return self._pull_added

    def _fit(self, probes: Probes) -> None:
        """Make a pull no dearer than a step, as soon as the size of training batches is known."""
        if self._first_pass.size is not None:
            probes.fit(*self._first_pass.size)

    def _pull(self) -> Pull:
        autocast = self._first_pass.context(self.model)
        pull = Pull.of(self.model, self._parameters, self._sets, self._schedule, self._batch_norm, autocast)
        if not pull.slopes and not self._warned:
            self._warned = True
            warn_caller(f"nothing is held: {importance.UNREACHED}")
        self._schedule.pulled(self.tasks, self.steps, pull.drift)
        return pull

    def _start(self, state: ParameterState) -> None:
        """A parameter is about to take its first step."""
        state.start(self._state.method)
        if state.name not in self._frozen:
            return
        if self._reference is not None and state.name not in self._reference.tensors:
            self._reference.add(state.name, state.parameter)
        if self._anchor is None:
            self._frozen.clear()  # one warning is enough
            warn_caller(
                f"{state.name} was frozen when the old task was measured, so it is not held before the next "
                "consolidate(): unfreeze parameters before you make the guard"
            )

    def _observed(self) -> None:
        """A step has ended."""
        state = self._state
        state.stepped()
        if self._anchor is not None:
            self._batch_norm.follow()
        if state.steps % CHECKED == 0 and state.holds() and not state.is_finite():
            raise not_finite("parameters are not finite")
        if not (self._warned or state.tasks or self._anchor or isinstance(state.method, Vanilla)):
            self._warned = True
            warn_caller(
                f"{state.method.name} holds nothing in its first task: it measures there what to hold in the "
                "next; for a model that was trained before, give probes=, or call guard.begin(losses=…)"
            )

    @property
    def _inner(self) -> nn.Module:
        """The model without wrappers, which take no part in passes over probes."""
        return select.unwrapped(self.model)

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [each.parameter for each in self._state.guarded]

    @property
    def _moving(self) -> list[nn.Parameter]:
        """Those that were trained, or are: of the others, such as a model around an adapter, nothing is copied."""
        return [each.parameter for each in self._state.guarded if each.started or each.parameter.requires_grad]

    # ── a task ────────────────────────────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def begin(self, probes: Any = None, *, losses: Iterable[Tensor] | None = None) -> None:
        """Hold a model that was trained before, from its first step here on.

        Args:
            probes: inputs from before; see `Guard`. Methods on parameters measure importance on them.
            losses: for methods on parameters, instead of probes: losses of batches of old data, in a generator.
        """
        if self._state.tasks or self._state.steps:
            raise InputError("begin() comes before the first step: use consolidate() at the end of a task")
        if (probes is None) == (losses is None):
            raise InputError("begin() takes inputs, guard.begin(probes), or losses, guard.begin(losses=…)")
        if losses is not None:
            if self._anchor is not None:
                raise InputError("an anchor holds outputs on inputs: give guard.begin(probes)")
            self._state.begin(importance.of_losses(self._state, self.model, losses))
            return
        found = self._probes(probes)
        found.keep(self._inner)
        if self._anchor is None:
            found.settle(self._inner, None)
        self._check_ranks(found)
        self._state.begin(importance.of_probes(self._state, self.model, found))
        self._sets = [found]
        self._hold()

    @torch.no_grad()
    def consolidate(self, losses: Iterable[Tensor] | None = None, probes: Any = None) -> None:
        """End a task: from here on the model is held as it is now.

        If there is a budget and the drift is beyond it, weights are first interpolated back (see `finish`).

        Args:
            losses: for EWC and MAS, the loss of each batch of the task, in a generator, so that one graph lives
                at a time: `guard.consolidate(criterion(model(x), y) for x, y in loader)`.
            probes: inputs of this task, to be held along with those given before.
        """
        added = [] if probes is None else [self._probes(probes)]
        for each in added:
            each.keep(self._inner)  # refused before anything has changed
            if self._anchor is None:
                each.settle(self._inner, None)
        if self._anchor is not None and not (self._sets or added):
            raise InputError("an anchor holds outputs on inputs: guard.consolidate(probes=…)")
        fishers = {} if self._anchor else importance.of_task(self._state, self.model, losses)
        if self._sets:
            self._settle(self.budget)
        self._state.consolidate(fishers)
        self._sets += added
        self._hold()

    @torch.no_grad()
    def finish(self, budget: float | None = None) -> Report:
        """End training: keep the budget, report, and remove every hook.

        If the drift is beyond the budget, weights are interpolated back towards the old ones, no further than
        needed. If not even the old weights are within it, there is a warning and the weights stay. With a method
        on parameters, batch norm's statistics are interpolated to where outputs on the probes moved least.

        Args:
            budget: replaces the guard's.

        Returns:
            A report on the task, also in `last_report`.
        """
        if budget is not None:
            self._check_rewind(budget)
        self._settle(self.budget if budget is None else budget)
        self.detach()
        assert self.last_report is not None
        return self.last_report

    def _settle(self, budget: float | None) -> None:
        """Interpolate weights to within the budget, and write the report of the task."""
        left = 1.0
        if self._anchor is not None and self.steps < 2 and (self.steps or self.tasks == 1):
            warn_caller(
                f"the guard saw {self.steps} steps of its optimizer and first pulls in step 2, so nothing was "
                "held: train with the optimizer that it was given"
            )
        if self._sets and self._anchor is None and self._state.steps:
            # A penalty holds parameters, while batch norm's statistics follow the new inputs.
            assert self._reference is not None
            self._reference.statistics.nearest(self.model, self.drift)
        if budget is not None and self._sets:
            left = self._rewind(budget)
        self.last_report = report = replace(self.report(), left=left)
        if report.drift is not None and not math.isfinite(report.drift):
            warn_caller("outputs on the probes are not finite: go back to weights that were saved before")

    def _hold(self) -> None:
        """Measure drift from here on."""
        self._note_frozen()
        self._pull_added, self._pulled_for = {}, None
        self._batch_norm.follow()
        if self._anchor is not None:
            self._schedule = Schedule(self._anchor.every, self._schedule.readings)
        if self._sets:
            self._reference = Reference.of(self.model, self._moving)
            for probes in self._sets:
                probes.keep(self._inner)
                self._fit(probes)
            self._first_pass.wanted = any(probes.guessed for probes in self._sets)

    def _note_frozen(self) -> None:
        """Frozen parameters belong to what is held, and were neither copied nor measured, because none moves."""
        moving = set(self._moving)
        self._frozen = {each.name for each in self._state.guarded if each.parameter not in moving}

    def _probes(self, given: Any) -> Probes:
        if isinstance(given, Probes):
            if self._given.divergence is not None or self._given.outputs is not None:
                raise InputError("give divergence= and outputs= to rwalk.Probes(…), not beside it")
            found = given
        else:
            found = Probes(
                given, divergence=self._given.divergence, outputs=self._given.outputs, call=self._given.call
            )
        found.held_out = self._anchor is not None and self.budget is not None
        if self._anchor is not None and found.batch is None:
            found.batch = self._anchor.batch
        return found

    def _check_ranks(self, probes: Probes) -> None:
        """Refuse other probes on another rank: files hold one set of old outputs, and ranks share the batches."""
        group, ranks = anchors.replicas(self.model)
        if ranks > 1:
            prints: list[Any] = [None] * ranks
            dist.all_gather_object(prints, probes.fingerprint, group)
            if len(set(prints)) > 1:
                raise InputError("ranks have different probes: give all of them the same")

    # ── drift ─────────────────────────────────────────────────────────────────────────────────────────────────

    def drift(self) -> float:
        """The mean divergence of the outputs on the probes from the old ones."""
        if not self._sets:
            raise InputError("there is nothing to measure drift on: give probes=, or guard.begin(probes)")
        return weighted_mean(
            [each.drift(self._inner) for each in self._sets], [each.examples for each in self._sets]
        )

    def _worst_drift(self) -> float:
        """The largest drift of all replicas, whose batch norms differ: all of them must move alike.

        Held-out probes are few, so a standard error is added to their drift.
        """
        drifts = [each.drift(self._inner, 1.0 if each.held_out else 0.0) for each in self._sets]
        found = weighted_mean(drifts, [each.examples for each in self._sets])
        group, ranks = anchors.replicas(self.model)
        if ranks == 1:
            return found
        drift = torch.tensor(found, dtype=torch.float64, device=device_of(self.model))
        dist.all_reduce(drift, dist.ReduceOp.MAX, group)
        return float(drift)

    @torch.no_grad()
    def rewind(self, budget: float | None = None) -> float:
        """Interpolate weights towards the old ones until the drift is within a budget, no further than needed.

        Batch norm's statistics are interpolated too; the optimizer's state stays.

        Args:
            budget: the largest drift; by default the guard's.

        Returns:
            The share of the way from the old weights to the trained ones that is left.
        """
        budget = self.budget if budget is None else budget
        self._check_rewind(budget)
        assert budget is not None
        return self._rewind(budget)

    def _check_rewind(self, budget: float | None) -> None:
        check_budget(budget)
        if budget is None or not self._sets:
            raise InputError("rewind needs a budget, guard.rewind(0.05), and probes: guard.begin(probes)")

    def _rewind(self, budget: float) -> float:
        assert self._reference is not None
        self._pull_added = {}
        with self._state.moved():
            left = self._reference.rewind(self.model, lambda: self._worst_drift() <= budget)
        if left is None:
            warn_caller(
                f"the budget of {budget:g} cannot be kept: drift is {self.drift():.3g}, and beyond it even with "
                "the old values of all guarded parameters; guard more parameters, or give a larger budget"
            )
            return 1.0
        if left < FEW:
            warn_caller(
                f"the budget of {budget:g} kept {left:.0%} of what was trained, so the new task may be lost: give "
                "a larger budget, a larger weight (method=rwalk.Anchor(weight=3.0)), or a smaller learning rate; "
                "guard.frontier(loss) before finish() lists the choices"
            )
        return left

    @torch.no_grad()
    def frontier(self, loss: Callable[[nn.Module], float] | None = None, points: int = 11) -> list[Point]:
        """Drift, and the new task's loss, between the old weights and the new ones; the weights stay as they are.

        Args:
            loss: from the model to a number, on held-out data of the new task.
            points: how many, equally spaced.

        Returns:
            A point for each share of the way, from the old weights (0) to the new ones (1).
        """
        if self._reference is None:
            raise InputError("a frontier needs probes: guard.begin(probes)")
        found = []
        with self._reference.between(self.model) as put:
            for number in range(points):
                share = number / max(points - 1, 1)
                put(share)
                value = None if loss is None else float(loss(self.model))
                found.append(Point(share, self.drift(), value))
            put(1.0)
        return found

    def penalty(self) -> float:
        """The penalty on parameters now, for logging; where they are sharded, call it on all ranks."""
        with torch.no_grad():
            return self._state.penalty()

    def report(self) -> Report:
        """How far the model has drifted since the last task ended: to print, or `to_dict()`."""
        method, inner = self.method, self._inner
        sets = tuple(ProbeReport(each.examples, each.drift(inner)) for each in self._sets)
        weight = method.weight if isinstance(method, Anchor) else float(method.lam)
        counts = (self._state.tasks, self._state.steps, self.budget, self.penalty())
        return Report(method.name, weight, *counts, sets, self._schedule.readings)

    def log(self) -> dict[str, float]:
        """Numbers for a tracker: drift at the last pull of an anchor, or λ and penalty now."""
        if self._anchor is None:
            found = {"guard/lam": float(self._state.method.lam), "guard/penalty": self.penalty()}
            return {**found, "guard/drift": self.drift()} if self._sets else found
        readings = self._schedule.readings
        return {"guard/drift": readings[-1].drift} if readings else {}

    # ── files ─────────────────────────────────────────────────────────────────────────────────────────────────

    def state_dict(self, probes: bool = False) -> dict[str, Any]:
        """The state and all options, for a checkpoint of your own; call it on all ranks of a sharded model.

        Args:
            probes: whether inputs are included. They are your data: without them, give the same ones when loading.
        """
        record = {"method": guard_file.description(self._anchor or self._state.method), **self._state.state_dict()}
        record["options"] = options.saved(self._given, self.names)
        if self._sets:
            assert self._reference is not None
            parameters = {each.name: each.parameter for each in self._state.guarded}
            pulls = {name: self._pull_added[each] for name, each in parameters.items() if each in self._pull_added}
            drift = guard_file.drift_state(self._sets, self._schedule, probes)
            for kind, tensors in (("reference", self._reference.tensors), ("pull", pulls)):
                drift["tensors"] |= guard_file.whole(kind, tensors, parameters)
            record["drift"] = drift
        return record

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state_dict`; the model has its weights already, and may have grown since.

        Args:
            state: from `state_dict`. Every value is checked before anything changes.

        Raises:
            InputError: The state is damaged, or does not fit this model, method or probes.
        """
        record = guard_file.current(state)
        parameters = {each.name: each for each in self._state.guarded}
        vectors = guard_file.checked(record, self._anchor or self._state.method, parameters)
        restored = None
        if "drift" in record:
            drift = record["drift"]
            restored = guard_file.restored(drift, self._sets, self._probes, self._inner, parameters)
            if self._anchor is not None:
                found = drift["schedule"], drift["readings"], record["steps"]
                schedule = Schedule.restored(self._anchor, *found)
        elif self._anchor is not None:
            raise InputError("it holds no old outputs, so an anchor could hold nothing: make a new Guard")
        self._state.load(record, vectors)
        if restored is not None:
            self._sets, old, pulls = restored
            self._reference = Reference(old)
            self._pull_added = {parameters[name].parameter: pull for name, pull in pulls.items()}
            self._pulled_for = None
            self._batch_norm.follow()
            if self._anchor is not None:
                self._schedule = schedule
            self._first_pass.wanted = any(each.guessed for each in self._sets)
        self._note_frozen()
        if self._hooks is not None:
            self._hooks.abandon(at_once=False)
        self._warned = True
        if not self.tasks and self._anchor is None and not isinstance(self._state.method, Vanilla):
            warn_caller("no task was consolidated before this was saved: nothing is held until consolidate()")

    def save(self, path: str | os.PathLike[str], probes: bool = False) -> None:
        """Write one checked file, all of it or nothing; the model's weights are yours to save.

        If a model is spread over processes, all of them call this, and one writes.

        Args:
            path: the file; an old one is replaced.
            probes: whether inputs are included; see `state_dict`.
        """
        state = self.state_dict(probes)
        sharded = any(map(groups, self._parameters))
        _, ranks = anchors.replicas(self.model)
        shared = sharded or ranks > 1
        try:
            if not shared or dist.get_rank() == 0:
                guard_file.write(Path(path), state)
        finally:
            if shared:
                dist.barrier()  # afterwards the file is whole for all

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str] | Mapping[str, Any],
        model: nn.Module,
        optimizer: Optimizer,
        method: Method | Anchor | str | None = None,
        *,
        probes: Any = None,
        **given: Any,
    ) -> Guard:
        """A guard that continues from a file, with all options it had; those given here replace them.

        Args:
            path: a file that `save` wrote, or a `state_dict` from a checkpoint of your own.
            model: with the weights it had then.
            optimizer: of its parameters.
            method: to change hyper-parameters, or if it is one of your own, which no file describes.
            probes: the same inputs as before, unless the file holds them.
            given: other options of `Guard`, which replace those of the file.

        Returns:
            The guard, attached to the optimizer.

        Raises:
            InputError: The file is damaged, or does not fit the model, the method or the probes.
        """
        guard = None
        try:
            state = guard_file.current(path if isinstance(path, Mapping) else guard_file.read(Path(path)))
            old = {name: given.pop(name) for name in list(given) if name in options.OLD}
            asked = options.restored(state, method, probes, given)
            guard = cls.__new__(cls)
            guard._set_up(model, optimizer, options.translated(asked, old))
            if probes is not None and guard._given.probes is not None:
                guard._sets = [guard._probes(guard._given.probes)]
            guard.load_state_dict(state)
        except BaseException as error:
            if guard is not None and getattr(guard, "_hooks", None) is not None:
                guard.detach()
            if isinstance(error, InputError):
                what = "this state" if isinstance(path, Mapping) else os.fspath(path)
                raise InputError(f"{what} cannot be loaded: {error}") from None
            raise
        return guard


def _method(given: options.Given) -> Method | Anchor:
    method: Any = given.method
    if method is None:
        if given.probes is None:
            raise InputError(
                "a guard needs something to hold the model by: probes=, inputs from before; or "
                "method='rwalk', which measures one task and holds it in the next"
            )
        return Anchor()
    if method == Anchor.name:
        return Anchor()
    if isinstance(method, str):
        if method not in METHODS:
            raise unknown("method", method, [Anchor.name, *METHODS])
        return METHODS[method]()
    if not isinstance(method, Method | Anchor):
        raise InputError(
            f"method must be {Anchor.name}, {', '.join(METHODS)}, or one made like rwalk.RWalk(lam=1.0), "
            f"not {shown(repr(method), 60)}; inputs are given as probes="
        )
    return method


def check_budget(budget: float | None) -> None:
    known = isinstance(budget, int | float) and not isinstance(budget, bool)
    if budget is not None and not (known and 0 < budget < math.inf):
        raise InputError(f"budget must be a number above 0, such as 0.05, not {budget!r}")


def _check_kinds(model: Any, optimizer: Any) -> None:
    if not isinstance(model, nn.Module) or not hasattr(optimizer, "param_groups"):
        kinds = f"{type(model).__name__} and {type(optimizer).__name__}"
        raise InputError(f"Guard takes a model and its optimizer, Guard(model, optimizer), not {kinds}")


def _check(method: Method | Anchor, given: options.Given) -> None:
    check_budget(given.budget)
    if given.budget is not None and not isinstance(method, Anchor):
        raise InputError(
            f"a budget is kept by an anchor on probes, and {method.name} has a λ of its own: leave method= out, "
            "or leave budget= out and give lam"
        )
    if isinstance(method, Method) and method.fisher != "batch" and ("square" in method.wants or method.data_pass):
        hint = " and give consolidate() batches of one example" if method.data_pass else ""
        raise InputError(f"Guard has the gradients of batches, not of examples: use fisher='batch'{hint}")
