"""Why a cell does not come out as published: shown where it does not. What is missing here is unexplained.

Reasons are facts that can be looked up (a protocol, a bug, a deviation), not guesses.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Explanation:
    """What explains cells of an experiment: those of a `label`, in blocks that begin with `block`."""

    experiment: str
    label: str
    why: str
    block: str = ""


EXPLANATIONS = (
    Explanation(
        "mammoth-mnist",
        "a-gem",
        "Single seeds lie ten points apart, theirs and ours: their deviation over ten seeds is 4.3 to 6.5 points.",
        "class",
    ),
    Explanation(
        "cifar100-methods",
        "vanilla",
        "The paper does not say how long its networks were trained, on which forgetting depends; ours were "
        "trained as long as validation chose for the methods beside it, not tuned to match.",
    ),
    *(
        Explanation(
            "cifar100-methods",
            method,
            "How a network begins, of which the paper does not speak, is worth about two points: RESULTS.md's "
            "table 1 has the weights of its authors' public code.",
            "no exemplars, multi-head",
        )
        for method in ("ewc++", "rwalk")
    ),
    Explanation(
        "cifar100-methods",
        "icarl",
        "The paper does not say how iCaRL was trained; its value is below that of its own unprotected network, "
        "and far below the 50 of iCaRL's authors (as quoted in ContinualAI/continual-learning-baselines).",
    ),
)


def explanation_of(experiment: str, label: str, block: str) -> str | None:
    """Why a cell differs, if anybody knows.

    >>> explanation_of("mammoth-mnist", "a-gem", "task, 200") is None
    True
    """
    for each in EXPLANATIONS:
        if (each.experiment, each.label) == (experiment, label) and block.startswith(each.block):
            return each.why
    return None
