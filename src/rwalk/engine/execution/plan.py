"""Which execution is worth its compilation: a pure function of a few facts.

The rule for a CPU looks at the run alone, so that its result does not depend, to the bit, on what else is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# The number of steps from which steps on a CPU are compiled, for a method that observes them and for one that does
# not, with a network as large as the paper's MLP: they gain twice the time that compiling takes once its results
# are cached. Smaller networks gain less; larger ones more, but the more layers, the longer the compilation.
WORTH_COMPILING = {True: 5_000, False: 10_000}
LARGE = 260_000  # parameters
# Steps × parameters of all runs on CUDA from which the walk is compiled. 10,000 steps of 80 of the paper's MLPs,
# with four methods (2.2e11), gain 5.5 s by it; their kernels take 14 s to compile, 4 s once they are cached.
WORTH_FUSING = 3e11
# Steps × runs on CUDA from which a gradient is compiled: 10,000 steps of five of the paper's CIFAR networks gain
# the time that compiling takes, and the next fleet of a study finds its program ready.
WORTH_RECORDING = 50_000


NO_COMPILER, FAILED = "no working compiler", "the compiler failed"


class Facts(NamedTuple):
    """What the choice depends on."""

    cuda: bool
    runs: int
    parameters: int
    steps: int  # over all tasks
    observes: bool  # the method looks at every step
    grows: bool  # its springs grow with the tasks: compiling again for every task costs more than it gains
    one_gradient: bool  # a step takes nothing but the gradient of one loss
    gains_from_recording: bool  # the network's gradient is faster as one program, on CUDA
    alike: bool = True  # all runs have the same kind of method


class Plan(NamedTuple):
    """What is compiled.

    compiled  on a CPU the whole step, as one program; on CUDA the walk, as one kernel
    gradient  on CUDA the gradient too
    warn      warn if something could not be compiled, because it was asked for
    lacks     why something is not compiled that was to be: results then differ, by rounding at first
    """

    compiled: bool = False
    gradient: bool = False
    warn: bool = False
    lacks: str = ""


def lacked(execution: str) -> str:
    """Why steps that were to be compiled were not, by what a row records of their execution; or nothing.

    >>> lacked("eager (no working compiler)"), lacked("compiled")
    ('no working compiler', '')
    """
    return next((each for each in (NO_COMPILER, FAILED) if each in execution), "")


def choose(facts: Facts, asked: bool | None, compiler_works: Callable[[], bool]) -> Plan:
    """What to compile: what was `asked` for, where possible; otherwise what repays the time it takes."""
    possible = facts.cuda or (facts.one_gradient and facts.alike)
    if asked is not None:
        return Plan(compiled=asked and possible, gradient=asked and facts.gains_from_recording, warn=asked)
    if facts.cuda:
        steps = facts.steps * facts.runs
        gradient = facts.gains_from_recording and steps >= WORTH_RECORDING
        walk = not facts.grows and steps * facts.parameters >= WORTH_FUSING
    else:
        weight = min(1.0, facts.parameters / LARGE)
        worth = facts.runs == 1 and facts.steps * weight >= WORTH_COMPILING[facts.observes]
        gradient, walk = False, possible and not facts.grows and worth
    if (gradient or walk) and not compiler_works():
        return Plan(lacks=NO_COMPILER)
    return Plan(compiled=walk, gradient=gradient)
