"""The methods on vectors. Each is a frozen record of its numbers and pure equations over explicit state."""

from __future__ import annotations

from rwalk.methods.base import Method, Number, State, stack
from rwalk.methods.ewc import EWC
from rwalk.methods.ewcpp import EWCpp
from rwalk.methods.pi import PI
from rwalk.methods.rwalk import RWalk
from rwalk.methods.vanilla import Vanilla

METHODS: dict[str, type[Method]] = {method.name: method for method in (Vanilla, EWC, EWCpp, PI, RWalk)}

__all__ = ["EWC", "METHODS", "PI", "EWCpp", "Method", "Number", "RWalk", "State", "Vanilla", "stack"]
