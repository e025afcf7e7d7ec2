"""The reservoir: against Vitter's algorithm, example by example, alone and in training."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import little
from rwalk import Fleet, InputError, MemorySpec, Training, learner, seeds
from rwalk.data import reservoir
from rwalk.engine.task_plan import batches_of
from rwalk.testing import checks_of

BUDGET = 7
SPEC = MemorySpec(total=BUDGET, sampler="reservoir", replay="beside")


def fleet_of(name: str = "er", spec: MemorySpec = SPEC, **training: object) -> Fleet:
    how = Training(**{"epochs": 1, "batch": 5, **training})  # type: ignore[arg-type]
    return Fleet(little.stream(), "mlp", [learner(name, spec)] * 2, [0, 1], how, dtype=torch.float64)


def trained_step_by_step(fleet: Fleet) -> list[list[Tensor]]:
    """The batches of every task, as its steps were given them."""
    seen = []
    for _ in range(len(fleet.stream)):
        fleet.begin_task()
        steps = []
        for batch in batches_of(fleet):
            steps.append(batch)
            fleet.execution.step(*batch)
            fleet.step += 1
        seen.append(steps)
        fleet.end_task()
        fleet.task, fleet.step = fleet.task + 1, 0
    return seen  # type: ignore[return-value]


def test_every_example_of_the_stream_is_equally_likely_to_be_held() -> None:
    examples, budget, trials = 12, 4, 4000
    counts = torch.zeros(examples)
    for trial in range(trials):
        draw = torch.Generator().manual_seed(trial)
        held, seen = torch.zeros(budget, dtype=torch.int64), 0
        for task in torch.arange(examples).split(5):  # portions of any size
            where = reservoir.places(len(task), seen, budget, draw)
            held, seen = reservoir.after(held, reservoir.Passing(task, where)), seen + len(task)
        assert len(set(held.tolist())) == budget
        counts[held] += 1
    share = budget / examples
    deviation = (share * (1 - share) / trials) ** 0.5
    assert ((counts / trials - share).abs() < 5 * deviation).all(), counts


@pytest.mark.parametrize("training", [{}, {"epochs": 2}, {"steps": 4}, {"steps": 25}], ids=str)
def test_a_fleet_holds_what_vitters_algorithm_holds_at_every_step(training: dict[str, int]) -> None:
    """One example after the other: offered once, in its task's first epoch; replayed from the next step on."""
    fleet = fleet_of(**training)
    tasks = trained_step_by_step(fleet)
    for run in range(2):
        held: list[int] = []
        passed = 0
        for task, steps in enumerate(tasks):
            draw = seeds.generator(run, "reservoir", task)
            examples = set(fleet.stream.tasks[task].train.tolist())
            uniform = torch.rand(len(examples), generator=draw, dtype=torch.float64).tolist()
            for index, _ in steps:
                own, others = index[run, :5].tolist(), index[run, 5:].tolist()
                assert set(others) <= set(held or own)
                for example in own:
                    if example not in examples:
                        continue  # it has passed
                    examples.remove(example)
                    drawn = int(uniform.pop(0) * (passed + 1))
                    place = drawn if passed >= BUDGET else passed
                    passed += 1
                    if place < BUDGET:
                        held[place : place + 1] = [example]
        assert fleet.held["examples"][run].tolist() == held
        assert int(fleet.held["seen"]) == passed


def test_the_task_under_way_is_replayed_too() -> None:
    tasks = trained_step_by_step(fleet_of())
    own = set(little.stream().tasks[1].train.tolist())
    replayed = {int(each) for index, _ in tasks[1] for each in index[0, 5:]}
    assert replayed & own and replayed - own


def test_an_example_is_held_with_the_logits_of_the_step_in_which_it_came() -> None:
    """In training mode, as they were computed then; and the loss is shown them again when it is replayed."""
    fleet = fleet_of("der++", batch=3)
    known: list[dict[int, Tensor]] = [{}, {}]
    for _ in range(2):
        fleet.begin_task()
        for index, place in batches_of(fleet):
            x, _ = fleet.stream.batch(index)
            logits = fleet.net.forward(x).detach()
            shown = fleet.execution.inputs.of(index, place)  # type: ignore[attr-defined]
            for run in range(2):
                for column, example in enumerate(index[run].tolist()):
                    if shown["is_kept"][run, column]:
                        torch.testing.assert_close(shown["kept.logits"][run, column], known[run][example])
                        assert column >= 3
                for column, example in enumerate(index[run, :3].tolist()):
                    known[run].setdefault(example, logits[run, column])
            fleet.execution.step(index, place)
            fleet.step += 1
        fleet.end_task()
        fleet.task, fleet.step = fleet.task + 1, 0
    for run in range(2):
        for example, kept in zip(
            fleet.held["examples"][run].tolist(), fleet.held["logits"][run, :-1], strict=True
        ):
            torch.testing.assert_close(kept, known[run][example])


@pytest.mark.parametrize("name", ["er", "er-ace", "der++", "rwalk"])
def test_learners_with_a_reservoir_keep_the_contract(name: str) -> None:
    for _, check in checks_of(name, memory=SPEC):
        check()


def test_a_reservoir_that_makes_no_sense_is_refused_in_one_line() -> None:
    for wrong in ({"per_class": 3}, {"total": 9, "replay": "balanced"}):
        with pytest.raises(InputError, match="a reservoir has a total budget"):
            MemorySpec(**{"sampler": "reservoir", "replay": "beside", **wrong})  # type: ignore[arg-type]
    for name in ("icarl", "gem"):
        with pytest.raises(InputError, match=f"{name} does not replay a reservoir"):
            learner(name, SPEC)
