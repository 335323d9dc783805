"""How a checkpointer's saves go on: at once or in the background, by this rank alone or together with all others.

A sharded save takes its number when ``save`` is called, and then tells the other ranks something in any case: what this
rank wrote, or why it does not. No rank waits for one that has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from phalanx.checkpoint.agreement import Member
from phalanx.checkpoint.agreement_resume import agreed_step
from phalanx.checkpoint.background import Background, snapshot_of
from phalanx.checkpoint.exceptions import NoPeers, SaveFailed
from phalanx.checkpoint.manifest import json_value
from phalanx.checkpoint.peers import Circle, find_peers
from phalanx.checkpoint.saved import writer_of
from phalanx.checkpoint.settings import Settings
from phalanx.checkpoint.sharded import Sharded
from phalanx.checkpoint.staging import Staging
from phalanx.errors.channel import checkpoint_done, checkpoint_taken

__all__ = ["Saves"]


class Saves:
    """The saves of one checkpointer, in the order of the calls."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shelf = settings.shelf
        self._background = Background(settings.background) if settings.background else None
        self._circle_of_ranks: Circle | None = None
        self._is_closed = False

    def save(self, step: int, state: object, meta: Mapping[str, Any] | None) -> None:
        """Save ``step``. What cannot be saved is a mistake on all ranks, also on those that write nothing."""
        if self._settings.layout == "sharded":
            self._save_part(step, state, meta)
            return
        kept_meta = self._checked(step, state, meta)
        if self._settings.writes:
            self._do(step, state, lambda kept: self._save_whole(step, kept, kept_meta))
        else:
            checkpoint_taken()

    def agreed_step(self) -> int | None:
        """The step that all ranks resume from; waits for saves in the background first."""
        settings, circle = self._settings, self._circle()
        fault: BaseException | None = None
        try:
            self.wait(None)
        except Exception as error:  # noqa: BLE001 # raised once the other ranks know
            fault = error
        return agreed_step(circle, self._shelf, share=settings.share, is_keeper=settings.keeps, fault=fault)

    def has_loaded(self, step: int) -> None:
        """This step was loaded: training goes on from it."""

    def wait(self, timeout_s: float | None) -> None:
        """Return when all is saved. Raises the error of a save, once, or ``StillSaving``."""
        if self._background is not None:
            self._background.wait(timeout_s)

    def close(self) -> None:
        """Take no more saves, and wait for those that were taken."""
        self._is_closed = True
        self.wait(None)

    def _checked(self, step: int, state: object, meta: Mapping[str, Any] | None) -> dict[str, Any]:
        """The metadata as JSON has it. Raises for what cannot be saved, or not any more."""
        if self._is_closed:
            raise SaveFailed(f"step {step} was not saved: its checkpointer is closed; make another one")
        kept: dict[str, Any] = json_value({} if meta is None else meta, "meta")
        writer_of(state)
        return kept

    def _do(self, step: int, state: object, save: Callable[[object], object]) -> None:
        """Save now, or a copy later."""
        if self._background is None:
            checkpoint_taken()
            save(state)
            return
        self._background.make_room()
        _refuse_early(state)
        kept = snapshot_of(state)
        checkpoint_taken()
        self._background.put(step, lambda: save(kept))

    def _save_whole(self, step: int, state: object, meta: dict[str, Any]) -> None:
        self._tidy()
        staging = self._staging(step)
        try:
            staging.publish([staging.write(state)], meta)
        except BaseException:
            staging.abandon()
            raise
        self._published(step)

    def _save_part(self, step: int, state: object, meta: Mapping[str, Any] | None) -> None:
        circle = self._circle()
        number = circle.next_number()
        sharded = Sharded(circle, self._shelf.files, self._open_staging, self._published, self._marks())
        try:
            kept_meta = self._checked(step, state, meta)
            self._do(step, state, lambda kept: sharded.save(number, step, kept, kept_meta))
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
        if self._settings.keeps:
            self._tidy()
        return self._staging(step, part=self._settings.rank, attempt=number)

    def _staging(self, step: int, *, part: int | None = None, attempt: int = 0) -> Staging:
        settings = self._settings
        return Staging(
            self._shelf,
            step,
            part=part,
            world_size=settings.world_size,
            layout=settings.layout,
            run_id=settings.run_id,
            round_number=settings.round,
            attempt=attempt,
            checksum=settings.checksum,
        )

    def _tidy(self) -> None:
        """What comes before a save: what interrupted ones have left is removed."""
        self._shelf.tidy(run_id=self._settings.run_id, round_number=self._settings.round)

    def _published(self, step: int) -> None:
        """What follows a publication: the agent is told, and old steps are removed."""
        checkpoint_done(step)
        self._shelf.retain(self._settings.keep, just=step)

    def _marks(self) -> Mapping[str, Any]:
        return {"run_id": self._settings.run_id, "round": self._settings.round}

    def _circle(self) -> Circle:
        """Made when it is first needed: all ranks come to that in the same call."""
        if self._circle_of_ranks is None:
            settings = self._settings
            me = Member(settings.rank, settings.world_size, settings.place)
            peers = find_peers(settings.store, settings.world_size)
            self._circle_of_ranks = Circle(peers, me, settings.timeout_s)
        return self._circle_of_ranks


def _refuse_early(state: object) -> None:
    """A mapping that cannot be saved is a mistake of this very call, not of a later one."""
    if isinstance(state, Mapping):
        from phalanx.checkpoint.adapters import plain

        plain.check(state)
