"""Where the files of a named data set come from when no path is given: an installed package, or its home.

A download is only a file until ``registry.prepare`` has verified what is in it. When a source cannot be reached the
error says what to get, from where, and the command to give it to.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

from lipcert.data.catalog import Entry
from lipcert.data.files import LARGEST_FILE, check_size
from lipcert.data.readers import has_idx
from lipcert.errors import DataNotFound

SHARE = Path("/usr/share")
TIMEOUT, PIECE = 30, 1 << 18
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # our disk, not their server


def installed(known: Entry, share: Path = SHARE) -> Path | None:
    """The folder in which a distribution's package put the idx files, if it did."""
    for pattern in known.installed:
        for folder in sorted(share.glob(pattern)):
            if folder.is_dir() and has_idx(path.name for path in folder.iterdir()):
                return folder
    return None


def download(known: Entry, folder: Path, progress: Callable[[int, int], object]) -> Path:
    """All files of the data set into ``folder``; the folder, or the one archive, to read them from."""
    for url in known.urls:
        target = folder / url.rsplit("/", 1)[-1]
        try:
            _copy(url, target, progress)
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError):
                error.close()  # it holds the connection as long as someone holds the error
            if isinstance(error, OSError) and error.errno in FULL:
                raise OSError(error.errno, error.strerror, str(target)) from error
            cause = error.reason if type(error) is urllib.error.URLError else error
            reason = " ".join(str(cause).split()) or type(error).__name__
            raise DataNotFound(f"{url} cannot be reached ({reason}). {cure(known)}") from error
    if known.archive is not None:
        kind, expected = known.archive
        with target.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=kind != "md5")).hexdigest()
        if found != expected:
            raise ValueError(f"{url}: expected {kind} {expected[:12]}…, got {found[:12]}…. {cure(known)}")
    return target if len(known.urls) == 1 else folder


def cure(known: Entry) -> str:
    """What to do by hand."""
    package = f", or {known.package}" if known.package else ""
    return f"Get {known.accepts} from {known.home}{package}, then run: lipcert data get {known.name} --from PATH"


def _copy(url: str, target: Path, progress: Callable[[int, int], object]) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "lipcert"})
    opener = urllib.request.build_opener()  # of its own: a shared one keeps the proxies of its first use
    with opener.open(request, timeout=TIMEOUT) as answer, target.open("wb") as file:
        promised = int(answer.headers.get("Content-Length") or 0)
        check_size(url, promised)
        done = 0
        while piece := answer.read(PIECE):
            done += file.write(piece)
            check_size(url, done, largest=promised or LARGEST_FILE)
            progress(done, promised)
    if done < promised:
        raise http.client.IncompleteRead(b"", promised - done)
