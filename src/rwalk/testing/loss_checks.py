"""Checks of a loss: on batches as the training loop makes them, in the first task and after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rwalk.compiled_programs import compiler_works
from rwalk.engine import teachers
from rwalk.engine.eager_step import StepInputs, batch_of
from rwalk.engine.fleet import Fleet
from rwalk.engine.parameter_matrix import preserved
from rwalk.engine.task_plan import batches_of
from rwalk.errors import first_line
from rwalk.losses import Batch
from rwalk.testing.check_tools import claim, claim_close
from rwalk.testing.fleet_checks import FleetRecipe, rounding
from rwalk.training import Training

NEAR = 1e-12  # a loss is a sum of some hundred numbers of size one, in float64


def one_number_per_run(trial: FleetRecipe) -> None:
    for fleet, logits, batch in _moments(trial):
        losses = _losses(fleet, logits, batch)
        claim(
            losses.shape == (fleet.runs,),
            f"the loss of logits {list(logits.shape)} is {list(losses.shape)}, not [{fleet.runs}]: one per run",
        )
        claim(losses.dtype == logits.dtype, f"the loss of {logits.dtype} is {losses.dtype}")
        claim(losses.requires_grad, "the loss has no gradient: it must be computed from the logits")


def a_runs_loss_is_its_own(trial: FleetRecipe) -> None:
    """Neither its value nor its gradient depends on other runs."""
    for fleet, logits, batch in _moments(trial):
        losses = fleet.loss(logits, batch)
        for run in range(fleet.runs):
            slope = torch.autograd.grad(losses[run], logits, retain_graph=True)[0]
            strangers = slope[[other for other in range(fleet.runs) if other != run]]
            claim(strangers.eq(0).all(), f"the loss of run {run} depends on the logits of other runs")
            alone = trial.learners[run].loss(logits[run : run + 1], _of_run(batch, run))
            what = f"the loss of run {run} is different alone than in a fleet"
            value = losses[run].detach()
            claim_close(alone[0].detach(), value, NEAR * (1 + float(value.abs())), what)


def a_compiled_step_is_the_eager_one(trial: FleetRecipe) -> None:
    """If there is a compiler: control flow that depends on values cannot be recorded."""
    if not compiler_works():
        return
    plain = replace(trial, network=PlainNetwork, training=Training(steps=3, batch=8, optimizer="sgd", lr=0.1))
    eager, compiled = (plain.trained([0], fuse=fuse) for fuse in (False, True))
    made: Any = getattr(compiled.execution, "programs", None)
    claim(
        made is not None and None not in made._made.values(),
        "its step cannot be compiled: use tensor operations alone, without .item(), if and for over values",
    )
    claim_close(compiled.theta, eager.theta, rounding(plain), "compiled steps end elsewhere than eager ones")


class PlainNetwork(nn.Module):
    """Little to compile, except running statistics, which a step updates and a teacher reads."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(torch.Size(shape).numel())
        self.head = nn.Linear(torch.Size(shape).numel(), classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.norm(x))
        return out


LOSS_CHECKS = (one_number_per_run, a_runs_loss_is_its_own)


def _moments(trial: FleetRecipe) -> Iterator[tuple[Fleet, Tensor, Batch]]:
    """A fleet at the first step of its first and second task: its logits, and the batch of the loss."""
    fleet = trial.fleet()
    for _ in range(2):
        fleet.begin_task()
        inputs = StepInputs(fleet).of(*next(batches_of(fleet)))
        taught = None
        with torch.no_grad(), preserved(fleet.net.buffers):
            if teachers.THETA in inputs:
                theta, buffers = inputs[teachers.THETA], teachers.buffers(inputs)
                taught = fleet.net.forward(inputs["x"], theta=theta, buffers=buffers, train=False)
            logits = fleet.net.forward(inputs["x"])
        yield fleet, logits.detach().requires_grad_(True), batch_of(inputs, taught)
        fleet.train_task()
        fleet.end_task()
        fleet.task, fleet.step = fleet.task + 1, 0


def _losses(fleet: Fleet, logits: Tensor, batch: Batch) -> Tensor:
    try:
        return fleet.loss(logits, batch)
    except Exception as error:
        fault = "it fails in a fleet, where a hyper-parameter that differs between runs is a tensor [R]"
        raise AssertionError(f"{fault}: {first_line(error)}") from error


def _of_run(batch: Batch, run: int) -> Batch:
    def own(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor[run : run + 1]

    return batch._replace(
        y=batch.y[run : run + 1],
        taught=own(batch.taught),
        is_kept=own(batch.is_kept),
        kept={name: each[run : run + 1] for name, each in batch.kept.items()},
    )
