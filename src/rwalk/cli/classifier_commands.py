"""`rwalk fit`, `predict`, `forget` and `merge`: a classifier from files, for those who do not program."""

from __future__ import annotations

import csv
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rwalk.atomic_files import replacing, writing
from rwalk.cli.command_options import Given, check_once, check_spares, let_import, to_stderr, told_warnings
from rwalk.data.file_options import Reading
from rwalk.errors import InputError
from rwalk.escaping import cell, shown

if TYPE_CHECKING:
    from rwalk.classifier import IncrementalClassifier
    from rwalk.data.large_files import Source
    from rwalk.models import Backbone

Files = Annotated[
    list[Path], typer.Argument(help="tables (.csv, .tsv, .parquet), folders of images by class, or .npz files")
]
Network = Annotated[
    str | None,
    typer.Option(
        help="of images: your own pre-trained network, module:factory; a model learned with one needs it again"
    ),
]
Model = Annotated[Path, typer.Argument(help="a model that `rwalk fit` wrote")]


def fit(
    data: Files,
    *,
    out: Annotated[Path | None, typer.Option(help="the model to write, such as clf.safetensors")] = None,
    go_on: Annotated[
        Path | None, typer.Option("--continue", help="a model to continue; overwritten, unless --out is given")
    ] = None,
    like: Annotated[
        Path | None, typer.Option(help="read inputs as this model does, so that the two can be merged later")
    ] = None,
    given: Given,
    text: Annotated[
        str | None, typer.Option(help="of a table: learn the texts in this column, and nothing else")
    ] = None,
    network: Network = None,
    holdout: Annotated[
        float | None,
        typer.Option(help="measure the accuracy on this fraction, such as 0.2, then learn it too"),
    ] = None,
) -> None:
    """Learn a classifier from files of any size.

    More files, and new classes, may follow at any time (--continue): nothing is forgotten.
    """
    if go_on and like:
        raise InputError("give --continue or --like, not both")
    if holdout is not None and not 0 < holdout < 1:
        raise InputError(f"the part to hold out is {holdout}: give one between 0 and 1")
    target = out or go_on
    if target is None:
        raise InputError("say where to write the model: --out clf.safetensors")
    if target.exists() and target != go_on:
        raise InputError(f"{target} exists already: continue it (--continue), or choose another --out")
    _check_writable(target)
    check_once(data)
    with _working(f"reading {_names(data)}") as working, told_warnings():
        from rwalk.models import learn  # torch takes seconds to import

        reading = Reading(**given.pop(Reading, {}))
        values = {name: value for each in given.values() for name, value in each.items()}
        parameters = {name: value for name, value in values.items() if value is not None and value is not False}
        trained, source = _begun(data, reading, go_on, like, text, network, parameters)
        for note in source.notes:
            to_stderr(note)
        working(f"learning {_names(data)}")
        learned = learn(trained, source, holdout)
        working(f"writing {target}")
        _write(trained, target)
    if holdout is not None:
        share = f"{learned.right / learned.held:.1%}" if learned.held else "unknown"
        print(f"accuracy {share} on {learned.held:,} examples held out, which were learned after that")
    total = getattr(trained, "n_samples_seen_", learned.examples)
    in_all = f", {total:,} in all" if total != learned.examples else ""
    print(f"{shown(target)}: {learned.examples:,} examples learned{in_all}; {_classes(trained)}")


def predict(
    model: Annotated[Path, typer.Argument(help="a model that `rwalk fit` wrote, or a classifier's `save`")],
    data: Files,
    out: Annotated[Path | None, typer.Option(help="the CSV file to write (default: to the terminal)")] = None,
    score: Annotated[bool, typer.Option("--score", help="the classes are known: say how many are right")] = False,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id", help="of a table: a column to show beside predictions (default: one that `fit` found)"
        ),
    ] = None,
    unknown: Annotated[
        str | None, typer.Option(help="a label for inputs unlike everything learned, such as other")
    ] = None,
    at: Annotated[
        float | None, typer.Option(help="the share of known inputs that --unknown may reject (default: 0.05)")
    ] = None,
    network: Network = None,
) -> None:
    """Predict the class of every row or image, with its probability."""
    check_spares("--out", out, (model, *(path for path in data if path.is_file())))
    if at is not None and unknown is None:
        raise InputError("--at is a share that --unknown may reject: give --unknown other too")
    if at is not None and not 0 < at < 1:
        raise InputError(f"--at {at:g} is no share: give a number between 0 and 1, such as 0.05")
    if unknown == "":
        raise InputError("--unknown is a label: give one, such as other")
    with _working(f"reading {_names(data)}"), told_warnings():
        from rwalk.models import predictions  # torch takes seconds to import

        trained, own = _loaded(model, network)
        source = _source(data, Reading(), trained, model, score, own, id_column)
        total = right = 0
        found = predictions(trained, source, score, unknown, *([] if at is None else [at]))
        with _table(out) as write:
            write((*source.places, "label", "probability"))
            for each in found:
                write((*map(cell, each.place), cell(each.label), f"{each.probability:.4f}"))
                total, right = total + 1, right + (each.truth == each.label)
    if score and total:
        to_stderr(f"{right:,} of {total:,} are right: accuracy {right / total:.1%}")
    if out:
        print(f"{shown(out)}: {total:,} predictions")


def forget(
    model: Model,
    data: Files,
    out: Annotated[Path | None, typer.Option(help="where to write it (default: overwrite the model)")] = None,
    network: Network = None,
) -> None:
    """Remove examples from a model again.

    It becomes the model that never learned them. If it is overwritten, the model as it was is kept in FILE.before:
    delete that copy once you are content with the new model.
    """
    check_once(data)
    check_spares("--out", out, (path for path in data if path.is_file()))
    forgotten = 0
    with told_warnings():
        trained, own = _loaded(model, network)
        for portion in _source(data, Reading(), trained, model, True, own).portions():
            assert portion.y is not None
            if len(portion.x):
                trained.forget(portion.x, portion.y)
            forgotten += len(portion.x)
        _write(trained, out or model)
    print(f"{shown(out or model)}: {forgotten:,} examples forgotten; {_classes(trained)}")


def merge(
    models: Annotated[list[Path], typer.Argument(help="models created like the first (rwalk fit --like)")],
    out: Annotated[Path, typer.Option(help="the model to write")],
    network: Network = None,
) -> None:
    """Merge several models into one.

    It is the one that would have learned from all their files.
    """
    if len(models) < 2:
        raise InputError("give two models or more to merge")
    check_once(models)
    with told_warnings():
        first, *others = (_loaded(path, network)[0] for path in models)
        for path, other in zip(models[1:], others, strict=True):
            try:
                first.merge(other)
            except InputError as error:
                begin = f"create it with rwalk fit --like {models[0]}"
                raise InputError(f"{path} cannot be merged with {models[0]} ({error}): {begin}") from None
        _write(first, out)
    print(f"{shown(out)}: {len(models)} models merged; {_classes(first)}")


def _begun(
    data: list[Path],
    reading: Reading,
    go_on: Path | None,
    like: Path | None,
    text: str | None,
    network: str | None,
    parameters: dict[str, Any],
) -> tuple[IncrementalClassifier, Source]:
    """The model that learns, and its source: new, continued, or created like another."""
    from rwalk.data.large_files import source
    from rwalk.models import backbone, begun, through

    if earlier := go_on or like:
        if text is not None:
            raise InputError(f"{earlier} determines how files are read: drop --text")
        if parameters:
            option = next(iter(parameters)).replace("_", "-")
            raise InputError(f"{earlier} determines how it learns: drop --{option}")
        known, own = _loaded(earlier, network)
        found = _source(data, reading, known, earlier, True, own)
        return known if go_on else known.fresh(), found
    if network is None:
        found = source(data, reading, text=text)
        return begun(found.form, **parameters), found
    if text is not None or any(path.is_file() for path in data):
        raise InputError("--network takes images: give a folder of images")
    let_import([network])
    own = backbone(network)
    if own.prepare is not None and reading.size is not None:
        raise InputError(f"the preprocessing of {network} determines the size of images: drop --size")
    found = through(source(data, reading, own.form()), own)
    return begun(found.form, network=own.network, **parameters), found


def _loaded(model: Path, network: str | None) -> tuple[IncrementalClassifier, Backbone | None]:
    """The model in a file, and the network that the user names for it."""
    from rwalk.models import load_with

    let_import([network or ""])
    return load_with(model, network)


def _source(
    data: list[Path],
    reading: Reading,
    known: IncrementalClassifier,
    model: Path,
    labelled: bool,
    own: Backbone | None,
    id_column: str | None = None,
) -> Source:
    """Files in the form that a model expects."""
    from rwalk.data.large_files import ArrayForm, source
    from rwalk.models import through

    if reading != Reading():
        raise InputError(f"{model} determines how files are read: drop --label, --drop, --missing and --size")
    found = source(data, reading, known.form_, labelled, id_column)
    if known.form_ is None and not isinstance(found.form, ArrayForm):
        raise InputError(f"{model} does not say how files become its inputs: give an .npz file of inputs")
    return found if own is None or known.form_ is None else through(found, own)


def _check_writable(target: Path) -> None:
    """Before hours of learning: can the result be written?"""
    folder = next(parent for parent in target.absolute().parents if parent.exists())
    if target.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"{target} cannot be written there: choose another --out")


def _write(trained: IncrementalClassifier, target: Path) -> None:
    """Write a model; one that was there before is kept beside it."""
    if target.is_file():
        backup = target.with_name(f"{target.name}.before")
        with writing(backup), replacing(backup) as beside:
            shutil.copyfile(target, beside)
        to_stderr(f"{backup}: the model as it was; delete it where its examples must be gone")
    trained.save(target)


def _classes(trained: IncrementalClassifier) -> str:
    names = [shown(label) for label in trained.classes_]
    return f"{len(names):,} classes: {', '.join(names[:10])}{', …' if len(names) > 10 else ''}"


def _names(data: list[Path]) -> str:
    return f"{data[0]}{f' and {len(data) - 1} more' if len(data) > 1 else ''}"


@contextmanager
def _working(what: str) -> Iterator[Callable[[str], None]]:
    """Show on a terminal, from the first second on, the current step; the function given shows the next step."""
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda what: None
        return
    with console.status(Text(f"rwalk: {shown(what)}")) as status:
        yield lambda what: status.update(Text(f"rwalk: {shown(what)}"))


@contextmanager
def _table(out: Path | None) -> Iterator[Any]:
    """Writes the rows of a CSV file: all of them or, if something fails, none."""
    if out is None:
        yield csv.writer(sys.stdout, lineterminator="\n").writerow
        return
    with writing(out), replacing(out) as beside, open(beside, "w", newline="", encoding="utf-8") as file:
        yield csv.writer(file, lineterminator="\n").writerow
