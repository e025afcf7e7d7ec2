"""Classifiers that learn files and predict them, portion by portion; `form_` is how files become their inputs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rwalk.classifier.estimator import IncrementalClassifier
from rwalk.data.datasets import TableEncoder
from rwalk.data.large_files import Portion, Source
from rwalk.data.streams import Form
from rwalk.errors import InputError

MOST_INPUTS = 20_000  # of a table: all products of two of them are summed, in 3 GB


def begun(form: Form, **params: Any) -> IncrementalClassifier:
    """A classifier that has learned nothing; files become its inputs in this form."""
    if isinstance(form, TableEncoder) and form.shape[0] > MOST_INPUTS:
        raise InputError(
            f"the table makes {form.shape[0]:,} inputs, whose products would fill the memory: keep at most "
            f"{MOST_INPUTS:,}, and leave columns out with --drop"
        )
    classifier = IncrementalClassifier(**params)
    classifier.form_ = form
    return classifier


class LearnedCount(NamedTuple):
    """How many examples were learned and, if some were held out first, how many of those were predicted right."""

    examples: int
    right: int = 0
    held: int = 0


def learn(trained: IncrementalClassifier, source: Source, holdout: float | None = None) -> LearnedCount:
    """Learn all examples of a source, portion by portion.

    A part of every portion may be held out: it is predicted once the rest is learned, and then learned as well.
    """
    share, examples = holdout or 0.0, 0
    for portion, held in _divided(source, share):
        examples += len(portion.x)
        _learn(trained, portion, ~held)
    if not examples:
        raise InputError("there is no example to learn from: give files that hold some")
    if not share:
        return LearnedCount(examples)
    if not hasattr(trained, "classes_"):
        raise InputError("every example was held out: hold out less, or give more")
    right = total = 0
    for portion, held in _divided(source, share):
        if held.any():
            assert portion.y is not None
            total += int(held.sum())
            right += int((trained.predict(portion.x[held]) == portion.y[held]).sum())
    for portion, held in _divided(source, share):
        _learn(trained, portion, held)
    return LearnedCount(examples, right, total)


def _divided(source: Source, share: float) -> Iterator[tuple[Portion, NDArray[np.bool_]]]:
    """Every portion, and which of its examples are held out: the same in every pass.

    Mixed, if that can be: features are made of the first portion, which should show all classes.
    """
    for number, portion in enumerate(source.portions(mixed=True)):
        yield portion, np.random.default_rng([0, number]).random(len(portion.x)) < share


def _learn(trained: IncrementalClassifier, portion: Portion, chosen: NDArray[np.bool_]) -> None:
    if chosen.any():
        assert portion.y is not None
        trained.partial_fit(portion.x[chosen], portion.y[chosen])


class Predicted(NamedTuple):
    """Where an example comes from, its predicted class and probability, and its true class if it is known."""

    place: tuple[str, ...]
    label: str
    probability: float
    truth: str | None


def predictions(
    trained: IncrementalClassifier,
    source: Source,
    labelled: bool = False,
    unknown: str | None = None,
    at: float = 0.05,
) -> Iterator[Predicted]:
    """The class of every example of a source; `unknown` for those that `novelty` puts beyond the share `at`."""
    for portion in source.portions(labelled):
        probability = trained.predict_proba(portion.x)
        best = probability.argmax(1)
        labels = trained.classes_[best].tolist()
        if unknown is not None:
            novel = trained.novelty(portion.x) > 1 - at
            labels = [unknown if new else label for new, label in zip(novel, labels, strict=True)]
        truths = [None] * len(labels) if portion.y is None else [str(label) for label in portion.y.tolist()]
        for place, label, row, column, truth in zip(
            portion.places, labels, probability, best, truths, strict=True
        ):
            yield Predicted(place, str(label), float(row[column]), truth)
