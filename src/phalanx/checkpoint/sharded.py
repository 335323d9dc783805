"""One rank's side of a sharded save: it writes its part, says so, and publishes the step if it comes last.

The records of the parts lie in the staging folder, which all ranks see: they can be large. Who publishes checks that
each is of this very save. A save that is under way when its round ends is never published: the other ranks' words come
through the round's store, which is asked once more right before the step gets its name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.checkpoint.agreement import Check, Publish, finish_save
from phalanx.checkpoint.exceptions import SaveFailed
from phalanx.checkpoint.files import Files
from phalanx.checkpoint.manifest import PartRecord
from phalanx.checkpoint.peers import Circle
from phalanx.checkpoint.staging import Staging

__all__ = ["Sharded"]

_RECORD_BYTES_MAX = 256 * 1024 * 1024  # as a manifest
_LATE_S = (
    30.0  # network file systems show another node's new file within seconds: NFS caches names for up to 30
)


class Sharded:
    """Saves this rank's parts. ``open_staging(step, number)`` opens the folder of save ``number``; ``published`` is
    called by the rank that has published, before the others hear of it; ``marks`` say whose save it is.
    """

    def __init__(
        self,
        circle: Circle,
        files: Files,
        open_staging: Callable[[int, int], Staging],
        published: Callable[[int], None],
        marks: Mapping[str, Any],
    ) -> None:
        self.circle = circle
        self._files = files
        self._open_staging = open_staging
        self._published = published
        self._marks = dict(marks)
        self.has_spoken = False  # the other ranks know, or cannot be reached

    def save(self, number: int, step: int, state: object, meta: dict[str, Any]) -> bool:
        """Save this rank's part, and return when the step is visible; True: this rank has published it.

        Raises ``SaveFailed`` with the reason of the rank that failed, and this rank's own error otherwise.
        """
        staging: Staging | None = None
        own: Exception | None = None
        try:
            try:
                staging = self._open_staging(step, number)
                self._leave_record(staging, number, staging.write(state), meta)
            except Exception as error:  # noqa: BLE001 # the border to the user's writer: the other ranks must hear of it
                own = error
            is_publisher = False

            def act(_: Check | Publish) -> str | None:
                nonlocal is_publisher
                assert staging is not None  # who has a fault is never asked to publish
                try:
                    self._publish(staging, number)
                except Exception as error:  # noqa: BLE001 # as above
                    return _said(step, error)
                is_publisher = True
                return None

            why = self._say(number, step, None if own is None else _said(step, own), act)
            if own is not None:
                raise own
            if why is not None:
                raise SaveFailed(f"step {step} was not saved: {why}")
            staging = None if is_publisher else staging
            return is_publisher
        except BaseException:
            if staging is not None:
                staging.abandon()
            raise
        finally:
            if staging is not None:
                staging.release()

    def refuse(self, number: int, step: int, why: str) -> None:
        """Tell the other ranks that this one cannot save, so that they need not wait for it."""

        def act(_: Check | Publish) -> None:
            raise AssertionError("who has a fault is never asked to publish")

        self._say(number, step, why, act)

    def _say(
        self, number: int, step: int, fault: str | None, act: Callable[[Check | Publish], str | None]
    ) -> str | None:
        self.has_spoken = True
        return self.circle.hold(number, finish_save(self.circle.me, step, fault), act)

    def _leave_record(self, staging: Staging, number: int, part: PartRecord, meta: dict[str, Any]) -> None:
        rank = self.circle.me.rank
        record = {
            **self._marks_of(staging.step, number),
            "part": part.to_json(),
            "meta": meta if rank == 0 else {},
        }
        self._files.write(staging.folder / _record_name(rank), json.dumps(record).encode())

    def _marks_of(self, step: int, number: int) -> dict[str, Any]:
        return {**self._marks, "world_size": self.circle.me.world_size, "step": step, "save": number}

    def _publish(self, staging: Staging, number: int) -> None:
        parts: list[PartRecord] = []
        meta: dict[str, Any] = {}
        expected = self._marks_of(staging.step, number)
        for rank in range(self.circle.me.world_size):
            record = json.loads(self._record(staging, rank))
            wrong = [
                f"{key} {record.get(key)!r}" for key, mark in expected.items() if record.get(key) != mark
            ]
            if wrong:
                raise SaveFailed(f"the part of rank {rank} is of another save: {', '.join(wrong)}")
            parts.append(PartRecord.from_json(record["part"]))
            meta = record["meta"] if rank == 0 else meta
        for rank in range(self.circle.me.world_size):
            self._files.unlink(staging.folder / _record_name(rank))
        staging.publish(parts, meta, still_wanted=self.circle.look)
        self._published(staging.step)

    def _record(self, staging: Staging, rank: int) -> bytes:
        """What a rank has written about its part. It has said that it is there; its node's may be late to us."""
        path = staging.folder / _record_name(rank)
        ends_at = time.monotonic() + _LATE_S
        while True:
            try:
                with self._files.opened(path) as file:
                    return file.read(_RECORD_BYTES_MAX)
            except FileNotFoundError as error:
                if time.monotonic() > ends_at:
                    raise SaveFailed(
                        f"rank {rank} has written its part, and {path} is not there: is {staging.folder.parent} the "
                        "same folder for all ranks?"
                    ) from error
                time.sleep(0.1)


def _record_name(rank: int) -> str:
    return f"part-{rank:05d}.json"


def _said(step: int, error: BaseException) -> str:
    text = str(error).removeprefix(f"step {step} was not saved: ")
    return text if isinstance(error, SaveFailed) else f"{type(error).__name__}: {text}"
