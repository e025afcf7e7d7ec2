"""THE training loop. R runs, one program: θ[R, P], one forward pass, everything after it elementwise.

One run is a fleet of one; there is no second loop. Runs differ in seed and in numbers (λ, α …), share all else,
and never see each other: no reduction here crosses runs, no random draw depends on the fleet's width.
"""

from __future__ import annotations

import logging
import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk import batches, heads, networks, private_torch, samplers, seeds, walk
from rwalk.errors import InputError, unknown
from rwalk.graphs import Arriving, Graphed
from rwalk.learners import Learner
from rwalk.memory import Group, Memory
from rwalk.methods import icarl
from rwalk.methods.base import State, stack
from rwalk.optimizer import OPTIMIZERS, Optimizer
from rwalk.programs import Function, compiler_works, program
from rwalk.streams import Stream
from rwalk.vectors import Networks

HEADS = ("single", "multi")
BLOCK = 65_536  # parameters a CPU takes through a whole step of the walk at a time: eight vectors of it are 2 MB
CHUNK = 64  # steps between looks at the losses: a look waits for the device
# Steps from which a CPU's are compiled, for a method that observes them and for one that does not, of a network as
# large as the paper's MLP: they gain twice the seconds that compiling takes once its results are cached. Smaller
# ones gain less; larger ones more, but compiling takes longer the more layers there are (ResNet-18: two minutes).
WORTH_COMPILING = {True: 5_000, False: 10_000}
LARGE = 260_000  # parameters
# Steps × runs on CUDA from which a gradient is compiled: 10,000 steps of five of the paper's CIFAR networks gain
# the dozen seconds it takes, and the next fleet of a study has its program already.
WORTH_RECORDING = 50_000

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Training:
    """How long and with what: `steps` a task, or else `epochs` over its data."""

    epochs: int = 1
    steps: int | None = None
    batch: int = 64
    lr: float = 1e-3
    optimizer: str = "adam"

    def __post_init__(self) -> None:
        for name, words in (("epochs", "epochs"), ("steps", "steps"), ("batch", "the batch size")):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise InputError(f"{words} must be a whole number, at least 1, not {value!r}")
        if not (isinstance(self.lr, int | float) and 0 < self.lr < math.inf):
            raise InputError(f"the learning rate must be greater than 0, not {self.lr!r}")
        if self.optimizer not in OPTIMIZERS:
            raise unknown("optimizer", self.optimizer, OPTIMIZERS)


class Progress(NamedTuple):
    """Where a fleet is: `step` of `steps` done in a task (from 0) of `tasks`, and the mean loss of its runs."""

    task: int
    tasks: int
    step: int
    steps: int
    loss: float


class Keeper(Protocol):
    """Who saves a fleet on its way. Asked after every step, so that a signal to stop is heeded at once."""

    def due(self, fleet: Fleet) -> bool: ...

    def keep(self, fleet: Fleet) -> None: ...


class Fleet:
    """R runs of one learner on one stream.

    >>> from rwalk import datasets, streams
    >>> stream = streams.split(datasets.load("digits"), classes_per_task=2)
    >>> fleet = Fleet(stream, "mlp", [Learner()] * 2, seeds=[0, 1], training=Training(epochs=1))
    >>> fleet.train()
    >>> fleet.accuracy["single"].shape
    (2, 5, 5)

    `fuse` compiles: on a CPU the whole step into one program, on CUDA the walk into one kernel and the gradient
    into one program. Without it, that is done where a compiler is there and it earns its seconds: on a CPU
    for a run that is long enough and alone (the rule looks at nothing but the run, so that its bits do not depend
    on its company); on CUDA for every walk, and for the gradients of convolutional networks in long trainings.

    A stream may be the rest of a longer one: `past` counts the tasks before its first, whose examples are gone.
    Random draws go on where they left off.
    """

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
        fuse: bool | None = None,
    ) -> None:
        if not seeds or len(learners) != len(seeds):
            raise InputError(f"a fleet needs one learner a seed, got {len(learners)} for {len(seeds)} seeds")
        first = learners[0]
        if any(replace(each, method=first.method) != first for each in learners):
            raise InputError("the runs of one fleet may differ in their method's numbers only")
        self.stream = stream.to(device, dtype)
        self.seeds = list(seeds)
        self.past = past
        self.training = training
        build = networks.builder(network, tuple(stream.shape), stream.classes)
        self.net = Networks(
            build, seeds, device, dtype, lambda module: networks.head_of(module, stream.classes), autocast
        )
        self.learners = list(learners)
        self.learner = first
        self.fused = self._can_fuse() and (self._worth_fusing() if fuse is None else fuse)
        self._loudness = logging.WARNING if fuse else logging.INFO  # of saying that something stays eager
        if fuse and not self.fused:
            logger.warning("a step of more than one loss's gradient is not compiled on a CPU")
        self._records_gradient = self._worth_recording() if fuse is None else fuse
        self.method = stack([each.method for each in learners], self.net.theta, columns=self.fused)
        self.memory = None if first.memory is None else Memory(first.memory)
        self._need_features()
        self._walk, self._score = self._kernel(walk.step), self._kernel(walk.score)

        theta = self.net.theta.detach()
        self.theta = theta  # the same storage, without autograd
        self._programs: dict[tuple[Any, ...], Function | None] = {}
        self.state: State = self.method.start(theta)
        self.teacher: Tensor | None = None
        self.task = 0
        self.step = 0
        self.optimizer: Optimizer = self._new_optimizer()
        shape = (self.runs, len(stream), len(stream))
        self.accuracy: dict[str, NDArray[np.float64]] = {head: np.full(shape, np.nan) for head in HEADS}
        self.stopped: list[str | None] = [None] * self.runs

    @property
    def runs(self) -> int:
        return self.net.runs

    def train(self, progress: Callable[[Progress], None] | None = None, keeper: Keeper | None = None) -> None:
        """Learn the tasks one after another, measuring all tasks seen after each."""
        # Shapes are fixed: let cuDNN measure what suits them. (`flags` turns off whatever it is not told.)
        exact = torch.backends.cudnn.deterministic
        with torch.backends.cudnn.flags(True, benchmark=not exact, deterministic=exact, allow_tf32=True):
            while self.task < len(self.stream) and not all(self.stopped):
                self._begin_task()
                self._train_task(progress, keeper)
                self._end_task()
                self.task, self.step = self.task + 1, 0
                if keeper and keeper.due(self):
                    keeper.keep(self)

    # ── the whole state, for checkpoints and for going on with more tasks ─────────────────────────────────────

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Everything the rest of the training depends on: tensors by name, and counters fit for JSON."""
        tensors = {"theta": self.theta}
        tensors |= {f"optimizer.{name}": vector for name, vector in self.optimizer.state.items()}
        tensors |= {f"method.{name}": vector for name, vector in self.state.items()}
        tensors |= {f"buffer.{name}": buffer for name, buffer in self.net.buffers.items()}
        if self.teacher is not None:
            tensors["teacher"] = self.teacher
        groups = self.memory.groups if self.memory else []
        tensors |= {f"exemplars.{i}": group.examples for i, group in enumerate(groups)}
        tensors |= {f"accuracy.{head}": torch.from_numpy(a) for head, a in self.accuracy.items()}
        counters = {
            "task": self.task,
            "step": self.step,
            "stopped": self.stopped,
            "groups": [[group.task, group.label] for group in groups],
        }
        # On the CPU, for a copy beside the original could be more than the device holds.
        return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}, counters

    def restore(self, tensors: Mapping[str, Tensor], counters: Mapping[str, Any]) -> None:
        """Go on from a snapshot of the same fleet."""

        def section(prefix: str) -> dict[str, Tensor]:
            return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

        self.theta.copy_(tensors["theta"])
        for name, vector in section("optimizer.").items():
            self.optimizer.state[name].copy_(vector)
        self.state = {name: vector.to(self.theta, copy=True) for name, vector in section("method.").items()}
        for name, buffer in section("buffer.").items():
            self.net.buffers[name].copy_(buffer)
        self.teacher = tensors["teacher"].to(self.theta, copy=True) if "teacher" in tensors else None
        if self.memory:
            examples = section("exemplars.")
            self.memory.groups = [
                Group(task, label, examples[str(i)].cpu()) for i, (task, label) in enumerate(counters["groups"])
            ]
        for head, accuracy in section("accuracy.").items():
            self.accuracy[head][:] = accuracy.cpu().numpy()
        self.task, self.step = counters["task"], counters["step"]
        self.stopped = list(counters["stopped"])

    # ── a task ────────────────────────────────────────────────────────────────────────────────────────────

    def _begin_task(self) -> None:
        if self.step == 0:
            self.optimizer.restart()
            self.teacher = self.theta.clone() if self.learner.distills and self.task else None
        task = self.stream.tasks[self.task]
        labels = self.stream.labels(task.train)
        self.current = [task.train[labels == label].cpu() for label in task.classes]
        self.steps = self._steps_of(task.train)
        self.head = self._mask(self._trained_classes())
        self._new = self._mask(task.classes) == 0
        self._old = (self._mask(self.stream.seen(self.task)) == 0) & ~self._new
        # In one order, however they came about: a program made for a run serves one that was read from a file too.
        self.state = dict(sorted(self.state.items()))
        self._parts = self._cut()
        self._held = (*self.net.own_buffers, *walk.tensors(self._parts))
        if self.learner.projector and self.task:
            self._recalled = self._recall(self.learner.projector.per_task)

    def _train_task(
        self, progress: Callable[[Progress], None] | None = None, keeper: Keeper | None = None
    ) -> None:
        take, score = self._capture()
        losses: list[Tensor] = []
        queued: deque[tuple[int, Arriving]] = deque()
        for index in self._batches():
            losses.append(take(index))
            self.step += 1
            if self.method.window and self.step % self.method.window == 0:
                score()
            due = keeper is not None and keeper.due(self)
            last = self.step == self.steps or due
            if len(losses) == CHUNK or last:
                queued.append((self.step, Arriving(torch.stack(losses))))
                losses.clear()
                # One chunk late, so that a device has work while it is waited for; in the end, all of them.
                while len(queued) > (0 if last or not self.theta.is_cuda else 1):
                    step, chunk = queued.popleft()
                    loss = self._look_at(step, chunk.arrived())
                    if progress:
                        progress(Progress(self.task, len(self.stream), step, self.steps, loss))
                if all(self.stopped):
                    return
            if keeper and due:
                keeper.keep(self)

    def _end_task(self) -> None:
        self._parts, self._held = [], ()  # views of vectors that consolidation replaces
        fisher = self._data_fisher() if self.method.data_pass else None
        self.method.consolidate(self.state, self.theta, fisher)
        if self.memory:
            self.memory.keep(self._choose_exemplars())
        alive = np.array([reason is None for reason in self.stopped])
        for head, values in self.evaluate(self.stream, self.task).items():
            self.accuracy[head][alive, self.task, : self.task + 1] = values[alive]

    # ── a step ────────────────────────────────────────────────────────────────────────────────────────────

    def _take_step(self, index: Tensor) -> Tensor:
        losses, *pieces = self._gradients(index)
        square = None
        if self.method.observes_examples:
            square = self._example_squares(*self.stream.batch(index), self.head)
        with torch.no_grad():
            if self.learner.projector and self.task:
                grad = self.learner.projector.project(torch.cat(pieces, dim=1), self._memory_gradients())
                pieces = [grad[:, part.where] for part in self._parts]
            self.optimizer.tick()
            for part, piece in zip(self._parts, pieces, strict=True):
                self._walk(self.method, self.optimizer, part, piece, square)
        return losses

    def _task_gradients(self, index: Tensor) -> tuple[Tensor, ...]:
        """Losses [R] of a batch, and their gradients part by part; for a run alone as they come from autograd."""
        return self._by_autograd(*self.stream.batch(index))

    def _by_autograd(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        losses = self._loss(self.net.forward(x), x, y)
        pieces = self.net.gradient_pieces(losses) if self._by_parameter else [self.net.gradient(losses)]
        return losses.detach(), *(block for piece in pieces for block in piece.split(self._block, dim=1))

    def _compiled_gradients(self, index: Tensor) -> tuple[Tensor, ...]:
        """The same from one compiled program; as above, where the network has none."""
        x, y = self.stream.batch(index)
        arguments = (x, y, self.head, *self.net.own_buffers, self.theta)
        compiled = self._program(("gradient", x.shape), self._recorded_gradient, *arguments)
        return self._by_autograd(x, y) if compiled is None else tuple(compiled(*arguments))

    def _recorded_gradient(self, x: Tensor, y: Tensor, head: Tensor, *held: Tensor) -> tuple[Tensor, ...]:
        *buffers, theta = held
        losses, pieces = self._pure_gradient(x, y, head, buffers, self.net.layout.split(theta))
        return losses, torch.cat(pieces, dim=1)

    def _pure_gradient(
        self, x: Tensor, y: Tensor, head: Tensor, buffers: Sequence[Tensor], parameters: Mapping[str, Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        return self.net.pure_gradient(lambda z: heads.cross_entropy(z + head, y), parameters, buffers, x)

    # ── a step on a CPU, compiled ─────────────────────────────────────────────────────────────────────────

    def _take_compiled_step(self, index: Tensor) -> Tensor:
        """The whole step as one program: what the gradient leaves in the cache, the walk finds there."""
        if not self.fused:
            return self._take_step(index)
        x, y = self.stream.batch(index)
        arguments = (x, y, self.head, *self._held)
        compiled = self._program((x.shape, *self.state), self._recorded_step, *arguments)
        if compiled is None:
            self._go_on_eagerly()
            return self._take_step(index)
        self.optimizer.tick()
        (losses,) = compiled(*arguments)
        return losses

    def _recorded_step(self, x: Tensor, y: Tensor, head: Tensor, *held: Tensor) -> tuple[Tensor, ...]:
        count = len(self.net.buffers)
        parts = walk.filled(self._parts, held[count:])
        layout = self.net.layout
        parameters = {
            name: part.theta.view(self.runs, *shape)
            for name, shape, part in zip(layout.names, layout.shapes, parts, strict=True)
        }
        losses, pieces = self._pure_gradient(x, y, head, held[:count], parameters)
        with torch.no_grad():
            for part, piece in zip(parts, pieces, strict=True):
                walk.step(self.method, self.optimizer, part, piece, None)
        return (losses,)

    def _close_compiled_window(self) -> None:
        vectors = (self.theta, *self.state.values())
        compiled = self._program(("window", *self.state), self._recorded_window, *vectors) if self.fused else None
        if compiled is None:
            self._close_window()
        else:
            compiled(*vectors)

    def _recorded_window(self, theta: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        self.method.score(dict(zip(self.state, vectors, strict=True)), theta)
        return ()

    def _program(self, key: tuple[Any, ...], function: Function, *example: Tensor) -> Function | None:
        """The function as a program, made when it is first asked for; None where it cannot be one."""
        if key not in self._programs:
            try:
                self._programs[key] = program(function, *example)
            except Exception as error:  # whatever a compiler says: what cannot be compiled can still be trained
                logger.log(self._loudness, "the network is not compiled: %s", error)
                self._programs[key] = None
        return self._programs[key]

    def _go_on_eagerly(self) -> None:
        self.fused = False
        self.method = stack([each.method for each in self.learners], self.theta)
        moments = self.optimizer.state
        self.optimizer = self._new_optimizer()
        self.optimizer.state = moments
        self._parts = self._cut()

    # ── how a step is computed ────────────────────────────────────────────────────────────────────────────

    def _close_window(self) -> None:
        self._score(self.method, self.state, self.theta)

    def _loss(self, logits: Tensor, x: Tensor, y: Tensor) -> Tensor:
        if not self.learner.distills:
            return heads.cross_entropy(logits + self.head, y)
        taught = None
        if self.teacher is not None:
            with torch.no_grad():
                taught = self.net.forward(x, theta=self.teacher, train=False)
        return icarl.distillation(logits, y, self._new, self._old, taught)

    def _new_optimizer(self) -> Optimizer:
        return OPTIMIZERS[self.training.optimizer](self.theta, self.training.lr, self.fused)

    def _kernel(self, function: Callable[..., None]) -> Callable[..., None]:
        """On CUDA an update compiled for fleets of any width; a CPU's is part of its step's program."""
        if not (self.fused and self.net.theta.is_cuda):
            return function
        # Every method, before and after its first consolidation, is a variant of its own. The limit is for the
        # whole process.
        private_torch.allow_variants(64)
        return torch.compile(function, dynamic=True)

    def _can_fuse(self) -> bool:
        """A step that is one program takes nothing but the gradient of one loss."""
        learner = self.learner
        more = learner.distills or learner.projector or learner.method.observes_examples
        return self.net.theta.is_cuda or not more

    def _worth_fusing(self) -> bool:
        """A compiled update reads every vector once, where eager arithmetic reads some of them eight times; and a
        compiled gradient (see `programs`) is spared what autograd adds to the arithmetic.

        EWC's springs grow with the tasks: compiling it again for every task costs more than it gains.
        """
        method, theta = self.learner.method, self.net.theta
        if method.data_pass:
            return False
        if theta.is_cuda:
            return compiler_works("cuda")
        steps = self._all_steps() * min(1.0, theta.shape[1] / LARGE)
        return self.runs == 1 and steps >= WORTH_COMPILING[bool(method.wants)] and compiler_works()

    def _worth_recording(self) -> bool:
        """Whether CUDA's gradient is to be a program."""
        long = self.net.theta.is_cuda and self._all_steps() * self.runs >= WORTH_RECORDING
        return long and networks.gains_from_recording(self.net.module) and compiler_works("cuda")

    def _all_steps(self) -> int:
        return sum(self._steps_of(task.train) for task in self.stream.tasks)

    def _steps_of(self, examples: Tensor) -> int:
        per_epoch = batches.steps_per_epoch([examples], self.training.batch)
        return self.training.steps or self.training.epochs * per_epoch

    def _cut(self) -> list[walk.Part]:
        """Views of all vectors, part by part.

        A run alone on a CPU goes block by block through all operations of eager arithmetic, so that a block stays
        in cache, and needs no scratch vectors larger than that. A compiled step has a part a parameter, as its
        gradients come. A fleet, or CUDA, takes all at once.
        """
        compiled = self.fused and not self.theta.is_cuda
        idle = not (self.method.wants or self.method.data_pass)  # nothing to do but to step
        whole = compiled or self.theta.is_cuda or idle or not self.net.solo
        self._block = self.net.layout.size if whole else BLOCK
        self._by_parameter = compiled or (self.net.solo and not self.theta.is_cuda)
        sizes = self.net.layout.sizes if self._by_parameter else [self.net.layout.size]
        blocks = [min(self._block, size - done) for size in sizes for done in range(0, size, self._block)]
        in_place = compiled or self.theta.is_cuda or idle
        return walk.cut(self.theta, self.optimizer.state, self.state, blocks, scratch=not in_place)

    def _capture(self) -> tuple[Callable[[Tensor], Tensor], Callable[[], None]]:
        """A step and the closing of a window, on CUDA as graphs: whole, or in parts if something has to look."""
        self._gradients: Callable[[Tensor], tuple[Tensor, ...]] = self._task_gradients
        self._constraint: Callable[[Tensor, Tensor], Tensor] = self._exemplar_gradient
        if not self.theta.is_cuda:
            return self._take_compiled_step, self._close_compiled_window
        if self._records_gradient and not self.learner.distills:
            self._gradients = self._compiled_gradients
        if self.learner.projector is None and not self.method.observes_examples:
            return Graphed(self._take_step), Graphed(self._close_window)
        self._gradients, self._constraint = Graphed(self._gradients), Graphed(self._exemplar_gradient)
        return self._take_step, self._close_window

    def _look_at(self, last: int, losses: Tensor) -> float:
        """Stop the runs whose loss is no longer a number; their rows go on as NaN and disturb nobody."""
        finite = losses.isfinite()
        first = last - len(losses)
        for run in (~finite.all(0)).nonzero().flatten().tolist():
            if self.stopped[run] is None:
                step = first + int(finite[:, run].int().argmin()) + 1
                lam = self.learners[run].method.lam
                self.stopped[run] = (
                    f"the loss is not finite at step {step} of task {self.task + 1} (λ = {lam:g}, learning rate "
                    f"= {self.training.lr:g}): lower one of them, or take the proximal penalty"
                )
        return float(losses[-1].nanmean())

    # ── what a step sees ──────────────────────────────────────────────────────────────────────────────────

    def _batches(self) -> Iterator[Tensor]:
        """Indices [R, B] of every step from `self.step` on; an epoch's depend on (seed, task, epoch) alone."""
        per_epoch = batches.steps_per_epoch(self.current, self.training.batch)
        while self.step < self.steps:
            epoch, offset = divmod(self.step, per_epoch)
            order = [self._order(run, seed, epoch) for run, seed in enumerate(self.seeds)]
            plan = torch.stack(order, dim=1).to(self.theta.device)
            yield from plan[offset : offset + self.steps - self.step]

    def _order(self, run: int, seed: int, epoch: int) -> Tensor:
        generator = seeds.generator(seed, "order", self.past + self.task, epoch)
        kept = [] if self.memory is None else self.memory.of_run(run)
        replay = "none" if self.memory is None else self.memory.spec.replay
        return batches.epoch(self.current, kept, replay, self.training.batch, generator)

    def _trained_classes(self) -> tuple[int, ...]:
        """With exemplars of the old classes in the batches: all seen; without: the current task's alone."""
        replays = self.memory is not None and self.memory.spec.replay != "none"
        return self.stream.seen(self.task) if replays else self.stream.tasks[self.task].classes

    def _mask(self, classes: Sequence[int]) -> Tensor:
        return heads.mask(classes, self.stream.classes, self.theta)

    # ── gradients beside the step's own ───────────────────────────────────────────────────────────────────

    def _example_squares(self, x: Tensor, y: Tensor, head: Tensor) -> Tensor:
        def loss(logits: Tensor, label: Tensor) -> Tensor:
            return torch.nn.functional.cross_entropy(logits + head, label)

        with torch.enable_grad():
            return self.net.example_squares(x, loss, y)

    def _data_fisher(self) -> Tensor:
        """The Fisher of the task's data at θ, eq. (1): mean squared gradient, in evaluation mode."""
        fisher = torch.zeros_like(self.theta)
        everything = torch.cat(self.current).to(self.theta.device)
        for index in everything.split(self.training.batch):
            x, y = self.stream.batch(index.expand(self.runs, -1))
            if self.method.fisher == "example":
                square = self._example_squares(x, y, self.head)
            else:
                losses = heads.cross_entropy(self.net.forward(x, train=False) + self.head, y)
                square = self.net.gradient(losses).square()
            fisher.add_(square, alpha=len(index) / len(everything))
        return fisher

    def _memory_gradients(self) -> Tensor:
        """Gradients of the old tasks' exemplars at θ [R, constraints, P], each under its own task's head."""
        assert self.learner.projector is not None
        constraints = self._recalled if self.learner.projector.per_task else [self._draw(*self._recalled[0])]
        return torch.stack([self._constraint(*each) for each in constraints], dim=1)

    def _recall(self, per_task: bool) -> list[tuple[Tensor, Tensor]]:
        """(exemplars [R, n], the head of each [R, n, C]), task by task or all together."""
        assert self.memory is not None
        found = []
        for number, task in enumerate(self.stream.tasks[: self.task]):
            examples = torch.cat([group.examples for group in self.memory.of_task(number)], dim=1)
            found.append((examples.to(self.theta.device), self._mask(task.classes).expand(*examples.shape, -1)))
        if per_task:
            return found
        return [(torch.cat([e for e, _ in found], dim=1), torch.cat([m for _, m in found], dim=1))]

    def _draw(self, examples: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        """A batch of them, each run's by its own draw."""
        draws = [seeds.generator(seed, "constraint", self.past + self.task, self.step) for seed in self.seeds]
        count = examples.shape[1]
        size = min(self.training.batch, count)
        place = torch.stack([torch.randperm(count, generator=g)[:size] for g in draws]).to(examples.device)
        return examples.gather(1, place), masks.gather(1, place[..., None].expand(-1, -1, masks.shape[2]))

    def _exemplar_gradient(self, index: Tensor, head: Tensor) -> Tensor:
        x, y = self.stream.batch(index)
        with torch.enable_grad(), self.net.still_buffers():
            return self.net.gradient(heads.cross_entropy(self.net.forward(x) + head, y))

    # ── measuring and remembering ─────────────────────────────────────────────────────────────────────────

    @torch.no_grad()
    def evaluate(self, stream: Stream, k: int) -> dict[str, NDArray[np.float64]]:
        """Accuracies [R, k + 1] on tasks 0..k by both heads, from one forward pass over their test data."""
        stream = stream.to(self.theta.device, self.theta.dtype)
        tests = [task.test for task in stream.tasks[: k + 1]]
        owner = torch.repeat_interleave(torch.tensor([len(test) for test in tests])).to(self.theta.device)
        own = torch.stack([self._mask(task.classes) for task in stream.tasks[: k + 1]])
        every = self._mask(stream.seen(k))
        means = self._class_means() if self.learner.classifier == "nearest-mean" else None
        hits = {head: self.theta.new_zeros(self.runs, k + 1) for head in HEADS}
        size = max(1, 4096 // self.runs)
        for index, task in zip(torch.cat(tests).split(size), owner.split(size), strict=True):
            x, y = stream.test_batch(index)
            features, scores = self.net.forward_with_features(x.expand(self.runs, *x.shape), train=False)
            if means is not None:
                scores = icarl.nearest_mean_scores(features, *means, stream.classes)
            for head, mask in (("single", every), ("multi", own[task])):
                hits[head].index_add_(1, task, ((scores + mask).argmax(-1) == y).to(self.theta.dtype))
        counts = torch.bincount(owner, minlength=k + 1)
        return {head: (count / counts).double().cpu().numpy() for head, count in hits.items()}

    @torch.no_grad()
    def _outputs(self, examples: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits of training examples [R, N], in evaluation mode."""
        size = max(1, 4096 // self.runs)
        outputs = [
            self.net.forward_with_features(self.stream.batch(index)[0], train=False)
            for index in examples.to(self.theta.device).split(size, dim=1)
        ]
        features, logits = zip(*outputs, strict=True)
        return torch.cat(features, dim=1), torch.cat(logits, dim=1)

    def _choose_exemplars(self) -> list[Group]:
        assert self.memory is not None
        spec, task = self.memory.spec, self.stream.tasks[self.task]
        quota = spec.quota(len(self.memory.groups) + len(task.classes))
        needs = samplers.SAMPLERS[spec.sampler].needs
        evidence: dict[str, Tensor] = {}
        groups = []
        for label, pool in zip(task.classes, self.current, strict=True):
            draws = [seeds.generator(seed, "exemplars", self.past + self.task, label) for seed in self.seeds]
            if needs:
                features, logits = self._outputs(pool.expand(self.runs, -1))
                evidence = {"features": features, "logits": logits + self.head}
            if "weights" in needs:
                evidence["weights"] = self.net.head_weight()[:, label]
            chosen = samplers.select(spec.sampler, len(pool), quota, draws, **evidence)
            groups.append(Group(self.task, label, pool[chosen.cpu()]))
        return groups

    def _class_means(self) -> tuple[Tensor, list[int]]:
        """Of every class with exemplars: a class learned in several tasks has one mean, of all its exemplars."""
        assert self.memory is not None
        groups = sorted(self.memory.groups, key=lambda group: group.label)
        features, _ = self._outputs(torch.cat([group.examples for group in groups], dim=1))
        counts = Counter(group.label for group in groups for _ in range(group.examples.shape[1]))
        return icarl.class_means(features, list(counts.values())), list(counts)

    def _need_features(self) -> None:
        spec = self.learner.memory
        wanted = self.learner.classifier == "nearest-mean" or (
            spec is not None and "features" in samplers.SAMPLERS[spec.sampler].needs
        )
        if wanted and not self.net.has_features:
            raise InputError(
                "the network's features cannot be found: give it a last nn.Linear with one output a class, or use "
                "the sampler 'uniform' (iCaRL cannot do without features)"
            )
