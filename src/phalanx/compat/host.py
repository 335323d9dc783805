"""A function that torch's own code imports from torchelastic by a private name."""

from __future__ import annotations

import socket

__all__ = ["fully_qualified_name"]


def fully_qualified_name() -> str:
    """Return this host's name as others may resolve it: torch's asynchronous checkpoints ask for it.

    >>> fully_qualified_name() != ""
    True
    """
    return socket.getfqdn(socket.gethostname())
