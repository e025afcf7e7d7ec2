"""Images in files: opened safely and converted to one form; and folders of them, by class or by task and class."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rwalk.data.datasets.npz import optional
from rwalk.data.file_options import LARGEST_SIDE
from rwalk.data.streams import Dataset
from rwalk.errors import InputError

TESTS = ("test", "val", "valid", "validation")  # what people call the part beside train/
# All that is opened, by suffix. Pillow has more, but some formats start other programs (EPS).
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
GREY = ("1", "L", "LA", "La", "I", "I;16", "I;16L", "I;16B", "I;16N")
DEEPEST = 65535  # the largest value of a pixel of 16 bits
# Shown through transparent pixels: black and white shapes both stand out.
BACKDROP = (128, 128, 128, 255)
ORIENTATION = 0x0112  # Exif's tag for the camera's orientation

# The transposition that puts an image upright, by that tag's values.
UPRIGHT = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}


@dataclass(frozen=True)
class ImageForm:
    """The form that all images are converted to: grey or colour, and squares of `size` pixels if it is set.

    network   the factory of the network that takes them, `package.module:name`; None for none
    prepared  what that network's own preprocessing makes of a fixed image, in numbers; None if it has none
    """

    channels: int
    height: int
    width: int
    size: int | None = None
    network: str | None = field(default=None, compare=False)
    prepared: tuple[float, ...] | None = field(default=None, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.channels, self.height, self.width

    def to_json(self) -> dict[str, Any]:
        record = {"kind": "images", "shape": list(self.shape), "size": self.size}
        if self.network is None:
            return record
        return {**record, "network": self.network, "prepared": self.prepared and list(self.prepared)}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ImageForm:
        channels, height, width = record["shape"]
        network, prepared = record.get("network"), record.get("prepared")
        sides = [height, width] if record["size"] is None else [height, width, record["size"]]
        if prepared is not None:
            sides.append(channels)
            if not prepared or not all(type(each) is float and math.isfinite(each) for each in prepared):
                raise ValueError("an impossible preprocessing")
        elif channels not in (1, 3):
            raise ValueError("images of an impossible form")
        if not isinstance(network, str | None) or not all(
            type(side) is int and 0 < side <= LARGEST_SIDE for side in sides
        ):
            raise ValueError("images of an impossible form")
        return cls(channels, height, width, record["size"], network, None if prepared is None else tuple(prepared))


def is_image(path: Path) -> bool:
    return path.suffix.lower() in FORMATS and not path.name.startswith(".")


def form_of(paths: Sequence[Path], size: int | None = None) -> ImageForm:
    """The form that all these images can be converted to, as found in the headers of their files.

    If one image is in colour, all are read in colour.
    """
    found = [_look_at(path) for path in paths]
    channels = max(channels for channels, _, _ in found)
    if size is not None:
        return ImageForm(channels, size, size, size)
    first = found[0][1:]
    for path, (_, *sides) in zip(paths, found, strict=True):
        if tuple(sides) != first:
            raise InputError(
                f"{str(path)!r} has {sides[1]} × {sides[0]} pixels, but {str(paths[0])!r} has "
                f"{first[1]} × {first[0]}: choose one size for all, --size 32 (in Python size=32)"
            )
    return ImageForm(channels, *first)


def _look_at(path: Path) -> tuple[int, int, int]:
    """Channels, height and width."""
    with opened(path) as image:
        width, height = image.size
        if _orientation(image) >= 5:
            width, height = height, width
        return 1 if image.mode in GREY else 3, height, width


def read_images(paths: Sequence[Path], form: ImageForm) -> NDArray[Any]:
    """Images [N, channels, height, width]: bytes or, if one has 16 bits per pixel, float32 from 0 to 1."""
    images: NDArray[Any] = np.empty((len(paths), *form.shape), np.uint8)
    for place, path in enumerate(paths):
        pixels = read_image(path, form)
        if pixels.shape != form.shape:
            raise InputError(
                f"{str(path)!r} has {pixels.shape[2]} × {pixels.shape[1]} pixels, not {form.width} × "
                f"{form.height}: resize it, or choose one size for all, --size 32 (in Python size=32)"
            )
        if pixels.dtype != images.dtype:
            images, pixels = unit_pixels(images), unit_pixels(pixels)
        images[place] = pixels
    return images


def unit_pixels(pixels: NDArray[Any]) -> NDArray[np.float32]:
    """Pixels as float32 from 0 to 1."""
    return pixels.astype(np.float32) / np.float32(255) if pixels.dtype == np.uint8 else pixels


def read_image(path: Path, form: ImageForm | None = None) -> NDArray[Any]:
    """An image, [1, height, width] if it is grey, [3, height, width] if not; or of that form."""
    with opened(path) as image:
        return pixels_of(image, form)


def pixels_of(image: Any, form: ImageForm | None = None) -> NDArray[Any]:
    """Pillow's image, upright: bytes or, if it has 16 bits per pixel, float32 from 0 to 1.

    Transparent pixels show a grey backdrop: their own colour is arbitrary, and a shape may be in them alone.
    """
    pillow = optional("PIL.Image", "pillow")
    grey = image.mode in GREY if form is None else form.channels == 1
    turn = UPRIGHT.get(_orientation(image))
    deep = image.mode.startswith("I")
    if deep:
        shown = pillow.fromarray(np.asarray(image).astype(np.float32) / DEEPEST)
    else:
        if image.has_transparency_data:
            backdrop = pillow.new("RGBA", image.size, BACKDROP)
            backdrop.alpha_composite(image.convert("RGBA"))
            image = backdrop
        shown = image.convert("L" if grey else "RGB")
    if turn:
        shown = shown.transpose(pillow.Transpose[turn])
    if form is not None and form.size is not None:
        shown = optional("PIL.ImageOps", "pillow").fit(shown, (form.size, form.size), pillow.Resampling.BILINEAR)
    pixels = np.atleast_3d(np.asarray(shown)).transpose(2, 0, 1)
    return pixels.repeat(3, axis=0) if deep and not grey else pixels


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """The image in a file; an InputError of one line if it cannot be read."""
    pillow = optional("PIL.Image", "pillow")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pillow.DecompressionBombWarning)
            # By its bytes, not its path: mapped into memory, a turned TIFF image is scrambled by Pillow.
            with open(path, "rb") as file, pillow.open(file, formats=[FORMATS[path.suffix.lower()]]) as image:
                if image.mode == "F" or (image.mode == "I" and image.format not in ("PNG", "PPM")):
                    raise InputError(
                        f"{str(path)!r} has more than 16 bits per pixel: convert it, or give an .npz file"
                    )
                yield image
    except InputError:
        raise
    except (pillow.DecompressionBombError, pillow.DecompressionBombWarning):
        raise InputError(f"{str(path)!r} has more pixels than is safe to unpack: shrink or remove it") from None
    except Exception:  # a damaged image may raise anything
        raise InputError(f"{str(path)!r} is not a readable image: repair or remove it") from None


def _orientation(image: Any) -> int:
    """How a photograph has to be turned, by its orientation tag.

    Pillow turns TIFF images already; other formats would have to be unpacked.
    """
    kind = getattr(image, "format", None)
    if kind not in ("JPEG", "MPO", "WEBP") and not (kind == "PNG" and "exif" in image.info):
        return 1
    try:
        return int(image.getexif().get(ORIENTATION, 1))
    except Exception:  # a damaged tag does not spoil the image
        return 1


# Folders


class Images(NamedTuple):
    """Images, the folders they are in and, if tasks are given, the folders above those."""

    paths: list[Path]
    labels: list[str]
    tasks: list[str] | None


def read_folder(root: Path, seed: int = 0, size: int | None = None) -> Dataset:
    """Images by class, or by task and class; below `train` and `test` if there are both.

    Sub-folders with images are classes. Sub-folders with such folders in them are tasks, in the order of their
    names.
    """
    train, test = parts_of(root)
    shown = labelled_images(train, root)
    tested = labelled_images(test, root) if test else None
    form = form_of([*shown.paths, *(tested.paths if tested else ())], size)
    name = root.resolve().name
    x = read_images(shown.paths, form)
    if tested is None:
        return Dataset.from_arrays(x, shown.labels, name=name, seed=seed, arrival=shown.tasks, form=form)
    if (shown.tasks is None) != (tested.tasks is None):
        raise InputError(
            f"{str(train)!r} and {str(test)!r} differ in depth: put both by class, or by task and class"
        )
    x_test = read_images(tested.paths, form)
    return Dataset.from_arrays(
        x,
        shown.labels,
        x_test,
        tested.labels,
        name=name,
        arrival=shown.tasks,
        arrival_test=tested.tasks,
        form=form,
    )


def parts_of(root: Path) -> tuple[Path, Path | None]:
    """Where the training images are, and the test images if they have a folder of their own."""
    if not root.is_dir():
        raise InputError(f"there is no folder {str(root)!r}: correct the path")
    if not (root / "train").is_dir():
        return root, None
    tests = [root / name for name in TESTS if (root / name).is_dir()]
    others = {path.name for path in _folders_in(root)} - {"train", *TESTS}
    return (root / "train", tests[0] if tests else None) if tests or not others else (root, None)


def labelled_images(part: Path, root: Path) -> Images:
    """The images below `part` with their classes and tasks; none may lead out of `root`."""
    classes = _class_folders(part)
    paths: list[Path] = []
    tasks: list[str] = []
    for folder in classes:
        images = sorted(path for path in folder.iterdir() if is_image(path))
        if not images:
            raise InputError(f"{str(folder)!r} has no image ({', '.join(FORMATS)}): add some or remove it")
        paths += images
        tasks += [folder.parent.name] * len(images)
    if not paths:
        raise InputError(f"{str(part)!r} has no sub-folder: put the images of every class into one of its own")
    check_inside(paths, root)
    return Images(paths, [path.parent.name for path in paths], tasks if classes[0].parent != part else None)


def check_inside(paths: list[Path], root: Path) -> None:
    """Refuse links to nothing, and links out of the folder."""
    inside = os.path.realpath(root)
    for path in paths:
        if not path.is_file():
            raise InputError(f"{str(path)!r} is not a file, or is a broken link: remove it")
        if not Path(os.path.realpath(path)).is_relative_to(inside):
            raise InputError(f"{str(path)!r} is a link out of {str(root)!r}: copy the image there instead")


def _class_folders(part: Path) -> list[Path]:
    """One folder per class, or per task and class, depending on how deep the folders are."""
    folders = list(_folders_in(part))
    tasks = [folder for folder in folders if _is_task(folder)]
    if not tasks:
        return folders
    if others := [folder for folder in folders if folder not in tasks]:
        raise InputError(
            f"{str(tasks[0])!r} has folders of images and {str(others[0])!r} has none: put all images by class, "
            "or all by task and class"
        )
    return [folder for task in tasks for folder in _folders_in(task)]


def _is_task(folder: Path) -> bool:
    """Whether it contains folders of images, and no images of its own."""
    if any(is_image(path) for path in folder.iterdir()):
        return False
    return any(is_image(path) for inner in _folders_in(folder) for path in inner.iterdir())


def _folders_in(folder: Path) -> Iterator[Path]:
    yield from (path for path in sorted(folder.iterdir()) if path.is_dir() and not path.name.startswith("."))
