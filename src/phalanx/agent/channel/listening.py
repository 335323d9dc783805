"""Where an agent's socket is, how connections come in there, and who is at their other end."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
from collections.abc import Callable
from typing import Any

from phalanx.multiprocessing.folders import LogDirError, new_folder, temporary_folder

__all__ = ["Door", "listener_at", "new_socket_folder", "peer_uid"]

BACKLOG = 1024  # a node's workers connect within the same moment
PATH_BYTES_MAX = 107  # sun_path of unix(7), without its zero
FOLDER_BYTES_MAX = 60  # leaves room for our own names
ACCEPT_PAUSE_S = 1.0  # when no descriptor is left for one more
_CREDENTIALS = struct.Struct("3i")  # ucred of unix(7): pid, uid, gid


def new_socket_folder() -> str:
    """A new folder for a socket, with a path that leaves room for its name. Raises ``LogDirError``."""
    usual = temporary_folder()
    parent = usual if len(os.fsencode(usual)) <= FOLDER_BYTES_MAX else "/tmp"
    try:
        return new_folder(parent, "phalanx-")
    except LogDirError as error:
        advice = "name another one with TMPDIR"
        raise LogDirError(parent, error.reason, what="temporary folder", advice=advice) from None


def listener_at(path: str) -> socket.socket:
    """A socket bound to ``path`` that only this user can connect to. Raises OSError."""
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        raise OSError(f"the path of the worker channel is too long for a socket: {path}")
    if os.path.lexists(path) and stat.S_ISSOCK(os.lstat(path).st_mode):
        os.unlink(path)  # of a dead agent: ours is in a folder of its own
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)  # before anybody can connect: it does not listen yet
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener


class Door:
    """Where connections come in: each gets what ``make`` makes.

    Not asyncio's own server: closing that leaks a connection that it has accepted and not yet introduced.
    ``why_full`` says why one more would be too many, if it would, with this number of those that are not introduced
    yet; ``refused`` is told of what could not come in.
    """

    def __init__(
        self,
        path: str,
        make: Callable[[], asyncio.BaseProtocol],
        why_full: Callable[[int], str],
        refused: Callable[[str], None],
    ) -> None:
        self._path = path
        self._make = make
        self._why_full = why_full
        self._refused = refused
        self._listener: socket.socket | None = None
        self._is_pausing = False
        self._introductions: set[asyncio.Task[Any]] = set()

    @property
    def is_open(self) -> bool:
        """Whether anybody can connect."""
        return self._listener is not None

    def open(self) -> None:
        """Listen. Raises OSError when the path cannot be used."""
        self._listener = listener_at(self._path)
        self._listen(self._listener)

    def _listen(self, listener: socket.socket) -> None:
        self._is_pausing = False
        if listener is self._listener:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def let_in(self, patience_s: float) -> None:
        """Accept and introduce who has connected by now: no more than the backlog, however many go on to connect."""
        for _ in range(BACKLOG):
            if self._listener is None or self._is_pausing or not self._accept(self._listener):
                break
        if self._introductions:
            await asyncio.wait(self._introductions, timeout=patience_s)

    def _accept(self, listener: socket.socket) -> bool:
        """Take one connection; False if none is waiting, or none can be had."""
        loop = asyncio.get_running_loop()
        try:
            peer, _ = listener.accept()
        except BlockingIOError:
            return False
        except ConnectionAbortedError:
            return True  # it has gone already
        except OSError as problem:
            # No descriptor or no memory: it would fail at once again, and use all of a core.
            self._refused(f"a connection could not be accepted: {problem.strerror}")
            loop.remove_reader(listener)
            self._is_pausing = True
            loop.call_later(ACCEPT_PAUSE_S, self._listen, listener)
            return False
        if reason := self._why_full(len(self._introductions)):
            self._refused(reason)
            peer.close()
        else:
            task = loop.create_task(loop.connect_accepted_socket(self._make, peer))
            self._introductions.add(task)
            task.add_done_callback(self._introductions.discard)
        return True

    async def close(self) -> None:
        """Nobody comes in any more; who was let in has been introduced."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        await asyncio.gather(*self._introductions, return_exceptions=True)


def peer_uid(transport: asyncio.Transport) -> int:
    """The user of the process at the other end."""
    peer: socket.socket = transport.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):  # not Linux: the mode of the socket has to do
        return os.geteuid()
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
