"""A classifier and the form of its inputs, in one file: with more such data, learning can continue from there.

The file is the estimator's own, with a note of the form: `load` of the estimator reads it as it reads any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rwalk.classifier.closed_form import METHODS as CLOSED_FORM
from rwalk.classifier.estimator import IncrementalClassifier
from rwalk.data.datasets import TableEncoder
from rwalk.data.large_files import Portion, Source
from rwalk.data.streams import Form
from rwalk.errors import InputError

MOST_INPUTS = 20_000  # of a table: all products of two of them are summed, in 3 GB


@dataclass
class FileClassifier:
    """A classifier, and how files become its inputs."""

    classifier: IncrementalClassifier

    @property
    def form(self) -> Form | None:
        """How files become inputs; None for arrays."""
        return self.classifier.form_

    @classmethod
    def begun(cls, form: Form, **params: Any) -> FileClassifier:
        """A new one, which has learned nothing; the parameters are the classifier's."""
        if isinstance(form, TableEncoder) and form.shape[0] > MOST_INPUTS:
            raise InputError(
                f"the table makes {form.shape[0]:,} inputs, whose products would fill the memory: keep at most "
                f"{MOST_INPUTS:,}, and leave columns out with --drop"
            )
        classifier = IncrementalClassifier(**params)
        classifier.form_ = form
        return cls(classifier)

    def fresh(self) -> FileClassifier:
        """A new one that reads inputs in the same way: the two can be merged later."""
        return FileClassifier(self._closed("begin another").fresh())

    def learn(self, portion: Portion) -> int:
        """Learn a portion; the number of its examples."""
        assert portion.y is not None
        if len(portion.x):
            self.classifier.partial_fit(portion.x, portion.y)
        return len(portion.x)

    def forget(self, portion: Portion) -> None:
        assert portion.y is not None
        self._closed("forget").forget(portion.x, portion.y)

    def merge(self, other: FileClassifier) -> None:
        self._closed("merge").merge(other._closed("merge"))

    def _closed(self, verb: str) -> IncrementalClassifier:
        if self.classifier.method not in CLOSED_FORM:
            raise InputError(f"a trained network cannot {verb}: only a model made by `rwalk fit` can")
        return self.classifier

    def save(self, path: Path) -> None:
        """Write it completely or not at all."""
        self.classifier.save(path)


def load(path: Path, **params: Any) -> FileClassifier:
    """A classifier from its file; parameters that are code have to be given again."""
    return FileClassifier(IncrementalClassifier.load(path, **params))


class LearnedCount(NamedTuple):
    """How many examples were learned and, if some were held out first, how many of those were predicted right."""

    examples: int
    right: int = 0
    held: int = 0


def learn(trained: FileClassifier, source: Source, holdout: float | None = None) -> LearnedCount:
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
    if not hasattr(trained.classifier, "classes_"):
        raise InputError("every example was held out: hold out less, or give more")
    right = total = 0
    for portion, held in _divided(source, share):
        if held.any():
            assert portion.y is not None
            total += int(held.sum())
            right += int((trained.classifier.predict(portion.x[held]) == portion.y[held]).sum())
    for portion, held in _divided(source, share):
        _learn(trained, portion, held)
    return LearnedCount(examples, right, total)


def _divided(source: Source, share: float) -> Iterator[tuple[Portion, NDArray[np.bool_]]]:
    """Every portion, and which of its examples are held out: the same in every pass.

    Mixed, if that can be: features are made of the first portion, which should show all classes.
    """
    for number, portion in enumerate(source.portions(mixed=True)):
        yield portion, np.random.default_rng([0, number]).random(len(portion.x)) < share


def _learn(trained: FileClassifier, portion: Portion, chosen: NDArray[np.bool_]) -> None:
    if chosen.any():
        assert portion.y is not None
        trained.classifier.partial_fit(portion.x[chosen], portion.y[chosen])


class Predicted(NamedTuple):
    """Where an example comes from, its predicted class and probability, and its true class if it is known."""

    place: tuple[str, ...]
    label: str
    probability: float
    truth: str | None


def predictions(
    trained: FileClassifier, source: Source, labelled: bool = False, unknown: str | None = None, at: float = 0.05
) -> Iterator[Predicted]:
    """The class of every example of a source; `unknown` for those that `novelty` puts beyond the share `at`."""
    if not 0 < at < 1:
        raise InputError(f"--at {at:g} is no share: give a number between 0 and 1, such as 0.05")
    return _predictions(trained, source, labelled, unknown, at)


def _predictions(
    trained: FileClassifier, source: Source, labelled: bool, unknown: str | None, at: float
) -> Iterator[Predicted]:
    for portion in source.portions(labelled):
        probability = trained.classifier.predict_proba(portion.x)
        best = probability.argmax(1)
        labels = trained.classifier.classes_[best].tolist()
        if unknown is not None:
            novel = trained._closed("recognise the unknown").novelty(portion.x) > 1 - at
            labels = [unknown if new else label for new, label in zip(novel, labels, strict=True)]
        truths = [None] * len(labels) if portion.y is None else [str(label) for label in portion.y.tolist()]
        for place, label, row, column, truth in zip(
            portion.places, labels, probability, best, truths, strict=True
        ):
            yield Predicted(place, str(label), float(row[column]), truth)
