"""How hard to hold: λ from the drift measured and the drift allowed. Pure functions of a few numbers.

Until drift is worth mentioning, nothing is held. Then λ starts where the pull would be as long as the gradient at
the budget, and is followed in log λ by two rules: it is proportional to a power of drift / budget, so that below
the budget training is nearly free and beyond it is not; and it grows or falls for as long as the drift expected a
little later is above or below the budget. It stays within a range around that balance, outside of which it would
change nothing any more and would only have to come back. All times are in units of the time in which drift came to
the budget: so no rule knows learning rates, λ's unit or the size of a model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rwalk.errors import InputError

VISIBLE = 1 / 8  # of the budget: from here on something is held
POWER = 6.0  # λ ∝ (drift / budget)^POWER
GAIN = 4.0  # d log λ / d time, per unit of log(drift / budget)
SMOOTH, HORIZON = 1 / 8, 1 / 2  # times over which drift is averaged, and after which it is expected
READINGS = 8  # in that time, at least: what goes faster is followed as if it did not
STEADY = 0.2  # the weight of a new reading in the balance, which differs from batch to batch
RANGE = math.log(30), math.log(100)  # how far log λ at the budget may be below and above the balance
FREE, MOST = 1e-8, 1e10  # λ is never outside


@dataclass(frozen=True)
class Control:
    """The state of the rule.

    lam      λ now
    base     log λ at the budget; None while nothing is held
    balance  log λ at which, at the budget, the pull is as long as the gradient
    time     the steps in which drift comes to the budget
    smooth   drift, averaged over the last of them
    step     of the last reading
    """

    lam: float = FREE
    base: float | None = None
    balance: float = 0.0
    time: float = 1.0
    smooth: float = 0.0
    step: int = 0

    @property
    def strength(self) -> float:
        """λ, in units of the balance."""
        return self.lam / math.exp(self.balance)


def followed(control: Control, step: int, drift: float, budget: float, balance: float) -> Control:
    """What a reading of the drift makes of λ.

    balance  the λ at which the pull, where the parameters are now, is as long as the gradient
    """
    found = _log(balance * math.sqrt(drift / budget))  # stretched to the budget, springs pull more
    if control.base is None:
        if drift < VISIBLE * budget:
            return replace(control, step=step)
        time = step * math.sqrt(budget / drift)  # KL is quadratic in the way gone
        time = max(time, READINGS * (step - control.step))
        control = Control(base=found, balance=found, time=time, smooth=drift)
        pace = 0.0
    else:
        pace = (step - control.step) / control.time
        expected = max(drift + HORIZON / max(SMOOTH, pace) * (drift - control.smooth), drift / 4)
        gain = GAIN * pace / (1 + (8 * pace) ** 2)
        control = replace(
            control,
            base=control.base + gain * _between(-1.0, _log(expected / budget), 2.0),
            balance=control.balance + STEADY * (found - control.balance),
            smooth=control.smooth + (1 - math.exp(-pace / SMOOTH)) * (drift - control.smooth),
        )
    assert control.base is not None
    base = _between(control.balance - RANGE[0], control.base, control.balance + RANGE[1])
    power = POWER / (1 + (4 * pace) ** 2)
    lam = _between(FREE, math.exp(base + power * _between(-3.0, _log(drift / budget), 3.0)), MOST)
    return replace(control, lam=lam, base=base, step=step)


def check(budget: float | None) -> None:
    if budget is not None and not (isinstance(budget, int | float) and 0 < budget < math.inf):
        raise InputError(f"budget must be a number of nats above 0, such as 0.05, not {budget!r}")


def _log(number: float) -> float:
    """Of what is no number any more, as of far too much."""
    return math.log(max(number, 1e-30)) if math.isfinite(number) else 3.0


def _between(least: float, number: float, most: float) -> float:
    return min(max(number, least), most)
