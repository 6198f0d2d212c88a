"""TensorBoard, for those who ask for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lipcert.errors import name_extra


class Board:
    """TensorBoard events of the rows, written by the first process if the config asks for them."""

    def __init__(self, folder: Path | None) -> None:
        self.writer: Any = None
        if folder is not None:
            with name_extra("--tensorboard"):
                from torch.utils.tensorboard import SummaryWriter
            self.writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, row: dict[str, Any]) -> None:
        if self.writer is not None:
            for name, value in row.items():
                self.writer.add_scalar(name, value, row["step"])
            self.writer.flush()
