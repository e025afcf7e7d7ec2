"""Who walks how: runs of a fleet with the same kind of method, which share its code, and what it knows of them.

One gradient serves all runs of a fleet; what follows it is elementwise and differs from method to method. So runs
of different methods may share a fleet: each method walks its own rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from itertools import groupby

from torch import Tensor

from rwalk.errors import InputError
from rwalk.learners import Learner
from rwalk.methods.base import Method, State
from rwalk.parts import per_run, stack


@dataclass
class Walker:
    """Some rows of θ, one below the other, the method of these runs, and its state there."""

    rows: slice
    method: Method
    state: State
    prefix: str  # of its vectors' names among those of the whole fleet

    def named(self) -> State:
        """Its vectors, as a fleet names them."""
        return {self.prefix + name: vector for name, vector in self.state.items()}

    def of_run(self, run: int) -> State:
        """The vectors [1, P] of one run of the fleet, under the method's own names."""
        row = run - self.rows.start
        return {name: vector[row : row + 1] for name, vector in self.state.items()}

    def take(self, state: State) -> None:
        """Take its vectors from those of the whole fleet."""
        mine = {name: vector for name, vector in state.items() if name.startswith(self.prefix)}
        self.state = {name.removeprefix(self.prefix): vector for name, vector in mine.items()}


def walkers_of(learners: Sequence[Learner], theta: Tensor, columns: bool) -> list[Walker]:
    """Runs in a row with the same kind of method walk together; hyper-parameters as `columns`, or as numbers."""
    kinds = [list(each) for _, each in groupby((each.method for each in learners), key=kind)]
    if len(kinds) > 1 and not all(can_be_mixed(methods[0]) for methods in kinds):
        raise InputError("what looks at a task's data again, or at single examples, needs a fleet of its own")
    found, first = [], 0
    for number, methods in enumerate(kinds):
        rows = slice(first, first + len(methods))
        method = stack(methods, theta, columns)
        found.append(Walker(rows, method, method.start(theta[rows]), f"{number}-" if len(kinds) > 1 else ""))
        first = rows.stop
    return found


def kind(method: Method) -> Hashable:
    """Equal for methods that differ only in what may differ between runs that walk together."""
    own = per_run(type(method))
    return type(method), *(getattr(method, each.name) for each in fields(method) if each.name not in own)


def can_be_mixed(method: Method) -> bool:
    """Whether all it needs of a step is the gradient: runs of other methods may then share its fleet."""
    return not (method.data_pass or method.grows or method.observes_examples)
