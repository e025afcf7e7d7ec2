"""One call, learned by a fleet: with one λ, or with every λ, of which the judges choose one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from rwalk.classifier.lessons import Call, Knowledge, stream_of, take_up
from rwalk.classifier.network_settings import Settings
from rwalk.classifier.trials import HeldOut, with_judges, without
from rwalk.closed_form.features.vectors import moments
from rwalk.engine.fleet import Fleet
from rwalk.engine.progress import Progress
from rwalk.engine.vectors import Layout
from rwalk.errors import InputError
from rwalk.learners import LAMS, Learner, with_lam


class Place(NamedTuple):
    """Where the classes of a network so far go in the one that learns now."""

    layout: Layout  # of the network so far
    moves: Sequence[int]


class Learned(NamedTuple):
    """What a call left, and how it went."""

    knowledge: Knowledge
    lam: float
    steps: int
    right: Sequence[float]  # shares of the exemplars of earlier calls and, last, of the call's own data


def learned(call: Call, settings: Settings, so_far: Place | None) -> Learned:
    """What is known after a call."""
    recipe = settings.learner
    held_out: HeldOut | None
    if settings.every_lam:
        assert recipe.memory is not None
        rest, held_out = with_judges(call, recipe.memory.quota(len(call.past.last_seen)))
        lams = LAMS if call.past.tasks else (1.0,)  # with nothing to hold yet, all would be the same
        recipes = [with_lam(recipe, lam) for lam in lams]
    else:
        rest, held_out = without(call) if settings.measured else (call, None)
        recipes = [recipe]
    fleet, steps = _trained(rest, recipes, settings, so_far, held_out if settings.measured else None)
    # Every run goes on with its own λ, from call to call: what is best now may not be in the long run.
    run = held_out.best_run(fleet) if held_out is not None and fleet.runs > 1 else 0
    if reason := fleet.stopped[run]:
        raise InputError(reason)
    before = replace(rest.past, exemplars=call.past.exemplars)  # those held out are kept like the others
    if held_out is not None:
        before = replace(before, sharpness=held_out.sharpness(fleet, run))
    right = fleet.accuracy["single"][run, -1].tolist()
    return Learned(before.after(fleet, rest.inputs, run), fleet.learners[run].lam, steps, right)


def scale_of(x: Tensor) -> dict[str, Tensor]:
    """Centre and deviation of every column, or of an image's every channel."""
    rows = x.movedim(1, -1).flatten(0, -2) if x.ndim > 2 else x
    centre, deviation = moments(rows.double(), torch.ones(len(rows), dtype=torch.float64))
    shape = (-1, *(1 for _ in x.shape[2:]))
    return {"centre": centre.float().view(shape), "deviation": deviation.float().view(shape)}


def _trained(
    call: Call, recipes: list[Learner], settings: Settings, so_far: Place | None, enough: HeldOut | None
) -> tuple[Fleet, int]:
    """A fleet that has learned the call, with as many runs as there are recipes; and its steps."""
    stream, exemplars = stream_of(call)
    training = settings.training_on(len(call.x) + sum(len(kept) for kept in call.past.exemplars.values()))
    seeds, gone = [call.past.seed] * len(recipes), call.past.tasks - (len(stream) - 1)
    known = [column for column, task in enumerate(call.past.last_seen) if task >= 0]
    fleet = Fleet(stream, settings.network, recipes, seeds, training, settings.device, past=gone, known=known)
    if so_far is not None:
        take_up(fleet, call.past, so_far.layout, so_far.moves, exemplars)
    news: list[Progress] = []
    fleet.train(lambda each: news.append(each) if isinstance(each, Progress) else None, enough=enough)
    return fleet, news[-1].step
