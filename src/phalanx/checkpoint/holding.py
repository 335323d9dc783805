"""Tells whether a step is still the same folder after a long look: others may replace or remove it meanwhile."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["TRIES", "Hold"]

TRIES = 20  # a look is lost only to a save, or a removal, of the same step in the midst of it


class Hold:
    """A folder, whatever its name. While it is held no other one gets its number, also when it is removed.

    Raises ``OSError`` if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor = -1
        self.folder = folder
        self._descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        status = os.fstat(self._descriptor)
        self.identity = (status.st_dev, status.st_ino)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
