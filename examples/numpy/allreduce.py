"""Sums arrays over all workers of a job, with nothing but sockets: what a library of collectives does, at its simplest.

Rank 0 listens on MASTER_ADDR:MASTER_PORT, which the launcher chose. It adds up what the others send, always in the
order of ranks, so that a job of the same size finds the same sum, to the last bit. Only bytes of arrays travel.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import numpy as np

PATIENCE_S = 60.0  # until rank 0 listens: workers start at the same time, but machines may be slow


class Group:
    """The workers of a round, connected; leaving the ``with`` block hangs up."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self._open = ExitStack()
        self._others: list[
            socket.socket
        ] = []  # rank 0 is connected to each rank, and all others to rank 0 alone
        if self.size > 1:
            self._others = self._accept() if self.rank == 0 else [self._connect()]

    def sum(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of the arrays of all ranks; raises OSError if a worker is gone."""
        if self.rank != 0:
            self._others[0].sendall(array.tobytes())
            return self._receive(self._others[0], array)
        total = array.copy()
        for other in self._others:
            total += self._receive(other, array)
        for other in self._others:
            other.sendall(total.tobytes())
        return total

    def _accept(self) -> list[socket.socket]:
        by_rank: dict[int, socket.socket] = {}
        with socket.create_server(("", int(os.environ["MASTER_PORT"])), backlog=self.size) as server:
            while len(by_rank) < self.size - 1:
                connection = self._opened(server.accept()[0])
                by_rank[int(self._receive(connection, np.empty(1, np.int64))[0])] = connection
        return [by_rank[rank] for rank in sorted(by_rank)]

    def _connect(self) -> socket.socket:
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                connection = self._opened(socket.create_connection(address))
            except ConnectionRefusedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)
            else:
                connection.sendall(np.array([self.rank], np.int64).tobytes())
                return connection

    def _opened(self, connection: socket.socket) -> socket.socket:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._open.enter_context(connection)

    def _receive(self, connection: socket.socket, like: np.ndarray) -> np.ndarray:
        received = bytearray()
        while len(received) < like.nbytes:
            if not (chunk := connection.recv(like.nbytes - len(received))):
                raise ConnectionResetError(
                    "a worker is gone"
                )  # as the kernel says it; no failure of this one
            received += chunk
        return np.frombuffer(received, like.dtype).reshape(like.shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
