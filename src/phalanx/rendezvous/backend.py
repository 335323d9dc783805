"""The interface of a torchelastic rendezvous backend: one value, a token, and compare-and-set."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

__all__ = ["RendezvousBackend"]


class RendezvousBackend(ABC):
    """Keeps one value for one job. Those that people have written for torchelastic serve us as a store.

    The methods block. They raise ``RendezvousConnectionError`` when the backend cannot be reached, and
    ``RendezvousStateError`` when what it keeps is damaged.
    """

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of the backend, as ``RendezvousHandler.get_backend`` gives it."""

    @abstractmethod
    def get_state(self) -> tuple[bytes, Any] | None:
        """Return the value and its token, or None if nothing was ever set.

        A token is good for one thing: giving it to ``set_state``, to say which value is to be replaced.
        """

    @abstractmethod
    def set_state(self, state: bytes, token: Any | None = None) -> tuple[bytes, Any, bool] | None:
        """Replace the value that the token stands for; without a token, set the first one.

        Return the value that is now there, its token, and whether it is the new one. None: nothing was there to
        compare with, and nothing was set.
        """
