"""Saves where the workers of this node are, into ``stacks.txt`` beside each one's logs, and ends who is too slow.

A Python worker is asked by a signal for which the boot file has made faulthandler answer, and by none that it does not
catch. Of any other, and of one that does not answer, ``py-spy`` tells, where it is installed; else the file says why
there is nothing. The loop waits for none of it: it sends signals, and a thread of its own reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from phalanx.agent.driver import Driver
from phalanx.agent.stacks import EndSlow, SaveStacks, StacksSaved

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
            for local_rank in workers.live:
                asked.append(
                    Asked.of(
                        workers.round.rank(local_rank),
                        workers.pids[local_rank],
                        workers.stacks_folder(local_rank),
                        workers.crash_file(local_rank),
                    )
                )
                if asked[-1].can_answer:
                    asked[-1].is_asked = workers.send_to(local_rank, asked[-1].signal)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(None, save, asked, reason, py_spy(), self._processes.tree.spare)
        finally:
            for one in asked:
                one.close()

    def _end(self, command: EndSlow) -> None:
        """Its own process alone; what it has started is swept when it has ended, as after any failure."""
        workers = self._processes.workers
        local_ranks = (
            [] if workers is None else [one for one in workers.live if workers.pids[one] == command.pid]
        )
        if local_ranks:
            assert workers is not None, "it has a rank"
            self._remember(command, workers.stacks_folder(local_ranks[0]))
            workers.send_to(local_ranks[0], command.signal)
            return
        # A process that a worker has started. By a handle: its number may be somebody else's the next moment.
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(command.pid)
            try:
                if self._watchdog is None or self._watchdog.is_of_the_job(command.pid):
                    signal.pidfd_send_signal(handle, command.signal)
            finally:
                os.close(handle)

    def _remember(self, command: EndSlow, folder: str) -> None:
        if self._watchdog is not None:
            self._watchdog.ends(command.pid, command.scope, os.path.dirname(folder))
