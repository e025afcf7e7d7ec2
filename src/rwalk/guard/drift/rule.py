"""How hard to hold: λ from the drift measured and the drift allowed. Pure functions of a few numbers.

The distance r = √(drift / budget) is how far a model has gone, in units of how far it may go: KL is quadratic in
the way, so that r grows steadily while nothing holds. Until r reaches 1 nothing does. From then on

    dr/dt = 1/T − response · λ · r

where T is the time in which r came to 1, and t counts learning rates, so that a schedule changes nothing. λ begins
where both terms are equal at r = 1, and changes in log λ by T times the difference between the speed of r that was
observed and the one that would lead to 1 after a while. No rule knows a λ's unit, or the size of a model.

That alone would allow r to exceed 1 for a while. So whoever is found beyond the budget is also taken back to it at
once (`needed`, `learned`), by the same pull that λ exerts step by step, and this is where `response` is measured.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rwalk.errors import InputError

POWER = 4.0  # λ ∝ rᵖ on top of all this: less below the budget, more beyond it
GAIN = 0.5  # of the correction that would be right if the speed were known exactly
PER_TIME = 8  # changes of λ in the time T, at most: speeds over shorter times are mostly noise
NOISE = 0.1  # a change of r that no reading makes by chance
HORIZON = 0.5  # times T: when r is to be 1 again
FASTEST = math.log(4)  # change of log λ at a reading
FREE, MOST = 1e-8, 1e15  # λ is never outside
CAUTION = 10.0  # a first pull back is so many times weaker than it seems it should be
UNSURE, SURE = 30.0, 2.0  # by what factor a measured pull may correct the response: at first, and later
NEAR = 1.02  # a distance that needs no pull back


@dataclass(frozen=True)
class Control:
    """The state of the rule.

    lam       λ now
    response  how much a pull shortens the distance: log r falls by response · λ · t; 0 while nobody knows
    time      T, in which r comes to 1 where nothing holds; 0 while nothing does
    clock     learning rates, added up over the steps
    distance  r after the last reading
    gained    by r since λ was last changed
    since     the clock, when λ was last changed
    rate      the learning rate at the last reading
    step      of the last reading
    """

    lam: float = FREE
    response: float = 0.0
    time: float = 0.0
    clock: float = 0.0
    distance: float = 0.0
    gained: float = 0.0
    since: float = 0.0
    rate: float = 0.0
    step: int = 0

    @property
    def strength(self) -> float:
        """λ as it is used."""
        return self.lam * _between(0.5, self.distance, 2.0) ** POWER if self.time else self.lam

    @property
    def pull(self) -> float:
        """How many times as fast as the task pushes the model away, λ pulls it back."""
        return self.response * self.strength * self.time * self.distance

    @property
    def back(self) -> float:
        """The share of its way that the model loses again in every step, by λ alone."""
        return -math.expm1(-self.response * self.strength * self.rate) if self.time else 0.0


def distance(drift: float, budget: float) -> float:
    """In units of what is allowed; of what is no number any more, far too much."""
    return math.sqrt(max(drift, 0.0) / budget) if math.isfinite(drift) else 1e3


def at(control: Control, step: int, rate: float) -> Control:
    """A reading after so many steps, the last of them at this learning rate."""
    steps = step - control.step
    return replace(control, step=step, rate=rate, clock=control.clock + steps * max(rate, 1e-30))


def followed(control: Control, distance: float, left: float, start: float | None = None) -> Control:
    """What a reading of the distance makes of λ.

    left   the distance after a pull back
    start  the λ to begin with; without one, that which balances the growth of r
    """
    gained = control.gained + distance - control.distance
    control = replace(control, distance=left, gained=gained)
    if not control.time:
        return _begun(control, distance, start) if distance >= 1 else control
    since = control.clock - control.since
    if since < control.time / PER_TIME and abs(gained) < NOISE:
        return control
    time = max(control.time, since)
    wanted = (1 - left) / max(HORIZON * time, since)
    change = GAIN * time * (gained / since - wanted)
    lam = control.lam * math.exp(_between(-FASTEST, change, FASTEST))
    return replace(control, lam=_between(FREE, lam, MOST), gained=0.0, since=control.clock)


def limited(control: Control, most: float) -> Control:
    """λ as it is used is at most this: what would change nothing takes long to come back from."""
    excess = control.strength / max(most, FREE)
    return replace(control, lam=max(control.lam / excess, FREE)) if excess > 1 else control


def _begun(control: Control, distance: float, start: float | None) -> Control:
    time = control.clock / distance
    lam = 1 / (time * control.response) if start is None else start
    return replace(control, lam=_between(FREE, lam, MOST), time=time, gained=0.0, since=control.clock)


# ── back to the budget, at once ──────────────────────────────────────────────────────────────────────────────


def guessed(control: Control, response: float) -> Control:
    """Until a pull is measured, this is what it is worth."""
    return control if control.response else replace(control, response=max(response, 1e-30))


def needed(control: Control, distance: float) -> float:
    """The pull, in units of λ · t, after which the distance should be 1."""
    return math.log(distance) / control.response


def learned(control: Control, pull: float, before: float, after: float) -> Control:
    """A pull took the model from one distance to another."""
    found = math.log(before / max(after, 1e-9)) / pull
    factor = SURE if control.time else UNSURE
    response = _between(control.response / factor, found, control.response * factor)
    return replace(control, response=response, distance=after)


def check(budget: float | None) -> None:
    if budget is not None and not (isinstance(budget, int | float) and 0 < budget < math.inf):
        raise InputError(f"budget must be a number of nats above 0, such as 0.05, not {budget!r}")


def _between(least: float, number: float, most: float) -> float:
    return min(max(number, least), most)
