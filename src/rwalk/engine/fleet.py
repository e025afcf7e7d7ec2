"""THE training loop. R runs, one program: θ[R, P], one forward pass, everything after it elementwise.

One run is a fleet of one; there is no second loop. Runs differ in seed, method and its numbers (λ, α …), share
everything else, and are independent: no reduction crosses runs, no random draw depends on the fleet's width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk import augmentations
from rwalk.data.memory import Memory
from rwalk.data.streams import Stream
from rwalk.engine import architectures, evaluation, exemplars, fisher, solver_step, teachers
from rwalk.engine.choose_execution import Execution, execution_of, execution_plan
from rwalk.engine.method_groups import method_groups
from rwalk.engine.optimizers import OPTIMIZERS, Optimizer
from rwalk.engine.parameter_matrix import Networks
from rwalk.engine.progress import LateLosses, Progress, Tell, thinned
from rwalk.engine.task_plan import TaskPlan, batches_of, task_plan
from rwalk.errors import InputError
from rwalk.learners import Learner
from rwalk.losses import heads
from rwalk.methods.method import State
from rwalk.metrics import HEADS
from rwalk.parts import stack
from rwalk.seeds import is_seed
from rwalk.training import Training

Enough = Callable[["Fleet"], bool]  # called after every step: whether the task has been learned long enough


class Checkpoints(Protocol):
    """Saves a fleet during training; `due` is called after every step, so that a signal to stop acts at once."""

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

    Args:
        stream: The tasks, or the rest of a longer stream: see `past`.
        network: A name, `package.module:factory`, or a function (input shape, classes) → nn.Module.
        learners: One per run. They may differ in their method and in the numbers of their loss only.
        seeds: One per run.
        training: Steps, batch size, optimizer.
        device: Where the runs are trained.
        dtype: Type of parameters and inputs.
        autocast: Whether forward passes use bfloat16.
        past: Number of earlier tasks, whose examples are gone. Random draws continue after them.
        known: The classes of those tasks.
        fuse: Whether steps are compiled; by default where that is expected to be faster (see `execution`).
        measures: Measurements beside the accuracies at every task's end; results are in `measured`.

    Raises:
        InputError: If the parts do not fit each other or the stream.
    """

    task_plan: TaskPlan  # of the current task

    def __init__(
        self,
        stream: Stream,
        network: str | architectures.Factory,
        learners: Sequence[Learner],
        seeds: Sequence[int],
        training: Training = Training(),  # noqa: B008 - frozen
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        autocast: bool = False,
        past: int = 0,
        known: Sequence[int] = (),
        fuse: bool | None = None,
        measures: evaluation.MeasureOptions = evaluation.MeasureOptions(),  # noqa: B008 - frozen
    ) -> None:
        if not seeds or len(learners) != len(seeds):
            raise InputError(f"a fleet needs one learner per seed, got {len(learners)} for {len(seeds)} seeds")
        if strange := [seed for seed in seeds if not is_seed(seed)]:
            raise InputError(f"a seed is a whole number below 2^63, not {strange[0]!r}")
        first = learners[0]
        if any(replace(each, method=first.method, loss=first.loss) != first for each in learners):
            raise InputError("runs of one fleet may differ in their method and in the numbers of their loss only")
        if first.memory and first.memory.replay == "half" and training.batch < 2:
            raise InputError("half of a batch of 1 is no exemplar: give a batch of 2 or more, or another replay")
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
        build = architectures.builder(network, tuple(stream.shape), stream.classes)
        head_of = lambda module: architectures.head_of(module, stream.classes)  # noqa: E731
        self.net = Networks(build, seeds, device, dtype, head_of, autocast)
        exemplars.check_features(first, self.net, self.stream)
        self.theta = self.net.theta.detach()  # the same storage, without autograd
        self.execution_plan = plan = execution_plan(self, fuse)
        self.loss = stack([each.loss for each in learners], self.theta)
        self.optimizer: Optimizer = OPTIMIZERS[training.optimizer](self.theta, training.lr, plan.compiled)
        self.memory = None if first.memory is None or first.memory.is_reservoir else Memory(first.memory)
        self.method_groups = method_groups(learners, self.theta, columns=plan.compiled)
        self.loss_state: State = {}
        self.held: State = exemplars.empty_reservoir(self) | solver_step.empty_sums(self)
        self.task = 0
        self.step = 0
        shape = (self.runs, len(stream), len(stream))
        self.accuracy: dict[str, NDArray[np.float64]] = {head: np.full(shape, np.nan) for head in HEADS}
        self.measures = measures
        self.measured = evaluation.empty_measurements(self)
        self.stopped: list[str | None] = [None] * self.runs  # the reason, for a run that diverged
        self.execution: Execution = execution_of(self, plan)

    @property
    def runs(self) -> int:
        """R, the number of runs."""
        return self.net.runs

    @property
    def task_number(self) -> int:
        """The current task's number, with the past tasks counted."""
        return self.past + self.task

    def mask(self, classes: Iterable[int]) -> Tensor:
        """The head of these classes [C]: 0, and −∞ for all other classes."""
        return heads.mask(classes, self.stream.classes, self.theta)

    @property
    def state(self) -> State:
        """The methods' vectors: of all runs or, where methods differ, of each method group."""
        return {name: vector for group in self.method_groups for name, vector in group.named().items()}

    @state.setter
    def state(self, state: State) -> None:
        for group in self.method_groups:
            own = {name: vector for name, vector in state.items() if name.startswith(group.prefix)}
            group.state = {name.removeprefix(group.prefix): vector for name, vector in own.items()}

    def state_of(self, run: int) -> State:
        """The vectors [1, P] of one run's method, as in a fleet of that run alone."""
        group = next(each for each in self.method_groups if each.rows.start <= run < each.rows.stop)
        row = run - group.rows.start
        return {name: vector[row : row + 1] for name, vector in group.state.items()}

    def train(
        self, tell: Tell | None = None, checkpoints: Checkpoints | None = None, enough: Enough | None = None
    ) -> None:
        """Learn the tasks one after another, and measure all tasks seen after each.

        Args:
            tell: Called with Progress now and then.
            checkpoints: Saves the fleet.
            enough: Whether a task has been learned long enough; called after every step.
        """
        with self._cudnn():
            while self.task < len(self.stream) and not all(self.stopped):
                self.begin_task()
                self.train_task(tell, checkpoints, enough)
                self.end_task()
                self.task, self.step = self.task + 1, 0
                if checkpoints and checkpoints.due(self):
                    checkpoints.save(self)

    def _cudnn(self) -> AbstractContextManager[None]:
        """Let cuDNN measure its kernels for the fixed shapes. The flags are global, so this is for CUDA alone."""
        if not self.theta.is_cuda:
            return nullcontext()
        exact = torch.backends.cudnn.deterministic  # `flags` resets the options that it is not given
        return torch.backends.cudnn.flags(True, benchmark=not exact, deterministic=exact, allow_tf32=True)

    def begin_task(self) -> None:
        """Prepare the current task: its plan, the optimizer and the loss's teacher; a resumed task has its own."""
        self.task_plan = task_plan(self)
        if self.step == 0:  # else it is resumed
            if not self.training.keep_optimizer or self.loss.afresh:
                self.optimizer.restart(keep_count=self.training.keep_debias and not self.loss.afresh)
            exemplars.keep(self, before=True)
            if self.loss.afresh:
                self.net.restart()
            teachers.begin_task(self.loss, self.loss_state, self.theta, self.net.buffers, self.task_number)
        self.execution.begin_task()

    def train_task(
        self, tell: Tell | None = None, checkpoints: Checkpoints | None = None, enough: Enough | None = None
    ) -> None:
        """Take the steps of the current task, until its last one, until `enough`, or until all runs diverged."""
        late, steps = LateLosses(self.theta.is_cuda), self.task_plan.steps
        for batch in batches_of(self):  # drawn by names: (seed, task, epoch)
            losses = self.execution.step(*batch)  # gradient → projection → update → observation
            self.step += 1
            for number, group in enumerate(self.method_groups):
                if group.method.window and self.step % group.method.window == 0:
                    self.execution.close_window(number)
            evaluation.measure_within(self)
            due = checkpoints is not None and checkpoints.due(self)
            ended = self.step == steps or (enough is not None and enough(self))
            for last, seen in late.add(losses, self.step, flush=due or ended):
                self._stop_diverged(last, seen)
                if tell:
                    for step, loss in thinned(last, seen, steps):
                        tell(Progress(self.task, len(self.stream), step, steps, loss))
            if checkpoints and due and not all(self.stopped):
                checkpoints.save(self)
            if ended or all(self.stopped):
                return

    def end_task(self) -> None:
        """Consolidate the methods, choose exemplars, and measure the accuracies."""
        self.execution.end_task()
        importance = fisher.of_task(self) if self.learner.method.data_pass else None
        for group in self.method_groups:
            group.method.consolidate(group.state, self.theta[group.rows], importance)
        exemplars.keep(self, before=False)
        evaluation.measure_task(self)

    def _stop_diverged(self, last: int, losses: Tensor) -> None:
        """Stop the runs whose loss is non-finite; they continue as NaN and do not affect the others."""
        finite = losses.isfinite()
        first = last - len(losses)
        for run in (~finite.all(0)).nonzero().flatten().tolist():
            step = first + int(finite[:, run].int().argmin()) + 1
            self.stop(run, f"the loss is not finite at step {step} of task {self.task + 1}")

    def stop(self, run: int, reason: str) -> None:
        """Stop a run that diverged, unless it has been stopped before."""
        if self.stopped[run] is None:
            lam, rate = self.learners[run].lam, f"learning rate = {self.training.lr:g}"
            advice = f"({rate}): lower it"
            if lam:
                advice = f"(λ = {lam:g}, {rate}): lower one of them, or take the proximal penalty"
            self.stopped[run] = f"{reason} {advice}"
