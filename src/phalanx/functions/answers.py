"""The answer: one file for each local rank, which its worker fills and the launching program reads.

A worker first empties the file and says that it has started, in which round and as which rank; an answer of an earlier
round is gone then. What it has to say follows the head of 64 bytes, and the head is written last: half an answer is
none. Used on both sides.
"""

from __future__ import annotations

import os
import struct

from .pickling import dump

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from typing import Any, NamedTuple

    class Answer(NamedTuple):
        """The head of one worker's answer. ``kind`` is one of the three; ``length`` and ``others`` are in bytes."""

        kind: int
        round: int
        rank: int
        world_size: int
        length: int
        others: int

else:
    from collections import namedtuple

    Answer = namedtuple(  # noqa: PYI024 # as the class above, without an import of typing
        "Answer", "kind round rank world_size length others"
    )

__all__ = [
    "RAISED",
    "RETURNED",
    "STARTED",
    "Answer",
    "AnswerFile",
    "exception_in",
    "others_in",
    "read_answer",
    "value_in",
]

STARTED, RETURNED, RAISED = 1, 2, 3

_HEAD = struct.Struct("<8sqqqqqq8x")
_MAGIC = b"phxansw1"


class AnswerFile:
    """The worker's side. Raises ``OSError`` when there is no room, or the launching program is gone."""

    def __init__(self, path: str, *, number: int, rank: int, world_size: int) -> None:
        """Empty the file at ``path`` and say that this worker has started, in round ``number`` as ``rank``."""
        self._path = path
        self._who = (number, rank, world_size)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, 0)
            self._head(fd, STARTED, 0, 0)
        finally:
            os.close(fd)

    def raised(self, body: bytes) -> None:
        """Leave an exception, as ``exceptions.packed`` has it."""
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _write_at(fd, body, _HEAD.size)
            self._head(fd, RAISED, len(body), 0)
        finally:
            os.close(fd)

    def returned(self, value: object, *, by_value: bool) -> None:
        """Leave a value. Raises what pickling raises; then the file says that the worker has started."""
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            os.lseek(fd, _HEAD.size, os.SEEK_SET)
            with open(fd, "wb", closefd=False) as file:
                dump(value, file, by_value=by_value)
                length = file.tell() - _HEAD.size
            self._head(fd, RETURNED, length, 0)
        finally:
            os.close(fd)

    def adds(self, others: bytes) -> None:
        """Add to the value that is there what other nodes' ranks have returned."""
        fd = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        try:
            _, kind, _, _, _, length, _ = _HEAD.unpack(os.pread(fd, _HEAD.size, 0))
            _write_at(fd, others, _HEAD.size + length)
            self._head(fd, kind, length, len(others))
        finally:
            os.close(fd)

    def _head(self, fd: int, kind: int, length: int, others: int) -> None:
        _write_at(fd, _HEAD.pack(_MAGIC, kind, *self._who, length, others), 0)


def read_answer(fd: int) -> Answer | None:
    """What kind of answer a worker has left so far; None if no worker has started. Never raises for any content."""
    head = os.pread(fd, _HEAD.size, 0)
    if len(head) < _HEAD.size or not head.startswith(_MAGIC):
        return None
    answer = Answer(*_HEAD.unpack(head)[1:])
    if answer.kind not in (STARTED, RETURNED, RAISED) or min(answer) < 0:
        return None
    if os.fstat(fd).st_size < _HEAD.size + answer.length + answer.others:
        return answer._replace(kind=STARTED, length=0, others=0)
    return answer


def value_in(fd: int) -> Any:
    """The value of a ``RETURNED`` answer. Raises whatever unpickling raises."""
    import pickle

    with open(fd, "rb", closefd=False) as file:
        file.seek(_HEAD.size)
        return pickle.load(file)


def exception_in(fd: int, answer: Answer) -> bytes:
    """What is in a ``RAISED`` answer."""
    return _read_at(fd, answer.length, _HEAD.size)


def others_in(fd: int, answer: Answer) -> bytes:
    """What ``adds`` has added; empty if nothing."""
    return _read_at(fd, answer.others, _HEAD.size + answer.length)


def _write_at(fd: int, data: bytes, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, memoryview(data)[done:], offset + done)


def _read_at(fd: int, length: int, offset: int) -> bytes:
    parts = []
    done = 0
    while done < length and (part := os.pread(fd, length - done, offset + done)):
        parts.append(part)
        done += len(part)
    return b"".join(parts)
