"""Checks of a sampler: its choices by themselves, and a memory that is filled by them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from rwalk.data import samplers
from rwalk.data.memory import MemorySpec
from rwalk.data.samplers import Sampler
from rwalk.learners import learner
from rwalk.testing.check_tools import Check, claim, draws, named_checks
from rwalk.testing.fleet_checks import FLEET_CHECKS, FleetRecipe

RUNS, EXAMPLES, FEATURES, CLASSES = 3, 17, 6, 4


@dataclass(frozen=True)
class Choosing:
    """A sampler, and made-up examples to choose from."""

    sampler: Sampler

    def evidence(self) -> dict[str, Tensor]:
        made = {
            "features": draws(RUNS, EXAMPLES, FEATURES, seed=0),
            "weights": draws(RUNS, FEATURES, seed=1),
            "logits": draws(RUNS, EXAMPLES, CLASSES, seed=2),
        }
        for need in self.sampler.needs:
            claim(need in made, f"it needs {need!r}, where there are {', '.join(made)}")
        return {need: made[need] for need in self.sampler.needs}

    def chosen(
        self, m: int, evidence: dict[str, Tensor] | None = None, runs: tuple[int, ...] = (0, 1, 2)
    ) -> Tensor:
        given = self.evidence() if evidence is None else evidence
        generators = [Generator().manual_seed(run) for run in runs]
        return self.sampler.choose(EXAMPLES, m, generators, *(each[list(runs)] for each in given.values()))


def it_keeps_m_different_examples(choosing: Choosing) -> None:
    for m in (0, 1, 5, EXAMPLES, EXAMPLES + 3):
        _check_kept(choosing.chosen(m), m)


def a_smaller_memory_keeps_the_best_of_a_larger(choosing: Choosing) -> None:
    """So that a budget shared by more classes can truncate each of them."""
    every = choosing.chosen(EXAMPLES)
    for m in (1, 5, EXAMPLES - 1):
        claim(choosing.chosen(m).equal(every[:, :m]), f"the best {m} are not the first {m} of all: order them")


def a_run_chooses_for_itself(choosing: Choosing) -> None:
    together = choosing.chosen(5)
    for run in range(RUNS):
        claim(choosing.chosen(5, runs=(run,))[0].equal(together[run]), f"run {run} chooses differently alone")


def its_generators_are_its_only_chance(choosing: Choosing) -> None:
    state, evidence = torch.get_rng_state(), choosing.evidence()
    before = {name: each.clone() for name, each in evidence.items()}
    once, again = choosing.chosen(5, evidence), choosing.chosen(5, evidence)
    claim(once.equal(again), "the same generators choose other examples the second time")
    claim(torch.get_rng_state().equal(state), "it draws from torch's global random state: use the generators")
    claim(all(evidence[name].equal(before[name]) for name in evidence), "it changes its inputs")


def broken_examples_do_not_break_it(choosing: Choosing) -> None:
    """A network that diverges has NaN features; its run stops, but must not stop the others."""
    evidence = choosing.evidence()
    for each in evidence.values():
        each[0] = torch.nan
    _check_kept(choosing.chosen(5, evidence), 5)


CHOOSING_CHECKS = (
    it_keeps_m_different_examples,
    its_generators_are_its_only_chance,
    a_smaller_memory_keeps_the_best_of_a_larger,
    a_run_chooses_for_itself,
    broken_examples_do_not_break_it,
)


def checks_of_sampler(given: str | Sampler) -> Iterator[Check]:
    """A sampler given by name is also checked in training, because a memory finds its sampler by name."""
    sampler = samplers.find(given) if isinstance(given, str) else given
    name = given if isinstance(given, str) else sampler.description
    yield from named_checks(Choosing(sampler), name, *CHOOSING_CHECKS)
    if isinstance(given, str):
        learners = [learner("rwalk", MemorySpec(per_class=3, sampler=given))] * 2
        yield from named_checks(FleetRecipe(learners), name, *FLEET_CHECKS)


def _check_kept(kept: Tensor, m: int) -> None:
    shape = (RUNS, min(m, EXAMPLES))
    claim(
        kept.shape == shape, f"{m} of {EXAMPLES} examples in {RUNS} runs are {list(kept.shape)}, not {list(shape)}"
    )
    claim(kept.dtype == torch.int64, f"it returns {kept.dtype}, but indices of examples are int64")
    for run in kept.tolist():
        claim(len(set(run)) == len(run), f"{m} of {EXAMPLES} examples contain one twice")
        claim(set(run) <= set(range(EXAMPLES)), f"it keeps examples that are not among the {EXAMPLES}")
