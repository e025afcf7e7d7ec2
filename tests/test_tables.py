"""Tables people have: CSV and Parquet files, and datasets of Hugging Face's library."""

from __future__ import annotations

import csv
import gzip
import json
import sys
import tracemalloc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_iris, load_wine

from rwalk import Dataset, IncrementalClassifier
from rwalk.data.datasets import Reading, TableEncoder, load, table_encoder
from rwalk.data.datasets.tables import Table
from rwalk.data.large_files import source
from rwalk.errors import InputError
from rwalk.studies.specs import RunSpec, StreamSpec


@contextmanager
def refused(*fragments: str) -> Iterator[None]:
    with pytest.raises(InputError) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


def written(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]], **form: Any) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, **form).writerows([header, *rows] if header else rows)
    return path


@pytest.fixture
def iris(tmp_path: Path) -> Path:
    """A real table, as people have it: names of columns and of classes."""
    data = load_iris()
    rows = [[*x, data.target_names[y]] for x, y in zip(data.data, data.target, strict=True)]
    return written(tmp_path / "iris.csv", [*data.feature_names, "species"], rows)


PETS = [
    ["2", "grey", "3.5", "cat"],
    ["7", "brown", "30.25", "dog"],
    ["1", "white", "4", "cat"],
    ["4", "brown", "22", "dog"],
    ["3", "grey", "2.75", "cat"],
    ["9", "white", "18", "dog"],
]
HEADER = ["age", "colour", "weight", "kind"]


# ── as a dataset ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_csv_file_is_a_dataset_whose_inputs_are_standardised(iris: Path) -> None:
    dataset = load(str(iris))
    assert dataset.name == "iris" and dataset.class_names == ("setosa", "versicolor", "virginica")
    assert (dataset.x.shape, dataset.x_test.shape) == ((120, 4), (30, 4))
    torch.testing.assert_close(dataset.x.mean(0), torch.zeros(4), atol=1e-5, rtol=0)
    torch.testing.assert_close(dataset.x.std(0, correction=0), torch.ones(4), atol=1e-5, rtol=0)
    raw = load_iris()
    plain = Dataset.from_arrays(raw.data, raw.target)
    mean, deviation = plain.x.mean(0), plain.x.std(0, correction=0)
    torch.testing.assert_close(dataset.x_test, (plain.x_test - mean) / deviation, atol=1e-4, rtol=1e-4)
    assert len(StreamSpec(str(iris), classes_per_task=1).build()) == 3


def test_what_more_such_files_hold_is_read_as_the_dataset_was(iris: Path) -> None:
    dataset = load(str(iris))
    assert isinstance(dataset.form, TableEncoder)
    form = TableEncoder.from_json(dataset.form.to_json())
    assert form == dataset.form
    rows = torch.cat([torch.from_numpy(rows.x) for rows in form.read(iris, labelled=False)]).float()
    together = torch.cat([dataset.x, dataset.x_test])
    distances = torch.cdist(together.double(), rows.double()).min(1).values
    assert distances.max() < 1e-5


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_other_delimiters_marks_and_compression(delimiter: str, tmp_path: Path) -> None:
    path = written(tmp_path / "pets.csv", HEADER, PETS, delimiter=delimiter)
    marked = tmp_path / "marked.csv.gz"
    marked.write_bytes(gzip.compress(b"\xef\xbb\xbf" + path.read_bytes() + b"\r\n\r\n"))
    for each in (path, marked):
        dataset = load(str(each), reading=Reading(label="kind"))
        assert dataset.class_names == ("cat", "dog") and dataset.x.shape == (4, 5)  # age, three colours, weight


def test_text_becomes_one_input_per_value(tmp_path: Path) -> None:
    path = written(tmp_path / "pets.csv", HEADER, PETS)
    form = TableEncoder.fit(path, reading=Reading(label="kind"))
    assert [(column.name, column.values) for column in form.columns] == [
        ("age", None),
        ("colour", ("brown", "grey", "white")),
        ("weight", None),
    ]
    (rows,) = form.read(path, labelled=True)
    assert rows.x[:2].tolist() == [[2, 0, 1, 0, 3.5], [7, 1, 0, 0, 30.25]]
    assert rows.y is not None and rows.y.tolist() == [row[-1] for row in PETS]
    new = written(tmp_path / "new.csv", HEADER, [["5", "green", "8", "cat"]])
    with pytest.warns(UserWarning, match="'colour' holds 'green', which was not among its values"):
        (rows,) = form.read(new, labelled=True)
    assert rows.x.tolist() == [[5, 0, 0, 0, 8]]


def test_the_label_is_found_or_named(tmp_path: Path) -> None:
    pets = written(tmp_path / "a.csv", HEADER, PETS)
    assert TableEncoder.fit(pets, reading=Reading(drop=("colour",))).label == "kind"  # the last, and the only text
    titled = written(tmp_path / "b.csv", ["Target", *HEADER[1:]], PETS)
    assert TableEncoder.fit(titled, reading=Reading(drop=("kind",))).label == "Target"
    assert TableEncoder.fit(titled, reading=Reading(label="colour", drop=("kind",))).label == "colour"
    with refused("unknown column 'kinds': did you mean 'kind'?"):
        TableEncoder.fit(titled, reading=Reading(label="kinds"))
    with refused("unknown column 'age'"):
        TableEncoder.fit(titled, reading=Reading(drop=("age",)))
    with refused("column 'weight' holds numbers with fractions", "--label"):
        TableEncoder.fit(titled, reading=Reading(label="weight"))
    with refused("column 'kind' cannot be the label and left out"):
        TableEncoder.fit(titled, reading=Reading(label="kind", drop=("kind",)))
    otherwise_used = Reading(task_column="kind", drop=("weight",))
    assert TableEncoder.fit(written(tmp_path / "c.csv", HEADER, PETS), reading=otherwise_used).label == "colour"


@pytest.mark.parametrize(
    ("header", "rows", "rivals"),
    [
        (HEADER, PETS, "'colour', 'kind'"),
        (["survived", "age", "port"], [[i % 2, 20 + i / 3, "QSC"[i % 3]] for i in range(30)], None),
        (["sick", "rooms", "smoker"], [[i % 2, i % 5, i % 2] for i in range(30)], "'sick', 'rooms', 'smoker'"),
        (["class", "Target", "x"], [["a", "b", i] for i in range(30)], "'class', 'Target'"),
        (["width", "note", "species"], [[i / 7, f"{i}, see below", "ab"[i % 2]] for i in range(30)], "'note'"),
    ],
)
def test_label_is_asked_for_where_several_columns_may_hold_the_classes(header, rows, rivals, tmp_path) -> None:
    path = written(tmp_path / "t.csv", header, rows)
    if rivals is None:
        assert TableEncoder.fit(path).label == header[-1]
    else:
        with refused("which column holds the classes?", "--label", rivals):
            TableEncoder.fit(path)
    named = Reading(label=header[-1], drop=("note",) * ("note" in header))
    assert TableEncoder.fit(path, reading=named).label == header[-1]


def test_classes_that_are_whole_numbers_stay_numbers(tmp_path: Path) -> None:
    path = written(tmp_path / "numbers.csv", [], [[i / 10, -i, i % 11] for i in range(44)])
    form = TableEncoder.fit(path)
    assert (form.label, form.whole) == ("column3", True)  # a first line of numbers names nothing
    assert load(str(path)).class_names == tuple(str(i) for i in range(11))
    (rows,) = form.read(path, labelled=True)
    assert rows.y is not None and rows.y.dtype == np.int64 and len(rows.y) == 44
    other = written(tmp_path / "other.csv", ["column1", "column2", "column3"], [[1, 2, "x"]])
    with refused("has the class 'x', where classes were whole numbers"):
        list(form.read(other, labelled=True))


@pytest.mark.parametrize("kind", ["csv", "parquet", "frame", "task column"])
def test_classes_of_long_numbers_stay_apart(kind: str, tmp_path: Path) -> None:
    """As float64 the two numbers are one."""
    classes = [2**53, 2**53 + 1] * 10
    lines = [[(i * i) % 7, each] for i, each in enumerate(classes)]
    table: Any = written(tmp_path / "long.csv", ["x", "label"], lines)
    if kind == "task column":
        table = written(tmp_path / "long.csv", ["x", "when", "label"], [[x, each, x % 2] for x, each in lines])
        arrivals = load(str(table), reading=Reading(task_column="when")).arrivals
        assert arrivals is not None and len(arrivals.names) == 2
        return
    if kind != "csv":
        table = pytest.importorskip("pandas").DataFrame(lines, columns=["x", "label"])
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        table.to_parquet(tmp_path / "long.parquet")
        table = tmp_path / "long.parquet"
    form = TableEncoder.fit(table)
    (rows,) = form.read(table)
    assert rows.y is not None and [str(each) for each in rows.y] == [str(each) for each in classes]


@pytest.mark.parametrize("other", ["2.5", "x", str(2**60), "inf"])
def test_class_that_is_no_whole_number_is_refused_where_classes_were(other: str, tmp_path: Path) -> None:
    first = written(tmp_path / "first.csv", ["text", "label"], [["a b", 1], ["c d", 2]] * 3)
    later = written(tmp_path / "later.csv", ["text", "label"], [["a b", 1], ["c d", other]])
    table = written(tmp_path / "table.csv", ["x", "label"], [[1, 1], [2, 2], [4, 1], [3, 2]])
    again = written(tmp_path / "again.csv", ["x", "label"], [[1, 1], [2, other]])
    form = source([first], Reading(), text="text").form
    with refused("whole numbers"):
        list(source([later], Reading(), form).portions())
    with refused("whole numbers"):
        list(TableEncoder.fit(table).read(again))


@pytest.mark.parametrize("cell", ["", "NA", "nan", " ? ", "null"])
def test_missing_values_are_refused_filled_or_dropped(cell: str, tmp_path: Path) -> None:
    rows = [row[:] for row in PETS]
    rows[3][2] = cell
    rows[4][1] = cell
    path = written(tmp_path / "gaps.csv", HEADER, rows)
    with refused(f"row 5 of {str(path)!r} has no value in column 'colour'", "--missing fill", "--missing drop"):
        TableEncoder.fit(path, reading=Reading(label="kind"))
    (dropped,) = TableEncoder.fit(path, reading=Reading("kind", missing="drop")).read(path, labelled=True)
    assert dropped.numbers.tolist() == [1, 2, 3, 6] and len(dropped.x) == 4
    (filled,) = TableEncoder.fit(path, reading=Reading("kind", missing="fill")).read(path, labelled=True)
    mean = np.mean([float(row[2]) for row in PETS if row is not PETS[3]])
    assert filled.x[3].tolist() == [4, 1, 0, 0, pytest.approx(mean)]
    assert filled.x[4].tolist() == [3, 0, 0, 0, 2.75]
    rows[0][3] = cell
    gaps = written(tmp_path / "gaps.csv", HEADER, rows)
    with refused(f"row 1 of {str(gaps)!r} has no 'kind'"):
        list(TableEncoder.fit(gaps, reading=Reading("kind", missing="fill")).read(gaps, labelled=True))
    (dropped,) = TableEncoder.fit(gaps, reading=Reading("kind", missing="drop")).read(gaps, labelled=True)
    assert dropped.numbers.tolist() == [2, 3, 6]


def test_tasks_by_column(tmp_path: Path) -> None:
    rows = [
        [i, i % 3, kind, f"week{week}"] for i, (kind, week) in enumerate([("a", 10), ("b", 10), ("b", 9)] * 10)
    ]
    path = written(tmp_path / "weeks.csv", ["x", "z", "kind", "week"], rows)
    spec = StreamSpec(str(path), reading=Reading(label="kind", task_column="week"))
    stream = spec.build()
    assert [task.classes for task in stream.tasks] == [(1,), (0, 1)] and stream.x.shape[1:] == (2,)
    assert [(len(task.train), len(task.test)) for task in stream.tasks] == [(8, 2), (16, 4)]
    run = RunSpec(spec)
    assert RunSpec.from_json(run.to_json()) == run and RunSpec.from_json(run.to_json()).hash() == run.hash()


def test_reading_as_usual_names_no_new_run() -> None:
    assert RunSpec(StreamSpec(reading=Reading())).hash() == RunSpec().hash()
    assert RunSpec(StreamSpec(reading=Reading(size=3))).hash() != RunSpec().hash()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "begins with an empty line"),
        (b"\n1,2\n", "begins with an empty line"),
        (b"a,b,a\n1,2,3\n", "two columns called 'a'"),
        (b"a,b\n1,2\n1,2,3\n", "row 2 of"),
        (b"a,label\n", "has no rows"),
        (b"label\nx\n", "no column beside 'label'"),
        (b"a,b,label\n1,,x\n2,,y\n", "column 'b' is empty"),
        (b"a,label\ninf,x\n2,y\n", "has infinity in column 'a'"),
        (b"a,label\n\x81\x8d,x\n", "not text in UTF-8"),
        (b"a,label\n1\x002,x\n", "is not text"),
        (b"a,label\n" + b"\n" * 3_000_000, "characters"),
    ],
)
def test_bad_tables_are_one_clear_line(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    with refused(message):
        load(str(path))


def test_free_text_is_refused_by_name(tmp_path: Path) -> None:
    rows = [[i, f"Mr. {i}", i % 2] for i in range(300)]
    path = written(tmp_path / "people.csv", ["age", "name", "label"], rows)
    with refused("column 'name' holds text of more than 100 values", "--drop 'name'"):
        load(str(path))
    assert load(str(path), reading=Reading(drop=("name",))).x.shape == (240, 1)


def test_text_that_no_two_rows_share_is_refused_by_name(tmp_path: Path) -> None:
    rows = [[i / 3, f"Mr. {i}", i % 2] for i in range(30)]
    path = written(tmp_path / "people.csv", ["age", "name", "label"], rows)
    with refused("column 'name' holds another text in every row", "--drop 'name'"):
        load(str(path))


def test_a_column_of_numbers_that_turns_out_to_be_text_is_text_throughout(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(table_encoder, "CELLS", 64)  # chunks of 64 rows
    rows = [[i % 3 if i < 150 else "many", i, i % 2] for i in range(200)]
    form = TableEncoder.fit(written(tmp_path / "late.csv", ["count", "n", "label"], rows))
    assert form.columns[0].values == ("0", "1", "2", "many")


def test_options_that_say_nothing_of_the_data_are_refused(iris: Path) -> None:
    with refused("'digits' is a dataset of ours", "--size"):
        load("digits", reading=Reading(size=8))
    with refused("is a table", "--size"):
        load(str(iris), reading=Reading(size=8))
    with refused("is a folder of images", "--task-column"):
        load(f"folder:{iris.parent}", reading=Reading(task_column="species"))
    with refused("unknown way with missing values 'guess'"):
        Reading(missing="guess")


# ── how numbers are written ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("cells", "numbers", "way"),
    [
        (["3,5", "-0,25", "12", "1.234,5"], [3.5, -0.25, 12, 1234.5], "numbers with decimal commas"),
        (
            ["1,234", "56", "-7,000,000", "1,234.5"],
            [1234, 56, -7e6, 1234.5],
            "numbers with commas between thousands",
        ),
        (["10%", "2.5 %", "-3%"], [10, 2.5, -3], "numbers in %"),
        (["$2", "-$1,234.50", "$ 7"], [2, -1234.5, 7], "numbers with commas between thousands in $"),
        (["2,50 €", "1 000,00 €", "3 €"], [2.5, 1000, 3], "numbers with decimal commas in €"),
        (["1e3", " 2 ", "+.5"], [1000, 2, 0.5], "numbers"),
    ],
)
def test_numbers_are_read_however_they_are_written(cells, numbers, way, tmp_path: Path) -> None:
    path = written(tmp_path / "t.csv", ["x", "label"], [[cell, "ab"[i % 2]] for i, cell in enumerate(cells * 3)])
    form = TableEncoder.fit(path)
    assert form.columns[0].written.describe() == way
    again = TableEncoder.from_json(json.loads(json.dumps(form.to_json())))
    (rows,) = again.read(path, labelled=True)
    assert rows.x[: len(cells), 0].tolist() == numbers
    filled = written(
        tmp_path / "g.csv", ["x", "label"], [[cell, "ab"[i % 2]] for i, cell in enumerate([*cells, ""])]
    )
    with_mean = TableEncoder.fit(filled, reading=Reading(missing="fill"))
    assert with_mean.columns[0].mean == pytest.approx(np.mean(numbers))
    other = written(tmp_path / "o.csv", ["x", "label"], [["12 apples", "a"]])
    with refused("row 1", "'12 apples'", f"column 'x', which holds {way}"):
        list(form.read(other, labelled=True))


def test_a_comma_before_three_digits_follows_what_separates_the_columns(tmp_path: Path) -> None:
    rows = [["1,234", "a"], ["5,678", "b"]] * 3
    for delimiter, first in ((",", 1234), (";", 1.234)):
        path = written(tmp_path / "t.csv", ["x", "label"], rows, delimiter=delimiter)
        (read,) = TableEncoder.fit(path).read(path, labelled=True)
        assert read.x[0, 0] == first


@pytest.mark.parametrize("wrong", ["l2.5", "12.5.", "1,5", "12 kg", "$3", "many"])
def test_a_mistake_in_a_column_of_numbers_is_refused_by_its_row(wrong: str, tmp_path: Path) -> None:
    rows = [[i / 4, i % 3, "ab"[i % 2]] for i in range(100)]
    rows[56][0] = wrong
    path = written(tmp_path / "t.csv", ["size", "n", "label"], rows)
    with refused(f"row 57 of {str(path)!r} has {wrong!r} in column 'size'", "other values are numbers", "--drop"):
        TableEncoder.fit(path)
    rows[70][0] = rows[80][0] = wrong
    with refused("row 57", "(and 2 more)"):
        TableEncoder.fit(written(tmp_path / "t.csv", ["size", "n", "label"], rows))
    assert TableEncoder.fit(path, reading=Reading(drop=("size",))).shape == (1,)


def test_a_few_numbers_beside_a_name_are_text_and_flagged(tmp_path: Path) -> None:
    rows = [[["0", "1", "2", "3+"][i % 4], i / 4, "ab"[i % 2]] for i in range(100)]
    found = TableEncoder.fit(written(tmp_path / "t.csv", ["children", "x", "label"], rows))
    assert found.columns[0].values == ("0", "1", "2", "3+")
    assert any(
        "'children' is read as text, though 75 of its 100 values are numbers" in note for note in found.notes
    )


@pytest.mark.parametrize(
    ("header", "cells", "doubt"),
    [
        (["1.5", "2.5", "b"], lambda i: [i / 4, i / 3, "ab"[i % 2]], "the first line of"),
        (["7", "9", "a"], lambda i: [i % 4, i % 3, "ab"[i % 2]], "has 'a', like a row"),
        (["day", "x", "label"], lambda i: [f"2024-01-{i % 28 + 1:02}", i / 3, "ab"[i % 2]], "'day' holds dates"),
    ],
)
def test_tables_that_were_hardly_meant_so_are_flagged(header, cells, doubt: str, tmp_path: Path) -> None:
    found = TableEncoder.fit(written(tmp_path / "t.csv", header, [cells(i) for i in range(60)]))
    assert doubt in "; ".join(found.doubts) and set(found.doubts) < set(found.notes)


def test_decimal_points_beside_decimal_commas_are_flagged(tmp_path: Path) -> None:
    """Between thousands, 1.234 is no fraction."""
    path, rows = tmp_path / "t.csv", [f"{i},5;{i + 1}.234;{'ab'[i % 2]}" for i in range(40)]
    path.write_text("\n".join(["width;price;label", *rows]))
    assert any("'price' is read with decimal points" in doubt for doubt in TableEncoder.fit(path).doubts)


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "id", "PassengerId", "customer_id", "Order ID", "index"])
@pytest.mark.parametrize("order", ["sorted", "shuffled"])
def test_a_column_that_numbers_the_rows_is_not_learned(name: str, order: str, tmp_path: Path) -> None:
    """Rows sorted by class could be classified by their number alone, and noise would be learned."""
    rng = np.random.default_rng(0)
    numbers = rng.permutation(100) if order == "shuffled" else np.arange(100)
    rows = [[number, rng.normal(), "a" if i < 50 else "b"] for i, number in enumerate(numbers)]
    found = TableEncoder.fit(written(tmp_path / "t.csv", [name, "noise", "label"], rows))
    assert [column.name for column in found.columns] == ["noise"]
    assert found.id == (name or "column1")
    assert any(f"{name or 'column1'!r} is not learned" in note for note in found.notes)
    assert TableEncoder.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_identifiers_of_text_are_left_out_and_other_counters_flagged(tmp_path: Path) -> None:
    rows = [[f"u{i:04}", i, 7, i % 4 / 3, "ab"[i % 2]] for i in range(200)]
    path = written(tmp_path / "t.csv", ["user_id", "day", "version", "x", "label"], rows)
    found = TableEncoder.fit(path)
    assert found.id == "user_id" and found.shape == (3,)
    notes = "; ".join(found.notes)
    assert "'day' counts the rows" in notes and "'version' has the same value in every row" in notes
    ages = written(tmp_path / "a.csv", ["id", "label"], [[i % 3, "ab"[i % 2]] for i in range(30)])
    assert TableEncoder.fit(ages).shape == (1,)  # values that repeat identify no row


def test_the_first_look_describes_every_column(tmp_path: Path) -> None:
    rows = [[i, f"${i},5", i / 3, "red" if i % 3 else "blue", "yn"[i % 2]] for i in range(40)]
    path = written(tmp_path / "t.csv", ["id", "price", "x", "colour", "sick"], rows)
    found = TableEncoder.fit(path, reading=Reading("sick"))
    assert found.fitted == 40
    assert found.notes == (
        "numbers: x",
        "'price' holds numbers with decimal commas in $, such as '$0,5'",
        "'colour' is text of 2 values: blue, red",
        "'id' is not learned: it numbers or names the rows (predictions show 'id')",
    )


# ── files that are not as they should be ──────────────────────────────────────────────────────────────────


def test_tables_in_other_encodings_are_read(tmp_path: Path) -> None:
    text = "größe,straße\n" + "1,Köln\n2,Zürich\n" * 3
    expected = ("Köln", "Zürich")
    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        (tmp_path / "t.csv").write_bytes(text.encode(encoding))
        assert load(str(tmp_path / "t.csv")).class_names == expected
    (tmp_path / "t.csv").write_bytes(text.encode("latin-1"))
    with pytest.warns(UserWarning, match=r"t.csv' is not in UTF-8: it is read as Windows-1252"):
        dataset = load(str(tmp_path / "t.csv"))
    assert dataset.class_names == expected
    assert isinstance(dataset.form, TableEncoder) and dataset.form.columns[0].name == "größe"


@pytest.mark.parametrize("content", ["one line", "empty lines", "rows", "a row of many lines"])
def test_a_small_compressed_table_that_unpacks_without_end_is_refused_at_once(
    content: str, tmp_path: Path
) -> None:
    part = {
        "one line": b"1," * 500_000,
        "empty lines": b"\n" * 1_000_000,
        "rows": b"1,2\n" * 250_000,
        "a row of many lines": b'"a\n",' * 166_000,
    }[content]
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"x,label\n")
        for _ in range(80):
            file.write(part)
    tracemalloc.start()
    with refused("bomb.csv.gz", "would unpack to", "unpack it"):
        TableEncoder.fit(path)
    assert tracemalloc.get_traced_memory()[1] < 20_000_000
    tracemalloc.stop()


def test_an_endless_row_is_refused_before_it_fills_the_memory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("rwalk.data.datasets.tables.LONGEST_ROW", 1 << 16)
    for part in (b"1," * 40_000, b'"a\n",' * 20_000):
        (tmp_path / "t.csv").write_bytes(b"x,label\n" + part + b"\n1,a\n")
        with refused("t.csv", "over 65,536 characters"):
            TableEncoder.fit(tmp_path / "t.csv")


def test_columns_are_looked_up_in_linear_time(tmp_path: Path, monkeypatch) -> None:
    """Counted, not timed: with forty times as many columns names are compared forty times as often."""
    compared = 0

    class Name(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    spent = []
    for width in (50, 2000):
        compared = 0
        names = [Name(f"c{place}") for place in range(width)]
        assert len(Table(tmp_path / "t.csv", names).columns) == width
        spent.append(compared)
    assert spent[1] <= 45 * max(spent[0], 50)
    with refused("two columns called 'c7'"):
        Table(tmp_path / "t.csv", [*names, "c7"])
    monkeypatch.setattr("rwalk.data.datasets.tables.MOST_COLUMNS", 1999)
    with refused("has 2,000 columns"):
        Table(tmp_path / "t.csv", names)


@given(st.binary(max_size=80))
def test_no_bytes_make_a_table_fail_otherwise(content: bytes) -> None:
    path = FUZZED / "fuzzed.csv"
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            load(str(path))
        except InputError as error:
            assert "\n" not in str(error)


FUZZED = Path()


@pytest.fixture(autouse=True, scope="module")
def _folder_to_fuzz_in(tmp_path_factory: pytest.TempPathFactory) -> None:
    global FUZZED
    FUZZED = tmp_path_factory.mktemp("fuzzed")


# ── Parquet ───────────────────────────────────────────────────────────────────────────────────────────────


def test_parquet_names_the_package_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with refused("pip install pyarrow"):
        load(str(tmp_path / "t.parquet"))


def test_parquet_holds_what_csv_holds(iris: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    data = load_wine()
    table = {name: data.data[:, place] for place, name in enumerate(data.feature_names)}
    rows = [[*x, y] for x, y in zip(data.data.tolist(), data.target.tolist(), strict=True)]
    text = load(str(written(tmp_path / "wine.csv", [*data.feature_names, "target"], rows)))
    parquet.write_table(
        pyarrow.table({**table, "target": data.target}), tmp_path / "wine.parquet", row_group_size=50
    )
    binary = load(str(tmp_path / "wine.parquet"))
    assert torch.equal(text.x, binary.x) and torch.equal(text.y_test, binary.y_test)
    assert text.class_names == binary.class_names == ("0", "1", "2")


def test_parquet_of_many_types(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "types.parquet"
    table = {
        "whole": pyarrow.array([1, 2, None, 4], pyarrow.int32()),
        "sure": pyarrow.array([True, False, True, True]),
        "colour": pyarrow.array(["red", "blue", "red", None]).dictionary_encode(),
        "label": pyarrow.array(["x", "y", "x", "y"]),
    }
    parquet.write_table(pyarrow.table(table), path)
    form = TableEncoder.fit(path, reading=Reading(missing="fill"))
    assert [column.values for column in form.columns] == [None, ("False", "True"), ("blue", "red")]
    (rows,) = form.read(path, labelled=True)
    assert rows.x.tolist() == [
        [1, 0, 1, 0, 1],
        [2, 1, 0, 1, 0],
        [pytest.approx(7 / 3), 0, 1, 0, 1],
        [4, 0, 1, 0, 0],
    ]
    parquet.write_table(pyarrow.table({"when": pyarrow.array([[1]] * 4), "label": table["label"]}), path)
    with refused("column 'when'", "neither numbers nor text", "--drop when"):
        load(str(path))
    parquet.write_table(pyarrow.table({"when": pyarrow.array([[1]] * 4), **table}), path)
    assert load(str(path), reading=Reading(missing="fill", drop=("when",))).x.shape[1:] == (5,)
    parquet.write_table(pyarrow.table({"when": pyarrow.array([[1]] * 4), "label": table["label"]}), path)
    path.write_bytes(path.read_bytes()[:100])
    with refused(str(path), "cannot be read as a table"):
        load(str(path))


# ── data frames and Arrow tables by the encoder of files ──────────────────────────────────────────────────────


def test_a_file_a_frame_and_an_arrow_table_have_one_encoder(tmp_path: Path) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    path = written(tmp_path / "pets.csv", HEADER, PETS)
    as_text = pandas.read_csv(path, dtype=str)
    parsed = pandas.read_csv(path)
    tables = [path, as_text, parsed, pyarrow.Table.from_pandas(parsed), pyarrow.Table.from_pandas(as_text)]
    encoders = [TableEncoder.fit(table, reading=Reading("kind")) for table in tables]
    assert all(each == encoders[0] for each in encoders) and encoders[0].fitted == 6
    expected = encoders[0].transform(path)
    assert expected.shape == (6, 5)
    for table in tables:
        assert encoders[0].transform(table).tolist() == expected.tolist()
        (rows,) = encoders[0].read(table)
        assert rows.y is not None and rows.y.tolist() == [row[-1] for row in PETS]
    alone = TableEncoder.fit(parsed.drop(columns="kind"), labelled=False)
    assert alone.label is None and alone.columns == encoders[0].columns
    assert TableEncoder.from_json(json.loads(json.dumps(alone.to_json()))) == alone
    assert alone.transform(parsed).tolist() == expected.tolist()
    assert alone.transform(parsed[:0]).shape == (0, 5)


def test_chunks_of_frames_and_arrow_tables_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"x": rng.normal(size=200), "k": rng.choice(["a", "b"], 200)})
    whole = TableEncoder.fit(frame, labelled=False).transform(frame)
    monkeypatch.setattr(table_encoder, "CELLS", 1)  # chunks of 64 rows
    for table in (frame, pyarrow.Table.from_pandas(frame)):
        in_chunks = TableEncoder.fit(table, labelled=False)
        assert in_chunks.transform(table).tolist() == whole.tolist()
        numbers = np.concatenate([rows.numbers for rows in in_chunks.read(table, labelled=False)])
        assert numbers.tolist() == [*range(1, 201)]


def test_a_frame_is_refused_by_its_row_and_column(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": np.arange(40.0) / 3, 7: pandas.array([*range(39), None], dtype="Int64")})
    with refused("row 40 of the table has no value in column '7'"):
        TableEncoder.fit(frame, labelled=False)
    filled = TableEncoder.fit(frame, reading=Reading(missing="fill"), labelled=False)
    assert filled.transform(frame)[-1].tolist() == [13, 19]
    typo = frame.astype({"x": str})
    typo.loc[4, "x"] = "l.5"
    with refused("row 5 of the table has 'l.5' in column 'x', whose other values are numbers"):
        TableEncoder.fit(typo, reading=Reading(missing="fill"), labelled=False)
    with refused("row 5 of the table has 'l.5' in column 'x', which holds numbers"):
        filled.transform(typo)
    with refused("column 'x' holds dates"):
        filled.transform(frame.assign(x=pandas.date_range("2024-01-01", periods=40)))
    with refused("the table has no column 'x': add it"):
        filled.transform(frame[[7]])
    with refused("two columns called '7'"):
        TableEncoder.fit(frame.rename(columns={"x": "7"}), labelled=False)
    with refused("the table has no rows"):
        TableEncoder.fit(frame[:0], labelled=False)
    with refused("list is no table"):
        filled.transform([[1.0, 2.0]])


def test_a_frames_identifier_is_not_learned_and_its_owner_told() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": range(30), "x": [0.5, 1.5, 2.5] * 10, "smokes": [True, False] * 15})
    encoder = TableEncoder.fit(frame, labelled=False)
    assert encoder.id == "id" and [column.name for column in encoder.columns] == ["x", "smokes"]
    assert encoder.columns[1].values == ("False", "True")
    assert "'id' is not learned: it numbers or names the rows (predictions show 'id')" in encoder.notes


# ── DataFrames ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda pd: pd.date_range("2024-01-01", periods=8), "column 'odd' holds dates"),
        (lambda pd: pd.to_timedelta(range(8), unit="s"), "column 'odd' holds durations"),
        (lambda pd: np.arange(8) * 1j, "column 'odd' holds complex numbers"),
        (lambda pd: [0.5, np.nan] * 4, "row 2 has no value in column 'odd'"),
        (lambda pd: pd.array([1, None] * 4, dtype="Int64"), "row 2 has no value in column 'odd'"),
        (lambda pd: [None, "red"] * 4, "row 1 has no value in column 'odd'"),
    ],
)
def test_a_frames_column_that_is_not_numbers_is_named(make, message: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": np.arange(8.0), "odd": make(pandas)})
    for classifier in (IncrementalClassifier(size=4), IncrementalClassifier(method="rwalk", memory=2, epochs=1)):
        with refused(message):
            classifier.fit(frame, ["a", "b"] * 4)
        assert not hasattr(classifier, "classes_")


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (range(40), "'odd' counts the rows"),
        ([f"2024-01-{i % 28 + 1:02}" for i in range(40)], "'odd' holds dates, learned as text"),
        ([1.5, 2.5, 3.5, "many"] * 10, "'odd' is read as text, though 30 of its 40 values are numbers"),
    ],
)
def test_a_frames_column_that_may_be_a_mistake_is_a_warning(odd: Any, message: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": np.arange(40) % 7 / 2, "odd": odd})
    with pytest.warns(UserWarning, match=message):
        IncrementalClassifier(size=4).fit(frame, ["a", "b"] * 20)


def test_a_frames_column_to_leave_out_names_no_option_of_the_command_line() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": np.arange(40.0), "name": [f"name {i}" for i in range(40)]})
    with pytest.raises(InputError, match=r"leave it out$"):
        IncrementalClassifier(size=4).fit(frame, ["a", "b"] * 20)


@pytest.mark.parametrize("categories", [False, True])
def test_a_frames_column_of_names_is_learned(categories: bool) -> None:
    pandas = pytest.importorskip("pandas")
    column = pandas.Categorical(["red", "blue"] * 4) if categories else ["red", "blue"] * 4
    frame, labels = pandas.DataFrame({"x": np.arange(8.0), "odd": column}), ["a", "b"] * 4
    for classifier in (IncrementalClassifier(size=4), IncrementalClassifier(method="rwalk", memory=2, epochs=100)):
        assert classifier.fit(frame, labels).score(frame, labels) == 1


def test_a_frames_column_of_numbers_is_read_whatever_its_type() -> None:
    pandas = pytest.importorskip("pandas")
    values = [3, 1, 4, 1, 5, 9, 2, 6]
    kinds = [values, pandas.array(values, dtype="Int64"), pandas.Categorical(values), [*map(str, values)]]
    coefficients = []
    for column in kinds:
        frame = pandas.DataFrame({"x": np.arange(8.0), "n": column})
        coefficients.append(IncrementalClassifier(size=4).fit(frame, ["a", "b"] * 4).coef_)
    for other in coefficients[1:]:
        np.testing.assert_array_equal(other, coefficients[0])


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((4, 2)) * 1j, "Complex data not supported"),
        (np.zeros(4, dtype=[("a", "f4"), ("b", "f4")]), "inputs are records"),
        (np.zeros((4, 2), dtype="datetime64[s]"), "inputs are dates"),
    ],
)
def test_arrays_that_are_no_numbers_are_one_line(x: Any, message: str) -> None:
    with refused(message):
        IncrementalClassifier(size=4).fit(x, ["a", "b"] * 2)
