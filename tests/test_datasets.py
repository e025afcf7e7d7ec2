"""Datasets: official files are verified before they are parsed, the user's own are refused by name."""

from __future__ import annotations

import ast
import functools
import gzip
import hashlib
import http.server
import io
import os
import pickle
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import rwalk.data
from rwalk.data.datasets import Reading, describe, load, npz, official
from rwalk.data.datasets.images import ImageForm, form_of, read_image
from rwalk.data.datasets.official import OFFICIAL, read_idx, unpickled
from rwalk.data.splits import permuted, split
from rwalk.errors import InputError
from rwalk.studies.specs import StreamSpec

unhurried = settings(deadline=None)  # a busy machine is no failure
REAL = Path(os.environ.get("RWALK_TEST_DATA", Path(__file__).parents[2] / "shared" / "data"))
needs_mnist = pytest.mark.skipif(not (REAL / "mnist").is_dir(), reason=f"MNIST's files are not in {REAL}")
needs_cifar = pytest.mark.skipif(not (REAL / "unpack.py").is_file(), reason=f"CIFAR-100 is not in {REAL}")


@contextmanager
def refused(*fragments: str) -> Iterator[None]:
    with pytest.raises(InputError) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    for fragment in fragments:
        assert fragment in message


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, away from the user's."""
    monkeypatch.delenv("RWALK_DATA", raising=False)
    monkeypatch.setattr(official, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


# Little stand-ins for the official files --------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    header = struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    return gzip.compress(header + array.astype(np.uint8).tobytes(), mtime=0)


def little_mnist(shade: int = 0) -> dict[str, bytes]:
    """Twenty training and ten test images, every pixel the label's number plus `shade`."""
    files = {}
    for part, labels in (("train", np.arange(20) % 10), ("t10k", np.arange(10))):
        images = np.broadcast_to(labels[:, None, None] + shade, (len(labels), 28, 28))
        files[f"{part}-images-idx3-ubyte.gz"] = idx(images)
        files[f"{part}-labels-idx1-ubyte.gz"] = idx(labels)
    return files


def little_cifar100() -> dict[str, bytes]:
    pixels = np.arange(3, dtype=np.uint8)[:, None].repeat(3072, axis=1)
    records = {
        "train": {"data": pixels, "fine_labels": [0, 1, 2], "coarse_labels": [0, 0, 0]},
        "test": {"data": pixels + 1, "fine_labels": [2, 1, 0], "coarse_labels": [0, 0, 0]},
        "meta": {"fine_label_names": ["apple", "bear", "can"], "coarse_label_names": ["things"]},
    }
    return {name: pickle.dumps(record) for name, record in records.items()}


def little_cifar10() -> dict[str, bytes]:
    def batch(label: int) -> dict[str, object]:
        return {"data": np.full((2, 3072), label, np.uint8), "labels": [label, label]}

    records = {f"data_batch_{number}": batch(number - 1) for number in range(1, 6)}
    records |= {"test_batch": batch(4), "batches.meta": {"label_names": list("abcde")}}
    return {name: pickle.dumps(record, protocol=2) for name, record in records.items()}


def tar(members: Mapping[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def publish(monkeypatch: pytest.MonkeyPatch, name: str, files: Mapping[str, bytes], **changes: object) -> None:
    """Make these the official files of a dataset."""
    sums = {file: sha256(content) for file, content in files.items()}
    official = replace(OFFICIAL[name], files=sums, **{"mirrors": (), **changes})
    monkeypatch.setitem(OFFICIAL, name, official)


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder on 127.0.0.1 and records the requests."""

    def __init__(self, folder: Path) -> None:
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
        self.url = f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.SimpleHTTPRequestHandler):
    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "served").mkdir()
    with Server(tmp_path / "served") as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield running
        running.shutdown()


@pytest.fixture
def dead_mirror() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/"


# Names ------------------------------------------------------------------------------------------------------


def test_describe_names_what_load_knows() -> None:
    assert list(describe()) == [
        *("digits", "mnist", "fashion-mnist", "cifar10", "cifar100", "mnist-32", "cifar100-pixels"),
        *("FOLDER", "FILE.csv", "FILE.npz"),
    ]
    assert all(line and "\n" not in line for line in describe().values())
    with refused("unknown dataset 'mnits': did you mean 'mnist'? (known: digits"):
        load("mnits")
    with refused("unknown dataset 'pictures.zip' (known: digits"):
        load("pictures.zip")


def test_digits_are_embedded() -> None:
    digits = load("digits")
    assert (digits.x.shape, digits.x_test.shape) == ((1438, 1, 8, 8), (359, 1, 8, 8))
    assert (digits.x.dtype, digits.x.min(), digits.x.max()) == (torch.float32, 0, 1)
    assert digits.class_names == tuple("0123456789")
    share = torch.bincount(digits.y_test) / (torch.bincount(digits.y) + torch.bincount(digits.y_test))
    assert ((share - 0.2).abs() < 0.01).all()
    assert load("digits").x_test.equal(digits.x_test)
    assert not load("digits", seed=1).x_test.equal(digits.x_test)


def test_only_torch_and_numpy_are_imported_at_once() -> None:
    allowed = sys.stdlib_module_names | {"torch", "numpy", "rwalk"}
    files = [*Path(rwalk.data.__file__).parent.rglob("*.py")]
    assert len(files) > 10
    for file in files:
        for node in ast.parse(file.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.partition(".")[0] for name in names} <= allowed


def test_the_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    ours, theirs = load("digits"), load_digits()
    x = np.concatenate([ours.x, ours.x_test]).reshape(-1, 64)
    y = np.concatenate([ours.y, ours.y_test])
    mine, given = np.column_stack([16 * x, y]), np.column_stack([theirs.data, theirs.target])
    assert (mine[np.lexsort(mine.T)] == given[np.lexsort(given.T)]).all()


@pytest.mark.parametrize(
    ("module", "name", "package"),
    [("sklearn.datasets", "digits", "scikit-learn"), ("PIL.Image", "folder:{}", "pillow")],
)
def test_a_missing_package_is_named(
    module: str, name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    painted(tmp_path / "a" / "1.png")
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr("rwalk.data.datasets.find_spec", lambda name: None)
    with refused(f"pip install {package}"):
        load(name.format(tmp_path))


# Official files that are there already ----------------------------------------------------------------------


@pytest.mark.parametrize("folder", [".", "mnist", "MNIST/raw", "MNIST"])
@pytest.mark.parametrize("by_environment", [False, True])
def test_files_are_found_where_people_keep_them(
    folder: str, by_environment: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(monkeypatch, "mnist", little_mnist())
    write(tmp_path / "data" / folder, little_mnist())
    if by_environment:
        monkeypatch.setenv("RWALK_DATA", str(tmp_path / "data"))
    dataset = load("mnist", None if by_environment else tmp_path / "data", download=False)
    assert dataset.x.shape == (20, 1, 28, 28) and dataset.y_test.tolist() == list(range(10))
    assert torch.allclose(dataset.x[:, 0, 5, 5] * 255, dataset.y.float())


def test_siblings_that_share_file_names_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, "mnist", little_mnist())
    publish(monkeypatch, "fashion-mnist", little_mnist(shade=100))
    write(tmp_path, little_mnist())
    with refused("fashion-mnist: no train-images-idx3-ubyte.gz", "RWALK_DATA"):
        load("fashion-mnist", tmp_path, download=False)
    write(tmp_path / "FashionMNIST" / "raw", little_mnist(shade=100))
    fashion = load("fashion-mnist", tmp_path, download=False)
    assert fashion.x.max() * 255 == pytest.approx(109) and fashion.class_names[9] == "Ankle boot"
    assert load("mnist", tmp_path, download=False).x.max() * 255 == pytest.approx(9)


def test_mnist_with_a_margin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mnist", "mnist-32"):
        publish(monkeypatch, name, little_mnist(shade=1))
    write(tmp_path, little_mnist(shade=1))
    bare, margin = (load(name, tmp_path, download=False) for name in ("mnist", "mnist-32"))
    assert margin.x.shape == (20, 1, 32, 32) and margin.x_test.shape == (10, 1, 32, 32)
    assert margin.x[:, :, 2:-2, 2:-2].equal(bare.x) and margin.x.count_nonzero() == bare.x.count_nonzero()


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:50] + bytes([b[50] ^ 1]) + b[51:]])
def test_damaged_files_are_refused_by_path(damage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, "mnist", little_mnist())
    path = write(tmp_path / "mnist", little_mnist()) / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with refused(str(path), "truncated or altered", "delete it"):
        load("mnist", tmp_path)


def test_the_data_folder_must_exist(tmp_path: Path) -> None:
    with refused("no data folder", "nowhere"):
        load("mnist", tmp_path / "nowhere")


@needs_mnist
def test_real_mnist() -> None:
    mnist = load("mnist", REAL, download=False)
    assert (mnist.x.shape, mnist.x_test.shape) == ((60_000, 1, 28, 28), (10_000, 1, 28, 28))
    assert (mnist.x.dtype, mnist.x.min(), mnist.x.max()) == (torch.float32, 0, 1)
    train = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert torch.bincount(mnist.y).tolist() == train
    assert torch.bincount(mnist.y_test).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    stream = split(mnist, classes_per_task=2)
    assert [len(task.train) for task in stream.tasks] == [
        a + b for a, b in zip(train[::2], train[1::2], strict=True)
    ]
    assert len(permuted(mnist, tasks=3)) == 3


@needs_mnist
def test_real_mnist_damaged(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(REAL / "mnist", tmp_path / "mnist", copy_function=shutil.copyfile))
    path = folder / "train-images-idx3-ubyte.gz"
    whole = path.read_bytes()
    for content in (whole[:-1000], whole[:5_000_000] + bytes([whole[5_000_000] ^ 4]) + whole[5_000_001:]):
        path.write_bytes(content)
        with refused(str(path), "truncated or altered"):
            load("mnist", tmp_path, download=False)


def test_altered_content_is_refused_however_it_was_compressed(tmp_path: Path, monkeypatch) -> None:
    files = little_mnist()
    publish(monkeypatch, "mnist", files)
    name = "train-images-idx3-ubyte.gz"
    content = bytearray(gzip.decompress(files[name]))
    content[100] ^= 1
    path = write(tmp_path / "mnist", {**files, name: gzip.compress(bytes(content), mtime=0)}) / name
    with refused(str(path), "truncated or altered"):
        load("mnist", tmp_path, download=False)


@needs_cifar
@pytest.mark.slow
def test_real_cifar100(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("cifar")
    subprocess.run([sys.executable, REAL / "unpack.py", folder], check=True, capture_output=True)
    cifar = load("cifar100", folder, download=False)
    assert (cifar.x.shape, cifar.x_test.shape) == ((50_000, 3, 32, 32), (10_000, 3, 32, 32))
    assert torch.bincount(cifar.y).tolist() == [500] * 100
    assert torch.bincount(cifar.y_test).tolist() == [100] * 100
    assert (cifar.class_names[0], cifar.class_names[-1]) == ("apple", "worm")
    assert cifar.x.mean(0).abs().max() < 1e-5  # the mean image is gone
    assert cifar.class_names[cifar.y[0]] == "cattle"  # the first image is of a cow
    pixels = load("cifar100-pixels", folder, download=False)
    assert (pixels.x.min(), pixels.x.max()) == (0, 1)
    assert torch.equal(pixels.y, cifar.y)
    torch.testing.assert_close(pixels.x - pixels.x.double().mean(0).float(), cifar.x, atol=1e-6, rtol=0)


# Archives and pickles ---------------------------------------------------------------------------------------


def test_cifar100_from_its_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = little_cifar100()
    members = {f"cifar-100-python/{name}": content for name, content in files.items()}
    packed = tar({"../../evil": b"gotcha", "/train": b"not the one", **members})
    publish(monkeypatch, "cifar100", files, archive=("cifar-100-python.tar.gz", sha256(packed)))
    write(tmp_path / "data", {"cifar-100-python.tar.gz": packed})
    before = sorted(tmp_path.rglob("*"))
    cifar = load("cifar100", tmp_path / "data", download=False)
    assert sorted(tmp_path.rglob("*")) == before  # nothing was written
    assert cifar.class_names == ("apple", "bear", "can") and cifar.y_test.tolist() == [2, 1, 0]
    assert torch.allclose(cifar.x[:, 0, 0, 0] * 255, torch.tensor([-1.0, 0.0, 1.0]))
    assert torch.allclose(cifar.x_test[:, 2, 31, 31] * 255, torch.tensor([0.0, 1.0, 2.0]))


def test_plain_pixels_are_cifar100_with_its_mean_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = little_cifar100()
    write(tmp_path / "cifar-100-python", files)
    for name in ("cifar100", "cifar100-pixels"):
        publish(monkeypatch, name, files)
    centred, pixels = (load(name, tmp_path, download=False) for name in ("cifar100", "cifar100-pixels"))
    assert pixels.x.min() >= 0 and torch.equal((pixels.x * 255).round() / 255, pixels.x)
    torch.testing.assert_close(pixels.x - pixels.x.mean(0), centred.x)
    torch.testing.assert_close(pixels.x_test - pixels.x.mean(0), centred.x_test)


def test_an_archive_that_lacks_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = little_cifar100()
    packed = tar({"cifar-100-python/train": files["train"], "cifar-100-python/test": files["test"]})
    publish(monkeypatch, "cifar100", files, archive=("cifar-100-python.tar.gz", sha256(packed)))
    write(tmp_path / "data", {"cifar-100-python.tar.gz": packed})
    with refused("its archive lacks meta"):
        load("cifar100", tmp_path / "data", download=False)


def test_cifar10_from_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, "cifar10", little_cifar10())
    write(tmp_path / "cifar-10-batches-py", little_cifar10())
    cifar = load("cifar10", tmp_path, download=False)
    assert cifar.y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4] and cifar.class_names == tuple("abcde")
    assert torch.allclose(cifar.x[:, 1, 2, 3] * 255, cifar.y - 2.0, atol=1e-5)


class Malice:
    """Calls a function when unpickled."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("function", [os.system, eval, exec, getattr, subprocess.check_output])
def test_a_malicious_pickle_is_refused(function, protocol: int, tmp_path, monkeypatch) -> None:
    trace = tmp_path / "trace"
    evil = pickle.dumps({"data": Malice(function, f"touch {trace}")}, protocol=protocol)
    files = {**little_cifar100(), "train": evil}
    publish(monkeypatch, "cifar100", files)  # even where its checksum is right
    write(tmp_path / "data", files)
    with refused("train is not a CIFAR file", "wants to call"):
        load("cifar100", tmp_path / "data", download=False)
    assert not trace.exists()


@unhurried
@given(st.binary(max_size=60) | st.sampled_from([pickle.dumps([1]), pickle.dumps({"a": 1})[:-2]]))
def test_no_bytes_make_a_pickle_fail_otherwise(content: bytes) -> None:
    try:
        assert isinstance(unpickled(content, "train"), dict)
    except InputError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0\0\x08",
        b"\0\0\x08\3\0\0\0\1",
        struct.pack(">4BI", 0, 0, 8, 1, 3) + b"ab",
        struct.pack(">4BI", 0, 0, 8, 1, 1) + b"ab",
        struct.pack(">4BI", 0, 0, 9, 1, 2) + b"ab",
        struct.pack(">4BI", 1, 0, 8, 1, 2) + b"ab",
        struct.pack(">4B3I", 0, 0, 8, 3, *[2**32 - 1] * 3),
        gzip.compress(struct.pack(">4BI", 0, 0, 8, 1, 2) + b"ab", mtime=0),
    ],
)
def test_bad_idx_files_are_refused(content: bytes) -> None:
    with refused("labels.gz", "download it again"):
        read_idx(content, "labels.gz")


# Downloads --------------------------------------------------------------------------------------------------


def test_downloaded_once_past_a_dead_mirror_and_one_without_the_files(
    tmp_path: Path, server: Server, dead_mirror: str, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "served" / "mnist", little_mnist())
    mirrors = (dead_mirror, f"{server.url}empty/", f"{server.url}mnist/")
    publish(monkeypatch, "mnist", little_mnist(), mirrors=mirrors)
    assert load("mnist").x.shape == (20, 1, 28, 28)
    assert sorted(path.name for path in (cache / "mnist").iterdir()) == sorted(little_mnist())
    asked = len(server.asked)
    assert asked == 8
    assert load("mnist").y.equal(load("mnist", download=False).y)
    assert len(server.asked) == asked


def test_what_the_data_folder_lacks_is_downloaded(tmp_path, server, cache, monkeypatch) -> None:
    files = little_mnist()
    write(tmp_path / "served", files)
    publish(monkeypatch, "mnist", files, mirrors=(server.url,))
    lacking = files.pop("t10k-labels-idx1-ubyte.gz")
    write(tmp_path / "data", files)
    load("mnist", tmp_path / "data")
    assert server.asked == ["/t10k-labels-idx1-ubyte.gz"]
    assert (cache / "mnist" / "t10k-labels-idx1-ubyte.gz").read_bytes() == lacking
    assert not (tmp_path / "data" / "t10k-labels-idx1-ubyte.gz").exists()


def test_a_corrupted_answer_is_thrown_away(tmp_path, server, cache, dead_mirror, monkeypatch) -> None:
    write(tmp_path / "served", little_mnist(shade=1))
    write(tmp_path / "served" / "good", little_mnist())
    bad = (server.url, dead_mirror, f"{server.url}none/")
    publish(monkeypatch, "mnist", little_mnist(), mirrors=bad)
    with refused("train-images", "wrong checksum", "ConnectionError", "HTTP 404", "RWALK_DATA"):
        load("mnist")
    assert not any((cache / "mnist").iterdir())
    publish(monkeypatch, "mnist", little_mnist(), mirrors=(*bad, f"{server.url}good/"))
    assert load("mnist").x.max() * 255 == pytest.approx(9)


def test_a_damaged_cache_is_downloaded_again_or_refused(tmp_path, server, cache, monkeypatch) -> None:
    write(tmp_path / "served", little_mnist())
    publish(monkeypatch, "mnist", little_mnist(), mirrors=(server.url,))
    load("mnist")
    path = cache / "mnist" / "train-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-1])
    with refused(str(path), "truncated or altered"):
        load("mnist", download=False)
    server.asked.clear()
    load("mnist")
    assert server.asked == ["/train-labels-idx1-ubyte.gz"]


def test_without_leave_nothing_is_downloaded(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(monkeypatch, "mnist", little_mnist(), mirrors=(server.url,))
    with refused("mnist: no train-images-idx3-ubyte.gz", "allow the download", "RWALK_DATA"):
        load("mnist", download=False)
    assert not server.asked


def test_an_archive_is_downloaded_whole(tmp_path, server, cache, monkeypatch) -> None:
    files = little_cifar100()
    packed = tar({f"cifar-100-python/{name}": content for name, content in files.items()})
    write(tmp_path / "served", {"cifar-100-python.tar.gz": packed})
    archive = ("cifar-100-python.tar.gz", sha256(packed))
    publish(monkeypatch, "cifar100", files, archive=archive, mirrors=(server.url,))
    assert load("cifar100").y.tolist() == [0, 1, 2]
    assert [path.name for path in (cache / "cifar100").iterdir()] == ["cifar-100-python.tar.gz"]


def test_every_official_source_is_complete() -> None:
    for name, source in OFFICIAL.items():
        assert name.removesuffix("-pixels").removesuffix("-32") == source.name and source.mirrors
        assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in source.mirrors)
        downloaded = [source.archive[1]] if source.archive else source.files.values()
        assert all(len(bytes.fromhex(checksum)) == 32 for checksum in downloaded)


# Image folders ----------------------------------------------------------------------------------------------


def painted(path: Path, colour: object = 7, mode: str = "L", size: tuple[int, int] = (6, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)
    return path


def gallery(root: Path, classes: Mapping[str, int], each: int = 5) -> Path:
    for name, colour in classes.items():
        for number in range(each):
            painted(root / name / f"{number}.png", colour)
    return root


def test_a_folder_of_classes_is_divided(tmp_path: Path) -> None:
    root = gallery(tmp_path / "pets", {"dog": 51, "cat": 255})
    (root / "cat" / "notes.txt").write_text("not an image")
    (root / "cat" / "._0.png").write_text("what macOS leaves")
    (root / ".git").mkdir()
    pets = load(f"folder:{root}")
    assert (pets.name, pets.class_names) == ("pets", ("cat", "dog"))
    assert pets.x.shape == (8, 1, 4, 6) and pets.y_test.tolist() == [0, 1]
    assert pets.x[:, 0, 0, 0].tolist() == [pytest.approx([1, 0.2][label]) for label in pets.y.tolist()]
    assert len(split(pets, tasks=[["dog"], ["cat"]])) == 2


def test_train_and_test_folders_are_kept(tmp_path: Path) -> None:
    gallery(tmp_path / "train", {"a": 1, "b": 2, "c": 3}, each=1)
    gallery(tmp_path / "test", {"a": 1, "c": 3}, each=2)
    dataset = load(f"folder:{tmp_path}")
    assert dataset.y.tolist() == [0, 1, 2] and dataset.y_test.tolist() == [0, 0, 2, 2]
    gallery(tmp_path / "test", {"d": 4})
    with refused("test label 'd' is never trained"):
        load(f"folder:{tmp_path}")


@pytest.mark.parametrize(
    ("mode", "colour", "suffix", "pixel"),
    [
        ("1", 1, "png", [255]),
        ("L", 9, "PGM", [9]),
        ("LA", (9, 255), "png", [9]),
        ("LA", (9, 0), "png", [128]),
        ("RGB", (1, 2, 3), "bmp", [1, 2, 3]),
        ("RGBA", (1, 2, 3, 255), "png", [1, 2, 3]),
        ("RGBA", (1, 2, 3, 0), "png", [128, 128, 128]),
        ("I;16", 65535, "png", [1.0]),
        ("I;16", 4095, "tif", [4095 / 65535]),
        ("RGB", (1, 2, 3), "webp", None),
        ("P", 0, "gif", None),
        ("CMYK", (0, 0, 0, 0), "jpg", [255, 255, 255]),
    ],
)
def test_images_of_many_kinds(mode, colour, suffix, pixel, tmp_path: Path) -> None:
    image = read_image(painted(tmp_path / f"image.{suffix}", colour, mode))
    assert image.shape == (1 if mode in ("1", "L", "LA", "I;16") else 3, 4, 6)
    if pixel is not None:
        assert image[:, 0, 0].tolist() == pytest.approx(pixel)


def test_images_of_differing_sizes_are_refused_unless_a_size_is_given(tmp_path: Path) -> None:
    gallery(tmp_path, {"a": 1, "b": 2})
    odd = painted(tmp_path / "b" / "odd.png", size=(5, 4))
    with refused(str(odd), "5 × 4", str(tmp_path / "a" / "0.png"), "6 × 4", "--size 32"):
        load(f"folder:{tmp_path}")
    assert load(str(tmp_path), reading=Reading(size=3)).x.shape == (9, 1, 3, 3)
    with refused("size is 0"):
        Reading(size=0)


def test_images_are_resized_along_their_shorter_side_and_cropped_in_the_middle(tmp_path: Path) -> None:
    wide = np.zeros((8, 24), np.uint8)
    wide[:, 8:16] = 200  # the middle square
    path = tmp_path / "wide.png"
    Image.fromarray(wide).save(path)
    assert (read_image(path, ImageForm(1, 8, 8, 8)) == 200).all()
    assert (read_image(path, ImageForm(3, 4, 4, 4))[:, 1:3, 1:3] == 200).all()


def test_grey_images_among_coloured_ones_become_coloured(tmp_path: Path) -> None:
    gallery(tmp_path, {"a": 51, "b": 102})
    painted(tmp_path / "b" / "9.png", (255, 0, 51), "RGB")
    mixed = load(f"folder:{tmp_path}")
    assert mixed.x.shape[1:] == (3, 4, 6)
    pixels = {tuple(round(float(v) * 255) for v in x[:, 0, 0]) for x in torch.cat([mixed.x, mixed.x_test])}
    assert pixels == {(51, 51, 51), (102, 102, 102), (255, 0, 51)}


def test_photographs_are_shown_upright(tmp_path: Path) -> None:
    tall = np.zeros((16, 8), np.uint8)
    tall[:8] = 255  # light above
    turned = Image.fromarray(np.rot90(tall, 1).copy())  # as a camera on its side saves it
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("photo.jpg", "photo.png", "photo.tif", "photo.webp"):
        turned.save(tmp_path / name, exif=exif, quality=95)
        image = read_image(tmp_path / name)
        assert image.shape[1:] == (16, 8), name
        assert image[0, :7].min() > 200 and image[0, 9:].max() < 50, name
        assert form_of([tmp_path / name]).shape[1:] == (16, 8)


def test_tasks_by_folder_are_recognised_by_their_depth(tmp_path: Path) -> None:
    for week, classes in {"week10": {"cat": 3, "emu": 4}, "week2": {"cat": 1, "dog": 2}}.items():
        gallery(tmp_path / week, classes)
    dataset = load(str(tmp_path))
    assert dataset.class_names == ("cat", "dog", "emu") and dataset.arrivals.names == ("week2", "week10")
    stream = StreamSpec(str(tmp_path)).build()
    assert [task.classes for task in stream.tasks] == [(0, 1), (0, 2)]
    for task, shades in zip(stream.tasks, ({1, 2}, {3, 4}), strict=True):
        for index, x in ((task.train, stream.x), (task.test, stream.x_test)):
            assert {round(float(pixel) * 255) for pixel in x[index][:, 0, 0, 0]} == shades
        assert (len(task.train), len(task.test)) == (8, 2)  # a fifth of every class of every task
    assert len(StreamSpec(str(tmp_path), classes_per_task=1).build()) == 3  # a split of one's own goes first
    validated = StreamSpec(str(tmp_path), validation=0.25).build()
    assert [(len(task.train), len(task.test)) for task in validated.tasks] == [(6, 2), (6, 2)]
    with refused("which task comes when"):
        StreamSpec(str(tmp_path), order_seed=1).build()


def test_tasks_below_train_and_test(tmp_path: Path) -> None:
    for part in ("train", "val"):
        gallery(tmp_path / part / "1", {"a": 1, "b": 2}, each=3)
        gallery(tmp_path / part / "2", {"c": 3, "d": 4}, each=2)
    stream = StreamSpec(f"folder:{tmp_path}").build()
    assert [(task.classes, len(task.train), len(task.test)) for task in stream.tasks] == [
        ((0, 1), 6, 6),
        ((2, 3), 4, 4),
    ]
    gallery(tmp_path / "val" / "3", {"a": 1})
    with refused("test task '3' has no training example"):
        load(str(tmp_path))
    shutil.rmtree(tmp_path / "val")
    gallery(tmp_path / "val", {"a": 1})
    with refused("differ in depth"):
        load(str(tmp_path))


def test_folders_of_differing_depth_are_refused(tmp_path: Path) -> None:
    gallery(tmp_path / "week1", {"cat": 1, "dog": 2})
    gallery(tmp_path, {"emu": 3})
    with refused(str(tmp_path / "week1"), str(tmp_path / "emu"), "by task and class"):
        load(str(tmp_path))


def test_unreadable_images_are_named(tmp_path: Path) -> None:
    bad = gallery(tmp_path, {"a": 1}) / "a" / "9.png"
    whole = (tmp_path / "a" / "0.png").read_bytes()
    for content in (b"", b"no image", whole[:40], whole[:-28], b"%!PS-Adobe-3.0 EPSF-3.0\n"):
        bad.write_bytes(content)
        with refused(str(bad), "not a readable image"):
            load(f"folder:{tmp_path}")


@pytest.mark.parametrize("ink", ["black", "white"])
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_a_shape_that_is_in_the_transparency_alone_is_seen(ink: str, mode: str, tmp_path: Path) -> None:
    """Icons: all pixels have one colour, and which of them are transparent makes the picture."""
    stencil = np.zeros((8, 8), np.uint8)
    stencil[2:6, 3:5] = 255
    icon = Image.new("L", (8, 8), ink).convert("RGBA")
    icon.putalpha(Image.fromarray(stencil))
    if mode == "P":
        icon = Image.fromarray((stencil == 0).astype(np.uint8)).convert("P")
        icon.putpalette([0, 0, 0] * 256 if ink == "black" else [255] * 768)
        icon.save(tmp_path / "icon.png", transparency=1)
    else:
        icon.convert(mode).save(tmp_path / "icon.png")
    seen = read_image(tmp_path / "icon.png")
    ground, drawn = seen[0][stencil == 0], seen[0][stencil == 255]
    assert set(ground.tolist()) == {128} and set(drawn.tolist()) == {0 if ink == "black" else 255}


def test_images_of_16_bits_keep_their_values(tmp_path: Path) -> None:
    scans = np.random.default_rng(0).integers(0, 4096, (2, 3, 8, 12))  # 12 bits, as scanners write
    values = scans.astype(np.uint16)
    for label, part in zip("ab", values, strict=True):
        (tmp_path / "scans" / label).mkdir(parents=True)
        for number, each in enumerate(part):
            suffix = "png" if label == "a" else "tif"
            Image.fromarray(each).save(tmp_path / "scans" / label / f"{number}.{suffix}")
    read = load(str(tmp_path / "scans"))
    together = torch.cat([read.x, read.x_test])
    expected = {tuple(each.reshape(-1).tolist()) for each in values.reshape(6, 8, 12)}
    assert {tuple((x * 65535).round().int().reshape(-1).tolist()) for x in together} == expected
    painted(tmp_path / "scans" / "b" / "9.png", (255, 0, 0), "RGB", (12, 8))  # others may have 8
    mixed = load(str(tmp_path / "scans"))
    assert mixed.x.shape[1:] == (3, 8, 12) and torch.cat([mixed.x, mixed.x_test]).max() == 1.0
    assert load(str(tmp_path / "scans"), reading=Reading(size=4)).x.shape[1:] == (3, 4, 4)


def test_images_of_more_than_16_bits_are_refused(tmp_path: Path) -> None:
    gallery(tmp_path, {"a": 1})
    for pixels in (np.full((4, 6), 40_000, np.int32), np.full((4, 6), 0.5, np.float32)):
        Image.fromarray(pixels).save(tmp_path / "a" / "9.tif")
        with refused("9.tif", "more than 16 bits"):
            load(f"folder:{tmp_path}")


@pytest.mark.parametrize("limit", [10, 20])  # Pillow warns above the limit, and refuses above twice the limit
def test_a_decompression_bomb_is_refused(limit: int, tmp_path: Path, monkeypatch) -> None:
    gallery(tmp_path, {"a": 1})
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    with refused("0.png", "more pixels than is safe"):
        load(f"folder:{tmp_path}")


def test_an_archive_that_unpacks_to_fill_the_memory_is_refused(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "bomb.npz"
    np.savez_compressed(path, x=np.zeros((2000, 500), np.float32), y=np.arange(2000) % 2)
    assert len(load(str(path)).x)  # alone it does no harm
    monkeypatch.setattr(npz, "SUSPICIOUS", 1 << 20)
    monkeypatch.setattr(np, "load", None)
    with refused("bomb.npz", "would unpack to"):
        load(str(path))


def test_links_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    root = gallery(tmp_path / "inside", {"a": 1, "b": 2})
    secret = painted(tmp_path / "outside" / "secret.png")
    (root / "a" / "same.png").symlink_to(root / "a" / "0.png")
    assert len(load(f"folder:{root}").y) == 9  # a link within is an image like any other
    link = root / "a" / "link.png"
    link.symlink_to(secret)
    with refused(str(link), "link out of"):
        load(f"folder:{root}")
    link.unlink()
    (root / "c").symlink_to(secret.parent)
    with refused("secret.png", "link out of"):
        load(f"folder:{root}")
    (root / "c").unlink()
    link.symlink_to(link)
    with refused(str(link), "a broken link"):
        load(f"folder:{root}")


def test_folders_without_classes_or_images_are_refused(tmp_path: Path) -> None:
    with refused("no folder", "nowhere"):
        load(f"folder:{tmp_path}/nowhere")
    with refused("no sub-folder"):
        load(f"folder:{tmp_path}")
    gallery(tmp_path, {"a": 1})
    (tmp_path / "b").mkdir()
    with refused(str(tmp_path / "b"), "no image"):
        load(f"folder:{tmp_path}")
    painted(tmp_path / "b" / "only.png")
    with refused("class 'b' has one training example"):
        load(f"folder:{tmp_path}")


# Array files ------------------------------------------------------------------------------------------------


def test_npz_whose_member_is_not_an_array(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as archive:
        archive.writestr("x.npy", b"not an array")
        archive.writestr("y.npy", b"neither")
    with refused("mine.npz", "'x' is not an array"):
        load(str(tmp_path / "mine.npz"))


def test_npz_with_and_without_a_test_set(tmp_path: Path) -> None:
    x, y = np.arange(20, dtype=np.uint8).reshape(10, 2), np.array(["u", "v"] * 5)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    mine = load(str(tmp_path / "mine.npz"))
    assert (mine.name, mine.class_names, len(mine.y), len(mine.y_test)) == ("mine", ("u", "v"), 8, 2)
    assert torch.cat([mine.x, mine.x_test]).max() * 255 == pytest.approx(19)
    np.savez(tmp_path / "mine.npz", x=x * 1.0, y=y, x_test=x[:2] * 1.0, y_test=y[:2])
    mine = load(str(tmp_path / "mine.npz"))
    assert (len(mine.y), mine.y_test.tolist(), mine.x.max()) == (10, [0, 1], 19)


def test_bad_npz_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.npz"
    with refused("no file", str(path)):
        load(str(path))
    for content in (b"", b"no zip", b"PK\x03\x04"):
        path.write_bytes(content)
        with refused(str(path), "cannot be read"):
            load(str(path))
    with path.open("wb") as file:
        np.save(file, np.zeros(3))
    with refused(str(path), "cannot be read"):
        load(str(path))
    np.savez(path, x=np.zeros((2, 2)))
    with refused(str(path), "no array 'y'"):
        load(str(path))
    np.savez(path, x=np.zeros((2, 2)), y=np.array([0, 0]), x_test=np.zeros((1, 2)))
    with refused("both or neither"):
        load(str(path))
    np.savez(path, x=np.zeros((2, 2)), y=np.array([{}, {}], dtype=object))
    with refused(str(path), "cannot be read", "numbers and strings only"):
        load(str(path))
    np.savez(path, x=np.full((4, 2), np.nan), y=np.zeros(4, int))
    with refused("NaN or infinity"):
        load(str(path))


@unhurried
@given(data=st.data())
def test_any_damage_to_an_npz_file_is_survived(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    packed = io.BytesIO()
    np.savez_compressed(packed, x=np.eye(4), y=np.array([0, 0, 1, 1]))
    content = bytearray(packed.getvalue())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.getbasetemp() / "fuzzed.npz"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
    try:
        load(str(path))
    except InputError as error:
        assert "\n" not in str(error)
