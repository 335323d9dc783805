"""Where an agent's socket is, and who is at its other end."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct

from phalanx.multiprocessing.folders import LogDirError, new_folder, temporary_folder

__all__ = ["listener_at", "new_socket_folder", "peer_uid"]

BACKLOG = 1024  # a node's workers connect within the same moment
PATH_BYTES_MAX = 107  # sun_path of unix(7), without its zero
FOLDER_BYTES_MAX = 60  # leaves room for our own names
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


def peer_uid(transport: asyncio.Transport) -> int:
    """The user of the process at the other end."""
    peer: socket.socket = transport.get_extra_info("socket")
    if not hasattr(socket, "SO_PEERCRED"):  # not Linux: the mode of the socket has to do
        return os.geteuid()
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])
