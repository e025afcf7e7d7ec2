"""Scenarios: the labels, examples and competing classes of a learner, alone and in a fleet."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import little
from rwalk import Dataset, Fleet, InputError, MemorySpec, Stream, Training, from_arrays, learner
from rwalk.data import splits
from rwalk.engine import exemplars, fisher
from rwalk.engine.architectures import MLP
from rwalk.engine.fisher import squares_of_linear_layers
from rwalk.engine.optimizers import Adam
from rwalk.losses import LOSSES, Batch
from rwalk.parts import find
from rwalk.studies import Study
from rwalk.studies.specs import RunSpec, StreamSpec

SHORT = Training(steps=6, batch=8)


def data(classes: int = 6, examples: int = 30, size: int = 8) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(classes).repeat_interleave(examples)
    return torch.randn(len(y), size, generator=draw) + 2 * torch.randn(classes, size, generator=draw)[y], y


def stream(scenario: str | None, **how: Any) -> Stream:
    return from_arrays(*data(), classes_per_task=2, scenario=scenario, **how)


def fleet(
    of: Stream, method: str = "vanilla", runs: int = 1, memory: MemorySpec | None = None, **numbers: Any
) -> Fleet:
    each = [learner(method, memory, **numbers)] * runs
    return Fleet(of, "mlp", each, list(range(runs)), SHORT, dtype=torch.float64)


def steps_of(trained: Fleet) -> list[tuple[int, Tensor]]:
    """What every step from now on is shown: its task, and the numbers of its examples [R, B]."""
    seen: list[tuple[int, Tensor]] = []
    step = trained.execution.step

    def remembered(index: Tensor, *rest: Tensor) -> Tensor:
        seen.append((trained.task, index))
        return step(index, *rest)

    trained.execution.step = remembered  # type: ignore[method-assign]
    return seen


# ── labels ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_domain_incremental_tasks_have_the_same_labels_by_place_in_the_task() -> None:
    x, y = data()
    found = from_arrays(x, y, x, y, tasks=[["4", "1"], ["0", "5"]], scenario="domain")
    assert found.classes == 2 and [task.classes for task in found.tasks] == [(0, 1), (0, 1)]
    for task, (zero, one) in zip(found.tasks, [(4, 1), (0, 5)], strict=True):
        shown, labels = found.batch(task.train)
        assert shown.equal(x[task.train]) and len(task.train) == 60
        assert labels.equal((y[task.train] == one).long()) and set(y[task.train].tolist()) == {zero, one}


def test_domain_incremental_follows_the_shuffled_order_not_the_digits() -> None:
    """Otherwise the smaller class of a pair would always be 0, and tasks would teach each other."""
    orders = {
        tuple(int(y) for task in found.tasks for y in found.labels(task.train[:1]))
        for found in (stream("domain", order_seed=seed) for seed in range(8))
    }
    assert len(orders) > 1


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (
            {"classes_per_task": 4, "scenario": "domain"},
            "have the same labels, but these have 4, 2 classes",
        ),
        ({"classes_per_task": 2, "scenario": "instance"}, "unknown scenario 'instance'"),
    ],
)
def test_scenarios_that_cannot_be_are_refused(how: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        from_arrays(*data(), **how)


def test_tasks_that_the_data_name_have_scenarios_as_far_as_their_classes_allow() -> None:
    x, y = data()
    apart = Dataset.from_arrays(x, y, arrival=y // 2)  # a task teaches two classes
    again = Dataset.from_arrays(x, y, arrival=torch.arange(len(y)) % 2)  # both tasks teach all of them
    every = tuple(range(6))
    assert splits.as_it_arrives(apart).groups is None
    assert splits.as_it_arrives(apart, "task").groups == ((0, 1), (2, 3), (4, 5))
    assert splits.as_it_arrives(apart, "class").groups == splits.as_it_arrives(again, "class").groups == (every,)
    assert splits.as_it_arrives(again, "domain").groups == (every,)
    with pytest.raises(InputError, match="they are not domain-incremental"):
        splits.as_it_arrives(apart, "domain")
    with pytest.raises(InputError, match="they are not task-incremental"):
        splits.as_it_arrives(again, "task")


def test_groups_must_divide_the_classes() -> None:
    with pytest.raises(InputError, match="groups must name every class from 0 to 5 once"):
        replace(stream(None), groups=((0, 1), (1, 2, 3, 4, 5)))


# ── which classes compete ─────────────────────────────────────────────────────────────────────────────────────


def competing(of: Fleet, label: int) -> set[int]:
    head = of.task_plan.head_of(torch.tensor(label))
    return set((head == 0).nonzero().flatten().tolist())


@pytest.mark.parametrize("memory", [None, MemorySpec(2, sampler="uniform", replay="beside")])
def test_training_heads_are_those_of_the_scenario_with_exemplars_or_without(memory: MemorySpec | None) -> None:
    for scenario, expected in (("task", {2, 3}), ("class", set(range(6)))):
        trained = fleet(stream(scenario), memory=memory)
        trained.task = 1
        trained.begin_task()
        assert competing(trained, 2) == expected
        assert competing(trained, 0) == ({0, 1} if scenario == "task" else expected), (
            "an exemplar of the first task"
        )


def test_without_a_scenario_training_is_as_before() -> None:
    plain = fleet(stream(None))
    plain.task = 1
    plain.begin_task()
    assert plain.task_plan.head.dim() == 1 and competing(plain, 2) == {2, 3} and plain.task_plan.rivals is None


def test_task_incremental_training_equals_a_plain_loop_with_one_head_per_task() -> None:
    """Joint batches of several tasks, each example under its own task's outputs."""
    of = splits.union(stream("task"), 2)
    training = replace(SHORT, optimizer="sgd", lr=0.1)
    trained = Fleet(of, "mlp", [learner("vanilla")], [0], training, dtype=torch.float64)
    module = MLP((8,), 6).double()
    start = trained.net.layout.split(trained.theta.clone())
    module.load_state_dict({name: each[0] for name, each in start.items()})
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    seen = steps_of(trained)
    trained.train()
    for _, index in seen:
        x, y = of.batch(index[0])
        firsts = [2 * (label // 2) for label in y.tolist()]  # of an example's two outputs
        own = [outputs[first : first + 2] for outputs, first in zip(module(x.double()), firsts, strict=True)]
        loss = F.cross_entropy(torch.stack(own), y % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    theirs = torch.cat([p.detach().flatten() for p in module.parameters()])
    torch.testing.assert_close(trained.theta[0], theirs, rtol=0, atol=little.rounding(trained.training, 1))


def test_constraints_look_at_exemplars_under_the_scenarios_head() -> None:
    memory = MemorySpec(3, sampler="uniform", replay="none")
    for scenario, width in (("task", 2), ("class", 6), (None, 2)):
        trained = fleet(stream(scenario), "a-gem", memory=memory)
        trained.train()
        trained.task = 2
        trained.begin_task()
        ((examples, heads),) = exemplars.constraints_of(trained)
        labels = trained.stream.labels(examples)[0]
        assert heads.shape == (1, 12, 6) and ((heads == 0).sum(-1) == width).all()
        assert all(heads[0, i, int(label)] == 0 for i, label in enumerate(labels))


def test_lwf_distils_among_rivals_and_as_often_as_they_were_taught() -> None:
    draw = torch.Generator().manual_seed(1)
    logits, taught = torch.randn(2, 2, 3, 4, generator=draw, dtype=torch.float64)
    y = torch.tensor([[2, 3, 2], [3, 2, 3]])
    rivals, times = (
        torch.tensor([[True, True, False, False], [False, False, True, True]]),
        torch.tensor([3.0, 0.0]),
    )
    head = torch.tensor([-torch.inf, -torch.inf, 0, 0], dtype=torch.float64)
    new = rivals[1]
    lwf = LOSSES["lwf"](lam=0.5, temperature=2.0)  # type: ignore[call-arg]
    found = lwf(logits, Batch(y, head, new, ~new, taught, rivals=rivals, times=times.double()))
    for run in range(2):
        wanted = F.cross_entropy(logits[run, :, 2:], y[run] - 2)
        soft = (taught[run, :, :2] / 2).softmax(-1)
        wanted = wanted - 3 * 0.5 * 4 * (soft * (logits[run, :, :2] / 2).log_softmax(-1)).sum(-1).mean()
        torch.testing.assert_close(found[run], wanted)


@pytest.mark.parametrize(("scenario", "taught"), [("task", [1, 1, 0]), ("domain", [2]), ("class", [1])])
def test_how_often_a_group_was_taught(scenario: str, taught: list[int]) -> None:
    trained = fleet(stream(scenario))
    trained.task = 2
    trained.begin_task()
    assert trained.task_plan.rivals is not None and trained.task_plan.rivals.taught.tolist() == taught


@pytest.mark.parametrize("scenario", splits.SCENARIOS)
@pytest.mark.parametrize("method", ["lwf", "er-tasks", "a-gem", "ewc", "joint"])
def test_a_run_is_the_same_alone_and_in_a_fleet_in_every_scenario(scenario: str, method: str) -> None:
    memory = MemorySpec(3, sampler="uniform") if method in ("er-tasks", "a-gem") else None
    memory = replace(memory, replay="none") if memory and method == "a-gem" else memory
    together = fleet(stream(scenario), method, runs=2, memory=memory)
    together.train()
    alone = Fleet(stream(scenario), "mlp", [learner(method, memory)], [1], SHORT, dtype=torch.float64)
    alone.train()
    torch.testing.assert_close(alone.theta[0], together.theta[1], rtol=0, atol=little.rounding(SHORT, 6))
    assert np.isfinite(together.accuracy["single"][:, 2]).all()


# ── rotated, blurry, online ───────────────────────────────────────────────────────────────────────────────────


def images() -> Dataset:
    draw = torch.Generator().manual_seed(2)
    return Dataset.from_arrays(torch.rand(12, 2, 5, 5, generator=draw), torch.arange(12) % 3)


def test_a_quarter_turn_is_torchs() -> None:
    x = torch.arange(2 * 4 * 4).view(2, 4, 4)
    for turns in range(4):
        view = splits.rotation((2, 4, 4), 90 * turns)
        assert x.flatten()[view].view(2, 4, 4).equal(torch.rot90(x, turns, (1, 2)))


def test_rotated_tasks_show_every_image_turned_and_nothing_from_outside() -> None:
    found = splits.rotated(images(), tasks=3, seed=4)
    assert found.batch(found.tasks[0].train)[0].equal(found.x), "the first as they are"
    shown, y = found.batch(found.tasks[2].train)
    assert y.equal(found.y) and not shown.equal(found.x)
    view = found.views[2]  # type: ignore[index]
    for example, image in zip(found.x, shown, strict=True):
        expected = [0.0 if place == 50 else float(example.flatten()[place]) for place in view.tolist()]
        assert image.flatten().tolist() == expected
    again = splits.rotated(images(), tasks=2, seed=4).views
    assert again is not None and found.views is not None and again.equal(found.views[:2])
    assert (view == 50).any(), "an odd angle leaves corners blank"


def test_what_cannot_be_rotated_is_refused() -> None:
    with pytest.raises(InputError, match="cannot be rotated: give images"):
        splits.rotated(Dataset.from_arrays(*data()), tasks=2)


def test_blurry_boundaries_move_a_fraction_to_the_neighbours_and_lose_nothing() -> None:
    sharp = stream(None)
    blurry = splits.blurred(sharp, 0.25, seed=3)
    owner = {int(n): k for k, task in enumerate(sharp.tasks) for n in task.train}
    assert sorted(int(n) for task in blurry.tasks for n in task.train) == sorted(owner)
    for k, task in enumerate(blurry.tasks):
        assert task.test.equal(sharp.tasks[k].test) and task.classes == sharp.tasks[k].classes
        strays = [owner[int(n)] for n in task.train if owner[int(n)] != k]
        assert strays and all(abs(home - k) == 1 for home in strays)
        moved = sum(owner[int(n)] == k for other in blurry.tasks if other is not task for n in other.train)
        assert moved == round(0.25 * len(sharp.tasks[k].train))
        others = {int(sharp.y[int(n)]) for n in task.train} - set(task.classes)
        assert task.others == tuple(sorted(others))
    assert splits.blurred(sharp, 0.25, seed=3).fingerprint() == blurry.fingerprint()
    assert splits.blurred(sharp, 0.25, seed=4).fingerprint() != blurry.fingerprint() != sharp.fingerprint()


def test_blurry_examples_are_trained_under_their_own_labels() -> None:
    trained = fleet(splits.blurred(stream(None), 0.4), memory=MemorySpec(2))
    seen = steps_of(trained)
    trained.begin_task()
    trained.train_task()
    labels = {label for _, index in seen for label in trained.stream.labels(index).flatten().tolist()}
    assert labels & {2, 3} and np.isfinite(trained.theta.numpy()).all()
    trained.train()
    assert trained.stopped == [None]


@pytest.mark.parametrize(
    ("fraction", "tasks", "why"), [(0.0, 2, "between 0 and 1"), (0.5, 6, "two tasks or more")]
)
def test_blurriness_that_cannot_be_is_refused(fraction: float, tasks: int, why: str) -> None:
    with pytest.raises(InputError, match=why):
        splits.blurred(from_arrays(*data(), classes_per_task=tasks), fraction)


def test_online_sees_every_example_once() -> None:
    trained = Fleet(stream(None), "mlp", [learner("vanilla")], [0], Training.online())
    steps = steps_of(trained)
    trained.train()
    seen = [number for _, index in steps for number in index.flatten().tolist()]
    assert sorted(set(seen)) == sorted(int(n) for task in trained.stream.tasks for n in task.train)
    assert len(seen) - len(set(seen)) < 3 * 10, "except those that fill a task's last batch"


# ── specs ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"permuted": 2, "rotated": 2}, "permuted or rotated, not both"),
        ({"rotated": 2, "classes_per_task": 2}, "a rotated stream has all classes in every task: drop the split"),
        ({"permuted": 2, "scenario": "class"}, "a permuted stream is domain-incremental"),
        ({"scenario": "tsak"}, "unknown scenario 'tsak'.*task"),
        ({"blurry": 1.5}, "blurry is 1.5"),
    ],
)
def test_what_does_not_go_together_is_refused(how: dict[str, Any], why: str) -> None:
    with pytest.raises(InputError, match=why):
        StreamSpec(**how).build()


def test_every_scenario_is_a_spec_that_goes_to_json_and_back() -> None:
    for how in ({"scenario": "domain"}, {"rotated": 3}, {"blurry": 0.2, "order_seed": 1}, {"scenario": "task"}):
        run = RunSpec(StreamSpec(**how), training=Training(keep_optimizer=True), measure_every=3)  # type: ignore[arg-type]
        assert RunSpec.from_json(json.loads(json.dumps(run.to_json()))) == run
        assert len(run.stream.build()) > 1


def test_settings_of_later_leave_rows_of_before_as_they_were() -> None:
    """Byte for byte: a row of a run that uses none of them does not name them."""
    record = RunSpec(memory=MemorySpec(2)).to_json()
    assert not {"measure_every", "calibration"} & set(record)
    assert not {"scenario", "rotated", "blurry"} & set(record["stream"])
    assert "keep_optimizer" not in record["training"] and "beside" not in record["memory"]
    (row,) = little.study(methods=["vanilla"], seeds=1).execute()
    record = row.to_json()
    assert list(record) == ["schema", "hash", "method", "lam", "seed", "single", "multi", "accuracy", "reference",
                         "stopped", "spec", "made"]  # fmt: skip
    assert list(record["single"]) == ["A", "F", "I"]


# ── an optimizer that is kept, the exact Fisher, exemplars beside ────────────────────────────────────────────


def test_an_optimizer_that_is_kept_goes_on_with_its_moments() -> None:
    kept = Fleet(stream(None), "mlp", [learner("vanilla")], [0], replace(SHORT, keep_optimizer=True))
    fresh = fleet(stream(None))
    for each, steps in ((kept, 18), (fresh, 6)):
        each.train()
        assert float(each.optimizer.state["steps"]) == steps


@pytest.mark.parametrize("written_out", [False, True])
def test_moments_may_begin_afresh_while_the_bias_correction_goes_on(written_out: bool) -> None:
    theta = torch.zeros(1, 4, dtype=torch.float64)
    adam = Adam(theta, lr=1e-3, written_out=written_out)
    grads = torch.randn(9, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    mean = square = torch.zeros_like(theta)
    for count, grad in enumerate(grads, start=1):
        if count == 6:  # a task begins
            adam.restart(keep_count=True)
            mean = square = torch.zeros_like(theta)
        mean, square = 0.9 * mean + 0.1 * grad, 0.999 * square + 0.001 * grad**2
        step = 1e-3 * (mean / (1 - 0.9**count)) / ((square / (1 - 0.999**count)).sqrt() + 1e-8)
        before = theta.clone()
        adam.tick()
        adam.step(theta, grad, adam.state)
        torch.testing.assert_close(before - theta, step, rtol=1e-6, atol=0)  # the kernel counts in float32


def test_a_fleet_keeps_the_bias_correction_where_it_is_told_to() -> None:
    kept = Fleet(stream(None), "mlp", [learner("vanilla")], [0], replace(SHORT, keep_debias=True))
    kept.train()
    assert float(kept.optimizer.state["steps"]) == 18
    kept.task, kept.step = 2, 0
    kept.begin_task()
    assert float(kept.optimizer.state["steps"]) == 18 and not kept.optimizer.state["mean"].any()
    for other in ({"keep_optimizer": True}, {"optimizer": "sgd"}):
        with pytest.raises(InputError, match="keep_debias"):
            replace(SHORT, keep_debias=True, **other)  # type: ignore[arg-type]


@pytest.mark.parametrize("scenario", [None, "task", "class"])
def test_the_exact_fisher_is_the_expectation_over_what_the_network_predicts(scenario: str | None) -> None:
    trained = fleet(stream(scenario), "ewc", runs=2, fisher="exact")
    trained.begin_task()
    trained.train_task()
    index = trained.stream.tasks[0].train[:5].expand(2, -1)
    x, y = trained.stream.batch(index)
    found = fisher.expected(trained, x, y)
    classes = sorted(competing(trained, 0))
    for run in range(2):
        slow = torch.zeros_like(found[run])
        for one in x[run]:
            for label in range(len(classes)):
                theta = trained.theta[run].clone().requires_grad_()
                parameters = trained.net.layout.split(theta)
                logits = torch.func.functional_call(trained.net.module, parameters, (one[None],))[:, classes]
                said = logits.log_softmax(-1)[0, label]
                slow += said.exp().detach() * torch.autograd.grad(said, theta)[0].square() / 5
        torch.testing.assert_close(found[run], slow)


def test_networks_of_other_layers_have_their_exact_fisher_too() -> None:
    trained = Fleet(little.stream(), "little:Network", [learner("ewc", fisher="exact")], [0], SHORT)
    x, y = trained.stream.batch(trained.stream.tasks[0].train[:4][None])
    trained.begin_task()
    assert squares_of_linear_layers(trained.net, x, lambda logits: [logits.sum((1, 2))]) is None
    assert fisher.expected(trained, x, y).isfinite().all()


def test_the_exact_fisher_needs_a_pass_over_the_data() -> None:
    with pytest.raises(InputError, match="fisher must be one of batch, example, not 'exact'"):
        learner("rwalk", fisher="exact")


@pytest.mark.parametrize("sampler", ["uniform", "reservoir"])
def test_so_many_exemplars_stand_beside_a_batch(sampler: str) -> None:
    memory = MemorySpec(total=12, sampler=sampler, replay="beside", beside=5)
    trained = fleet(stream(None), "der++", memory=memory)
    steps = steps_of(trained)
    trained.train()
    assert {index.shape[1] for task, index in steps if task} == {8 + 5}
    with pytest.raises(InputError, match="beside must be a whole number"):
        MemorySpec(2, beside=0)


def test_er_by_tasks_weighs_the_new_as_one_of_all_tasks() -> None:
    draw = torch.Generator().manual_seed(3)
    logits = torch.randn(1, 5, 4, generator=draw, dtype=torch.float64)
    y, kept = torch.tensor([[0, 1, 2, 3, 0]]), torch.tensor([[False, False, False, True, True]])
    batch = Batch(y, torch.zeros(4), torch.ones(4) > 0, torch.zeros(4) > 0, is_kept=kept, task=torch.tensor(3.0))
    each = F.cross_entropy(logits[0], y[0], reduction="none")
    wanted = each[:3].mean() / 4 + 3 * each[3:].mean() / 4
    torch.testing.assert_close(find("er-tasks")()(logits, batch)[0], wanted)


# ── measured within tasks ─────────────────────────────────────────────────────────────────────────────────────


def measured(**how: Any) -> dict[str, Any]:
    study = little.study(methods=["vanilla"], seeds=1)
    run = replace(study.runs[0], training=Training(steps=6, batch=16), **how)
    (row,) = Study((run,), "none", workers=1).execute()
    return row


def test_measuring_within_tasks_moves_no_accuracy_and_ends_where_the_task_ends() -> None:
    plain, row = measured(), measured(measure_every=3)
    assert row.accuracy == plain.accuracy and plain.within is None
    for head in ("single", "multi"):
        within = np.array(row.within[head], dtype=float)
        a = np.array(row.accuracy[head], dtype=float)
        assert within.shape == (5, 2, 5)
        np.testing.assert_array_equal(within[:, 1], a)  # six steps: the second is at the task's end


def test_calibration_errors_are_measured_where_asked_for() -> None:
    row = measured(calibration=True)
    for head in ("single", "multi"):
        errors = np.array(row.calibration[head], dtype=float)
        assert (np.isfinite(errors) == np.tri(5, dtype=bool)).all() and (errors[np.tri(5, dtype=bool)] <= 1).all()


def test_a_classifier_without_probabilities_has_no_calibration_error() -> None:
    trained = fleet(stream(None), "icarl", memory=MemorySpec(2))
    from rwalk.engine import evaluation

    trained.train()
    assert np.isnan(evaluation.calibration(trained, trained.stream, 2)["single"]).all()
    with pytest.raises(InputError, match="drop measure_every"):
        Fleet(stream(None), "mlp", trained.learners, [0], SHORT, measures=evaluation.MeasureOptions(every=2))
    with pytest.raises(InputError, match="no task is longer than 6 steps: measure every 6 or more often"):
        Fleet(stream(None), "mlp", [learner("vanilla")], [0], SHORT, measures=evaluation.MeasureOptions(every=7))
    with pytest.raises(InputError, match="every 1 step or more"):
        Fleet(stream(None), "mlp", [learner("vanilla")], [0], SHORT, measures=evaluation.MeasureOptions(every=0))
