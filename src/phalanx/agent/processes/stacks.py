"""Saves where the workers of this node are, into ``stacks.txt`` beside each one's logs, and ends who is too slow.

A Python worker is asked by a signal for which the boot file has made faulthandler answer, and by none that it does not
catch. Of any other, and of one that does not answer, ``py-spy`` tells, where it is installed; else the file says why
there is nothing. The loop waits for none of it: a thread of its own looks, sends the signals and reads.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from phalanx.agent.driver import Driver
from phalanx.agent.stacks import EndSlow, SaveStacks, StacksSaved
from phalanx.multiprocessing.identity import send_checked
from phalanx.multiprocessing.procfs import read_stat, start_ticks_of

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
        lines: list[str] = []
        try:
            for local_rank in workers.live:
                rank, pid = workers.round.rank(local_rank), workers.pids[local_rank]
                folder, file = workers.stacks_folder(local_rank), workers.crash_file(local_rank)
                try:
                    asked.append(Asked.of(rank, pid, folder, file))
                except OSError as error:  # descriptors are short; the others may be the ones that tell why
                    lines.append(f"the stacks of rank {rank} could not be saved: {error.strerror}")
            loop = asyncio.get_running_loop()
            spare = self._processes.tree.spare
            return lines + await loop.run_in_executor(None, save, asked, reason, py_spy(), spare)
        finally:
            for one in asked:
                one.close()

    def _end(self, command: EndSlow) -> None:
        """Its own process alone; what it has started is swept when it has ended, as after any failure."""
        if start_ticks_of(command.pid) not in (command.started, None):
            return
        workers = self._processes.workers
        ranks = {} if workers is None else {workers.pids[one]: one for one in workers.live}
        folder = ""
        try:
            if workers is not None and command.pid in ranks:
                # Nobody has reaped it, so that its number is its own, and no descriptor is needed.
                is_sent = workers.send_to(ranks[command.pid], command.signal)
                folder = os.path.dirname(workers.stacks_folder(ranks[command.pid]))
            else:
                is_sent = self._send_checked(command)
        except OSError as error:
            self._console.say(f"process {command.pid} could not be ended: {error.strerror}")
            return
        if is_sent and command.late:
            self._console.say(command.late)
        if is_sent and command.pid in ranks and self._watchdog is not None:
            self._watchdog.ends(command.pid, command.scope, folder)

    def _send_checked(self, command: EndSlow) -> bool:
        """To one that is no rank: others wait for it, and its number may be somebody else's the next moment."""
        if self._watchdog is not None and not self._watchdog.is_of_the_job(command.pid):
            return False
        stat = read_stat(command.pid)
        if stat is None or stat.state in "ZX":
            return False
        return send_checked(command.pid, command.started, command.signal)
