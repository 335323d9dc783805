"""Rendezvous backends as somebody would write them for torchelastic, knowing nothing of Phalanx but the interface."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from phalanx.rendezvous.backend import RendezvousBackend

__all__ = ["Cell", "CellBackend"]


class Cell:
    """A value that threads share, replaced by compare-and-set; what a server would keep."""

    def __init__(self) -> None:
        self.value: bytes | None = None
        self.version = 0
        self.lock = threading.Lock()


class CellBackend(RendezvousBackend):
    """A backend over a cell. ``before_call`` runs first in each call, and may raise or wait."""

    def __init__(self, cell: Cell, *, before_call: Callable[[], None] = lambda: None) -> None:
        self._cell = cell
        self.before_call = before_call

    @property
    def name(self) -> str:
        return "cell"

    def get_state(self) -> tuple[bytes, Any] | None:
        self.before_call()
        with self._cell.lock:
            return None if self._cell.value is None else (self._cell.value, self._cell.version)

    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        self.before_call()
        with self._cell.lock:
            cell = self._cell
            is_set = token == cell.version if cell.value is not None else token is None
            if is_set:
                cell.value, cell.version = state, cell.version + 1
            return None if cell.value is None else (cell.value, cell.version, is_set)
