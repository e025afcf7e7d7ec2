"""A study folder: nothing in it is torn, nothing in it is believed unchecked."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterator, Sized
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import little
from rwalk import InputError, model_file
from rwalk.atomic_files import LEFT, folder_beside, with_checksum, write_atomically
from rwalk.studies import Study, provenance
from rwalk.studies.loss_curves import Curves
from rwalk.studies.rows import SCHEMA, Description, Made, Row
from rwalk.studies.shared_folder import Join
from rwalk.studies.specs import RunSpec, steps_of
from rwalk.studies.study_events import Event, Stepped, Trained
from rwalk.studies.study_folder import SharedStore, Store, read_rows
from rwalk.studies.work_claims import CLAIMS, Claims


def record(number: int = 0, tasks: int = 3) -> dict[str, Any]:
    matrix = [[0.5 if j <= k else None for j in range(tasks)] for k in range(tasks)]
    measures = {"A": 0.5, "F": 0.0, "I": None}
    run = RunSpec(method="rwalk", seed=number)
    return {
        "schema": SCHEMA,
        "hash": run.hash(),
        "method": "rwalk",
        "lam": 1.0,
        "seed": number,
        "single": measures,
        "multi": measures,
        "accuracy": {"single": matrix, "multi": matrix},
        "reference": {"single": [None] * tasks, "multi": [None] * tasks},
        "stopped": None,
        "spec": run.to_json(),
        "made": {"rwalk": "0.1.0", "commit": None, "numerics": 1},
    }


def row(number: int = 0, tasks: int = 3) -> Row:
    return Row.from_json(record(number, tasks), sealed=True)


def description(method: str = "rwalk", data: tuple[dict[str, Any], ...] = ()) -> Description:
    study = Study((RunSpec(method=method),), "none")
    return Description(study.hash(), study.runs, study.reference, data)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    folder = Store(tmp_path / "study")
    with folder.opened(description()):
        return folder


# ── rows ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_come_back_as_they_were(store: Store) -> None:
    store.add(row(0))
    store.add(row(1), row(2))
    assert store.rows() == [row(0), row(1), row(2)]


@pytest.mark.parametrize("torn", [1, 10, 200])
def test_a_torn_last_line_is_dropped_and_the_next_row_is_whole(torn: int, store: Store) -> None:
    store.add(row(0), row(1))
    os.truncate(store.rows_file, store.rows_file.stat().st_size - 1 - torn)
    assert store.rows() == [row(0)]
    store.add(row(1))
    assert store.rows() == [row(0), row(1)]


def test_a_whole_last_line_without_an_end_is_kept(store: Store) -> None:
    store.add(row(0))
    os.truncate(store.rows_file, store.rows_file.stat().st_size - 1)
    assert store.rows() == [row(0)]
    store.add(row(1))
    assert store.rows() == [row(0), row(1)]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("{", "not a JSON"),
        ("[1]", "not a JSON object"),
        ('{"hash": "x"}', "0.2.0 or later"),
        ({**record(), "lam": "1"}, "lam of it cannot be"),
        (json.dumps({**record(), "lam": float("nan")}), "not a JSON"),
        ({**record(), "accuracy": {"single": [[1, 2]], "multi": []}}, "square"),
        ({**record(), "single": {"A": 1}}, "single of it cannot be read"),
        ({**record(), "stopped": 3}, "stopped of it cannot be 3"),
        ({**record(), "within": {"single": [[1, 2]]}}, "no within of its tasks"),
        (
            {**record(), "calibration": {"single": [[1]], "multi": [[10**400]]}},
            "no calibration of its tasks",
        ),
        ({**record(), "method": "\x1b[2J"}, "method, λ or seed are not those of its settings"),
        ({**record(), "method": "pi"}, "method, λ or seed are not those of its settings"),
        ({**record(), "lam": 2.0}, "method, λ or seed are not those of its settings"),
        ({**record(), "seed": 1}, "method, λ or seed are not those of its settings"),
        ({**record(), "single": {"A": 0.51, "F": 0.0, "I": None}}, "A, F or I"),
        ({**record(), "multi": {"A": 0.5, "F": 0.1, "I": None}}, "A, F or I"),
        ({**record(), "multi": {"A": 0.5, "F": 0.0, "I": 999999999.38}}, "A, F or I"),
        ({**record(1), "accuracy": {"single": [[2.66]], "multi": [[0.5]]}}, "square accuracy matrix"),
        ({**record(), "reference": {"single": [3, 0, 0], "multi": [0, 0, 0]}}, "references"),
        ({**record(), "made": {"rwalk": ["0.1.0"]}}, "made of it cannot be"),
        (json.dumps(record()), "no checksum"),
        (with_checksum(record()).replace("0.5", "0.6"), "checksum is wrong"),
        ({**record(), "schema": SCHEMA + 1}, "newer version"),
        ({**record(), "made": "by hand"}, "made of it is not a JSON object"),
        ({**record(), "spec": {"seed": 7}}, "not those of its hash"),
        ({**record(), "spec": {"unheard": "of"}}, "newer version"),
        ("[" * 100_000, "not a JSON"),
        ("9" * 10_000, "not a JSON"),
    ],
)
def test_a_line_that_is_no_result_is_named(damage: str | dict[str, Any], reason: str, store: Store) -> None:
    store.add(row(0))
    with open(store.rows_file, "a") as file:
        file.write((damage if isinstance(damage, str) else with_checksum(damage)) + "\n")
    store.add(row(1))
    with pytest.raises(InputError, match=r"line 2.*remove it") as caught:
        store.rows()
    assert reason in str(caught.value) and "\n" not in str(caught.value)


@settings(max_examples=200)
@given(content=st.binary(max_size=200), place=st.integers(0, 1200), whole=st.booleans())
def test_no_bytes_make_reading_rows_fail_otherwise(
    content: bytes, place: int, whole: bool, tmp_path: Path
) -> None:
    lines = b"".join(json.dumps(record(n)).encode() + b"\n" for n in range(2))
    path = tmp_path / "runs.jsonl"
    path.write_bytes(content if whole else lines[:place] + content + lines[place + len(content) :])
    try:
        read_rows(path)
    except InputError as error:
        assert "\n" not in str(error)


def test_a_study_of_2000_rows_opens_at_once(tmp_path: Path) -> None:
    study = little.study(seeds=1000)
    store = Store(tmp_path)
    with store.opened(study.describe()):
        code = provenance.code_of(study.runs[0])
        blank = replace(row(tasks=10), made=Made(numerics=1, code=code))
        rows = [replace(blank, hash=run.hash(), spec=run, lam=run.lam) for run in study.runs]
        store.add(*rows)

        def plain_json() -> list[str]:
            return [json.dumps(json.loads(line)) for line in store.rows_file.read_bytes().splitlines()]

        def seconds(work: Callable[[], Sized]) -> float:
            """Of a processor, the least of three: a busy machine is not the study's fault."""
            found = []
            for _ in range(3):
                begun = time.process_time()
                assert len(work()) == 2000
                found.append(time.process_time() - begun)
            return min(found)

        taken, plain = seconds(lambda: study.execute(store)), seconds(plain_json)
    assert taken < 10 * plain, f"opening took {taken:.2f} s, JSON alone {plain:.2f}"  # nor is a slow processor


def test_who_joins_while_another_begins_finds_its_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one writes study.json between two looks at the folder."""
    folder, described = tmp_path / "shared", little.study().describe()
    folder.mkdir()
    listed = Path.iterdir

    def begun_meanwhile(path: Path) -> Iterator[Path]:
        monkeypatch.setattr(Path, "iterdir", listed)
        with SharedStore(folder).opened(described):
            (folder / "commands.txt").write_text("rwalk run\n")
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", begun_meanwhile)
    with SharedStore(folder).opened(described) as store:
        assert store.study().hash == described.hash


# ── the folder ────────────────────────────────────────────────────────────────────────────────────────────


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, "before")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError):
        write_atomically(path, "after" * 1000)
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_another_study_is_refused(store: Store) -> None:
    other = description(method="pi")
    with pytest.raises(InputError, match="holds another study"), store.opened(other):
        pass


def test_changed_data_is_refused(store: Store) -> None:
    before, after = (description(data=({"dataset": "folder:x", "sha256": each * 64},)) for each in "bc")
    with store.opened(before):
        write_atomically(store.study_file, with_checksum(before.to_json()))
    with pytest.raises(InputError, match=r"data of .* has changed"), store.opened(after):
        pass


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("ten years of work")
    with pytest.raises(InputError, match="not empty and holds no study"), Store(tmp_path).opened(description()):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match="is a file"), Store(tmp_path / "out").opened(description()):
        pass


def test_what_a_killed_process_left_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".study.json.123").write_text('{"has')
    with Store(tmp_path).opened(description()) as store:
        store.add(row())
        store.settle([row()])
    assert {path.name for path in tmp_path.iterdir()} - {".lock"} == {"runs.jsonl", "study.json"}


def test_a_second_door_is_locked_while_the_first_is_open(store: Store) -> None:
    with (
        store.opened(description()),
        pytest.raises(InputError, match="another process is working on"),
        Store(store.folder).opened(description()),
    ):
        pass
    with store.opened(description()):
        pass


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "3", '{"hash": "x"}', '{"hash": "x", "runs": [3]}', "\x00", "[" * 100_000]
)
def test_a_study_file_that_is_none_is_refused(content: str, store: Store) -> None:
    store.study_file.write_text(content)
    with pytest.raises(InputError) as caught:
        store.study()
    assert "study.json" in str(caught.value) and "\n" not in str(caught.value)


def test_settle_keeps_rows_that_the_file_has_beyond_those_given(tmp_path: Path) -> None:
    study = little.study(methods=["vanilla"], seeds=3)
    rows = study.execute()
    with Store(tmp_path / "study").opened(study.describe()) as store:
        store.add(*reversed(rows))
        store.settle(rows[:1])
        assert store.rows() == rows, "all of them, in the study's order"


def test_settle_of_a_process_that_slept_while_the_study_grew_keeps_all_rows(tmp_path: Path) -> None:
    small, large = (little.study(methods=["vanilla"], seeds=seeds) for seeds in (1, 3))
    rows = large.execute()
    with SharedStore(tmp_path / "study").opened(small.describe()) as sleeper:
        sleeper.add(*rows[:1])
        with Store(tmp_path / "study").opened(large.describe()) as grown:
            grown.add(*rows)
            grown.settle(rows)
        before = sleeper.rows_file.read_bytes()
        sleeper.settle(rows[:1])
    assert sleeper.rows_file.read_bytes() == before
    assert Store(tmp_path / "study").study().hash == large.hash()


def test_settle_of_a_process_that_joined_leaves_a_newer_row(tmp_path: Path) -> None:
    study = little.study(methods=["vanilla"], seeds=1)
    (row,) = study.execute()
    newer = replace(row, made=replace(row.made, rwalk="9.9"))
    with SharedStore(tmp_path / "study").opened(study.describe()) as joined:
        with Store(tmp_path / "study").opened(study.describe()) as other:
            other.add(newer)
        joined.settle([row])
    assert Store(tmp_path / "study").rows() == [newer]


@pytest.mark.parametrize("kind", [Store, SharedStore])
def test_rows_of_a_folder_that_was_removed_are_an_error(kind: type[Store], tmp_path: Path) -> None:
    study = little.study(methods=["vanilla"], seeds=1)
    rows = study.execute()
    with kind(tmp_path / "study").opened(study.describe()) as store:
        shutil.rmtree(tmp_path / "study")
        (tmp_path / "study" / "checkpoints").mkdir(parents=True)  # as a run that saves itself makes it again
        with pytest.raises(InputError, match="was removed"):
            store.add(*rows)
            store.settle(rows)
    assert not (tmp_path / "study" / "runs.jsonl").exists()


def test_a_process_alone_is_refused_while_one_that_joined_is_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RWALK_LEASE", "1")
    study = little.study(methods=["vanilla"], seeds=1)
    with SharedStore(tmp_path / "study").opened(study.describe()):
        claim = Claims(tmp_path / "study" / CLAIMS).take("run")
        assert claim is not None
        alone = Store(tmp_path / "study")
        with (
            claim,
            pytest.raises(InputError, match=r"processes that joined .* add --join"),
            alone.opened(study.describe()),
        ):
            pass
    assert Claims(tmp_path / "study" / CLAIMS).take("dead") is not None  # never entered: it died at once
    with alone.opened(study.describe()):
        assert Claims(tmp_path / "study" / CLAIMS).held() == {}


def test_two_who_begin_different_studies_in_one_folder_end_with_one(tmp_path: Path) -> None:
    small, large = (little.study(methods=["vanilla"], seeds=seeds).describe() for seeds in (1, 2))
    with (
        SharedStore(tmp_path / "study").opened(large),
        pytest.raises(InputError, match="another study"),
        SharedStore(tmp_path / "study").opened(small),
    ):
        pass
    assert Store(tmp_path / "study").study().hash == large.hash


def test_folder_beside_is_removed_though_no_file_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*path: object, **how: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with folder_beside(tmp_path / "model") as folder:
        (folder / "written").touch()
        (folder / "written").rename(tmp_path / "model")
        monkeypatch.setattr(os, "open", fails)
        monkeypatch.setattr(os, "scandir", fails)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_write_atomically_keeps_links_and_refuses_devices(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    for content in ("first", "second"):
        write_atomically(tmp_path / "link", content)
        assert (tmp_path / "file").read_text() == content
    assert (tmp_path / "link").is_symlink()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "null").symlink_to(os.devnull)
    for name in ("pipe", "null"):
        with pytest.raises(OSError, match="a device or a pipe"):
            write_atomically(tmp_path / name, "lost")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link", "pipe", "null"}


@pytest.mark.skipif(os.name == "nt", reason="has other permissions")
@pytest.mark.parametrize("mode", [0o600, 0o664])
def test_write_atomically_keeps_permissions(mode: int, tmp_path: Path) -> None:
    """A model that nobody else may read stays so when it is continued."""
    (tmp_path / "model").touch()
    (tmp_path / "model").chmod(mode)
    write_atomically(tmp_path / "model", "new")
    assert stat.S_IMODE((tmp_path / "model").stat().st_mode) == mode


def test_a_temporary_file_that_a_killed_writer_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "model"
    left, young, other = (tmp_path / name for name in (".model.12.0123abcd", ".model.13.0123abcd", ".mine.1"))
    for each in (left, young, other):
        each.write_text("half")
    for each in (left, other):
        os.utime(each, (time.time() - 2 * LEFT,) * 2)
    write_atomically(path, "whole")
    assert sorted(tmp_path.iterdir()) == sorted([path, young, other])


def test_folder_that_a_killed_save_of_tensors_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary file of safetensors has a random name, so it lies in a folder with a known one."""
    left = tmp_path / ".model.12.0123abcd.d"
    left.mkdir()
    (left / ".tmpAbCdEf").write_text("half")
    os.utime(left, (time.time() - 2 * LEFT,) * 2)
    places: list[Path] = []
    save = model_file.save_file
    monkeypatch.setattr(
        model_file, "save_file", lambda tensors, path, about: places.append(path) or save(tensors, path, about)
    )
    model_file.write(tmp_path / "model", "kind", {}, {"a": torch.zeros(3)})
    assert [path.parent.parent for path in places] == [tmp_path], "in a folder that the next writer recognises"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_process_that_waits_for_the_lock_hears_the_first_ctrl_c(tmp_path: Path) -> None:
    study = little.study(methods=["vanilla"], seeds=1)
    rows = study.execute()
    with SharedStore(tmp_path / "study").opened(study.describe()) as joined:
        joined.add(*rows)
        # After the patience of a store it would be an InputError.
        with Store(tmp_path / "study").opened(study.describe()), pytest.raises(KeyboardInterrupt):
            joined.settle(rows, stop=lambda: True)
        joined.settle(rows)
    assert Store(tmp_path / "study").rows() == rows


def test_run_listed_twice_is_refused_whether_or_not_it_is_one_object() -> None:
    (run,) = little.study(methods=["vanilla"], seeds=1).runs
    for twice in ((run, run), (run, replace(run))):
        with pytest.raises(InputError, match="listed twice"):
            Study(twice, "none")


def test_saved_run_does_not_bring_a_removed_study_back(tmp_path: Path) -> None:
    study, folder = little.study(methods=["vanilla"], seeds=1, checkpoint_every=1), tmp_path / "study"

    def removed(event: Event) -> None:
        if isinstance(event, Stepped) and folder.exists():
            shutil.rmtree(folder)

    with Store(folder).opened(study.describe()) as store, pytest.raises(InputError, match="was removed"):
        study.execute(store, watch=removed)
    assert not folder.exists()


@pytest.mark.parametrize("event", [Stepped, Trained])
def test_process_that_joined_does_not_bring_a_removed_study_back(event: type, tmp_path: Path) -> None:
    """Neither its claims, nor outcomes, nor references: in a folder with other files the study could not begin."""
    folder = tmp_path / "study"
    study = little.study(methods=["vanilla"], seeds=3, reference="final", executor=Join, cache=folder)

    def removed(found: Event) -> None:
        if isinstance(found, event) and folder.exists():
            shutil.rmtree(folder)

    with SharedStore(folder).opened(study.describe()) as store, pytest.raises(InputError, match="was removed"):
        study.execute(store, watch=removed)
    assert not folder.exists()


def test_two_who_begin_one_study_with_different_data_end_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one writes study.json after the first look at the folder."""
    ours = little.study().describe()
    theirs = replace(ours, data=({**ours.data[0], "sha256": "0" * 64},))
    checked = SharedStore._check_is_ours

    def begun_meanwhile(store: SharedStore, study: Description) -> None:
        checked(store, study)
        monkeypatch.setattr(SharedStore, "_check_is_ours", checked)
        with SharedStore(tmp_path / "study").opened(theirs):
            pass

    monkeypatch.setattr(SharedStore, "_check_is_ours", begun_meanwhile)
    with (
        pytest.raises(InputError, match="has changed since it was begun"),
        SharedStore(tmp_path / "study").opened(ours),
    ):
        pass


def test_rows_are_a_data_frame_in_one_call() -> None:
    pytest.importorskip("pandas")
    rows = little.study(seeds=2).execute()
    frame = rows.to_frame()
    assert frame.groupby("method")["single.A"].mean()["rwalk"] == pytest.approx(
        sum(row.single.A or 0.0 for row in rows[:2]) / 2
    )
    assert frame["training.batch"].tolist() == [16] * 4 and frame["hash"].tolist() == [row.hash for row in rows]


def test_files_of_0_2_0_without_checksums_open_and_grow(tmp_path: Path) -> None:
    study, larger = (little.study(methods=["vanilla"], seeds=seeds) for seeds in (1, 2))
    (row,) = study.execute()
    (tmp_path / "study.json").write_text(json.dumps({**study.describe().to_json(), "schema": 2}, indent=1) + "\n")
    (tmp_path / "runs.jsonl").write_text(json.dumps({**row.to_json(), "schema": 2}) + "\n")
    with Store(tmp_path).opened(larger.describe()) as store:
        assert store.rows() == [row]
        rows = larger.execute(store)
    assert rows[0] == row
    assert all(b'"sha256"' in line for line in store.rows_file.read_bytes().splitlines())


@pytest.mark.parametrize("place", ["reference", "data", "environment", "hash", "schema"])
def test_a_study_file_altered_anywhere_is_refused(place: str, tmp_path: Path) -> None:
    with Store(tmp_path).opened(little.study().describe()) as store:
        text = store.study_file.read_text()
        record = {**store.study().to_json(), place: [] if place == "data" else "other"}
        store.study_file.write_text(json.dumps({**record, "sha256": json.loads(text)["sha256"]}, indent=1))
        with pytest.raises(InputError, match="altered"):
            store.study()
        store.study_file.write_bytes(text.replace("\n", "\r\n").encode())  # as some tools copy it
        assert store.study() == little.study().describe()


# ── a study from its file ─────────────────────────────────────────────────────────────────────────────────


def test_a_study_comes_back_from_its_file(tmp_path: Path) -> None:
    study = little.study(seeds=1)
    with Store(tmp_path).opened(study.describe()) as store:
        again = Study.of(store.study())
    assert again.runs == study.runs
    assert again.describe() == study.describe()


def test_an_altered_study_file_is_refused() -> None:
    record = little.study().describe().to_json()
    record["runs"][0]["training"]["lr"] = 0.5
    with pytest.raises(InputError, match="altered"):
        Description.from_json(record, sealed=True)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
DESCRIBED = json.dumps(little.study(methods=["rwalk"], seeds=1).describe().to_json())
PLACES = [
    *("stream", "network", "method", "numbers", "memory", "training", "seed", "dtype", "autocast", "reference"),
    *("stream.dataset", "stream.tasks", "stream.classes_per_task", "stream.permuted", "stream.validation"),
    *("memory.per_class", "memory.sampler", "training.lr", "training.batch", "numbers.lam", "new"),
]


@settings(max_examples=300)
@given(place=st.sampled_from(PLACES), value=JSON)
def test_no_study_file_fails_otherwise(place: str, value: Any) -> None:
    record = json.loads(DESCRIBED)
    *above, last = place.split(".")
    target = record["runs"][0]
    for key in above:
        target = target[key]
    target[last] = value
    try:
        Description.from_json(record, sealed=True)
    except InputError as error:
        assert "\n" not in str(error)


def test_only_the_folders_own_errors_are_put_down_to_the_folder(tmp_path: Path) -> None:
    """A network's missing weights, an interrupted read: those who caused them say what they are."""
    study = description()
    with pytest.raises(FileNotFoundError, match="weights"), Store(tmp_path / "study").opened(study):
        (tmp_path / "weights").read_bytes()
    with Store(tmp_path / "study").opened(study) as store:
        store.rows_file.mkdir()  # nobody can write to that
        with pytest.raises(InputError, match=r"cannot write to .*study: Is a directory; finished runs are kept"):
            store.add(row())
        with pytest.raises(InputError, match="cannot write to"):
            store.settle([row()])
    with pytest.raises(InputError, match=r"none: .* choose another --out"), Store("/proc/none").opened(study):
        pass


# ── losses, beside the rows ───────────────────────────────────────────────────────────────────────────────────


def losses_of(study: Study, folder: Path, stop: Callable[[], bool] = lambda: False) -> list[tuple[int, float]]:
    """The losses of a study of one run, as they are written beside its row."""
    (run,) = study.runs
    curves = Curves(folder, lambda run, task: steps_of(run, study.stream(run.stream), task))
    with Store(folder).opened(study.describe()) as store:
        study.execute(store, curves.watch, stop)
    return Curves(folder).of(run)


def test_losses_of_an_interrupted_and_resumed_run_are_those_of_one(tmp_path: Path) -> None:
    study = little.study(methods=["rwalk"], seeds=1, checkpoint_every=4)
    whole, parts = losses_of(study, tmp_path / "whole"), tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        losses_of(study, parts, stop=lambda: bool(Curves(parts).of(study.runs[0])))
    seen = [step for step, _ in losses_of(study, parts)]
    assert seen == sorted(set(seen)) and seen[-1] == whole[-1][0]


def test_steps_are_counted_on_over_tasks_of_different_length(tmp_path: Path) -> None:
    (run,) = little.study(methods=["vanilla"], seeds=1).runs
    long, short = (("0", "1", "2"), ("3",))
    run = replace(
        run,
        stream=replace(run.stream, classes_per_task=None, tasks=(long, short)),
        training=replace(run.training, steps=None, epochs=2),
    )
    study = Study((run,), "none", workers=1)
    steps = [step for step, _ in losses_of(study, tmp_path / "study")]
    assert steps[-1] == study.steps(run) and len(set(steps)) == len(steps)


def test_losses_survive_a_damaged_file(tmp_path: Path) -> None:
    (run,) = little.study(methods=["vanilla"], seeds=1).runs
    curves = Curves(tmp_path)
    for step, loss in ((1, 0.5), (2, 0.25), (2, 1 / 3)):
        curves.add(run, step, loss)
    with curves.file.open("a") as file:
        file.write(f"{run.hash()},3")  # a crash in the middle of a line
    assert Curves(tmp_path).of(run) == [(1, 0.5), (2, 1 / 3)]
    assert Curves(tmp_path / "nowhere").of(run) == []


@pytest.mark.parametrize("kind", [Store, SharedStore])
def test_a_study_is_executed_in_an_open_folder_alone(kind: type[Store], tmp_path: Path) -> None:
    study, store = little.study(methods=["vanilla"], seeds=1), kind(tmp_path / "study")
    for never in (store, tmp_path, "study"):
        with pytest.raises(InputError, match="open the folder first"):
            study.execute(never)  # type: ignore[arg-type]
    with store.opened(study.describe()):
        study.execute(store)
    with pytest.raises(InputError, match="open the folder first"):
        study.execute(store)
    assert len(store.rows()) == 1
