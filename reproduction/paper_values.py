"""The paper's values. A in percent, F and I as fractions; by EWC the paper means EWC++ throughout.

Figures are published as pictures only: their curves cannot be compared.
"""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """One cell group of a table: average accuracy (%), forgetting, intransigence, and the λ it is for."""

    A: float
    F: float | None = None
    I: float | None = None  # noqa: E741 - the paper's name
    lam: float | None = None


BETTER = {"A": "higher", "F": "lower", "I": "lower"}

# Table 1: (dataset, block) → method → values. Blocks: multi-head, single-head, single-head with samples.
TABLE1: dict[tuple[str, str], dict[str, Published]] = {
    ("mnist", "multi"): {
        "vanilla": Published(90.3, 0.12, 6.6e-4),
        "ewc++": Published(99.3, 0.001, 0.01, 75e3),
        "pi": Published(99.3, 0.002, 0.01, 0.1),
        "rwalk": Published(99.3, 0.003, 0.01, 1e3),
    },
    ("mnist", "single"): {
        "vanilla": Published(38.0, 0.62, 0.29),
        "ewc++": Published(55.8, 0.08, 0.77, 75e3),
        "pi": Published(57.6, 0.11, 0.8, 0.1),
        "icarl-hb1": Published(36.6, 0.68, -0.01),
        "icarl": Published(55.8, 0.19, 0.46),
    },
    ("mnist", "samples"): {
        "vanilla": Published(73.7, 0.30, 0.03),
        "ewc++": Published(79.7, 0.14, 0.22, 75e3),
        "pi": Published(78.7, 0.24, 0.05, 0.1),
        "rwalk": Published(82.5, 0.15, 0.14, 1e3),
    },
    ("cifar100", "multi"): {
        "vanilla": Published(44.4, 0.36, 0.02),
        "ewc++": Published(72.8, 0.001, 0.07, 3e6),
        "pi": Published(73.2, 0.0, 0.06, 10.0),
        "rwalk": Published(74.2, 0.004, 0.04, 1e3),
    },
    ("cifar100", "single"): {
        "vanilla": Published(10.2, 0.36, -0.06),
        "ewc++": Published(23.1, 0.03, 0.17, 3e6),
        "pi": Published(22.8, 0.04, 0.2, 10.0),
        "icarl-hb1": Published(7.4, 0.40, 0.06),
        "icarl": Published(9.5, 0.11, 0.35),
    },
    ("cifar100", "samples"): {
        "vanilla": Published(12.9, 0.64, -0.3),
        "ewc++": Published(33.6, 0.27, -0.05, 15e5),
        "pi": Published(33.6, 0.27, -0.03, 10.0),
        "rwalk": Published(34.0, 0.28, -0.06, 500.0),
    },
}

# Table S1: CIFAR-100 in 20 tasks, ResNet-18, multi-head. iCaRL and GEM are quoted by the paper from GEM's.
TABLE_S1: dict[str, tuple[int, Published]] = {
    "icarl": (5120, Published(50.8)),
    "gem": (5120, Published(65.4)),
    "rwalk": (5000, Published(70.1)),
}

# Table S2: (dataset, method) → λ → values; single-head with samples.
TABLE_S2: dict[tuple[str, str], dict[float, Published]] = {
    ("mnist", "ewc++"): {75.0: Published(80.3, 0.19, 0.1), 75e3: Published(79.2, 0.15, 0.21),
                         75e5: Published(79.1, 0.13, 0.24)},
    ("mnist", "pi"): {0.1: Published(79.3, 0.23, 0.05), 100.0: Published(80.3, 0.15, 0.22),
                      1e4: Published(78.5, 0.16, 0.18)},
    ("mnist", "rwalk"): {0.1: Published(82.6, 0.16, 0.12), 100.0: Published(81.6, 0.16, 0.14),
                         1e4: Published(81.6, 0.16, 0.12)},
    ("cifar100", "ewc++"): {3.0: Published(28.9, 0.38, -0.17), 300.0: Published(34.1, 0.28, -0.07),
                            3e5: Published(33.7, 0.27, -0.03)},
    ("cifar100", "pi"): {0.1: Published(34.7, 0.27, -0.07), 10.0: Published(34.3, 0.26, -0.04),
                         1e4: Published(33.7, 0.27, -0.06)},
    ("cifar100", "rwalk"): {0.1: Published(34.5, 0.28, -0.06), 10.0: Published(33.2, 0.28, -0.06),
                            1e4: Published(34.2, 0.28, -0.05)},
}  # fmt: skip
