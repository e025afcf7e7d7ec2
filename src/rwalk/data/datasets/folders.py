"""Image folders: one sub-folder per class, or one per task with one per class in each."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rwalk.data.datasets.images import FORMATS, form_of, is_image, read_images
from rwalk.data.streams import Dataset
from rwalk.errors import InputError

TESTS = ("test", "val", "valid", "validation")  # what people call the part beside train/


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
