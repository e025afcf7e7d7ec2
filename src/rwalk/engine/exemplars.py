"""The exemplars of a fleet: chosen at a task's end, held in a reservoir, recalled, and used as constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Generator, Tensor

from rwalk import seeds
from rwalk.data import replay_batches, reservoir, samplers
from rwalk.data.memory import Group
from rwalk.data.reservoir import Passing
from rwalk.data.streams import Stream
from rwalk.engine.evaluation import outputs
from rwalk.engine.parameter_matrix import Networks, head_weight, preserved
from rwalk.errors import InputError
from rwalk.learners import Learner
from rwalk.losses import heads
from rwalk.methods.method import State
from rwalk.training import batch_size, steps_per_epoch

if TYPE_CHECKING:
    from rwalk.engine.fleet import Fleet

Constraint = tuple[Tensor, Tensor]  # exemplars [R, n], and the head of each [R, n, C]


def check_features(learner: Learner, net: Networks, stream: Stream) -> None:
    """Refuse a network without the features that the sampler or the classifier needs."""
    memory = learner.memory
    sampled = memory is not None and not memory.is_reservoir and "features" in samplers.find(memory.sampler).needs
    if not (sampled or learner.classifier.needs_exemplars):
        return
    x, _ = stream.batch(torch.zeros(net.runs, 1, dtype=torch.int64, device=stream.y.device))
    with torch.no_grad():
        features, _ = net.forward_with_features(x, train=False)
    if not features.shape[-1]:
        raise InputError(
            "the network's features cannot be found: end it by calling an nn.Linear with one output per class, or "
            "use the sampler 'uniform' (iCaRL does not work without features)"
        )


def keep(fleet: Fleet, before: bool) -> None:
    """Keep exemplars of the current task: `before` it is learned, or after, whichever the memory requires."""
    if fleet.learner.reservoir and not before:
        passed = [_passing(fleet, run) for run in range(fleet.runs)]
        pairs = zip(fleet.held["examples"], passed, strict=True)
        fleet.held["examples"] = torch.stack([reservoir.after(*each) for each in pairs])
        fleet.held["seen"] = fleet.held["seen"] + len(passed[0].places)
    if fleet.memory and fleet.memory.spec.is_all == before:
        fleet.memory.keep(chosen(fleet))


def chosen(fleet: Fleet) -> list[Group]:
    """The exemplars of the current task, class by class, drawn separately for each run."""
    assert fleet.memory is not None
    spec, task = fleet.memory.spec, fleet.stream.tasks[fleet.task]
    quota = spec.quota(len(fleet.memory.groups) + len(task.classes))
    needs = samplers.find(spec.sampler).needs
    evidence: dict[str, Tensor] = {}
    groups = []
    labels = fleet.stream.labels(task.train)
    for label in task.classes:  # without the neighbours' classes of a blurry stream
        pool = task.train[labels == label].cpu()
        draws = [seeds.generator(seed, "exemplars", fleet.task_number, label) for seed in fleet.seeds]
        if needs:
            features, logits = outputs(fleet, pool.expand(fleet.runs, -1))
            evidence = {"features": features, "logits": logits + fleet.task_plan.head_of(torch.tensor(label))}
        if "weights" in needs:
            evidence["weights"] = head_weight(fleet.net)[:, label]
        places = samplers.select(spec.sampler, len(pool), quota, draws, **evidence)
        examples = pool[places.cpu()]
        stored: dict[str, Tensor] = {}
        if fleet.loss.keeps:
            every = dict(zip(("features", "logits"), outputs(fleet, examples), strict=True))
            stored = {name: every[name].cpu() for name in fleet.loss.keeps}
        groups.append(Group(fleet.task, label, examples, stored))
    return groups


def recalled(fleet: Fleet) -> tuple[Tensor, dict[str, Tensor]]:
    """The indices [R, M] of all exemplars in ascending order, and the tensors stored with them [R, M, …]."""
    assert fleet.memory is not None
    groups = fleet.memory.groups
    numbers, order = torch.cat([group.examples for group in groups], dim=1).sort(dim=1)
    stored = {}
    for name in fleet.loss.keeps:
        each = torch.cat([group.stored[name] for group in groups], dim=1)
        place = order.reshape(*order.shape, *(1 for _ in each.shape[2:])).expand_as(each)
        stored[name] = each.gather(1, place).to(fleet.theta)
    return numbers.to(fleet.theta.device), stored


def empty_reservoir(fleet: Fleet) -> State:
    """A reservoir before the first example; no tensors if the learner has none.

    examples  the indices held when the current task began [R, budget]
    seen      the number of examples that had passed by then
    logits    the logits of the examples held now, from the step each arrived in [R, budget + 1, C], if the loss
              uses them; the last place takes the logits of examples that are not held
    """
    budget = fleet.learner.reservoir
    if budget is None:
        return {}
    if strange := [name for name in fleet.loss.keeps if name != "logits"]:
        raise InputError(f"a reservoir stores logits, not {strange[0]}: take another sampler")
    state = {"examples": torch.zeros(fleet.runs, budget, dtype=torch.int64), "seen": torch.tensor(0)}
    for name in fleet.loss.keeps:
        state[name] = fleet.theta.new_zeros(fleet.runs, budget + 1, fleet.stream.classes)
    return state


def reservoir_epoch(fleet: Fleet, run: int, epoch: int) -> list[Tensor]:
    """One run's batches [steps, B + others], and the place that each example goes to or comes from."""
    fresh, generator = _shuffled(fleet, run, epoch)
    held, seen, passing = fleet.held["examples"][run], int(fleet.held["seen"]), _passing(fleet, run)
    if epoch:  # all examples have passed
        held, seen = reservoir.after(held, passing), seen + len(passing.places)
        passing = Passing(passing.examples[:0], passing.places[:0])
    memory = fleet.learner.memory
    assert memory is not None
    return [*reservoir.beside(fresh, passing.places, held, seen, generator, memory.beside)]


def _passing(fleet: Fleet, run: int) -> Passing:
    """The examples of the current task that its first epoch reaches."""
    order = _shuffled(fleet, run, 0)[0]
    reached = min(len(fleet.task_plan.examples), fleet.task_plan.steps * order.shape[1])
    draw = seeds.generator(fleet.seeds[run], "reservoir", fleet.task_number)
    budget = fleet.held["examples"].shape[1]
    return Passing(order.flatten()[:reached], reservoir.places(reached, int(fleet.held["seen"]), budget, draw))


def _shuffled(fleet: Fleet, run: int, epoch: int) -> tuple[Tensor, Generator]:
    """The task's own examples in the batches of an epoch, and the generator in its state afterwards."""
    examples, batch = fleet.task_plan.examples, fleet.training.batch
    generator = seeds.generator(fleet.seeds[run], "order", fleet.task_number, epoch)
    steps, size = steps_per_epoch(len(examples), batch), batch_size(len(examples), batch)
    return replay_batches.shuffled_batches(examples, steps, size, generator), generator


def constraints_of(fleet: Fleet) -> list[Constraint]:
    """The exemplars of every old task under its own head, for a projector: task by task, or all together."""
    assert fleet.memory is not None and fleet.learner.projector is not None
    found = []
    for number, task in enumerate(fleet.stream.tasks[: fleet.task]):
        examples = torch.cat([group.examples for group in fleet.memory.of_task(number)], dim=1)
        examples = examples.to(fleet.theta.device)
        if fleet.stream.groups is None:
            head = fleet.mask(task.classes)
        else:
            head = fleet.task_plan.head_of(fleet.stream.labels(examples))
        found.append((examples, head.expand(*examples.shape, -1)))
    if fleet.learner.projector.per_task:
        return found
    return [(torch.cat([e for e, _ in found], dim=1), torch.cat([m for _, m in found], dim=1))]


def drawn_constraints(fleet: Fleet, constraints: list[Constraint]) -> list[Constraint]:
    """The constraints of one step: all of every task, or one batch drawn from all tasks, for each run its own."""
    assert fleet.learner.projector is not None
    if fleet.learner.projector.per_task:
        return constraints
    ((examples, masks),) = constraints
    draws = [seeds.generator(seed, "constraint", fleet.task_number, fleet.step) for seed in fleet.seeds]
    count = examples.shape[1]
    wanted = fleet.learner.memory.beside if fleet.learner.memory else None
    size = min(wanted or fleet.training.batch, count)
    place = torch.stack([torch.randperm(count, generator=draw)[:size] for draw in draws]).to(examples.device)
    return [(examples.gather(1, place), masks.gather(1, place[..., None].expand(-1, -1, masks.shape[2])))]


def constraint_gradient(fleet: Fleet, index: Tensor, head: Tensor) -> Tensor:
    """The gradient of the exemplars' mean loss at θ [R, P]; running statistics are not updated."""
    x, y = fleet.stream.batch(index)
    with torch.enable_grad(), preserved(fleet.net.buffers):
        return fleet.net.gradient(heads.cross_entropy(fleet.net.forward(x) + head, y))
