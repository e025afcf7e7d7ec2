"""Image folders: one sub-folder per class."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rwalk.data.datasets.optional import optional
from rwalk.data.streams import Dataset
from rwalk.errors import InputError

# The formats that are opened, by suffix. Pillow knows more, but some of them start other programs (EPS).
FORMATS = {
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


def read_folder(root: Path, seed: int) -> Dataset:
    """Images of one shape, one sub-folder per class; below `train` and `test` if there are both."""
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
            if path.suffix.lower() in FORMATS and not path.name.startswith(".")
        ]
        if not images:
            raise InputError(f"{str(folder)!r} has no image ({', '.join(FORMATS)}): add some or remove it")
        paths += images
    if not paths:
        raise InputError(f"{str(part)!r} has no sub-folder: put the images of every class into one of its own")
    for path in paths:
        if not path.is_file():
            raise InputError(f"{str(path)!r} is not a file, or is a broken link: remove it")
        if not Path(os.path.realpath(path)).is_relative_to(inside):
            raise InputError(f"{str(path)!r} is a link out of {str(root)!r}: copy the image there instead")
    return paths, [path.parent.name for path in paths]


def _pixels(paths: Sequence[Path]) -> NDArray[np.uint8]:
    """Images as bytes [N, channels, height, width]."""
    images: list[NDArray[np.uint8]] = []
    for path in paths:
        images.append(read_image(path))
        if images[-1].shape != images[0].shape:
            raise InputError(
                f"{str(path)!r} has shape {list(images[-1].shape)}, but {str(paths[0])!r} has "
                f"{list(images[0].shape)}: bring all images to one size, all grey or all coloured"
            )
    return np.stack(images)


def read_image(path: Path) -> NDArray[np.uint8]:
    """An image as bytes, [1, height, width] if it is grey, [3, height, width] if not."""
    pillow = optional("PIL.Image", "pillow")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            with pillow.open(path, formats=[FORMATS[path.suffix.lower()]]) as image:
                mode = image.mode
                pixels = np.asarray(image.convert("L" if mode in ("1", "L", "LA") else "RGB"))
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise InputError(f"{str(path)!r} has more pixels than is safe to unpack: shrink or remove it") from None
    except Exception:  # a damaged image may raise anything
        raise InputError(f"{str(path)!r} is not a readable image: repair or remove it") from None
    if mode.startswith(("I", "F")):
        raise InputError(f"{str(path)!r} has more than 8 bits per pixel: convert it, or give an .npz file")
    return np.atleast_3d(pixels).transpose(2, 0, 1)
