"""Many files learned as map-reduce: sums over each part anywhere, merged here in the order of the parts.

This process makes the feature map of the first examples; all workers get it. The sums of a part depend only on the
part and the map, so the model is the same, bit for bit, for any number of workers.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from rwalk.data.large_files import Source
from rwalk.errors import InputError
from rwalk.models.trained_on_files import FileClassifier, LearnedCount
from rwalk.studies import executors
from rwalk.studies.worker_pool import Stop
from rwalk.threads import available_cores, few_threads


class SourcePart(NamedTuple):
    """A source, of which so many portions have been learned already."""

    source: Source
    skipped: int


def learn_in_parts(
    trained: FileClassifier, source: Source, executor: str, workers: int | None = None, stop: Stop = lambda: False
) -> LearnedCount:
    """Learn all examples of a source, part by part, on an executor by its name."""
    with few_threads(1):
        begun, parts = _begun(trained, source)
    examples = begun
    if parts:
        twin = trained.fresh()
        for learned, count in _in_order(_map(executor, twin, parts, workers, stop)):
            examples += count
            if count:
                trained.merge(learned)
    if not examples:
        raise InputError("there is no example to learn from: give files that hold some")
    return LearnedCount(examples)


def _begun(trained: FileClassifier, source: Source) -> tuple[int, list[SourcePart]]:
    """Learn what features are made of; how many examples that was, and the parts that are left."""
    examples, parts = 0, [SourcePart(each, 0) for each in source.parts()]
    while parts and not trained.has_features():
        part, rest = parts[0], parts[1:]
        parts = rest
        for number, portion in enumerate(part.source.portions(), 1):
            examples += trained.learn(portion)
            if trained.has_features():
                parts = [SourcePart(part.source, number), *rest]
                break
    return examples, parts


def _map(
    executor: str, twin: FileClassifier, parts: Sequence[SourcePart], workers: int | None, stop: Stop
) -> Iterator[tuple[int, tuple[FileClassifier, int]]]:
    kind = executors.find(executor)
    count = kind.workers_for(len(parts), "cpu", workers or available_cores())
    with kind(twin, count, stop) as found:
        yield from found.map(_learn_part, parts, lambda number, news: None)


def _learn_part(
    twin: FileClassifier, part: SourcePart, report: Callable[[Any], None], stop: Stop
) -> tuple[FileClassifier, int]:
    """A new model of one part, and the number of its examples."""
    learned, examples = copy.deepcopy(twin), 0
    with few_threads(1):  # as everywhere else: several threads round differently
        for number, portion in enumerate(part.source.portions()):
            if stop():
                raise KeyboardInterrupt
            if number >= part.skipped:
                examples += learned.learn(portion)
    return learned, examples


def _in_order(answers: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    """Answers by their numbers: rounding depends on the order of a sum."""
    early: dict[int, Any] = {}
    expected = 0
    for number, answer in answers:
        early[number] = answer
        while expected in early:
            yield early.pop(expected)
            expected += 1
