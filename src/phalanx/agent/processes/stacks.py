"""Saves where the workers of this node are, into ``stacks.txt`` beside each one's logs, and ends who is too slow.

A Python worker is asked by a signal for which the boot file has made faulthandler answer, and by none that it does not
catch. Of any other, and of one that does not answer, ``py-spy`` tells, where it is installed; else the file says why
there is nothing. The loop waits for none of it: a thread of its own looks, sends the signals and reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from phalanx.agent.driver import Driver
from phalanx.agent.stacks import EndSlow, SaveStacks, StacksSaved
from phalanx.multiprocessing.procfs import start_ticks_of

if TYPE_CHECKING:
    from phalanx.agent.processes.console import Console
    from phalanx.agent.processes.workers import Workers
    from phalanx.agent.watchdog import Watchdog
    from phalanx.multiprocessing.trees import ProcessTree
    from phalanx.rendezvous.round import Round

__all__ = ["Stacks"]


class _Owner(Protocol):
    workers: Workers | None
    round: Round | None
    tree: ProcessTree

    def begin(self, work: Any) -> None:
        """Run it beside the loop."""


class Stacks:
    """``perform`` maps its two commands to what does them."""

    def __init__(
        self, processes: _Owner, driver: Driver, console: Console, watchdog: Watchdog | None
    ) -> None:
        self._processes = processes
        self._driver = driver
        self._console = console
        self._watchdog = watchdog
        self.perform: dict[type, Callable[[Any], None]] = {SaveStacks: self._save, EndSlow: self._end}

    def _save(self, command: SaveStacks) -> None:
        self._processes.begin(self._saving(self._processes.workers, command))

    async def _saving(self, workers: Workers | None, command: SaveStacks) -> None:
        try:
            for line in [] if workers is None else await self._saved(workers, command.reason):
                self._console.say(line)
        except Exception as error:  # noqa: BLE001 # a border: whatever goes wrong here, the worker is ended
            self._console.say(f"the stacks of this node's ranks could not be saved: {error!r}")
        self._driver.post(StacksSaved(command.number))

    async def _saved(self, workers: Workers, reason: str) -> list[str]:
        from phalanx.agent.evidence.stacks import Asked, py_spy, save

        asked: list[Asked] = []
        try:
            asked.extend(
                Asked.of(
                    workers.round.rank(local_rank),
                    workers.pids[local_rank],
                    workers.stacks_folder(local_rank),
                    workers.crash_file(local_rank),
                )
                for local_rank in workers.live
            )
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, save, asked, reason, py_spy(), self._processes.tree.spare)
        finally:
            for one in asked:
                one.close()

    def _end(self, command: EndSlow) -> None:
        """Its own process alone; what it has started is swept when it has ended, as after any failure."""
        with contextlib.suppress(OSError):  # by a handle: its number may be somebody else's the next moment
            handle = os.pidfd_open(command.pid)
            try:
                self._end_held(command, handle)
            finally:
                os.close(handle)

    def _end_held(self, command: EndSlow, handle: int) -> None:
        if start_ticks_of(command.pid) != command.started or _has_ended(handle):
            return
        workers = self._processes.workers
        local_ranks = (
            [] if workers is None else [one for one in workers.live if workers.pids[one] == command.pid]
        )
        if not local_ranks and self._watchdog is not None and not self._watchdog.is_of_the_job(command.pid):
            return
        if command.late:
            self._console.say(command.late)
        signal.pidfd_send_signal(handle, command.signal)
        if local_ranks and self._watchdog is not None:
            assert workers is not None, "it has a rank"
            folder = os.path.dirname(workers.stacks_folder(local_ranks[0]))
            self._watchdog.ends(command.pid, command.scope, folder)


def _has_ended(handle: int) -> bool:
    """Whether the process of a handle has, though nobody may have waited for it yet."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(0))
