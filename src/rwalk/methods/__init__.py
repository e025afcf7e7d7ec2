"""The methods on vectors: frozen records of hyper-parameters, and pure equations over explicit state.

One file each; a new file in this folder is found automatically, by its method's name.
"""

from __future__ import annotations

import sys

from rwalk.methods import method
from rwalk.methods.ewc import EWC
from rwalk.methods.ewcpp import EWCpp
from rwalk.methods.method import Method, Number, Ranges, State, normalized, require, unit
from rwalk.methods.pi import PI
from rwalk.methods.rwalk import RWalk
from rwalk.methods.vanilla import Vanilla
from rwalk.registry import discovered

METHODS: dict[str, type[Method]] = discovered(__name__, Method)

sys.modules[f"{__name__}.base"] = method  # its name in 0.2, which users' methods import

__all__ = [
    "EWC",
    "METHODS",
    "PI",
    "EWCpp",
    "Method",
    "Number",
    "RWalk",
    "Ranges",
    "State",
    "Vanilla",
    "normalized",
    "require",
    "unit",
]
