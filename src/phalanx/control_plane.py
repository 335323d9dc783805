"""torchelastic's control plane of a worker: ``with worker_main():`` around what the worker does.

Errors are recorded, and torch's own server of handlers (ping, stacks, flight record …) listens on the Unix socket that
``TORCH_WORKER_SERVER_SOCKET`` names. The server is a part of torch; only a worker that asks for it imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from phalanx.errors import record

__all__ = ["worker_main"]

SOCKET = "TORCH_WORKER_SERVER_SOCKET"


@record
@contextmanager
def worker_main() -> Iterator[None]:
    """Serve torch's handlers on the socket that was asked for, while the block runs; also a decorator.

    Without ``TORCH_WORKER_SERVER_SOCKET`` it does nothing. With it, raises ``RuntimeError`` where torch is not
    installed. Semantics of torchelastic 2.13.

    >>> with worker_main():
    ...     print("training")
    training
    """
    path = os.environ.get(SOCKET)
    if path is None:
        yield
        return
    try:
        from torch._C._distributed_c10d import _WorkerServer
    except ImportError as reason:
        raise RuntimeError(
            f"{SOCKET} asks for torch's server of handlers, and this Python has no torch that offers it; "
            "install torch, or unset the variable"
        ) from reason
    server = _WorkerServer(path)
    try:
        yield
    finally:
        server.shutdown()
