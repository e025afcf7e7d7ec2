"""How long a call trains, and how strongly it holds on to the old: both are seen on examples held out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rwalk.classifier.lessons import Call
from rwalk.engine.fleet import Fleet
from rwalk.seeds import generator
from rwalk.training import steps_per_epoch

SHARE, SPARE = 0.1, 20  # held out of every class to see when training no longer pays, if it has so many
FOR_JUDGES = 0.2  # of every class, at most, to judge λ by
EVERY = 25  # steps between two looks at the examples held out
PATIENCE = 4  # looks without progress before it is enough
PROGRESS = 0.01  # of the loss: less is none
LEARNED = 0.1  # a loss below which progress is measured by this one
AT_MOST = 1000  # examples looked at
CALIBRATED_BY = 50  # examples at least
STEPS, PASSES, SOON, MOST = 200, 20, 2, 5000  # see `longest`


class HeldOut:
    """Examples that are not trained on. Asked after every step, it says when training no longer pays."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.least = math.inf
        self.waited = 0

    def __len__(self) -> int:
        return len(self.x)

    def __call__(self, fleet: Fleet) -> bool:
        if not len(self) or fleet.step % EVERY:
            return False
        loss = float(self.losses(fleet).min())  # of several runs the best counts
        if loss < self.least - PROGRESS * max(self.least if self.least < math.inf else 0.0, LEARNED):
            self.least, self.waited = loss, 0
        else:
            self.waited += 1
        return self.waited >= PATIENCE

    def losses(self, fleet: Fleet) -> Tensor:
        """The mean over classes of their mean cross entropy, per run [R]."""
        return _losses(*self._outputs(fleet))

    def best_run(self, fleet: Fleet) -> int:
        """The run that recognises most, in the mean over classes; of equals the one of the least loss."""
        logits, y, share = self._outputs(fleet)
        right = ((logits.argmax(-1) == y) * share).sum(1).tolist()
        losses = _losses(logits, y, share).tolist()
        return max(range(fleet.runs), key=lambda run: (round(right[run], 9), -losses[run]))

    def sharpness(self, fleet: Fleet, run: int) -> float:
        """What logits are multiplied by to be most probable here: networks are surer than they should be."""
        if len(self) < CALIBRATED_BY or fleet.learner.classifier.needs_exemplars:
            return 1.0
        logits, y, share = self._outputs(fleet)
        factors = torch.logspace(-1.5, 0.5, 81).tolist()
        losses = [
            (cross_entropy(factor * logits[run], y[run], reduction="none") * share).sum() for factor in factors
        ]
        return float(factors[int(torch.stack(losses).argmin())])

    @torch.no_grad()
    def _outputs(self, fleet: Fleet) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [R, n, C] over the classes seen, labels [R, n], and what every example counts [n]."""
        x = self.x.to(fleet.theta)
        logits = fleet.net.forward_with_features(x.expand(fleet.runs, *x.shape), train=False)[1]
        seen = fleet.task_plan.new | fleet.task_plan.old
        y = self.y.to(logits.device)
        share = 1 / torch.bincount(y)[y] / len(y.unique())
        return logits.masked_fill(~seen, -torch.inf), y.expand(fleet.runs, -1), share


def without(call: Call) -> tuple[Call, HeldOut]:
    """The call without a share of every class's examples, old and new, and those examples."""
    draw = generator(call.past.seed, "held out", call.past.tasks)
    out = some_of_each(call.y, SHARE, SPARE, draw)
    kept, aside = {}, {}
    for column, x in call.past.exemplars.items():
        spared = some_of_each(torch.full((len(x),), column), SHARE, SPARE, draw)
        kept[column], aside[column] = x[~spared], x[spared]
    rest = Call(call.x[~out], call.y[~out], replace(call.past, exemplars=kept))
    return rest, _held_out(call, out, aside, draw)


def with_judges(call: Call, quota: int) -> tuple[Call, HeldOut]:
    """The call without some of its examples, which join the judges: examples of every class, never trained on.

    Exemplars would not do. They were trained on in their own call, and whoever moves least still knows them best.
    """
    draw = generator(call.past.seed, "judges", call.past.tasks)
    out = some_of_each(call.y, FOR_JUDGES, 2, draw, at_most=quota)
    held_out = _held_out(call, out, call.past.judges, draw)
    judges = {column: x[:quota] for column, x in call.past.judges.items()}
    for column in call.y[out].unique().tolist():
        own = torch.cat([call.x[out & (call.y == column)], judges.get(column, call.x[:0])])
        judges[column] = own[torch.randperm(len(own), generator=draw)[:quota]]
    return Call(call.x[~out], call.y[~out], replace(call.past, judges=judges)), held_out


def _losses(logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
    loss = cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none")
    return (loss.view_as(y).nan_to_num(torch.inf) * share).sum(1)


def _held_out(call: Call, out: Tensor, others: Mapping[int, Tensor], draw: torch.Generator) -> HeldOut:
    x = torch.cat([call.x[out], *others.values()])
    y = torch.cat([call.y[out], *(torch.full((len(x),), column) for column, x in others.items())])
    some = torch.randperm(len(x), generator=draw)[:AT_MOST]
    return HeldOut(call.past.scaled(x[some]), y[some])


def longest(examples: int, batch: int) -> int:
    """Steps of a call at most: many passes over everything, but a few examples are soon learned."""
    steps = PASSES * steps_per_epoch(examples, batch)
    return min(max(steps, min(STEPS, SOON * examples)), MOST)


def some_of_each(y: Tensor, share: float, least: int, draw: torch.Generator, at_most: int | None = None) -> Tensor:
    """Which examples [n] are held out: of every class the share, of those with fewer than the least none."""
    out = torch.zeros(len(y), dtype=torch.bool)
    for label in y.unique():
        own = (y == label).nonzero()[:, 0]
        if len(own) >= least:
            count = max(1, round(share * len(own)))
            out[own[torch.randperm(len(own), generator=draw)[: min(count, at_most or count)]]] = True
    return out
