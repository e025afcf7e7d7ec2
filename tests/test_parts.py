"""Many files learned as map-reduce: the same model, whoever learned which part."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_digits

import little
from cluster import Cluster
from rwalk import InputError
from rwalk.data.datasets import Reading
from rwalk.data.large_files import source
from rwalk.models import FileClassifier, learn, learn_in_parts

X, Y = (each[:900] for each in load_digits(return_X_y=True))


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Four files, a later one of which brings new classes; the first is too small to make features of."""
    later = Y == 9
    places = [np.flatnonzero(~later)[:40], np.flatnonzero(~later)[40:500], np.flatnonzero(~later)[500:],
              np.flatnonzero(later)]  # fmt: skip
    paths = [tmp_path / f"{number}.npz" for number in range(len(places))]
    for path, rows in zip(paths, places, strict=True):
        np.savez(path, x=X[rows], y=Y[rows])
    return paths


def learned(files: list[Path], executor: str | None, workers: int | None = None) -> FileClassifier:
    found = source(files, Reading())
    trained = FileClassifier.begun(found.form)
    total = learn(trained, found) if executor is None else learn_in_parts(trained, found, executor, workers)
    assert total.examples == len(Y)
    return trained


def saved(trained: FileClassifier, path: Path) -> Path:
    trained.save(path)
    return path


def assert_same(one: Path, other: Path, terms: int = 0) -> None:
    """Bit for bit; or but for rounding, where so many terms are added in another order."""
    ours, theirs = load_file(one), load_file(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        largest = tensor.double().abs().max().item() if tensor.numel() else 0.0
        slack = terms * torch.finfo(torch.float64).eps * max(1.0, largest) if tensor.is_floating_point() else 0.0
        torch.testing.assert_close(tensor, theirs[name], rtol=0, atol=slack)


def test_parts_learned_anywhere_make_the_model_of_one_process(files: list[Path], tmp_path: Path) -> None:
    whole, here, local = learned(files, None), learned(files, "here"), learned(files, "local", 2)
    assert_same(saved(here, tmp_path / "here"), saved(local, tmp_path / "local"))
    assert_same(saved(whole, tmp_path / "whole"), tmp_path / "here", terms=len(Y))
    assert (whole.classifier.predict(X) == here.classifier.predict(X)).all()


def test_too_few_examples_for_features_are_held_as_ever(files: list[Path], tmp_path: Path) -> None:
    found = source(files[:1], Reading())
    one, other = FileClassifier.begun(found.form), FileClassifier.begun(found.form)
    learn(one, found)
    learn_in_parts(other, found, "here")
    assert_same(saved(one, tmp_path / "one"), saved(other, tmp_path / "other"))


def test_images_are_divided_as_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        folder = tmp_path / "images" / f"digit{Y[number]}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray((X[number].reshape(8, 8) * 15).astype(np.uint8)).save(folder / f"{number}.png")
    monkeypatch.setattr("rwalk.data.large_files.BYTES", 1)  # sixteen images at a time
    found = source([tmp_path / "images"], Reading())
    parts = found.parts()
    assert len(parts) == 13
    whole = [portion.x for portion in found.portions(mixed=True)]
    divided = [portion.x for part in parts for portion in part.portions()]
    assert all((one == other).all() for one, other in zip(whole, divided, strict=True))


def test_what_cannot_be_learned_in_parts_is_refused(files: list[Path]) -> None:
    for executor in ("join", "gpus"):
        with pytest.raises(InputError, match="give --executor local or ray"):
            learned(files, executor)


@pytest.mark.slow
def test_a_cluster_learns_the_same_model(files: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("ray")
    cluster = Cluster()
    try:
        cluster.start(cores=1)
        cluster.start(cores=1)
        for executor in ("local", "ray"):
            program = [sys.executable, "-m", "rwalk", "fit", *map(str, files), "--executor", executor]
            program += [f"--out={tmp_path / executor}", *(["--workers=2"] if executor == "local" else [])]
            subprocess.run(program, env=cluster.driver_environ(), check=True, timeout=little.PATIENCE)
    finally:
        cluster.stop()
    assert_same(tmp_path / "ray", tmp_path / "local")


def test_told_to_stop_nothing_is_written(tmp_path: Path) -> None:
    for number, rows in enumerate((200, 6000, 6000)):
        np.savez(tmp_path / f"{number}.npz", x=np.resize(X, (rows, 64)), y=np.resize(Y, rows))
    program = [sys.executable, "-m", "rwalk", "fit", "0.npz", "1.npz", "2.npz", "--workers=2"]
    program += ["--executor=local", "--out=model"]
    process = subprocess.Popen(program, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + little.PATIENCE
    while children.exists() and not children.read_text() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=little.PATIENCE)
    if process.returncode != 0:  # else it was through before it heard
        assert (
            process.returncode == 130
            and err == "rwalk: stopped; nothing was written: the same command begins again\n"
        )
        assert not (tmp_path / "model").exists()
