"""The rows in results/: as their manifest lists them, refused if they differ, and packed again after a run."""

from __future__ import annotations

import json
import lzma
from hashlib import sha256
from pathlib import Path

import pytest

import little
from reproduction import packed_rows
from rwalk.errors import InputError
from rwalk.studies.study_folder import Store

RESULTS = Path(__file__).parents[2] / "results"


def test_files_and_manifest_agree() -> None:
    listed = json.loads((RESULTS / packed_rows.MANIFEST).read_text())
    assert list(listed) == packed_rows.packed(RESULTS) and len(listed) == 31
    for name, entry in listed.items():
        rows = lzma.decompress((RESULTS / f"{name}{packed_rows.SUFFIX}").read_bytes())
        assert (rows.count(b"\n"), sha256(rows).hexdigest()) == (entry["rows"], entry["sha256"]), name


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """A results folder with one finished study in it."""
    study = little.study(methods=["vanilla"], seeds=2)
    with Store(tmp_path / "results" / "one").opened(study.describe()) as store:
        study.execute(store)
    return tmp_path / "results"


def test_a_packed_study_has_the_same_bytes_and_rows(finished: Path) -> None:
    before, rows = (finished / "one" / "runs.jsonl").read_bytes(), Store(finished / "one").rows()
    assert packed_rows.pack(finished) == [finished / "one.jsonl.xz"]
    assert not (finished / "one").exists() and packed_rows.text(finished, "one") == before
    assert packed_rows.rows_of(finished / "one") == rows and packed_rows.all_rows(finished) == {"one": rows}
    with packed_rows.opened(finished) as folder:
        assert Store(folder / "one").rows() == rows
    first = (finished / "one.jsonl.xz").read_bytes()
    packed_rows.write(finished, "one", before, {})
    assert (finished / "one.jsonl.xz").read_bytes() == first, "the same rows are the same file"


def test_an_unfinished_study_stays_a_folder(finished: Path) -> None:
    rows = finished / "one" / "runs.jsonl"
    rows.write_bytes(rows.read_bytes().splitlines(keepends=True)[0])
    assert packed_rows.pack(finished) == [] and rows.exists()


@pytest.mark.parametrize("damage", ["rows", "file", "manifest"])
def test_rows_that_differ_from_the_manifest_are_refused(finished: Path, damage: str) -> None:
    (file,) = packed_rows.pack(finished)
    if damage == "rows":
        file.write_bytes(lzma.compress(packed_rows.text(finished, "one").replace(b"vanilla", b"vanille")))
    elif damage == "file":
        file.write_bytes(file.read_bytes()[:-40])
    else:
        (finished / packed_rows.MANIFEST).write_text("{}")
    with pytest.raises(InputError, match=r"one\.jsonl\.xz (does not match|cannot be read)"):
        packed_rows.rows_of(finished / "one")
