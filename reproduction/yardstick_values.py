"""Values that others report: final average accuracies in percent, each with its source.

`checked` values were compared with their source. The others are quoted from memory of the named table, which could
not be opened, and are marked in every table.
"""

from __future__ import annotations

from dataclasses import dataclass

VAN_DE_VEN = "van de Ven, Tuytelaars & Tolias 2022, Three types of incremental learning, table 2"
DER = "Buzzega et al. 2020, Dark Experience for General Continual Learning, supplement (S-MNIST)"
KIRKPATRICK = "Kirkpatrick et al. 2017, as quoted in the table of ContinualAI/continual-learning-baselines"
ZENKE = "Zenke et al. 2017, as quoted in the table of ContinualAI/continual-learning-baselines"
RWALK = "Chaudhry et al. 2018, Riemannian Walk for Incremental Learning, table 1"
AVALANCHE = "ContinualAI/continual-learning-baselines, README"


@dataclass(frozen=True)
class Value:
    """A published mean, in percent, with its standard error where that is known."""

    mean: float
    error: float | None
    source: str
    checked: bool = True


def _van_de_ven(mean: float, error: float) -> Value:
    return Value(mean, error, VAN_DE_VEN, checked=False)


def _der(mean: float, deviation: float) -> Value:
    """Ten runs: the table has their standard deviation."""
    return Value(mean, deviation / 10**0.5, DER, checked=False)


# Split MNIST by scenario and method; means over 20 seeds, ± standard errors.
SPLIT_MNIST: dict[str, dict[str, Value]] = {
    "task": {
        "none": _van_de_ven(84.32, 0.99),
        "joint": _van_de_ven(99.67, 0.03),
        "ewc": _van_de_ven(99.06, 0.15),
        "si": _van_de_ven(99.20, 0.11),
        "lwf": _van_de_ven(99.60, 0.03),
        "er": _van_de_ven(98.98, 0.07),
        "a-gem": _van_de_ven(98.54, 0.10),
    },
    "domain": {
        "none": _van_de_ven(60.13, 1.66),
        "joint": _van_de_ven(98.59, 0.05),
        "ewc": _van_de_ven(63.03, 1.58),
        "si": _van_de_ven(66.94, 1.13),
        "lwf": _van_de_ven(71.18, 1.42),
        "er": _van_de_ven(93.75, 0.24),
        "a-gem": _van_de_ven(87.67, 1.33),
    },
    "class": {
        "none": _van_de_ven(19.89, 0.02),
        "joint": _van_de_ven(98.17, 0.04),
        "ewc": _van_de_ven(20.64, 0.52),
        "si": _van_de_ven(21.20, 0.57),
        "lwf": _van_de_ven(21.89, 0.32),
        "er": _van_de_ven(88.79, 0.20),
        "a-gem": _van_de_ven(65.10, 3.64),
        "icarl": _van_de_ven(92.49, 0.12),
    },
}

# Permuted MNIST, ten tasks: the paper's value, and that of Avalanche's own implementation.
PERMUTED_MNIST = {"ewc": Value(94.0, None, KIRKPATRICK), "si": Value(95.0, None, ZENKE)}
PERMUTED_MNIST_AVALANCHE = {"ewc": Value(83.0, None, AVALANCHE), "si": Value(83.0, None, AVALANCHE)}

# Split MNIST as in DER: (how it is read, buffer) → method. Their iCaRL is the one without replay.
DER_MNIST: dict[tuple[str, int], dict[str, Value]] = {
    ("class", 200): {
        "er": _der(80.43, 1.89),
        "gem": _der(80.11, 1.54),
        "a-gem": _der(45.72, 4.26),
        "icarl-2020": _der(70.51, 0.53),
        "der": _der(84.55, 1.64),
        "der++": _der(85.61, 1.40),
    },
    ("class", 500): {
        "er": _der(86.12, 1.89),
        "gem": _der(85.99, 1.35),
        "a-gem": _der(46.66, 5.85),
        "icarl-2020": _der(70.10, 1.08),
        "der": _der(90.54, 1.18),
        "der++": _der(91.00, 1.49),
    },
    ("class", 5120): {
        "er": _der(93.40, 1.29),
        "gem": _der(95.11, 0.87),
        "a-gem": _der(54.24, 6.49),
        "icarl-2020": _der(70.60, 1.03),
        "der": _der(94.90, 0.57),
        "der++": _der(95.30, 1.20),
    },
    ("task", 200): {
        "er": _der(97.86, 0.35),
        "gem": _der(97.78, 0.25),
        "a-gem": _der(98.61, 0.24),
        "icarl-2020": _der(98.28, 0.09),
        "der": _der(98.80, 0.15),
        "der++": _der(98.76, 0.28),
    },
    ("task", 500): {
        "er": _der(99.04, 0.18),
        "gem": _der(98.71, 0.20),
        "a-gem": _der(98.93, 0.21),
        "icarl-2020": _der(98.32, 0.07),
        "der": _der(98.84, 0.13),
        "der++": _der(98.94, 0.27),
    },
    ("task", 5120): {
        "er": _der(99.33, 0.22),
        "gem": _der(99.44, 0.12),
        "a-gem": _der(98.93, 0.20),
        "icarl-2020": _der(98.32, 0.11),
        "der": _der(99.29, 0.11),
        "der++": _der(99.47, 0.07),
    },
}
