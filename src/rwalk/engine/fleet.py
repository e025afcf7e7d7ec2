"""THE training loop. R runs, one program: θ[R, P], one forward pass, everything after it elementwise.

One run is a fleet of one; there is no second loop. Runs differ in seed, method and its numbers (λ, α …), share
everything else, and never see each other: no reduction crosses runs, no random draw depends on the fleet's width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk import augmentations
from rwalk.data.memory import Memory
from rwalk.data.streams import Stream
from rwalk.engine import evaluation, execution, exemplars, fisher, networks, reservoirs, teachers
from rwalk.engine.execution import solved
from rwalk.engine.late import LateLosses, thinned
from rwalk.engine.lessons import Lesson, batches_of, lesson_of
from rwalk.engine.optimizer import OPTIMIZERS, Optimizer
from rwalk.engine.vectors import Networks
from rwalk.engine.walkers import walkers_of
from rwalk.errors import InputError
from rwalk.learners import Learner
from rwalk.methods.base import State
from rwalk.metrics import HEADS
from rwalk.parts import stack
from rwalk.training import Training


class Progress(NamedTuple):
    """Where a fleet is: `step` of `steps` done in a task (from 0) of `tasks`, and the mean loss of its runs."""

    task: int
    tasks: int
    step: int
    steps: int
    loss: float


class Measured(NamedTuple):
    """A task has ended: accuracies [R, task + 1] on it and on all before it, by each head."""

    task: int
    tasks: int
    accuracy: dict[str, NDArray[np.float64]]


Tell = Callable[[Progress | Measured], None]
Enough = Callable[["Fleet"], bool]  # asked after every step whether the task has been learned long enough


class Checkpoints(Protocol):
    """Saves a fleet during training. Asked after every step, so that a signal to stop takes effect at once."""

    def due(self, fleet: Fleet) -> bool: ...

    def save(self, fleet: Fleet) -> None: ...


class Fleet:
    """R runs on one stream, of one learner or of several that differ in their method.

    >>> from rwalk.data import datasets, splits
    >>> stream = splits.split(datasets.load("digits"), classes_per_task=2)
    >>> fleet = Fleet(stream, "mlp", [Learner()] * 2, seeds=[0, 1], training=Training(epochs=1))
    >>> fleet.train()
    >>> fleet.accuracy["single"].shape
    (2, 5, 5)

    How a step is executed (operation by operation, compiled, or captured) is chosen by expected speed (see
    `execution`); `fuse` forces compiled steps, or forbids them.

    `measures` asks for more than the accuracies at every task's end; `measured` holds it.

    A stream may be the rest of a longer one: `past` counts the tasks before its first, whose examples are gone;
    `known` are the classes that they taught. Random draws continue where those tasks left off.
    """

    lesson: Lesson  # what is fixed while the current task is learned

    def __init__(
        self,
        stream: Stream,
        network: str | networks.Factory,
        learners: Sequence[Learner],
        seeds: Sequence[int],
        training: Training = Training(),  # noqa: B008 - frozen
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        autocast: bool = False,
        past: int = 0,
        known: Sequence[int] = (),
        fuse: bool | None = None,
        measures: evaluation.Measures = evaluation.Measures(),  # noqa: B008 - frozen
    ) -> None:
        if not seeds or len(learners) != len(seeds):
            raise InputError(f"a fleet needs one learner per seed, got {len(learners)} for {len(seeds)} seeds")
        first = learners[0]
        if any(replace(each, method=first.method, loss=first.loss) != first for each in learners):
            raise InputError("runs of one fleet may differ in their method and in the numbers of their loss only")
        self.stream = stream.to(device, dtype)
        self.seeds = list(seeds)
        self.past = past
        self.known = tuple(known)
        self.training = training
        self.augmentation = augmentations.find(training.augment) if training.augment else None
        if self.augmentation:
            self.augmentation.check(tuple(stream.shape))
        self.learners = list(learners)
        self.learner = first
        if first.solver is not None:
            network = first.solver.network
        build = networks.builder(network, tuple(stream.shape), stream.classes)
        self.net = Networks(
            build, seeds, device, dtype, lambda module: networks.head_of(module, stream.classes), autocast
        )
        exemplars.check_features(first, self.net)
        self.theta = self.net.theta.detach()  # the same storage, without autograd
        self.plan = plan = execution.plan_of(self, fuse)
        self.loss = stack([each.loss for each in learners], self.theta)
        self.optimizer: Optimizer = OPTIMIZERS[training.optimizer](self.theta, training.lr, plan.compiled)
        self.memory = None if first.memory is None or first.memory.is_reservoir else Memory(first.memory)
        self.walkers = walkers_of(learners, self.theta, columns=plan.compiled)
        self.loss_state: State = {}
        self.held: State = reservoirs.empty(self) | solved.empty(self)  # of any type, allocated once
        self.task = 0
        self.step = 0
        shape = (self.runs, len(stream), len(stream))
        self.accuracy: dict[str, NDArray[np.float64]] = {head: np.full(shape, np.nan) for head in HEADS}
        self.measures = measures
        self.measured: dict[str, NDArray[np.float64]] = evaluation.room(self)  # what else is asked for
        self.stopped: list[str | None] = [None] * self.runs
        self.execution: execution.Execution = execution.made(self, plan)

    @property
    def runs(self) -> int:
        return self.net.runs

    @property
    def state(self) -> State:
        """What the methods know: vectors of all runs, or, where methods differ, of those that have the method."""
        return {name: vector for walker in self.walkers for name, vector in walker.named().items()}

    @state.setter
    def state(self, state: State) -> None:
        for walker in self.walkers:
            walker.take(state)

    def state_of(self, run: int) -> State:
        """What one run's method knows, as in a fleet of that run alone: vectors [1, P]."""
        walker = next(each for each in self.walkers if each.rows.start <= run < each.rows.stop)
        return walker.of_run(run)

    def train(
        self, tell: Tell | None = None, checkpoints: Checkpoints | None = None, enough: Enough | None = None
    ) -> None:
        """Learn the tasks one after another, measuring all tasks seen after each."""
        with self._cudnn():
            while self.task < len(self.stream) and not all(self.stopped):
                self.begin_task()
                self.train_task(tell, checkpoints, enough)
                self.end_task(tell)
                self.task, self.step = self.task + 1, 0
                if checkpoints and checkpoints.due(self):
                    checkpoints.save(self)

    def _cudnn(self) -> AbstractContextManager[None]:
        """Let cuDNN measure which kernels suit the shapes, which are fixed. The flags are global: CUDA alone."""
        if not self.theta.is_cuda:
            return nullcontext()
        exact = torch.backends.cudnn.deterministic  # `flags` turns off whatever it is not told
        return torch.backends.cudnn.flags(True, benchmark=not exact, deterministic=exact, allow_tf32=True)

    def begin_task(self) -> None:
        self.lesson = lesson_of(self)
        if self.step == 0:
            if not self.training.keep_optimizer or self.loss.afresh:
                self.optimizer.restart(keep_count=self.training.keep_debias and not self.loss.afresh)
            exemplars.keep(self, before=True)
            if self.loss.afresh:
                self.net.restart()
            teachers.begin_task(self.loss, self.loss_state, self.theta, self.net.buffers, self.past + self.task)
        self.execution.begin_task()

    def train_task(
        self, tell: Tell | None = None, checkpoints: Checkpoints | None = None, enough: Enough | None = None
    ) -> None:
        late = LateLosses(self.theta.is_cuda)
        for batch in batches_of(self):  # drawn by names: (seed, task, epoch)
            losses = self.execution.step(*batch)  # gradient → project → walk → observe
            self.step += 1
            for number, walker in enumerate(self.walkers):
                if walker.method.window and self.step % walker.method.window == 0:
                    self.execution.close_window(number)
            evaluation.measure_within(self)
            due = checkpoints is not None and checkpoints.due(self)
            ended = self.step == self.lesson.steps or (enough is not None and enough(self))
            for step, seen in late.add(losses, self.step, flush=due or ended):
                self._stop_what_diverged(step, seen)
                if tell:
                    for reached, loss in thinned(step, seen, self.lesson.steps):
                        tell(Progress(self.task, len(self.stream), reached, self.lesson.steps, loss))
            if checkpoints and due and not all(self.stopped):
                checkpoints.save(self)
            if ended or all(self.stopped):
                return

    def end_task(self, tell: Tell | None = None) -> None:
        self.execution.end_task()
        importance = fisher.of_task(self) if self.learner.method.data_pass else None
        for walker in self.walkers:
            walker.method.consolidate(walker.state, self.theta[walker.rows], importance)
        exemplars.keep(self, before=False)
        measured = evaluation.evaluate(self, self.stream, self.task)
        alive = np.array([reason is None for reason in self.stopped])
        for head, values in measured.items():
            self.accuracy[head][alive, self.task, : self.task + 1] = values[alive]
        evaluation.measure_calibration(self)
        if tell:
            tell(Measured(self.task, len(self.stream), measured))

    def _stop_what_diverged(self, last: int, losses: Tensor) -> None:
        """Stop the runs whose loss is not finite any more; they continue as NaN and do not affect the others."""
        finite = losses.isfinite()
        first = last - len(losses)
        for run in (~finite.all(0)).nonzero().flatten().tolist():
            if self.stopped[run] is None:
                step = first + int(finite[:, run].int().argmin()) + 1
                lam, rate = self.learners[run].lam, f"learning rate = {self.training.lr:g}"
                cure = (
                    f"(λ = {lam:g}, {rate}): lower one of them, or take the proximal penalty"
                    if lam
                    else f"({rate}): lower it"
                )
                self.stopped[run] = f"the loss is not finite at step {step} of task {self.task + 1} {cure}"
