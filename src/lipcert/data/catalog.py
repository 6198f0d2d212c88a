"""What there is to know about the named data sets before any of them is read; free of torch.

The facts are in ``catalog.json``. Checksums are of the values (``dataset.py``), train and test, images and labels.
A data set whose images come as JPEG has none, since decoders differ.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from lipcert.errors import DataNotFound


@dataclass(frozen=True)
class Entry:
    """One named data set."""

    name: str
    classes: int
    images: dict[str, int]
    shape: tuple[int, int, int]
    home: str
    """The page of its authors."""
    accepts: str = ""
    """What ``--from`` may point at."""
    embedded: bool = False
    """Whether its prepared form is a file of this package."""
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


HERE = Path(__file__).parent
CATALOG = {
    known.name: known
    for known in TypeAdapter(list[Entry]).validate_json(HERE.joinpath("catalog.json").read_bytes())
}


def entry(name: str) -> Entry:
    """Return the data set called ``name``, or raise an error that suggests one."""
    if name in CATALOG:
        return CATALOG[name]
    raise DataNotFound(unknown(name))


def unknown(name: str) -> str:
    """Return what to say about a name that is none."""
    plain = {known.replace("_", ""): known for known in CATALOG}
    key = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    close = difflib.get_close_matches(key, plain, n=2, cutoff=0.6)
    hint = f"Did you mean {' or '.join(plain[match] for match in close)}? " if close else ""
    return (
        f"expected the name of a data set, one of {list(CATALOG)}, or a path to one; got {name!r}. "
        f"{hint}A folder of images or an .npz file is named by its path."
    )


def data_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Return where prepared data live: ``root``, else $LIPCERT_DATA, else ~/.cache/lipcert."""
    chosen = root or os.environ.get("LIPCERT_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "lipcert"


def prepared_path(name: str, root: str | os.PathLike[str] | None = None) -> Path:
    """Return the file that holds the prepared form of a named data set."""
    return (HERE if entry(name).embedded else data_root(root)) / f"{name}.npz"
