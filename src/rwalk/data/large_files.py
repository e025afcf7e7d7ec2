"""Files and folders read in portions, so that more can be learned than fits into memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rwalk.atomic_files import at_home
from rwalk.data.arrays import as_labels, shuffled
from rwalk.data.datasets.columns import IDENTIFIER, MOST_CLASSES, ColumnScan, absent_in, as_texts, read_classes
from rwalk.data.datasets.images import (
    ImageForm,
    check_inside,
    form_of,
    is_image,
    labelled_images,
    parts_of,
    read_images,
    unit_pixels,
)
from rwalk.data.datasets.npz import arrays_of
from rwalk.data.datasets.table_encoder import USUAL_LABELS, TableEncoder
from rwalk.data.datasets.tables import as_table, is_table
from rwalk.data.file_options import OF_IMAGES, OF_TABLES, Reading
from rwalk.data.streams import Form
from rwalk.errors import InputError, unknown

PLACES = ("file", "row")
RESERVED = (*PLACES, "label", "probability")  # names of other columns of predictions
TEXTS = 4096  # that are held at a time
BYTES = 1 << 26  # of images or arrays that are held at a time


class Portion(NamedTuple):
    """Some examples: inputs, classes if they are known, and where each comes from."""

    x: NDArray[Any]
    y: NDArray[Any] | None
    places: list[tuple[str, ...]]


@dataclass(frozen=True)
class ArrayForm:
    """Inputs as they are in a file of arrays."""

    shape: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "arrays", "shape": list(self.shape)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ArrayForm:
        if not all(type(side) is int and side > 0 for side in record["shape"]):
            raise ValueError("arrays of an impossible shape")
        return cls(tuple(record["shape"]))


@dataclass(frozen=True)
class TextForm:
    """Inputs are the texts in one column of a table; other columns are not learned."""

    text: str
    label: str
    whole: bool  # whether classes are whole numbers

    @property
    def shape(self) -> tuple[int, ...]:
        """One text."""
        return (1,)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "text", "text": self.text, "label": self.label, "whole": self.whole}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> TextForm:
        form = cls(record["text"], record["label"], record["whole"])
        if not isinstance(form.text, str) or not isinstance(form.label, str) or type(form.whole) is not bool:
            raise ValueError("an impossible table of texts")
        return form

    @classmethod
    def fit(cls, paths: Sequence[Path], text: str, label: str | None) -> TextForm:
        """The form of these tables: the label is named, has a usual name, or is the only other column."""
        columns = as_table(paths[0]).columns
        for name in (text, label):
            if name is not None and name not in columns:
                raise unknown("column", name, columns)
        others = [name for name in columns if name != text]
        usual = [name for name in others if name.lower() in USUAL_LABELS]
        found = [label] if label is not None else usual or others
        if len(found) != 1 or found[0] == text:
            raise InputError(f"which column holds the classes beside {text!r}? Name it: --label NAME")
        scan = ColumnScan(found[0], most=MOST_CLASSES)
        for path in paths:
            table = as_table(path)
            for chunk in table.chunks(TEXTS, [found[0]]):
                scan.add(chunk, table)
        return cls(text, found[0], scan.has_whole_classes())


FORMS: dict[str, Any] = {"table": TableEncoder, "images": ImageForm, "arrays": ArrayForm, "text": TextForm}


def form_from_json(record: Mapping[str, Any]) -> Form:
    """The form that a record describes; an unsound record raises a ValueError, LookupError or TypeError."""
    form: Form = FORMS[record["kind"]].from_json(record)
    return form


class Source:
    """Examples in files, all of one form."""

    form: Form
    places: tuple[str, ...]  # names of the parts of an example's place
    notes: tuple[str, ...] = ()  # findings of a first pass, in words

    def portions(self, labelled: bool = True, mixed: bool = False) -> Iterator[Portion]:
        """All examples, in portions; without classes, unless they are `labelled`.

        Always in the same order, which is that of the files, unless it can be `mixed`.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class FileSource(Source):
    """Files read one after the other; places are a file, a row, and the value of column `id`, if there is one."""

    paths: tuple[Path, ...]
    form: Any
    id: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def places(self) -> tuple[str, ...]:  # type: ignore[override]
        return PLACES if self.id is None else (*PLACES, "id" if self.id in RESERVED else self.id)


class Tables(FileSource):
    """Rows of tables, in their order."""

    form: TableEncoder

    def portions(self, labelled: bool = True, mixed: bool = False) -> Iterator[Portion]:
        beside = [] if self.id is None else [self.id]
        for path in self.paths:
            for rows in self.form.read(path, labelled, beside):
                if not len(rows.x):
                    continue
                places: list[tuple[str, ...]] = [(str(path), str(number)) for number in rows.numbers.tolist()]
                if self.id is not None:
                    ids = as_texts(rows.beside[self.id])
                    places = [(*place, each or "") for place, each in zip(places, ids, strict=True)]
                yield Portion(rows.x, rows.y, places)


class Texts(FileSource):
    """The texts in a column of tables, in the order of rows."""

    form: TextForm

    def portions(self, labelled: bool = True, mixed: bool = False) -> Iterator[Portion]:
        beside = [] if self.id is None else [self.id]
        names = [self.form.text, *([self.form.label] if labelled else []), *beside]
        for path in self.paths:
            table = as_table(path)
            for name in names:
                if name not in table.columns:
                    raise InputError(f"{table.name} has no column {name!r}: add it")
            for chunk in table.chunks(TEXTS, names):
                cells = {name: as_texts(chunk.columns[name]) for name in names}
                for name in names[: 1 + labelled]:
                    if (absent := absent_in(cells[name])).any():
                        row = chunk.start + int(absent.argmax())
                        raise InputError(
                            f"row {row} of {table.name} has no {name!r}: fill it in, or remove the row"
                        )
                y: NDArray[Any] | None = None
                if labelled:
                    y = cells[self.form.label].astype(np.str_)
                    y = _whole(y, table.name) if self.form.whole else y
                rows = range(chunk.start, chunk.start + len(chunk))
                extra = ([each or "" for each in cells[name]] for name in beside)
                places = [*zip([str(path)] * len(chunk), map(str, rows), *extra, strict=True)]
                yield Portion(cells[self.form.text], y, places)


def _whole(labels: NDArray[Any], table: str) -> NDArray[np.int64]:
    numbers, wrong = read_classes(labels)
    if wrong.any():
        raise InputError(f"{table} has other classes than whole numbers, which they were before: correct it")
    return numbers


@dataclass(frozen=True)
class Pictures(Source):
    """Images, their classes the folders they are in."""

    paths: tuple[Path, ...]
    labels: tuple[str, ...] | None
    form: ImageForm
    places = ("file",)

    def portions(self, labelled: bool = True, mixed: bool = False) -> Iterator[Portion]:
        rows = max(16, BYTES // (4 * int(np.prod(self.form.shape))))
        order = shuffled(len(self.paths), 0) if mixed else [*range(len(self.paths))]
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            x = self._read([self.paths[place] for place in chosen])
            y = np.array([self.labels[place] for place in chosen]) if labelled and self.labels else None
            yield Portion(x, y, [(str(self.paths[place]),) for place in chosen])

    def _read(self, paths: list[Path]) -> NDArray[np.float32]:
        return unit_pixels(read_images(paths, self.form))


class Arrays(FileSource):
    """Arrays x and y out of .npz files."""

    form: ArrayForm

    def portions(self, labelled: bool = True, mixed: bool = False) -> Iterator[Portion]:
        for path in self.paths:
            arrays = arrays_of(path, ("x", "y") if labelled else ("x",))
            x = arrays["x"]
            y = as_labels(arrays["y"], "training") if labelled else None
            if x.shape[1:] != self.form.shape:
                shapes = f"{list(x.shape[1:])}, not {list(self.form.shape)}"
                raise InputError(f"the inputs in {str(path)!r} have the shape {shapes}: give files of one form")
            if y is not None and len(y) != len(x):
                raise InputError(f"{str(path)!r} has {len(x)} inputs but {len(y)} labels: give one each")
            if x.dtype == np.uint8:
                x = x.astype(np.float32) / 255  # pixels, as everywhere
            rows = max(16, BYTES // max(1, x[:1].nbytes))
            for start in range(0, len(x), rows):
                part = slice(start, start + rows)
                places: list[tuple[str, ...]] = [(str(path), str(row + 1)) for row in range(len(x))[part]]
                yield Portion(x[part], None if y is None else y[part], places)


def source(
    given: Sequence[str | Path],
    reading: Reading,
    form: Form | None = None,
    labelled: bool = True,
    id_column: str | None = None,
    text: str | None = None,
) -> Source:
    """The examples in these files and folders, in the form found in them or in a known one.

    `id_column` is a column of tables to show with every row's place; by default it is the one that the form names.
    """
    paths = [path for each in given for path in _expanded(at_home(each))]
    kinds = list(dict.fromkeys(_kind(path) for path in paths))
    if len(kinds) > 1:
        raise InputError(f"{' and '.join(kinds)} cannot be mixed: give files of one kind")
    if text is not None or isinstance(form, TextForm):
        return _texts(paths, kinds[0], reading, form, id_column, text)
    if form is not None and (known := form.to_json()["kind"]) != kinds[0]:
        raise InputError(f"{str(paths[0])!r} is of the kind {kinds[0]}, where it was {known}: give the same kind")
    if kinds[0] == "table":
        reading.only(OF_TABLES, str(paths[0]), "a table")
        notes: tuple[str, ...] = ()
        if not isinstance(form, TableEncoder):
            form = TableEncoder.fit(*paths, reading=reading)
            notes = (f"{form.fitted:,} rows in {_counted(paths)}", *form.notes)
        return Tables(tuple(paths), form, _identifier(paths, form, id_column), notes)
    if id_column is not None:
        raise InputError(f"--id names a column, and {str(paths[0])!r} has none: leave it out")
    if kinds[0] == "arrays":
        reading.only((), str(paths[0]), "a file of arrays")
        shape = arrays_of(paths[0], ("x",))["x"].shape[1:]
        return Arrays(tuple(paths), form if isinstance(form, ArrayForm) else ArrayForm(shape))
    reading.only(OF_IMAGES, str(paths[0]), "a folder of images")
    images, labels = _images(paths, labelled)
    return Pictures(images, labels, form if isinstance(form, ImageForm) else form_of(images, reading.size))


def _texts(
    paths: Sequence[Path], kind: str, reading: Reading, form: Form | None, id_column: str | None, text: str | None
) -> Texts:
    """Tables whose texts are learned."""
    if kind != "table":
        raise InputError(
            f"{str(paths[0])!r} is no table, where texts are in a column: give a .csv or .parquet file"
        )
    reading.only(("label",), str(paths[0]), "a table of texts")
    notes: tuple[str, ...] = ()
    if not isinstance(form, TextForm):
        form = TextForm.fit(paths, text or "", reading.label)
        notes = (f"texts are in column {form.text!r}, classes in {form.label!r}; other columns are not learned",)
    columns = as_table(paths[0]).columns
    if id_column is not None and id_column not in columns:
        raise unknown("column", id_column, columns)
    found = id_column or next((name for name in columns if IDENTIFIER.fullmatch(name)), None)
    return Texts(tuple(paths), form, found if found not in (form.text, form.label) else None, notes)


def _counted(paths: Sequence[Path]) -> str:
    return "1 file" if len(paths) == 1 else f"{len(paths):,} files"


def _identifier(paths: Sequence[Path], form: TableEncoder, named: str | None) -> str | None:
    """The column to show with every row: the one named, else the form's, if all tables have it."""
    name = form.id if named is None else named
    if name is None:
        return None
    for path in paths:
        if name not in (columns := as_table(path).columns):
            if named is not None:
                raise unknown("column", named, columns)
            return None
    return name


def _expanded(path: Path) -> list[Path]:
    """The tables in a folder that has tables; anything else as it is."""
    if not path.is_dir():
        return [path]
    return sorted(inner for inner in path.iterdir() if is_table(inner) and not inner.name.startswith(".")) or [
        path
    ]


def _kind(path: Path) -> str:
    if not path.exists():
        raise InputError(f"there is no file or folder {str(path)!r}: correct the path")
    if path.is_dir() or is_image(path):
        return "images"
    if is_table(path):
        return "table"
    if path.suffix == ".npz":
        return "arrays"
    raise InputError(f"{str(path)!r} is no folder of images, no table (.csv, .tsv, .parquet) and no .npz file")


def _images(paths: Sequence[Path], labelled: bool) -> tuple[tuple[Path, ...], tuple[str, ...] | None]:
    """All images; with their classes if they are `labelled`, or if every image has one."""
    found: list[Path] = []
    labels: list[str] | None = []
    for path in paths:
        if path.is_dir() and (labelled or not _loose(path)):
            train, test = parts_of(path)
            for part in (train, test) if test and not labelled else (train,):
                images = labelled_images(part, path)
                found += images.paths
                labels = None if labels is None else [*labels, *images.labels]
        elif labelled:
            raise InputError(f"{str(path)!r} is one image, without a folder that names its class: give a folder")
        else:
            found += _loose(path) if path.is_dir() else [path]
            labels = None
    if not found:
        raise InputError(f"{str(paths[0])!r} has no image: give another folder")
    return tuple(found), None if labels is None else tuple(labels)


def _loose(folder: Path) -> list[Path]:
    """Images that lie in a folder itself."""
    images = sorted(path for path in folder.iterdir() if is_image(path))
    check_inside(images, folder)
    return images
