"""What the app itself must not lose if it is killed: its model, and how many rounds are done. perbit keeps its own beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from perbit.files import read_tensors, write_tensors

_ROUND = "round, not a tensor"


class Checkpoint:
    """A file in a folder; without a folder nothing is kept."""

    def __init__(self, folder: str) -> None:
        self.path = Path(folder) / "model.npz" if folder else None

    def save(self, n_done: int, model: dict[str, Any]) -> None:
        """Written whole or not at all."""
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(self.path, {**model, _ROUND: np.array(n_done)})

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """How many rounds were done, and the model after them."""
        if self.path is None or not self.path.exists():
            return None
        model: dict[str, Any] = dict(read_tensors(self.path))
        return int(model.pop(_ROUND)), model

    def remove(self) -> None:
        """The run is over."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)
