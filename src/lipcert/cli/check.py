"""``lipcert check CERTIFICATE``: the independent checker of ``lipcert/check.py``, as a command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro


@dataclass(frozen=True)
class Check:
    """Verify a certificate: hashes, layers, claims and probe. Exit 1 if refuted."""

    certificate: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CERTIFICATE")]
    """A certificate.json with its two tensor files beside it, or the run folder that holds them."""
    json: bool = False
    """Print the findings as JSON instead of lines."""
    allow: int = 1
    """Allow this many times the default memory and work."""

    def run(self) -> int:
        from lipcert.check import main

        if self.allow < 1:
            raise ValueError(f"--allow must be at least 1, got {self.allow}.")
        path, folder = self.certificate, self.certificate.is_dir()
        path = path / "certificate.json" if folder else path
        if not path.exists():
            cure = (
                f"run lipcert certify {path.parent} first" if folder else "name a certificate.json or a run folder"
            )
            raise ValueError(f"there is no {path}; {cure}.")
        return main([str(path), "--allow", str(self.allow), *(["--json"] if self.json else [])])
