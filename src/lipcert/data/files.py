"""Named bytes out of a folder, a tar or a zip archive: read in memory, within limits, nothing extracted.

An archive may be hostile or damaged, so sizes are checked before anything is allocated: no file may exceed
``LARGEST_FILE`` (no array of images ``LARGEST_ARRAY``), and whatever is compressed may grow at most ``RATIO``
times (plus ``SLACK``), which no images do.
"""

from __future__ import annotations

import errno
import gzip
import io
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lipcert.errors import DataNotFound

LARGEST_FILE, LARGEST_ARRAY = 2 << 30, 64 << 30
RATIO, SLACK = 200, 64 << 20
DEPTH = 6  # folders below the one that was named; tiny-imagenet-200 needs four
DAMAGE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, gzip.BadGzipFile),
    *(RuntimeError, IndexError, OverflowError, MemoryError),
)
GZIP = b"\x1f\x8b"


@dataclass(frozen=True)
class Files:
    """The names found, with forward slashes and sorted, and how to read one."""

    path: Path
    names: tuple[str, ...]
    read: Callable[[str], bytes]

    def has(self, *names: str) -> bool:
        """Whether there is a file with one of these names, in any folder."""
        return any(name.rsplit("/", 1)[-1] in names for name in self.names)

    def find(self, name: str) -> tuple[bytes, str]:
        """Return the content of the file called ``name``, the shallowest if there are several, and where it is."""
        found = sorted((n for n in self.names if n.rsplit("/", 1)[-1] == name), key=lambda n: (n.count("/"), n))
        if not found:
            raise DataNotFound(
                f"{self.path}: there is no file {name} in it. The copy is incomplete: fetch it again."
            )
        return self.read(found[0]), f"{self.path}: {found[0]}"


@contextmanager
def open_files(path: Path) -> Iterator[Files]:
    """Open a folder, a .tar, a .tar.gz or a .zip."""
    if path.is_dir():
        yield Files(path, tuple(sorted(_walk(path))), lambda name: _read_plain(path / name))
    elif not path.exists():
        raise DataNotFound(f"{path}: there is no such folder, archive or .npz file. Check the path.")
    elif not path.is_file():
        raise ValueError(f"{path}: it is neither a folder nor a regular file. Check the path.")
    elif zipfile.is_zipfile(path):
        with open_zip(path) as archive:
            members = {info.filename: info for info in archive.infolist() if not info.is_dir()}
            yield Files(path, tuple(sorted(members)), lambda name: _read_member(path, archive, members[name]))
    else:
        content, places = _read_tar(path)
        yield Files(path, tuple(sorted(places)), lambda name: content[places[name]])


def open_zip(path: Path) -> zipfile.ZipFile:
    """Open a zip archive whose members are stored or deflated."""
    with name_damage(path):
        archive = zipfile.ZipFile(path)
    for info in archive.infolist():
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            archive.close()
            raise ValueError(
                f"{path}: {info.filename!r:.80} is neither stored nor deflated. Pack the archive again."
            )
    return archive


@contextmanager
def name_damage(path: Path | str) -> Iterator[None]:
    """Turn whatever a library says about broken bytes into one ValueError that names the file."""
    try:
        yield
    except (*DAMAGE, OSError) as error:
        if isinstance(error, OSError) and not isinstance(error, DAMAGE) and error.errno not in (None, errno.EINVAL):
            raise  # the disk, not the file
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(f"{path}: the file is damaged ({reason}). Fetch it again.") from error


def check_size(path: Path | str, size: int, compressed: int | None = None, *, largest: int = LARGEST_FILE) -> None:
    """Refuse a declared size before anything is allocated."""
    limit = largest if compressed is None else min(largest, SLACK + RATIO * compressed)
    if size > limit:
        raise ValueError(
            f"{path}: expected at most {limit:,} bytes; got {size:,} declared. "
            "Not a data set lipcert reads: check the file."
        )


def _walk(path: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise error

    seen: set[Path] = set()
    for folder, below, files in os.walk(path, followlinks=True, onerror=refuse):
        relative, here = Path(folder).relative_to(path), Path(folder).resolve()
        again = here in seen  # by a link back to a folder that was read already
        seen.add(here)
        if again or len(relative.parts) >= DEPTH:
            below.clear()
        yield from ((relative / file).as_posix() for file in files if not again)


def _read_plain(path: Path) -> bytes:
    if not path.is_file():  # a pipe would never end
        raise DataNotFound(f"{path} is not a file. Check the path.")
    check_size(path, path.stat().st_size)
    return path.read_bytes()


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    check_size(f"{path}: {info.filename}", info.file_size, info.compress_size)
    with name_damage(f"{path}: {info.filename}"):
        return archive.read(info)


def _read_tar(path: Path) -> tuple[bytes, dict[str, slice]]:
    """Return the unpacked archive, and where in it each file is."""
    limit = min(LARGEST_FILE, SLACK + RATIO * path.stat().st_size)
    with name_damage(path), path.open("rb") as raw:
        packed = raw.read(2) == GZIP
        raw.seek(0)
        content = (gzip.GzipFile(fileobj=raw) if packed else raw).read(limit + 1)
        check_size(path, len(content), largest=limit)  # tar headers declare sizes of their own, within this one
        try:
            with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
                members = [member for member in archive if member.isreg()]
        except tarfile.ReadError:
            raise ValueError(
                f"{path}: expected a folder, a .tar, .tar.gz or .zip archive or an .npz file; got another kind of "
                "file, or one cut short. Name the folder that holds it, or the archive as it was downloaded."
            ) from None
    for member in members:
        if member.issparse():  # its holes take no space in the file
            raise ValueError(f"{path}: {member.name!r:.80} is a sparse file. Pack the archive again.")
    places = {m.name.removeprefix("./"): slice(m.offset_data, m.offset_data + m.size) for m in members}
    return content, places
