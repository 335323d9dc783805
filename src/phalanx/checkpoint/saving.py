"""How a checkpointer's saves go on: at once or in the background, by this rank alone or together with all others.

A sharded save takes its number when ``save`` is called, and then tells the other ranks something in any case: what this
rank wrote, or why it does not. No rank waits for one that has failed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from phalanx.checkpoint.agreement import Member
from phalanx.checkpoint.agreement_resume import agreed_step
from phalanx.checkpoint.background import Background, snapshot_of
from phalanx.checkpoint.exceptions import NoPeers
from phalanx.checkpoint.peers import Circle, find_peers
from phalanx.checkpoint.sharded import Sharded
from phalanx.checkpoint.shelf import Shelf
from phalanx.checkpoint.staging import Staging

TYPE_CHECKING = False  # as in phalanx.errors

if TYPE_CHECKING:
    from phalanx.checkpoint.checkpointer import Checkpointer

__all__ = ["Saves"]


class Saves:
    """The saves of one checkpointer, in the order of the calls."""

    def __init__(self, owner: Checkpointer) -> None:
        self._owner = owner
        self._shelf: Shelf = owner.shelf
        self._background = Background(owner.background) if owner.background else None
        self._circle_of_ranks: Circle | None = None
        self.last_stall_s = 0.0

    def save(self, step: int, state: object, check: Callable[[], dict[str, Any]]) -> None:
        """Save ``step``; ``check`` returns the metadata as JSON has it, or raises for what cannot be saved."""
        began_at = time.monotonic()
        try:
            if self._owner.writer == "rank":
                self._save_part(step, state, check)
            else:
                meta = check()
                self._do(step, state, lambda kept: self._save_whole(step, kept, meta))
        finally:
            self.last_stall_s = time.monotonic() - began_at

    def agreed_step(self) -> int | None:
        """The step that all ranks resume from; waits for saves in the background first."""
        owner, circle = self._owner, self._circle()
        fault: BaseException | None = None
        try:
            self.wait(None)
        except Exception as error:  # noqa: BLE001 # raised once the other ranks know
            fault = error
        place_keeper = owner.local_rank == 0 if owner.writer == "node" else owner.rank == 0
        return agreed_step(circle, self._shelf, share=_share(owner), is_keeper=place_keeper, fault=fault)

    def wait(self, timeout_s: float | None) -> None:
        """Return when all is saved. Raises the error of a save, once, or ``StillSaving``."""
        if self._background is not None:
            self._background.wait(timeout_s)

    def _do(self, step: int, state: object, save: Callable[[object], object]) -> None:
        """Save now, or a copy later."""
        if self._background is None:
            save(state)
            return
        self._background.make_room()
        _refuse_early(state)
        kept = snapshot_of(state)
        self._background.put(step, lambda: save(kept))

    def _save_whole(self, step: int, state: object, meta: dict[str, Any]) -> None:
        owner = self._owner
        owner.tidy()
        staging = Staging(
            self._shelf,
            step,
            world_size=owner.world_size,
            writer=owner.writer,
            run_id=owner.run_id,
            round_number=owner.round,
            strong=owner.strong,
        )
        try:
            staging.publish([staging.write(state)], meta)
        except BaseException:
            staging.abandon()
            raise
        owner.published(step)

    def _save_part(self, step: int, state: object, check: Callable[[], dict[str, Any]]) -> None:
        circle = self._circle()
        number = circle.next_number()
        sharded = Sharded(circle, self._shelf.files, self._open_staging, self._owner.published, self._marks())
        try:
            meta = check()
            self._do(step, state, lambda kept: sharded.save(number, step, kept, meta))
        except Exception as error:
            if not sharded.has_spoken:
                self._refuse(sharded, number, step, error)
            raise

    def _refuse(self, sharded: Sharded, number: int, step: int, error: BaseException) -> None:
        """Saves before this one are told first, also when they wait."""
        text = str(error) or type(error).__name__
        if self._background is None:
            with suppress(NoPeers):  # what is raised is this rank's own
                sharded.refuse(number, step, text)
        else:
            self._background.put(step, lambda: sharded.refuse(number, step, text))

    def _open_staging(self, step: int, number: int) -> Staging:
        owner = self._owner
        if owner.rank == 0:
            owner.tidy()
        return Staging(
            self._shelf,
            step,
            part=owner.rank,
            world_size=owner.world_size,
            writer="rank",
            run_id=owner.run_id,
            round_number=owner.round,
            attempt=number,
            strong=owner.strong,
        )

    def _marks(self) -> Mapping[str, Any]:
        return {"run_id": self._owner.run_id, "round": self._owner.round}

    def _circle(self) -> Circle:
        """Made when it is first needed: all ranks come to that in the same call."""
        if self._circle_of_ranks is None:
            owner = self._owner
            place = owner.rank - owner.local_rank if owner.writer == "node" else 0
            me = Member(owner.rank, owner.world_size, place)
            peers = find_peers(owner.store, owner.world_size)
            self._circle_of_ranks = Circle(peers, me, owner.timeout_s)
        return self._circle_of_ranks


def _refuse_early(state: object) -> None:
    """A mapping that cannot be saved is a mistake of this very call, not of a later one."""
    if isinstance(state, Mapping):
        from phalanx.checkpoint.adapters import plain

        plain.check(state)


def _share(owner: Checkpointer) -> tuple[int, int] | None:
    """What of a step this rank reads to check it: together the ranks of a node read all that the node will load.

    Of a sharded step a node loads a part, and which is not known here: all ranks together read all of it.
    """
    if owner.writer == "rank":
        return owner.rank, owner.world_size
    try:
        count = int(os.environ["LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    return (owner.local_rank, count) if 0 <= owner.local_rank < count else None
