"""One rank's side of a sharded save: it writes its part, says so, and publishes the step if it comes last.

The records of the parts lie in the staging folder, which all ranks see: they can be large. Who publishes checks that
each is of this very save: a killed job leaves such records, and may begin anew under the same run id. A save that is
under way when its round ends is never published: the other ranks' words come through the round's store, which is asked
once more right before the step gets its name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any, cast

from phalanx.checkpoint.agreement import Count, Local, Request, begin_save, finish_save, leave
from phalanx.checkpoint.exceptions import NoPeers, SaveFailed
from phalanx.checkpoint.files import Files
from phalanx.checkpoint.manifest import PartRecord
from phalanx.checkpoint.peers import RankGroup
from phalanx.checkpoint.staging import Staging
from phalanx.checkpoint.states import is_collective

__all__ = ["Sharded"]

_RECORD_BYTES_MAX = 256 * 1024 * 1024  # as a manifest
# Network file systems show another node's new file within seconds: NFS caches names for up to 30.
_LATE_S = 30.0


class Sharded:
    """Saves this rank's part of one step. ``open_staging(step, number)`` opens the folder of save ``number``;
    ``published`` is called by the rank that has published, before the others hear of it; ``marks`` say whose save it
    is.
    """

    def __init__(
        self,
        rank_group: RankGroup,
        files: Files,
        open_staging: Callable[[int, int], Staging],
        published: Callable[[int], None],
        marks: Mapping[str, Any],
    ) -> None:
        self.rank_group = rank_group
        self._files = files
        self._open_staging = open_staging
        self._published = published
        self._marks = dict(marks)
        self.has_spoken = False  # the other ranks know, or cannot be reached
        self._staging: Staging | None = None
        # This rank has said that it is about to write: its next word is of how that ended.
        self._have_begun = False
        self._has_come = False  # this rank counts among those that have said how they have ended

    def save(self, number: int, step: int, state: object, meta: dict[str, Any]) -> bool:
        """Save this rank's part, and return when the step is visible; True: this rank has published it.

        Raises ``SaveFailed`` with the reason of the rank that failed, and this rank's own error otherwise.
        """
        try:
            staging = self.begin(number, step, state)
        except Exception as error:
            if not self.has_spoken:
                self.refuse(number, step, _said(step, error))
            raise
        return self.finish(number, staging, meta)

    def begin(self, number: int, step: int, state: object) -> Staging:
        """Let ``state`` write its files. If it ``is_collective``, all ranks first agree that all are about to write.

        ``finish`` must follow; or, when this raises an ``Exception`` and ``has_spoken`` is not set, ``refuse``. Of what
        is no ``Exception`` (this rank is about to end) the others are told here, as in ``finish``.
        """
        own: Exception | None = None
        try:
            try:
                self._staging = self._open_staging(step, number)
            except Exception as error:
                if not is_collective(state):
                    raise
                own = error
            if is_collective(state):
                self._agree_to_begin(number, step, own)
            assert self._staging is not None  # else own was raised
            try:
                self._staging.fill(state)
            except Exception as error:
                if self._have_begun:
                    self._say(number, finish_save(self.rank_group.me, step, _said(step, error), begun=True))
                raise
        except BaseException as error:
            if not isinstance(error, Exception):
                self.leave(number, step, error)
            elif self.has_spoken:
                self._abandon(number, step)
            raise
        return self._staging

    def finish(self, number: int, staging: Staging, meta: dict[str, Any]) -> bool:
        """Put what was written on the disk, and return when the step is visible; as ``save``."""
        step = staging.step
        is_publisher = False
        end: BaseException | None = None  # of this process, or of its thread

        def act(_: Local) -> str | None:
            nonlocal is_publisher, end
            try:
                self._publish(staging, number)
            except BaseException as error:  # noqa: BLE001 # the other ranks must hear of it
                end = None if isinstance(error, Exception) else error
                return _said(step, error)
            is_publisher = True
            return None

        try:
            own: Exception | None = None
            try:
                self._leave_record(staging, number, staging.seal(), meta)
            except Exception as error:  # noqa: BLE001 # as above
                own = error
            fault = None if own is None else _said(step, own)
            why = self._say(number, finish_save(self.rank_group.me, step, fault, begun=self._have_begun), act)
            if end is not None:
                raise end
            if own is not None:
                raise own
            if why is not None:
                raise SaveFailed(f"step {step} was not saved: {why}")
            staging.lineage.has_published()  # one of the ranks has
            return is_publisher
        except Exception:
            staging.abandon()
            raise
        except BaseException as error:
            self.leave(number, step, error)
            raise
        finally:
            staging.release()

    def refuse(self, number: int, step: int, why: str) -> None:
        """Tell the other ranks that this one cannot save, so that they need not wait for it."""
        try:
            self._say(number, finish_save(self.rank_group.me, step, why))
        finally:  # not before: they may be writing into the folder
            self._abandon(number, step)

    def leave(self, number: int, step: int, error: BaseException) -> None:
        """Tell the other ranks that this one ends, and wait for none: ``SystemExit``, ``KeyboardInterrupt``.

        They may be writing still: the folder is left to the next round, which tidies.
        """
        self.has_spoken = True
        if not self._has_come:
            words = leave(self.rank_group.me, step, _said(step, error), begun=self._have_begun)
            with suppress(NoPeers):  # what is raised is this rank's own
                self.rank_group.leave(number, words)
        if self._staging is not None and self.rank_group.me.world_size == 1:
            self._staging.abandon()
        elif self._staging is not None:
            self._staging.release()

    def _abandon(self, number: int, step: int) -> None:
        """Rank 0 removes what all have written, also when it has not come to that itself."""
        if self._staging is None and self.has_spoken and self.rank_group.me.rank == 0:
            with suppress(Exception):  # what was wrong is said already
                self._staging = self._open_staging(step, number)
        if self._staging is not None:
            self._staging.abandon()

    def _agree_to_begin(self, number: int, step: int, own: Exception | None) -> None:
        fault = None if own is None else _said(step, own)
        why = self._say(number, begin_save(self.rank_group.me, step, fault), begins=True)
        if own is not None:
            raise own
        if why is not None:
            raise SaveFailed(f"step {step} was not saved: {why}")

    def _say(
        self,
        number: int,
        conversation: Generator[Request, Any, str | None],
        act: Callable[[Local], str | None] | None = None,
        *,
        begins: bool = False,
    ) -> str | None:
        self.has_spoken = True
        return self.rank_group.hold(number, self._noted(conversation, begins), act or _never)

    def _noted(
        self, conversation: Generator[Request, Any, str | None], begins: bool
    ) -> Generator[Request, Any, str | None]:
        """The conversation, and how far this rank has come in it: also one that ends while it waits for the others."""
        answer: Any = None
        while True:
            try:
                request = conversation.send(answer)
            except StopIteration as end:
                return cast("str | None", end.value)
            answer = yield request
            if isinstance(request, Count) and request.key.endswith("done"):
                self._have_begun |= begins
                self._has_come = not begins

    def _leave_record(self, staging: Staging, number: int, part: PartRecord, meta: dict[str, Any]) -> None:
        rank = self.rank_group.me.rank
        record = {
            **self._marks_of(staging.step, number),
            "part": part.to_json(),
            "meta": meta if rank == 0 else {},
        }
        path = staging.folder / _record_name(rank)
        with staging.failing():
            with suppress(FileNotFoundError):  # of a job that was killed, and had the same run id
                self._files.unlink(path)
            self._files.write(path, json.dumps(record).encode())

    def _marks_of(self, step: int, number: int) -> dict[str, Any]:
        marks = {"world_size": self.rank_group.me.world_size, "step": step, "save": number}
        return {**self._marks, **marks, "word": self.rank_group.word()}

    def _publish(self, staging: Staging, number: int) -> None:
        parts: list[PartRecord] = []
        meta: dict[str, Any] = {}
        expected = self._marks_of(staging.step, number)
        for rank in range(self.rank_group.me.world_size):
            record = self._record(staging, rank, expected)
            parts.append(PartRecord.from_json(record["part"]))
            meta = record["meta"] if rank == 0 else meta
        for rank in range(self.rank_group.me.world_size):
            self._files.unlink(staging.folder / _record_name(rank))
        staging.publish(parts, meta, still_wanted=self.rank_group.look)
        self._published(staging.step)

    def _record(self, staging: Staging, rank: int, expected: Mapping[str, Any]) -> dict[str, Any]:
        """What a rank has written about its part. It has said that it is there; its node's may be late to us, and then
        there is none, or one that a killed job has left.
        """
        path = staging.folder / _record_name(rank)
        ends_at = time.monotonic() + _LATE_S
        while True:
            why = f"{path} is not there: is {staging.folder.parent} the same folder for all ranks?"
            with suppress(FileNotFoundError), self._files.opened(path) as file:
                record = _read(file.read(_RECORD_BYTES_MAX))
                wrong = [
                    f"{key} {record.get(key)!r}" for key, mark in expected.items() if record.get(key) != mark
                ]
                if not wrong:
                    return record
                if record.get("word") == expected["word"]:
                    raise SaveFailed(f"the part of rank {rank} is of another save: {', '.join(wrong)}")
                why = f"its record is of another save: {', '.join(wrong)}"
            if time.monotonic() > ends_at:
                raise SaveFailed(f"rank {rank} has written its part, and {why}")
            time.sleep(0.1)


def _read(data: bytes) -> dict[str, Any]:
    """A record; an empty one if it is not whole: an old one, that is cut while the new one comes into view."""
    with suppress(ValueError):
        if isinstance(record := json.loads(data), dict):
            return record
    return {}


def _never(_: Local) -> str | None:
    raise AssertionError("who has a fault is never asked to publish")


def _record_name(rank: int) -> str:
    return f"part-{rank:05d}.json"


def _said(step: int, error: BaseException) -> str:
    text = str(error).removeprefix(f"step {step} was not saved: ")
    return text if isinstance(error, SaveFailed) else f"{type(error).__name__}: {text}".removesuffix(": ")
