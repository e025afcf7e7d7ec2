"""MNIST's files, and those of datasets published in the same format."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from rwalk.data.arrays import unit_interval
from rwalk.data.streams import Dataset
from rwalk.errors import InputError

DIGIT_NAMES = tuple("0123456789")
FASHION_NAMES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
FILES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def read(name: str, files: Mapping[str, bytes], margin: int = 0) -> Dataset:
    x, y, x_test, y_test = (read_idx(files[file], file) for file in FILES)
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
