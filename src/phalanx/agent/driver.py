"""The driver: feeds the agent machine with events, in order and one at a time, and hands out its commands.

Events pass one first-in-first-out inbox, so that a step is never taken inside another. The clock is the event loop's.
Who performs is a table from the command's type; where the job's processes are real that is ``node``, where they are
simulated another one. It decides nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from phalanx.agent.events import Finish
from phalanx.agent.group import DeadlinePassed
from phalanx.agent.machine import AgentMachine
from phalanx.agent.report.flight import FlightRecord
from phalanx.agent.verdict.verdict import EX_BUG, Ending, Verdict

__all__ = ["Driver", "Observer"]


class Observer(Protocol):
    """Who looks on. It never raises, and never blocks."""

    def saw(self, event: object, commands: list[Any], now: float) -> None:
        """A step was taken; its commands are about to be performed."""

    def ended(self, verdict: Verdict) -> None:
        """A bug of ours ended the driving."""


class Driver:
    """Drives one machine to its end. Make it inside a running event loop, ``bind`` who performs, then ``post``.

    ``ended`` is the verdict. A bug of ours, in the machine or in who performs, ends the driving: ``bug`` is set,
    ``on_bug`` is called once, and the verdict is exit code 70; no further step is taken. ``look_first`` returns events
    that come before whatever is posted: what the machine should have known by then.
    """

    def __init__(
        self,
        machine: AgentMachine,
        *,
        on_bug: Callable[[], None] = lambda: None,
        look_first: Callable[[], list[object]] = list,
        observer: Observer | None = None,
    ) -> None:
        self.machine = machine
        self.flight = FlightRecord()
        self.bug: BaseException | None = None
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Verdict] = self._loop.create_future()
        self._on_bug = on_bug
        self._look_first = look_first
        self._observer = observer
        self._inbox: deque[object] = deque()
        self._is_stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._perform: dict[type, Callable[[Any], None]] = {Finish: self._finish}

    def bind(self, *performers: Mapping[type, Callable[[Any], None]]) -> None:
        """Command type → what performs it. It may post events; it must not block."""
        for one in performers:
            self._perform.update(one)

    def post(self, event: object) -> None:
        """Queue an event; unless a step is being taken already, take steps until none is left."""
        if self.bug is not None:
            return
        if self._is_stepping:
            self._inbox.append(event)
            return
        self._inbox += [*self._look_first(), event]
        self._is_stepping = True
        try:
            while self._inbox:
                self._take(self._inbox.popleft())
        finally:
            self._is_stepping = False
        self._set_timer()

    def found_bug(self, error: BaseException, event: object) -> None:
        """Record a bug of ours and take no more steps. The first one counts."""
        if self.bug is not None:
            return
        self.bug = error
        self._inbox.clear()
        self.stop_timer()
        self.flight.add(self._loop.time(), "BUG", event, [repr(error)])
        self._on_bug()
        verdict = Verdict(ending=Ending.FAILED, exit_code=EX_BUG)
        if self._observer is not None:
            self._observer.ended(verdict)
        if not self.ended.done():
            self.ended.set_result(verdict)

    def stop_timer(self) -> None:
        """Nothing is to happen by time any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self, event: object) -> None:
        now = self._loop.time()
        try:
            commands = self.machine.step(event, now)
            self.flight.add(now, self.machine.state.name, event, commands)
            if self._observer is not None:
                self._observer.saw(event, commands, now)
            for command in commands:
                self._perform[type(command)](command)
        except Exception as error:  # noqa: BLE001 # the border between our bugs and the user's job
            self.found_bug(error, event)

    def _set_timer(self) -> None:
        self.stop_timer()
        if self.machine.deadline is not None and self.bug is None:
            self._timer = self._loop.call_at(self.machine.deadline, self.post, DeadlinePassed())

    def _finish(self, command: Finish) -> None:
        self.stop_timer()
        if not self.ended.done():
            self.ended.set_result(command.verdict)
