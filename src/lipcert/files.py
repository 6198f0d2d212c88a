"""Files that are never half written, and folders that one process at a time works in."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TORCH_WRITER = ("PytorchStreamWriter", "inline_container", "unexpected pos", "iostream")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path``, which takes its place when the block ends without an error.

    The file is flushed to disk first, so a kill or a power cut at any moment leaves the old file or the new one.
    Its permissions are those of any new file (some libraries write files that only their owner can read).
    """
    if not path.parent.is_dir():
        raise ValueError(f"the folder of {path} does not exist. Create it, or choose another --out.")
    temporary = path.with_name(f".{os.getpid()}.{path.name}")  # some writers look at the ending
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        yield temporary
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # This is how torch and safetensors report a full disk.
        text = str(error)
        by_torch = isinstance(error, RuntimeError) and any(word in text for word in _TORCH_WRITER)
        if by_torch or type(error).__name__ == "SafetensorError":
            reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
            raise OSError(
                f"{path} could not be written ({reason}); what was there is unchanged. Free some space."
            ) from None
        raise


def content(folder: Path) -> list[Path]:
    """What a folder holds, apart from its lock and from files that a killed process did not finish."""
    return [path for path in folder.iterdir() if not path.name.startswith(".")]


def write_text(path: Path, text: str) -> None:
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")


def write_rows(path: Path, rows: Iterable[Any]) -> None:
    """One JSON value a line."""
    write_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def sha256_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes of lipcert out of ``folder`` until the block ends; the system unlocks what was killed.

    Raises:
        ValueError: if another process works in the folder; the message has its number.
    """
    path = folder / ".lock"
    with path.open("a+", encoding="utf-8") as file:
        if not try_lock(file.fileno()):
            file.seek(0)
            owner = file.read(20).strip() or "unknown"
            raise ValueError(f"{folder} is in use by another lipcert process ({owner}). Wait for it, or stop it.")
        file.seek(0)
        file.truncate()
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def try_lock(descriptor: int) -> bool:
    """Lock an open file until every copy of its descriptor is closed, even those of child processes."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        # A byte far behind the process number, which stays readable.
        os.lseek(descriptor, 2**20, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
