"""Models from files: `rwalk fit`, `predict`, `forget` and `merge`."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits, load_wine

import little
from command_line import Rwalk, refused
from rwalk import IncrementalClassifier, model_file, models
from rwalk.closed_form import features
from rwalk.data.datasets import Reading, TableEncoder, table_encoder
from rwalk.data.datasets.columns import Column
from rwalk.data.large_files import source
from rwalk.errors import InputError

WINE = load_wine()
ORDER = np.random.default_rng(0).permutation(len(WINE.target))
NAMES = np.array(["barolo", "grignolino", "barbera"])[WINE.target]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RWALK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", os.path.dirname(little.__file__), prepend=os.pathsep)
    monkeypatch.delenv("RWALK_DATA", raising=False)
    monkeypatch.setattr(features, "RANDOM", 200)  # few random features: solving takes most of the time
    return tmp_path


def wine(path: str, rows: slice, named: bool = True) -> str:
    """Some rows of a real table, as a file."""
    with open(path, "w", newline="") as file:
        table = csv.writer(file)
        table.writerow([*WINE.feature_names, "cultivar"][: None if named else -1])
        for index in ORDER[rows]:
            table.writerow([*WINE.data[index], NAMES[index]][: None if named else -1])
    return path


def digits(root: Path, rows: slice = slice(300)) -> Path:
    """A folder of real images of two sizes."""
    data = load_digits()
    for number, (image, label) in enumerate(zip(data.images[rows], data.target[rows], strict=True)):
        folder = root / f"digit{label}"
        folder.mkdir(parents=True, exist_ok=True)
        pixels = Image.fromarray((image * 15).astype(np.uint8))
        pixels.resize((16, 16 + number % 2)).save(folder / f"{number}.png")
    return root


def table(path: str) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ── fit and predict ───────────────────────────────────────────────────────────────────────────────────────


def test_fit_and_predict_a_table(rwalk: Rwalk) -> None:
    wine("train.csv", slice(0, 140)), wine("new.csv", slice(140, None), named=False)
    outcome = rwalk("fit", "train.csv", "--out=clf.safetensors", "--holdout=0.2")
    assert outcome.code == 0 and "the classes are in column 'cultivar'" in outcome.err
    held_out, learned = outcome.out.splitlines()
    assert held_out.startswith(("accuracy 9", "accuracy 100"))
    assert learned == "clf.safetensors: 140 examples learned; 3 classes: barbera, barolo, grignolino"
    outcome = rwalk("predict", "clf.safetensors", "new.csv", "--out=new/predictions.csv")
    assert outcome == (0, "new/predictions.csv: 38 predictions\n", "")
    rows = table("new/predictions.csv")
    assert list(rows[0]) == ["file", "row", "label", "probability"]
    assert [(row["file"], row["row"]) for row in rows] == [("new.csv", str(number)) for number in range(1, 39)]
    assert np.mean([row["label"] for row in rows] == NAMES[ORDER[140:]]) > 0.9
    assert all(1 / 3 <= float(row["probability"]) <= 1 for row in rows)
    printed = rwalk("predict", "clf.safetensors", "new.csv").out
    assert printed == Path("new/predictions.csv").read_text()


def test_a_model_from_files_is_the_estimators_own(rwalk: Rwalk) -> None:
    """Whoever programs goes on with it in Python, and the other way round."""
    rwalk("fit", wine("train.csv", slice(0, 140)), "--out=clf.safetensors")
    loaded = IncrementalClassifier.load("clf.safetensors")
    assert loaded.score(WINE.data[ORDER[140:]], NAMES[ORDER[140:]]) > 0.9
    plain = IncrementalClassifier().partial_fit(WINE.data[ORDER[:140]], NAMES[ORDER[:140]])
    np.testing.assert_allclose(loaded.coef_, plain.coef_, rtol=1e-8, atol=1e-8)
    plain.save("plain.safetensors")
    refused(rwalk("predict", "plain.safetensors", "train.csv"), "does not say how files become its inputs")
    np.savez("x.npz", x=WINE.data[:5])
    assert rwalk("predict", "plain.safetensors", "x.npz").code == 0


def test_large_files_are_learned_in_portions(rwalk: Rwalk, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if each portion were a call: no call, and nothing held, grows with the file."""
    monkeypatch.setattr(table_encoder, "CELLS", 1)  # the least there is: 64 rows
    calls = []
    learn = IncrementalClassifier.partial_fit

    def counted(self: Any, X: Any, y: Any) -> Any:
        calls.append(len(X))
        return learn(self, X, y)

    monkeypatch.setattr(IncrementalClassifier, "partial_fit", counted)
    assert rwalk("fit", wine("train.csv", slice(None)), "--out=clf.safetensors").code == 0
    assert calls == [64, 64, 50]
    together = IncrementalClassifier()
    for start in range(0, 178, 64):
        rows = ORDER[start : start + 64]
        together = learn(together, WINE.data[rows], NAMES[rows])
    np.testing.assert_allclose(
        IncrementalClassifier.load("clf.safetensors").coef_, together.coef_, rtol=1e-8, atol=1e-8
    )


def test_fit_goes_on_with_new_files_and_new_classes(rwalk: Rwalk) -> None:
    for name, chosen in (("old", NAMES != "barolo"), ("new", NAMES == "barolo")):
        np.savez(f"{name}.npz", x=WINE.data[chosen], y=NAMES[chosen])
    assert rwalk("fit", "old.npz", "--out=clf.safetensors").code == 0
    outcome = rwalk("fit", "new.npz", "--continue=clf.safetensors")
    learned = "clf.safetensors: 59 examples learned, 178 in all; 3 classes: barbera, barolo, grignolino\n"
    assert outcome.out == learned
    scored = rwalk("predict", "clf.safetensors", "old.npz", "new.npz", "--score", "--out=p.csv")
    right, total = (int(number) for number in scored.err.split("rwalk: ")[1].split(" are")[0].split(" of "))
    assert total == 178 and right > 170
    assert rwalk("fit", "old.npz", "new.npz", "--out=both.safetensors").code == 0


def test_the_part_held_out_is_learned_in_the_end(rwalk: Rwalk, quiet: None) -> None:
    wine("train.csv", slice(None))
    rwalk("fit", "train.csv", "--out=all.safetensors")
    assert rwalk("fit", "train.csv", "--like=all.safetensors", "--out=held.safetensors", "--holdout=0.5").code == 0
    one, other = (IncrementalClassifier.load(f"{name}.safetensors") for name in ("all", "held"))
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-8, atol=1e-8)


def test_fit_and_predict_images_of_differing_sizes(rwalk: Rwalk, surroundings: Path) -> None:
    digits(surroundings / "week1", slice(0, 300)), digits(surroundings / "week2", slice(300, 600))
    refused(rwalk("fit", "week1", "--out=clf.safetensors"), "16 × 17 pixels", "--size 32")
    assert not Path("clf.safetensors").exists()
    assert rwalk("fit", "week1", "--size=8", "--out=clf.safetensors").code == 0
    assert rwalk("predict", "clf.safetensors", "week2", "--score", "--out=p.csv").code == 0
    rows = table("p.csv")
    assert list(rows[0]) == ["file", "label", "probability"] and len(rows) == 300
    assert np.mean([Path(row["file"]).parent.name == row["label"] for row in rows]) > 0.85
    one = next(Path("week2/digit4").iterdir())
    loose = rwalk("predict", "clf.safetensors", "week2/digit3", one)  # images that no folder names
    assert loose.code == 0 and "week2/digit3" in loose.out and str(one) in loose.out
    refused(rwalk("fit", "week2", "--continue=clf.safetensors", "--size=9"), "determines how files are read")
    refused(rwalk("predict", "clf.safetensors", "week2/digit3", "--score"), "no sub-folder")


def test_values_that_are_missing_when_a_model_is_used(rwalk: Rwalk) -> None:
    wine("train.csv", slice(0, 140))
    lines = Path("train.csv").read_text().splitlines()
    cells = lines[5].split(",")
    Path("gaps.csv").write_text("\n".join([*lines[:5], ",".join(["", *cells[1:]]), *lines[6:]]))
    refused(rwalk("fit", "gaps.csv", "--out=clf.safetensors"), "row 5 of 'gaps.csv' has no value", "--missing")
    assert rwalk("fit", "gaps.csv", "--missing=fill", "--out=filled.safetensors").code == 0
    assert rwalk("predict", "filled.safetensors", "gaps.csv", "--out=p.csv").code == 0
    assert len(table("p.csv")) == 140
    assert "139 examples" in rwalk("fit", "gaps.csv", "--missing=drop", "--out=dropped.safetensors").out


def test_fit_prints_how_it_read_a_table_and_predictions_show_its_identifier(rwalk: Rwalk) -> None:
    rng = np.random.default_rng(0)
    with open("patients.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, delimiter=";")
        rows.writerow(["", "patient_id", "weight", "port", "class"])
        for number in range(60):
            sick = number % 2
            weight = f"{60 + 30 * sick + rng.normal():.1f}".replace(".", ",")
            rows.writerow([number, f"p{number:03}", weight, "NS"[number % 3 == 0], ["=1+1", "-2"][sick]])
    outcome = rwalk("fit", "patients.csv", "--out=clf.safetensors")
    assert outcome.code == 0, outcome.err
    for line in (
        "60 rows in 1 file",
        "the classes are in column 'class'",
        "'weight' holds numbers with decimal commas, such as",
        "'port' is text of 2 values: N, S",
        "'column1' is not learned: it numbers or names the rows",
        "'patient_id' is not learned: it numbers or names the rows",
    ):
        assert f"rwalk: {line}" in outcome.err
    assert rwalk("predict", "clf.safetensors", "patients.csv", "--out=p.csv").code == 0
    rows = table("p.csv")
    assert list(rows[0]) == ["file", "row", "column1", "label", "probability"]
    assert [row["column1"] for row in rows] == [str(number) for number in range(60)]
    assert {row["label"] for row in rows} == {"'=1+1", "-2"}  # what a spreadsheet would compute is quoted
    named = rwalk("predict", "clf.safetensors", "patients.csv", "--id=patient_id")
    assert named.out.splitlines()[:2] == ["file,row,patient_id,label,probability", named.out.splitlines()[1]]
    assert ",p000," in named.out.splitlines()[1]
    refused(rwalk("predict", "clf.safetensors", "patients.csv", "--id=patient"), "did you mean 'patient_id'?")
    Path("few.csv").write_text("weight;port\n70,5;N\n")
    lacking = rwalk("predict", "clf.safetensors", "few.csv")
    assert lacking.out.startswith("file,row,label,probability\n") and lacking.code == 0


HOSTILE = ["\x1b]0;owned\x07", "two\nlines", "\u202etxt.exe", "=1+1", "@SUM(A1)", "cat\udcff", "日本"]


def test_class_names_are_escaped_on_the_terminal_and_in_predictions(rwalk: Rwalk, surroundings: Path) -> None:
    rng = np.random.default_rng(0)
    for place, name in enumerate(HOSTILE):
        (surroundings / "images" / name).mkdir(parents=True)
        for number in range(3):
            pixels = rng.integers(0, 30, (8, 8)) + 25 * place
            Image.fromarray(pixels.astype(np.uint8)).save(surroundings / "images" / name / f"{number}.png")
    outcome = rwalk("fit", "images", "--out=clf.safetensors")
    assert outcome.code == 0, outcome.err
    predicted = rwalk("predict", "clf.safetensors", "images", "--out=p.csv")
    assert predicted.code == 0, predicted.err
    printed = rwalk("predict", "clf.safetensors", "images").out
    assert printed == Path("p.csv").read_text(encoding="utf-8")
    for text in (outcome.out, outcome.err, printed):
        assert all(line.isprintable() for line in text.splitlines()), text
    labels = {row["label"] for row in csv.DictReader(printed.splitlines())}
    assert not any(label.startswith(("=", "@")) for label in labels)


def test_an_option_of_zero_is_not_taken_for_none(rwalk: Rwalk) -> None:
    outcome = rwalk("fit", wine("a.csv", slice(0, 110)), "--half-life=0", "--out=x")
    assert outcome.code == 2 and "half_life=0.0 is no number" in outcome.err.splitlines()[-1], outcome
    assert not Path("x").exists()


def test_a_model_whose_name_is_not_utf8_is_written_and_read(rwalk: Rwalk) -> None:
    wine("a.csv", slice(0, 110))
    name = "caf\udce9.safetensors"
    assert rwalk("fit", "a.csv", f"--out={name}").code == 0
    predicted = rwalk("predict", name, "a.csv")
    assert predicted.code == 0, predicted.err
    assert len(predicted.out.splitlines()) == 111


def test_names_that_the_terminal_cannot_show_are_escaped(surroundings: Path) -> None:
    for name in ("naïve", os.fsdecode(b"caf\xe9")):
        (surroundings / "images" / name).mkdir(parents=True)
        for shade in range(3):
            Image.new("L", (8, 8), 40 * len(name) + shade).save(surroundings / "images" / name / f"{shade}.png")
    command = [sys.executable, "-m", "rwalk", "fit", "images", "--out=clf.safetensors"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    assert b"caf\\udce9, na\\xefve" in done.stdout


def test_a_folder_learned_twice_still_predicts(rwalk: Rwalk, surroundings: Path, quiet: None) -> None:
    digits(surroundings / "week", slice(0, 60))
    assert rwalk("fit", "week", "--size=8", "--out=clf.safetensors").code == 0
    again = rwalk("fit", "week", "--continue=clf.safetensors")
    assert again.code == 0 and "60 examples learned, 120 in all" in again.out
    scored = rwalk("predict", "clf.safetensors", "week", "--score", "--out=p.csv")
    assert scored.code == 0 and len(table("p.csv")) == 60
    assert np.mean([Path(row["file"]).parent.name == row["label"] for row in table("p.csv")]) > 0.9


def test_a_terminal_shows_at_once_what_is_read(surroundings: Path) -> None:
    """The first characters come before torch, which takes seconds, is imported; nothing of them is left."""
    wine("train.csv", slice(0, 60))
    ours, theirs = os.openpty()
    command = [sys.executable, "-X", "importtime", "-m", "rwalk", "fit", "train.csv", "--out=clf.safetensors"]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 1 << 16)
        except OSError:  # the process has closed the terminal
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait() == 0
    imported = re.search(rb"\|\s+torch\r", shown)
    assert imported is not None and -1 < shown.find(b"rwalk: reading train.csv") < imported.start()
    assert b"rwalk: numbers: alcohol" in shown


def test_arrays_that_are_no_examples_are_refused(rwalk: Rwalk) -> None:
    x, y = np.zeros((4, 3)), np.array([0, 1, 0, 1])
    record = np.zeros(4, dtype=[("a", "f4"), ("b", "f4")])
    for arrays, message in (
        ({"x": np.float64(3), "y": y}, "array 'x' of 'a.npz' has the shape []"),
        ({"x": x, "y": np.int64(3)}, "array 'y' of 'a.npz' has the shape []"),
        ({"x": x[0], "y": y}, "array 'x' of 'a.npz' has the shape [3]"),
        ({"x": x[:, :0], "y": y}, "has the shape [4, 0]"),
        ({"x": x + 1j, "y": y}, "array 'x' of 'a.npz' is of type complex128"),
        ({"x": record, "y": y}, "array 'x' of 'a.npz' is fields of a record"),
        ({"x": x.astype("datetime64[s]"), "y": y}, "array 'x' of 'a.npz' is of type datetime64[s]"),
        ({"x": x, "y": y.astype("timedelta64[s]")}, "array 'y' of 'a.npz' is of type timedelta64[s]"),
        ({"x": x.astype(str), "y": y}, "array 'x' of 'a.npz' is of type <U32"),
    ):
        np.savez("a.npz", **arrays)
        refused(rwalk("fit", "a.npz", "--out=clf.safetensors"), message)
        refused(rwalk("run", "--dataset=a.npz", "--out=study"), message)
    np.savez("a.npz", x=np.arange(12.0).reshape(4, 3), y=y.astype("S1"))
    assert "2 classes: 0, 1" in rwalk("fit", "a.npz", "--out=clf.safetensors").out


def test_predict_unknown_labels_what_is_unlike_everything_learned(rwalk: Rwalk) -> None:
    lines = wine("all.csv", slice(0, 178)) and Path("all.csv").read_text().splitlines()
    rwalk("fit", "all.csv", "--out=clf.safetensors")
    header, *known = lines
    strange = [
        ",".join(str(1000 + number) for number in range(len(header.split(",")) - 1)) + "," for _ in range(3)
    ]
    Path("new.csv").write_text("\n".join([header, *known[:60], *strange]))
    outcome = rwalk("predict", "clf.safetensors", "new.csv", "--unknown=other", "--at=0.05", "--out=p.csv")
    assert outcome.code == 0, outcome.err
    labels = [line.split(",")[-2] for line in Path("p.csv").read_text().splitlines()[1:]]
    assert labels[-3:] == ["other"] * 3 and labels[:60].count("other") < 12
    refused(rwalk("predict", "clf.safetensors", "new.csv", "--unknown=other", "--at=5"), "no share")


# ── forget and merge ──────────────────────────────────────────────────────────────────────────────────────


def test_forget_makes_the_model_that_never_learned(rwalk: Rwalk) -> None:
    wine("kept.csv", slice(0, 100)), wine("gone.csv", slice(100, None))
    rwalk("fit", "kept.csv", "--out=kept.safetensors")
    rwalk("fit", "gone.csv", "--continue=kept.safetensors", "--out=both.safetensors")
    outcome = rwalk("forget", "both.safetensors", "gone.csv", "--out=after.safetensors")
    assert outcome.out.startswith("after.safetensors: 78 examples forgotten")
    assert outcome.err.startswith("rwalk: these examples were removed, but the feature map")
    one, other = (IncrementalClassifier.load(f"{name}.safetensors") for name in ("kept", "after"))
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-8, atol=1e-8)
    before = Path("after.safetensors").read_bytes()
    wine("strange.csv", slice(0, 100))
    Path("strange.csv").write_text(Path("strange.csv").read_text().replace("barolo", "merlot"))
    refused(rwalk("forget", "after.safetensors", "strange.csv"), "unknown class")
    before = Path("after.safetensors").read_bytes()
    refused(rwalk("forget", "after.safetensors", "gone.csv"), "nothing was forgotten")
    assert Path("after.safetensors").read_bytes() == before and not Path("after.safetensors.before").exists()


def test_a_model_that_is_overwritten_is_kept_beside(rwalk: Rwalk, quiet: None) -> None:
    wine("kept.csv", slice(0, 100)), wine("gone.csv", slice(100, None))
    rwalk("fit", "kept.csv", "--out=clf.safetensors")
    for command in (["fit", "gone.csv", "--continue=clf.safetensors"], ["forget", "clf.safetensors", "gone.csv"]):
        before = Path("clf.safetensors").read_bytes()
        outcome = rwalk(*command)
        assert outcome.code == 0 and "clf.safetensors.before: the model as it was" in outcome.err
        assert Path("clf.safetensors.before").read_bytes() == before != Path("clf.safetensors").read_bytes()
    assert IncrementalClassifier.load("clf.safetensors.before").n_samples_seen_ == 178


def test_merge_makes_the_model_that_learned_everything(rwalk: Rwalk) -> None:
    wine("a.csv", slice(0, 110)), wine("b.csv", slice(110, 140)), wine("c.csv", slice(140, None))
    rwalk("fit", "a.csv", "--out=a.safetensors")
    for name in "bc":
        assert rwalk("fit", f"{name}.csv", "--like=a.safetensors", f"--out={name}.safetensors").code == 0
    merged = rwalk("merge", "a.safetensors", "b.safetensors", "c.safetensors", "--out=merged.safetensors")
    assert merged.code == 0 and merged.out.startswith("merged.safetensors: 3 models merged; 3 classes")
    rwalk("fit", "b.csv", "c.csv", "--continue=a.safetensors", "--out=whole.safetensors")
    one, other = (IncrementalClassifier.load(f"{name}.safetensors") for name in ("merged", "whole"))
    np.testing.assert_allclose(one.coef_, other.coef_, rtol=1e-8, atol=1e-8)
    assert rwalk("predict", "merged.safetensors", "c.csv").code == 0  # it still knows its columns
    rwalk("fit", wine("d.csv", slice(0, 120)), "--out=d.safetensors")
    refused(
        rwalk("merge", "a.safetensors", "d.safetensors", "--out=x.safetensors"), "rwalk fit --like a.safetensors"
    )
    refused(rwalk("merge", "a.safetensors", "--out=x.safetensors"), "two models or more")
    assert not Path("x.safetensors").exists()


# ── what is refused, before anything is written ───────────────────────────────────────────────────────────

REFUSED = {
    "fit a.csv": "say where to write the model",
    "fit a.csv --out=clf.safetensors": "exists already",
    "fit a.csv --out=a.csv/clf": "cannot be written there",
    "fit missing.csv --out=x": "there is no file or folder 'missing.csv'",
    "fit notes.txt --out=x": "no folder of images, no table",
    "fit a.csv images --out=x": "table and images cannot be mixed",
    "fit images/digit3/3.png --out=x": "without a folder that names its class",
    "fit a.csv --label=kind --out=x": "unknown column 'kind'",
    "fit a.csv --label=alcohol --out=x": "numbers with fractions",
    "fit a.csv --size=3 --out=x": "--size says nothing",
    "fit a.csv --holdout=1.5 --out=x": "the part to hold out is 1.5",
    "fit a.csv --continue=clf.safetensors --like=clf.safetensors": "not both",
    "fit a.csv --continue=clf.safetensors --label=cultivar": "determines how files are read",
    "fit other.csv --continue=clf.safetensors": "has no column",
    "fit images --continue=clf.safetensors": "is of the kind images, where it was table",
    "fit a.csv --continue=missing": "there is no such file",
    "fit a.csv --continue=notes.txt": "it is no safetensors file",
    "predict a.csv a.csv": "it is no safetensors file",
    "predict clf.safetensors missing.csv": "there is no file or folder",
    "predict clf.safetensors missing.png": "there is no file or folder",
    "predict clf.safetensors other.csv --out=x": "has no column",
    "predict clf.safetensors broken.csv --out=x": "row 2 of 'broken.csv' has 'much' in column 'alcohol'",
    "predict clf.safetensors a.csv --out=a.csv": "would overwrite what is read",
    "predict clf.safetensors a.csv --out=./clf.safetensors": "would overwrite what is read",
    "predict clf.safetensors a.csv --out=pipe": "cannot write pipe: it is a device or a pipe",
    "forget clf.safetensors other.csv": "has no column",
    "forget clf.safetensors a.csv --out=a.csv": "would overwrite what is read",
    "forget clf.safetensors a.csv ./a.csv": "a.csv is given twice: drop one",
    "fit a.csv ./a.csv --out=x": "a.csv is given twice: drop one",
    "merge clf.safetensors ./clf.safetensors --out=x": "clf.safetensors is given twice: drop one",
    "predict clf.safetensors a.csv --at=0.2": "give --unknown other too",
    "predict clf.safetensors a.csv --unknown=": "--unknown is a label",
    "predict clf.safetensors a.csv --out=x --out=y": "--out is given twice: drop one",
}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of all kinds, and a model of one of them."""
    folder = tmp_path_factory.mktemp("prepared")
    wine(str(folder / "a.csv"), slice(0, 110))
    digits(folder / "images", slice(0, 40))
    (folder / "notes.txt").write_text("nothing to learn")
    (folder / "other.csv").write_text("x,label\n1,2\n3,4\n")
    rows = (folder / "a.csv").read_text().splitlines()
    (folder / "broken.csv").write_text("\n".join([*rows[:2], "much" + rows[2][rows[2].index(",") :]]))
    known = source([folder / "a.csv"], Reading())
    trained = models.begun(known.form)
    assert models.learn(trained, known).examples == 110
    trained.save(folder / "clf.safetensors")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.mark.parametrize("line", REFUSED)
def test_bad_input_is_one_line_and_leaves_nothing_behind(
    line: str, prepared: Path, rwalk: Rwalk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prepared)
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*")}
    refused(rwalk(*line.split()), REFUSED[line])
    assert {path: path.stat().st_mtime_ns for path in prepared.rglob("*")} == before


def test_a_table_of_more_inputs_than_fit_into_memory_is_refused() -> None:
    form = TableEncoder("label", True, tuple(Column(f"c{place}") for place in range(20_001)))
    with pytest.raises(InputError, match="the table makes 20,001 inputs"):
        models.begun(form)


@pytest.mark.parametrize("damage", ["form", "kind", "columns", "mean", "scale", "checksum"])
def test_a_damaged_note_is_refused(damage: str, prepared: Path, rwalk: Rwalk) -> None:
    path = Path(shutil.copy(prepared / "clf.safetensors", "clf.safetensors"))
    note = model_file.note_of(path)
    assert note is not None
    form = note["form"]
    if damage == "form":
        note = {}
    elif damage == "kind":
        form["kind"] = "guess"
    elif damage == "columns":
        form["columns"] = "all"
    elif damage == "mean":
        form["columns"][0]["mean"] = 10**400
    elif damage == "scale":
        form["scale"], form["shift"] = [0.0] * 13, [0.0] * 13
    if damage == "checksum":
        content = path.read_bytes()
        assert content.count(b"flavanoids") == 1
        path.write_bytes(content.replace(b"flavanoids", b"flavonoids"))
    else:
        found, tensors = model_file.read(path)
        model_file.write(path, found["format"], model_file.parsed(found["record"]), tensors, note)
    refused(rwalk("predict", path, prepared / "a.csv"), "clf.safetensors", "damaged")


# ── trained networks ────────────────────────────────────────────────────────────────────────────────────────


def test_a_saved_network_predicts_and_cannot_forget(rwalk: Rwalk, quiet: None) -> None:
    data = load_digits()
    x, y = (data.data / 16).astype(np.float32), data.target
    classifier = IncrementalClassifier(method="rwalk", memory=5, network=little.Network, epochs=5, random_state=0)
    for half in (y < 5, y >= 5):
        classifier.partial_fit(x[half], y[half])
    classifier.save("network.safetensors")
    np.savez("x.npz", x=x[:200])
    with pytest.raises(InputError, match="pass it again"):
        IncrementalClassifier.load("network.safetensors")
    refused(rwalk("predict", "network.safetensors", "x.npz"), "--network module:factory")
    own = "--network=little:Network"
    assert rwalk("predict", "network.safetensors", "x.npz", own, "--out=p.csv").code == 0
    assert [each["label"] for each in table("p.csv")] == [*map(str, classifier.predict(x[:200]))]
    refused(rwalk("forget", "network.safetensors", "x.npz"), "network")


def test_fit_learns_the_texts_of_a_column(rwalk: Rwalk) -> None:
    rows = [f"{place},the {word} number {place} runs,{word}" for place, word in enumerate(["cat", "dog"] * 30)]
    Path("texts.csv").write_text("\n".join(["id,body,kind", *rows]))
    done = rwalk("fit", "texts.csv", "--text", "body", "--label", "kind", "--out", "texts.safetensors")
    assert done.code == 0 and "60 examples learned; 2 classes: cat, dog" in done.out
    done = rwalk("predict", "texts.safetensors", "texts.csv", "--score")
    assert done.code == 0 and done.out.splitlines()[1].startswith("texts.csv,1,0,cat")
    assert "60 of 60 are right" in done.err
    assert rwalk("fit", "texts.csv", "--continue", "texts.safetensors").code == 0
    assert rwalk("forget", "texts.safetensors", "texts.csv").code == 0
    done = rwalk("fit", "texts.csv", "--text", "body", "--drop", "id", "--out", "other.safetensors")
    assert done.code == 2 and "--drop says nothing" in done.err
    done = rwalk("fit", "texts.csv", "--text", "prose", "--out", "other.safetensors")
    assert done.code == 2 and "unknown column 'prose'" in done.err
