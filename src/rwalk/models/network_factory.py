"""The user's own pre-trained network: a factory `package.module:name` makes it, with its preprocessing of images.

A factory is code, so it is imported only if the user names it. A model file has its name, the fingerprint of the
network, and numbers by which another preprocessing is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from rwalk import model_file
from rwalk.classifier.estimator import IncrementalClassifier
from rwalk.classifier.estimator_files import reading
from rwalk.classifier.network import NetworkClassifier
from rwalk.data.datasets.images import ImageForm, read_image
from rwalk.data.datasets.npz import optional
from rwalk.data.large_files import Pictures, Source
from rwalk.errors import InputError, first_line
from rwalk.escaping import shown
from rwalk.registry import imported

COLOUR = ImageForm(3, 1, 1)  # images are read in colour, in their own sizes
PROBE = 96, 128  # height and width of a fixed image, by which preprocessings are compared
TOLERANCE = 0.02  # of the probe's deviation: other versions of a library resize a little differently


class Backbone(NamedTuple):
    """A network, and how its images are made: `prepare` is None if it takes them as they are read."""

    name: str
    network: nn.Module
    prepare: Preparation | None

    def form(self) -> ImageForm | None:
        """The form of its inputs, where its own preprocessing makes them."""
        if self.prepare is None:
            return None
        channels, height, width = self.prepare.shape
        return ImageForm(channels, height, width, network=self.name, prepared=self.prepare.prepared)


@dataclass(frozen=True)
class Preparation:
    """A network's own preprocessing: an image becomes an array [channels, height, width].

    arrays    whether the function takes uint8 arrays [height, width, 3], not Pillow's images
    prepared  mean and deviation of every channel of a fixed image
    """

    name: str
    function: Callable[[Any], Any]
    arrays: bool
    shape: tuple[int, int, int]
    prepared: tuple[float, ...]

    @classmethod
    def of(cls, name: str, function: Any) -> Preparation:
        """Determine the types of the function on a fixed image."""
        if not callable(function):
            raise InputError(f"the preprocessing of {name!r} cannot be called: give a function of an image")
        image, errors = _probe(), []
        for arrays in (False, True):
            try:
                found = _array(function(image if arrays else _pillow(image)))
            except Exception as error:  # code of the user's own may raise anything
                errors.append(f"{type(error).__name__}: {first_line(error)}")
                continue
            if found.ndim != 3:
                raise InputError(
                    f"the preprocessing of {name!r} gives the shape {list(found.shape)}: give [channels, height, "
                    "width]"
                )
            if not np.array_equal(found, _array(function(image if arrays else _pillow(image)))):
                raise InputError(
                    f"the preprocessing of {name!r} gives two results for one image: give the one for "
                    "evaluation, without random changes"
                )
            channels, height, width = found.shape
            prepared = [*found.mean((1, 2)).tolist(), *found.std((1, 2)).tolist()]
            return cls(name, function, arrays, (channels, height, width), tuple(prepared))
        raise InputError(
            f"the preprocessing of {name!r} takes neither Pillow's images ({errors[0]}) nor arrays ({errors[1]})"
        )

    def __call__(self, path: Path) -> NDArray[np.float32]:
        """The network's input of the image in a file."""
        pixels = read_image(path, COLOUR)
        if pixels.dtype != np.uint8:
            pixels = (pixels * 255).round().astype(np.uint8)
        image = np.ascontiguousarray(pixels.transpose(1, 2, 0))
        found = _array(self.function(image if self.arrays else _pillow(image)))
        if found.shape != self.shape:
            raise InputError(
                f"the preprocessing of {self.name!r} gives the shape {list(found.shape)} for {str(path)!r} and "
                f"{list(self.shape)} for others: let it resize and crop"
            )
        return found

    def check(self, form: ImageForm, path: Path) -> None:
        """Refuse a preprocessing other than the one that a model was learned with."""
        before, now = np.array(form.prepared or ()), np.array(self.prepared)
        if (
            form.shape != self.shape
            or before.shape != now.shape
            or np.abs(before - now).max() > TOLERANCE * max(now[len(now) // 2 :].max(), 1e-9)
        ):
            raise InputError(
                f"{path} was learned with another preprocessing than that of {self.name!r}: give that"
            )


@dataclass(frozen=True)
class Prepared(Pictures):
    """Images as a network's own preprocessing makes them."""

    prepare: Preparation | None = None

    def _read(self, paths: list[Path]) -> NDArray[np.float32]:
        assert self.prepare is not None
        return np.stack([self.prepare(path) for path in paths])


@cache
def backbone(name: str) -> Backbone:
    """The network that a factory `package.module:name` makes."""
    if ":" not in name:
        raise InputError(f"network {name!r} is no factory: name it package.module:name")
    made: Any = imported(name, "network")
    if not isinstance(made, nn.Module):
        try:
            made = made()
        except Exception as error:  # code of the user's own may raise anything
            raise InputError(f"network {name!r} fails ({type(error).__name__}: {first_line(error)})") from error
    network, function = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(network, nn.Module):
        raise InputError(
            f"network {name!r} makes a {type(network).__name__}: return an nn.Module, or (module, preprocessing)"
        )
    return Backbone(name, network, None if function is None else Preparation.of(name, function))


def load_with(path: Path, name: str | None) -> tuple[IncrementalClassifier, Backbone | None]:
    """The model in a file, and the network that it needs, whose factory the user names."""
    with reading(path):
        note, kind = model_file.note_of(path), model_file.header(path).get("format")
    form = note.get("form") if isinstance(note, dict) else None
    needed = form.get("network") if isinstance(form, dict) else None
    if name is None:
        if needed is not None:
            needed = shown(needed)
            raise InputError(f"{path} needs its network, which is code: add --network {needed} if you trust it")
        try:
            return IncrementalClassifier.load(path), None
        except InputError as error:
            if "network=" not in str(error):
                raise
            raise InputError(
                f"{path} needs its network, which no file holds: name it, --network module:factory"
            ) from error
    if kind in NetworkClassifier._formats:  # the factory makes the network that was trained
        return IncrementalClassifier.load(path, network=name), None
    own = backbone(name)
    trained = IncrementalClassifier.load(path, network=own.network)
    known = trained.form_
    if isinstance(known, ImageForm):
        if (known.prepared is None) != (own.prepare is None):
            which = "without" if known.prepared is None else "with"
            raise InputError(f"{path} was learned {which} a preprocessing of its network: name the same factory")
        if own.prepare is not None:
            own.prepare.check(known, path)
        trained.form_ = replace(known, network=name)
    return trained, own


def through(source: Source, own: Backbone) -> Source:
    """The same images, as this network takes them."""
    if not isinstance(source, Pictures):
        raise InputError("--network takes images: give a folder of images")
    form = replace(source.form, network=own.name)
    if own.prepare is None:
        return replace(source, form=form)
    return Prepared(source.paths, source.labels, form, own.prepare)


def _probe() -> NDArray[np.uint8]:
    """An image [height, width, 3] with slopes, edges and a different range in every channel."""
    rows, columns = np.indices(PROBE)
    channels = [2 * rows + 30, 255 - columns, 40 + 120 * ((rows // 24 + columns // 16) % 2)]
    return np.stack(channels, axis=2).astype(np.uint8)


def _pillow(image: NDArray[np.uint8]) -> Any:
    return optional("PIL.Image", "pillow").fromarray(image)


def _array(found: Any) -> NDArray[np.float32]:
    if isinstance(found, Tensor):
        found = found.detach().cpu().numpy()
    array = np.asarray(found, dtype=np.float32)
    return array[0] if array.ndim == 4 and len(array) == 1 else array
