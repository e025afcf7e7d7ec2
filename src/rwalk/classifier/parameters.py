"""The parameters of all estimators: each is declared here, once, with its default and its description.

Their docstrings and the options of `rwalk fit` follow from this: a field made with `option` is one of those. The
command line reads this module first, so it does not import torch, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rwalk.option_fields import option, setting


@dataclass(kw_only=True, eq=False, repr=False)
class MethodParameter:
    """Of classifiers."""

    method: Any = setting(
        "closed-form",
        '"closed-form", ridge regression on fixed features, or "lda", Gaussian classes on them; or how a network '
        'keeps old classes: "rwalk", "ewc", "ewc++", "pi", "icarl", "gem", "a-gem" …; an object with '
        "hyper-parameters of your own, such as RWalk(lam=10); or None for a network without protection",
    )


@dataclass(kw_only=True, eq=False, repr=False)
class SumParameters:
    """Of everything that is learned as sums."""

    size: int | None = setting(
        None,
        "random features of vectors or of a network's features (its lift), patches of images, or columns of texts "
        "that all others are multiplied with; None for a good number",
    )
    ridge: float | None = setting(
        None, "how strongly weights are held back, relative to a feature's variance; None to have it chosen"
    )


@dataclass(kw_only=True, eq=False, repr=False)
class SharedParameters:
    """Of closed form and of networks."""

    network: Any = setting(
        None,
        "for closed form, a trained nn.Module whose last layer's inputs are the features; None for features of "
        'rwalk\'s own. For networks "mlp", "cnn", "resnet18", "package.module:factory", or a function '
        '(input_shape, classes) that makes an nn.Module; None for "mlp"',
    )
    standardize: bool = setting(
        True,
        "scale every column of a vector, or channel of a network's images, by the first examples; off, the map "
        "of closed form depends on the seed alone",
    )
    device: Any = setting("cpu", '"cpu", "cuda" …, or "auto"')
    random_state: Any = setting(0, "an integer makes everything repeatable")
    verbose: bool | int = setting(False, "one line per call; with an encoder, its progress")


@dataclass(kw_only=True, eq=False, repr=False)
class ClosedFormParameters(SumParameters, SharedParameters):
    """Of classifiers and regressors in closed form."""

    encoder: Any = setting(
        None,
        "makes a vector of every input before anything else: a function of a batch, an object with `encode`, "
        '`embed` or `transform`, an nn.Module, or the name of a pretrained model ("wordllama", "timm:NAME", or '
        "one of sentence-transformers)",
    )
    features: str = setting("auto", '"auto", "vectors" or "images": how inputs become features')
    half_life: float | None = option(
        None, "examples after which a learned example counts half; by default all count alike"
    )
    ledger: bool = option(
        False, "keep a salted fingerprint of every example, so that rows that were not learned cannot be forgotten"
    )
    mirror: bool | None = setting(
        None, "take images and their mirror images for the same; None to have it seen from the first ones"
    )
    warm_up: int = setting(
        100, "examples the feature map is made of: fewer are held as they are until more have come"
    )
    dtype: str | None = setting(None, '"float64", "float32", or None for one that suits the features')


@dataclass(kw_only=True, eq=False, repr=False)
class ClosedFormClassifierParameters(ClosedFormParameters, MethodParameter):
    """Of classifiers in closed form."""

    class_weight: str | Mapping[Any, float] | None = option(
        None,
        'factors of probabilities: "balanced" for the inverse of the classes\' shares; in Python also by label',
    )


@dataclass(kw_only=True, eq=False, repr=False)
class TextParameters(SumParameters, MethodParameter):
    """Of classifiers of texts."""


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkParameters(SharedParameters, MethodParameter):
    """Of networks that are trained."""

    method: Any = "rwalk"
    lam: float | str | None = setting(None, "strength of the penalty; None for the method's own")
    memory: int | None = setting(None, "exemplars kept per class; None for no exemplars")
    memory_total: int | None = setting(
        None, "instead of `memory`: exemplars of all classes together, shared equally"
    )
    sampler: str = setting("mof", 'which examples are kept: "mof", "uniform", "plane", "entropy" …')
    epochs: int | None = setting(None, "passes over a call's data; None for as many as pay")
    batch_size: int = setting(64, "examples in a step")
    learning_rate: float = setting(1e-3, "of Adam")


@dataclass(kw_only=True, eq=False, repr=False)
class Parameters(ClosedFormClassifierParameters, NetworkParameters):
    """Of all families."""


# Messages about wrong arguments show these names.
Parameters.__init__.__qualname__ = "IncrementalClassifier"
ClosedFormParameters.__init__.__qualname__ = "IncrementalRegressor"
