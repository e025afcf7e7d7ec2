"""A table as a dataset: read whole, its inputs standardised."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rwalk.data.datasets.cells import absent_in, as_numbers, as_texts
from rwalk.data.datasets.columns import every_row
from rwalk.data.datasets.reading import Reading
from rwalk.data.datasets.survey import survey
from rwalk.data.streams import Dataset
from rwalk.errors import InputError


def read_table(path: Path, reading: Reading, seed: int = 0) -> Dataset:
    """Rows as examples; inputs have mean 0 and deviation 1 over the training rows.

    Networks are shown them as they are here, and would learn little from columns in units of their own.
    """
    form = survey([path], reading)
    tasks_in = [] if reading.task_column is None else [reading.task_column]
    parts = list(every_row(form, [path], labelled=True, beside=tasks_in))
    x = np.concatenate([rows.x for _, _, rows in parts])
    y = np.concatenate([rows.y for _, _, rows in parts if rows.y is not None])
    if not len(y):
        raise InputError(f"every row of {str(path)!r} has a missing value: give --missing fill")
    tasks = None
    if (named := reading.task_column) is not None:
        cells = [chunk.columns[named][rows.numbers - chunk.start] for _, chunk, rows in parts]
        tasks = _tasks(named, np.concatenate(cells))
    middle = x.mean(0)  # taken off in float64: float32 has too few digits for the years of a calendar
    dataset = Dataset.from_arrays(x - middle, y, name=path.name.partition(".")[0], seed=seed, arrival=tasks)
    mean, scale = dataset.x.double().mean(0), dataset.x.double().std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    shown, tested = (((part.double() - mean) / scale).float() for part in (dataset.x, dataset.x_test))
    return replace(dataset, x=shown, x_test=tested, form=form.standardised(middle + mean.numpy(), scale.numpy()))


def _tasks(name: str, cells: NDArray[Any]) -> NDArray[Any]:
    texts, numbers = as_texts(cells), as_numbers(cells)
    if absent_in(texts).any():
        raise InputError(f"column {name!r} has rows without a task: fill them in")
    if numbers is not None and (numbers != np.round(numbers)).any():
        raise InputError(f"column {name!r} holds numbers with fractions, which name no tasks: name another")
    return texts if numbers is None else numbers
