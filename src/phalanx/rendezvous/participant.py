"""A member of a job for callers that block: the member machine and its session, driven in an event loop.

It stands where the agent stands for our own jobs: it takes the notices of the machine and reports when workers are
gone. It never starts or stops a worker, so it cannot fence them either: that is its caller's duty.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from phalanx.rendezvous.asks import AskAnswered, AskHeard
from phalanx.rendezvous.errors import RendezvousConnectionError
from phalanx.rendezvous.events import (
    BarrierPassed,
    Fence,
    HoldPort,
    JobDecided,
    LeaveAsked,
    MeetingBegan,
    MeetingFailed,
    PartEnded,
    PortHeld,
    PortNotHeld,
    ReleasePort,
    RoundFormed,
    SignalHeard,
    StopRound,
    TimePassed,
    Told,
    WorkersGone,
)
from phalanx.rendezvous.machine import MemberMachine
from phalanx.rendezvous.policy import NextRound, Policy, RoundReports
from phalanx.rendezvous.ports import HeldPort, hold_port
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.session import Session
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.shared_store import SharedStore
from phalanx.rendezvous.stored import Outcome, Report

__all__ = ["NOT_FORMED", "JobEnded", "Participant"]

NOT_FORMED = "not formed: "
"""How the verdict begins that a leader writes when a round did not form in time."""


class JobEnded(Exception):
    """There is no further round; the message is the verdict."""


class Participant:
    """Takes part in one job. Its methods are called in the event loop that it was made in, one wait at a time."""

    def __init__(self, settings: MembershipSettings, store: SharedStore) -> None:
        self.settings = settings
        self.is_round_over = False
        """The round that ``next_round`` gave last is over, or may be; another one needs this node."""
        self._loop = asyncio.get_running_loop()
        self._machine = MemberMachine(settings, _policy())
        self._session = Session(store.borrow, self._post, ttl_s=settings.ttl_s, on_bug=self._found_bug)
        self._port: HeldPort | None = None
        self._last_port: int | None = None
        self._inbox: deque[object] = deque()
        self._is_stepping = False
        self._timer: asyncio.TimerHandle | None = None
        self._has_begun = False
        self._formed: asyncio.Future[Round] | None = None
        self._ended: BaseException | None = None
        self._left = asyncio.Event()
        self._perform: dict[type, Callable[[Any], None]] = {
            **self._session.perform,
            AskAnswered: lambda _: None,
            AskHeard: lambda _: None,  # its workers are not ours to ask
            BarrierPassed: lambda _: None,
            Fence: lambda _: None,
            HoldPort: self._hold_port,
            JobDecided: lambda notice: self._end(JobEnded(notice.text)),
            MeetingFailed: lambda notice: self._end(RendezvousConnectionError(notice.reason)),
            ReleasePort: self._release_port,
            RoundFormed: self._round_formed,
            SignalHeard: lambda _: None,  # its workers are not ours to signal
            StopRound: self._stop_round,
            Told: lambda notice: logging.getLogger(__name__).info("%s", notice.text),
        }

    async def next_round(self) -> Round:
        """Give up the last round, whose workers are gone, and wait for the next one with this node in it.

        Raises ``JobEnded``, and ``RendezvousConnectionError`` when the store was not reached in time.
        """
        if self._ended is not None:
            raise self._ended
        self._formed = self._loop.create_future()
        self.is_round_over = False
        if not self._has_begun:
            self._has_begun = True
            self._post(MeetingBegan())
        else:
            self._post(WorkersGone(Report(outcome=Outcome.STOPPED)))
        try:
            return await self._formed
        finally:
            self._formed = None

    async def leave(self, within_s: float) -> None:
        """Leave the job: the others go on without this node, unless the job has ended."""
        if self._has_begun:
            self._post(WorkersGone(Report(outcome=Outcome.STOPPED)))
            self._post(LeaveAsked())
            self._post(PartEnded())
            try:
                async with asyncio.timeout(within_s):
                    await self._left.wait()
            except TimeoutError:  # the lease ends by itself
                pass
        self._stop_timer()
        self._release_port(None)
        await self._session.aclose()

    # Driving

    def _post(self, event: object) -> None:
        self._inbox.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        try:
            while self._inbox:
                self._take(self._inbox.popleft())
        finally:
            self._is_stepping = False
        self._set_timer()

    def _take(self, event: object) -> None:
        if self._left.is_set():
            return
        try:
            for command in self._machine.step(event, self._loop.time()):
                self._perform[type(command)](command)
        except Exception as error:  # noqa: BLE001 # the border between our bugs and the caller's program
            self._found_bug(error, event)
        if self._machine.is_closed:
            self._left.set()

    def _set_timer(self) -> None:
        self._stop_timer()
        if self._machine.deadline is not None and not self._left.is_set():
            self._timer = self._loop.call_at(self._machine.deadline, self._post, TimePassed())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _found_bug(self, error: BaseException, event: object) -> None:
        self._inbox.clear()
        self._left.set()
        self._end(error)

    # What the machine asks and notices

    def _round_formed(self, notice: RoundFormed) -> None:
        self._release_port(None)  # the caller starts its workers next
        self.is_round_over = False
        if self._formed is not None and not self._formed.done():
            self._formed.set_result(notice.round)

    def _stop_round(self, notice: StopRound) -> None:
        self.is_round_over = True
        logging.getLogger(__name__).info("%s: workers are to stop", notice.reason)

    def _end(self, error: BaseException) -> None:
        self._ended = self._ended or error
        if self._formed is not None and not self._formed.done():
            self._formed.set_exception(self._ended)

    def _hold_port(self, command: HoldPort) -> None:
        self._release_port(None)
        earlier = () if self._last_port is None else (self._last_port,)
        try:
            self._port = hold_port(self.settings.master_port, not_these=earlier)
        except OSError as error:
            self._post(PortNotHeld(command.number, str(error)))
            return
        self._last_port = self._port.number
        self._post(PortHeld(command.number, self._port.number))

    def _release_port(self, command: ReleasePort | None) -> None:
        if self._port is not None:
            self._port.release()
            self._port = None


def _policy() -> Policy:
    """Who drives workers through this interface keeps the count of restarts: here each failure means another round."""

    def decide(reports: RoundReports) -> NextRound:
        return NextRound(
            restart_count=reports.round.restart_count,
            policy_state=reports.round.policy_state,
            reason=reports.round.reason,
        )

    return Policy(
        decide=decide,
        passed=lambda reports: reports.round.policy_state,
        succeeded=lambda _: "all nodes have succeeded",
        not_formed=lambda reason, _: f"{NOT_FORMED}{reason}",
    )
