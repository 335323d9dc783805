"""How a checkpointer's saves go on: at once or in the background, by this rank alone or together with all others.

A sharded save takes its number when ``save`` is called, and then tells the other ranks something in any case: what this
rank wrote, or why it does not. No rank waits for one that has failed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import TIMEOUT_MAX
from typing import Any

from phalanx.checkpoint import naming, states
from phalanx.checkpoint.agreement import Member
from phalanx.checkpoint.agreement_resume import agreed_load, agreed_step
from phalanx.checkpoint.background import Background
from phalanx.checkpoint.exceptions import NoPeers, SaveFailed
from phalanx.checkpoint.lineage import Lineage
from phalanx.checkpoint.locks import Hold
from phalanx.checkpoint.manifest import json_value
from phalanx.checkpoint.peers import RankGroup, find_peers
from phalanx.checkpoint.settings import Settings
from phalanx.checkpoint.sharded import Sharded
from phalanx.checkpoint.staging import Staging
from phalanx.errors.channel import checkpoint_done, checkpoint_taken

__all__ = ["Saves"]


class Saves:
    """The saves of one checkpointer, in the order of the calls."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._directory = settings.directory
        self._background = Background(settings.background) if settings.background else None
        self._group_of_ranks: RankGroup | None = None
        self._is_closed = False
        self._lineage = Lineage(self._directory)

    def save(self, step: int, state: object, meta: Mapping[str, Any] | None) -> None:
        """Save ``step``. What cannot be saved is a mistake on all ranks, also on those that write nothing.

        Raises the error of an earlier save once this one is taken: were it refused instead, it would have failed for
        all other ranks, who hear of errors at another step, and refuse that one, and so on.
        """
        if self._settings.layout == "sharded":
            self._save_part(step, state, meta)
        else:
            self._save_if_writer(step, state, meta)
        if self._background is not None:
            self._background.raise_error()

    def _save_if_writer(self, step: int, state: object, meta: Mapping[str, Any] | None) -> None:
        kept_meta = self._checked(step, state, meta)
        if not self._settings.writes:
            checkpoint_taken()
            return

        def write() -> Callable[[], object]:
            staging = self._begin_whole(step, state)
            return lambda: self._finish_whole(staging, kept_meta)

        self._do(step, state, lambda kept: self._save_whole(step, kept, kept_meta), write)

    def agreed_step(self) -> tuple[int, Hold] | None:
        """The step that all ranks resume from, and its folder; waits for saves in the background first."""
        settings, rank_group, fault = self._settings, self._rank_group(), self._fault()
        return agreed_step(
            rank_group, self._directory, share=settings.share, is_keeper=settings.keeps, fault=fault
        )

    def good(self, step: int) -> Hold:
        """The folder of this very step if it is good, on all ranks if it is for all: each reads its share.

        Waits for saves in the background first. Raises ``CheckpointError``.
        """
        if self._settings.world_size == 1:
            self.wait(None)
            return self._directory.good(step)
        rank_group, fault = self._rank_group(), self._fault()
        return agreed_load(rank_group, self._directory, step, share=self._settings.share, fault=fault)

    def _fault(self) -> BaseException | None:
        """Wait for saves in the background; what went wrong is raised once the other ranks know."""
        try:
            self.wait(None)
        except Exception as error:  # noqa: BLE001 # as said
            return error
        return None

    def has_loaded(self, step: int | None) -> None:
        """Training goes on from this step, or from its beginning. What is newer is in the way of the next save."""
        self._lineage.goes_on_from(step, writes=self._settings.writes)

    def wait(self, timeout_s: float | None) -> None:
        """Return when all is saved. Raises the error of a save, once, or ``StillSaving``."""
        if self._background is not None:
            is_endless = timeout_s is None or timeout_s > TIMEOUT_MAX  # threads cannot wait for longer
            self._background.wait(None if is_endless else timeout_s)

    def close(self) -> None:
        """Take no more saves, and wait for those that were taken."""
        self._is_closed = True
        self.wait(None)

    def refuse_more(self) -> None:
        """Take no more saves. Raises the error of one that nobody was told of, and waits for none."""
        self._is_closed = True
        if self._background is not None:
            self._background.raise_error()

    def _checked(self, step: int, state: object, meta: Mapping[str, Any] | None) -> dict[str, Any]:
        """The metadata as JSON has it. Raises for what cannot be saved, or not any more."""
        if self._is_closed:
            raise SaveFailed(f"step {step} was not saved: its checkpointer is closed; make another one")
        kept: dict[str, Any] = json_value({} if meta is None else meta, "meta")
        states.check(state, self._settings.part)
        if self._settings.keeps:
            self._lineage.refuse_below(step)
        return kept

    def _do(
        self,
        step: int,
        state: object,
        save: Callable[[object], object],
        write: Callable[[], Callable[[], object]],
    ) -> None:
        """Save now, or a copy later. Of what cannot be copied only ``write`` is done now, and later what it returns."""
        if self._background is None:
            checkpoint_taken()
            save(state)
            return
        self._background.make_room()
        if states.is_written_at_once(state):
            rest = write()
        else:
            kept = states.snapshot_of(state, self._settings.part)

            def rest() -> object:
                return save(kept)

        checkpoint_taken()
        self._background.put(step, rest)

    def _save_whole(self, step: int, state: object, meta: dict[str, Any]) -> None:
        self._finish_whole(self._begin_whole(step, state), meta)

    def _begin_whole(self, step: int, state: object) -> Staging:
        self._tidy()
        staging = self._staging(step)
        try:
            staging.fill(state)
        except BaseException:
            staging.abandon()
            raise
        return staging

    def _finish_whole(self, staging: Staging, meta: dict[str, Any]) -> None:
        try:
            staging.publish([staging.seal()], meta)
        except BaseException:
            staging.abandon()
            raise
        self._published(staging.step)

    def _save_part(self, step: int, state: object, meta: Mapping[str, Any] | None) -> None:
        rank_group = self._rank_group()
        number = rank_group.next_number()
        sharded = Sharded(
            rank_group, self._directory.files, self._open_staging, self._published, self._marks()
        )
        try:
            # Now: this save may wait, write and tidy for long before it has something to say.
            rank_group.come(number)
            kept_meta = self._checked(step, state, meta)

            def save(kept: object) -> None:
                self._tidy_shared(step, number)
                sharded.save(number, step, kept, kept_meta)

            def write() -> Callable[[], object]:
                self._tidy_shared(step, number)
                staging = sharded.begin(number, step, state)
                return lambda: sharded.finish(number, staging, kept_meta)

            self._do(step, state, save, write)
        except Exception as error:
            if not sharded.has_spoken:
                self._refuse(sharded, number, step, error)
            raise
        except BaseException as error:  # a signal handler that exits, say
            if not sharded.has_spoken:
                sharded.leave(number, step, error)
            raise

    def _refuse(self, sharded: Sharded, number: int, step: int, error: Exception) -> None:
        """Saves before this one are told first, also when they wait."""
        why = str(error) or type(error).__name__
        if self._background is None:
            with suppress(NoPeers):  # what is raised is this rank's own
                sharded.refuse(number, step, why)
        else:
            self._background.put(step, lambda: sharded.refuse(number, step, why))

    def _tidy_shared(self, step: int, number: int) -> None:
        """Before the save of this number, and never while it goes on: other ranks may be ahead."""
        settings = self._settings
        if settings.keeps:
            self._tidy(naming.shared_name(step, settings.run_id, settings.round, number))

    def _open_staging(self, step: int, number: int) -> Staging:
        return self._staging(step, part=self._settings.rank, attempt=number)

    def _staging(self, step: int, *, part: int | None = None, attempt: int = 0) -> Staging:
        settings = self._settings
        return Staging(
            self._directory,
            step,
            part=part,
            world_size=settings.world_size,
            layout=settings.layout,
            run_id=settings.run_id,
            round_number=settings.round,
            attempt=attempt,
            checksum=settings.checksum,
            lineage=self._lineage,
        )

    def _tidy(self, opening: str = "") -> None:
        """What comes before a save: what interrupted ones have left is removed."""
        settings = self._settings
        self._directory.tidy(run_id=settings.run_id, round_number=settings.round, opening=opening)

    def _published(self, step: int) -> None:
        """What follows a publication: the agent is told, and old steps are removed."""
        checkpoint_done(step)
        self._directory.retain(self._settings.keep, just=step)

    def _marks(self) -> Mapping[str, Any]:
        return {"run_id": self._settings.run_id, "round": self._settings.round}

    def _rank_group(self) -> RankGroup:
        """Made when it is first needed: all ranks come to that in the same call."""
        if self._group_of_ranks is None:
            settings = self._settings
            me = Member(settings.rank, settings.world_size, settings.place)
            peers = find_peers(settings.store, settings.world_size)
            self._group_of_ranks = RankGroup(peers, me, settings.timeout_s)
        return self._group_of_ranks
