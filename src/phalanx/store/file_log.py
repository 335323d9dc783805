"""The log of the file store: what is published in the folder, entry by entry. Blocking; one thread uses a ``Log``.

An entry is a file that is written elsewhere and published by link(2), which the file server decides: one of those who
want the next place gets it, and nobody sees half a file. Places are in segments. The last entry of a segment, its
seal, is the name of the next one, which nobody can guess or make twice: so whoever wakes after a long sleep and writes
where it left off finds the segment gone, and never writes into a past that others have cleared away.

A snapshot is the state at the beginning of a segment. The newest two are kept, and the segments from there on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Iterator
from hashlib import sha256
from secrets import token_hex

from phalanx.store.port import Refused, StoreReset

__all__ = ["NEW_SEGMENT", "Damaged", "Gone", "Log"]

NEW_SEGMENT = b""
"""Stands for the end of a segment among the entries, none of which is empty."""
ENTRIES_PER_SEGMENT = 512  # a reader may lag by that many before its watches have to begin anew
BYTES_PER_SEGMENT = 32 * 1024 * 1024
LOADS_MAX = 20  # clearing away is rare: who finds everything gone so often reads an outdated listing
LOAD_PAUSE_S = 0.1
OLD_S = 3600.0  # what somebody left half done for so long, nobody goes on with
_HEAD = b"phalanx file store 1 "
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS)
_REQUEST, _SEAL = b"r", b"s"  # the first byte of an entry
_SEGMENT = re.compile(r"([0-9]{8,20})-[0-9a-f]{16}", re.ASCII)
_FILE_BYTES_MAX = 256 * 1024 * 1024  # a store holds 64 MiB, and base64 makes them 86


class Gone(Exception):
    """The segment was cleared away: we lag, and have to begin with a snapshot."""


class Damaged(Exception):
    """A published file is not what was published."""


class Log:
    """Where one client is in the log in ``folder``."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self._snapshots = os.path.join(folder, "snapshots")
        self._segments = os.path.join(folder, "segments")
        self._scratch = os.path.join(folder, "scratch")
        self._segment = ""
        self._ordinal = 0
        self._place = 0
        self._bytes = 0
        self._incarnation = ""
        self._made = ""

    # Beginning

    def create(self, empty: bytes) -> None:
        """Make the folder a store with the state ``empty``, if it is none yet. Raises ``Refused``, OSError."""
        try:
            for folder in (self.folder, self._snapshots, self._segments, self._scratch):
                os.makedirs(folder, mode=0o700, exist_ok=True)
        except (FileExistsError, NotADirectoryError, PermissionError) as problem:
            raise Refused(f"{self.folder} cannot be the folder of a store: {problem}.") from None
        probe = self._prepare(b"")  # tells who we are to the file server, which may not think of root as root
        made_by, about = os.stat(probe).st_uid, os.stat(self._snapshots)
        _discard(probe)
        if about.st_uid != made_by or stat.S_IMODE(about.st_mode) & 0o022:
            raise Refused(
                f"The store in {self.folder} is open to others than this user; it must be the user's own."
            )
        if not self._ordinals():
            segment = self._make_segment(0)
            if not self._publish_snapshot(0, segment, token_hex(8), empty):
                os.rmdir(os.path.join(self._segments, segment))

    def load(self) -> bytes:
        """Begin with a snapshot and return its state.

        Not the newest: the segment after the one before it is history, in which watches may begin.
        Raises ``StoreReset`` when the folder holds no store, or another one than before, and ``Damaged``.
        """
        for _ in range(LOADS_MAX):
            try:
                kept = self._ordinals()[-2:]
            except FileNotFoundError:
                kept = []
            if not kept:
                raise StoreReset(f"The store in {self.folder} was deleted.")
            with contextlib.suppress(FileNotFoundError):  # it was cleared away since we looked
                state = self._begin(kept[0])
                if state is not None:
                    return state
            time.sleep(LOAD_PAUSE_S)
        raise OSError(f"the snapshots in {self.folder} vanish faster than they can be read")

    def _begin(self, ordinal: int) -> bytes | None:
        """Enter the segment of a snapshot; None if it is one that we left before."""
        path = os.path.join(self._snapshots, f"{ordinal:08}")
        content = _read(path)
        head, _, state = content.partition(b"\n")
        segment, _, incarnation = head.decode(errors="replace").partition(" ")
        _check_segment(segment, path)
        if self._incarnation not in ("", incarnation):
            raise StoreReset(f"Another store was made in {self.folder}.")
        if self._segment and ordinal <= self._ordinal:
            return None
        self._incarnation = incarnation
        self._enter(ordinal, segment)
        return state

    def _enter(self, ordinal: int, segment: str) -> None:
        self._ordinal, self._segment, self._place, self._bytes = ordinal, segment, 0, 0

    # Reading

    def next(self) -> bytes | None:
        """The next entry, or ``NEW_SEGMENT``, or None if there is none yet. Raises ``Gone``, ``Damaged``, OSError."""
        entry = self._at(self._place)
        if entry is None:
            return None
        kind, content = entry[:1], entry[1:]
        if kind == _SEAL:
            segment = content.decode(errors="replace")
            _check_segment(segment, self._path(self._place))
            self._enter(self._ordinal + 1, segment)
            return NEW_SEGMENT
        self._went_on(len(content))
        return content

    def _went_on(self, size: int) -> None:
        self._place += 1
        self._bytes += size

    def _path(self, place: int) -> str:
        return os.path.join(self._segments, self._segment, f"{place:04}")

    def _at(self, place: int) -> bytes | None:
        path = self._path(place)
        with contextlib.suppress(FileNotFoundError):
            return _read(path)
        try:
            # Opening a folder makes a network file system look whether its copy of it is outdated.
            os.close(os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY))
        except FileNotFoundError:
            raise Gone from None
        with contextlib.suppress(FileNotFoundError):
            return _read(path)
        return None

    # Writing

    def prepare(self, request: bytes) -> str:
        """Write a file that can be published; returns its path."""
        return self._prepare(_REQUEST + request)

    def _prepare(self, content: bytes) -> str:
        path = os.path.join(self._scratch, token_hex(12))
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            left = memoryview(_framed(content))
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)  # before anybody can see it: a server that fails must not leave an empty entry
        except OSError:
            _discard(path)
            raise
        finally:
            os.close(file)
        return path

    def publish(self, path: str) -> bool:
        """Publish a prepared request at the next place; False if something is there already, which is to be read first.

        Raises ``Gone``, and OSError if it is not known whether the request was published: it may be then.
        """
        if self._place >= ENTRIES_PER_SEGMENT - 1 or self._bytes >= BYTES_PER_SEGMENT:
            self._seal()
            return False
        if not _link(path, self._path(self._place)):
            return False
        self._went_on(os.stat(path).st_size)
        return True

    def discard(self, path: str) -> None:
        """Remove a prepared file, published or not."""
        _discard(path)

    def _seal(self) -> None:
        """Name the next segment, unless somebody has."""
        segment = self._make_segment(self._ordinal + 1)
        path = self._prepare(_SEAL + segment.encode())
        try:
            if _link(path, self._path(self._place)):
                self._made = segment
            else:  # not after an exception: it may be named all the same
                os.rmdir(os.path.join(self._segments, segment))
        finally:
            _discard(path)

    @property
    def made_this_segment(self) -> bool:
        """Whether this client made the segment: then it is the one to call ``keep`` at its beginning."""
        return self._segment == self._made

    def keep(self, state: bytes) -> None:
        """Publish the state at the beginning of a segment as a snapshot, and clear away what is older than the last."""
        if self._publish_snapshot(self._ordinal, self._segment, self._incarnation, state):
            self._clear_away()

    # The folder

    def _ordinals(self) -> list[int]:
        return sorted(int(name) for name in os.listdir(self._snapshots) if name.isdecimal())

    def _make_segment(self, ordinal: int) -> str:
        name = f"{ordinal:08}-{token_hex(8)}"
        os.mkdir(os.path.join(self._segments, name), 0o700)
        return name

    def _publish_snapshot(self, ordinal: int, segment: str, incarnation: str, state: bytes) -> bool:
        name = os.path.join(self._snapshots, f"{ordinal:08}")
        if os.path.exists(name):
            return False
        path = self._prepare(f"{segment} {incarnation}\n".encode() + state)
        try:
            return _link(path, name)
        finally:
            _discard(path)

    def _clear_away(self) -> None:
        """Remove what nobody needs. Whoever else does the same at this moment does no harm, nor do we to them."""
        ordinals = self._ordinals()
        for ordinal in ordinals[:-2]:
            _discard(os.path.join(self._snapshots, f"{ordinal:08}"))
        for name in os.listdir(self._segments):
            ours = _SEGMENT.fullmatch(name)
            if ours and int(ours[1]) < ordinals[-2:][0]:
                with contextlib.suppress(
                    OSError
                ):  # in one moment: there is no segment without some of its entries
                    os.rename(os.path.join(self._segments, name), os.path.join(self._scratch, name))
        now = os.stat(
            self._scratch
        ).st_mtime  # we have just written there: the server's time, which others' files have, too
        for name in os.listdir(self._scratch):
            path = os.path.join(self._scratch, name)
            if "-" in name:
                for entry in _listed(path):
                    _discard(os.path.join(path, entry))
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            else:
                with contextlib.suppress(OSError):
                    if os.stat(path).st_mtime < now - OLD_S:
                        os.unlink(path)


def _framed(content: bytes) -> bytes:
    return _HEAD + f"{len(content)} {sha256(content).hexdigest()}\n".encode() + content


def _read(path: str) -> bytes:
    """The content of a published file. Raises ``Damaged``, FileNotFoundError, OSError."""
    with open(path, "rb") as file:
        framed = file.read(_FILE_BYTES_MAX)
    head, _, content = framed.partition(b"\n")
    if head + b"\n" + content != _framed(content):
        raise Damaged(f"{path} has {len(framed)} bytes that nobody has published")
    return content


def _check_segment(name: str, path: str) -> None:
    """Raise ``Damaged`` if the file names no segment: anything else would become a path, of anything."""
    if not _SEGMENT.fullmatch(name):
        raise Damaged(f"{path} names no segment")


def _link(path: str, name: str) -> bool:
    """Whether the file has got the name. A lost answer of the server makes link(2) fail after it was done."""
    try:
        os.link(path, name)
    except OSError as error:
        if os.stat(path).st_nlink > 1:
            return True
        if isinstance(error, FileExistsError):
            return False
        if isinstance(error, FileNotFoundError):
            raise Gone from None
        if error.errno in _NO_LINKS:
            raise Refused(f"The file system of {name} has no hard links ({error.strerror}).") from None
        raise
    return True


def _discard(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _listed(folder: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from os.listdir(folder)
