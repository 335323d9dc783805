"""The stacks of all ranks are saved before a worker whose timer is over is ended.

    IDLE ──a timer is over, or another node asks──▶ SAVING ──saved here──▶ WAITING ──saved everywhere──▶ IDLE

In SAVING this node's workers tell where they are, in WAITING the other nodes' still do. The first moment of a job that
hangs is the one that tells why: who is ended first makes the others fail, and their stacks are those of the failure
then. All of it takes ``LIMIT_S`` at most. It never decides whether the job goes on: a worker that was ended has failed.
Who is asked to end by a signal that it can refuse is killed when the grace is over.
"""

from __future__ import annotations

from enum import Enum, auto
from signal import SIGKILL, Signals
from typing import Any, ClassVar

from phalanx.agent.group import DeadlinePassed, GroupMachine, GroupState, Say
from phalanx.machine import Arrow, Machine, Void
from phalanx.records import Struct
from phalanx.rendezvous.asks import Ask, AskAnswered, AskDone, AskHeard, AskSent

__all__ = [
    "LIMIT_S",
    "EndSlow",
    "OfStacks",
    "SaveStacks",
    "StacksMachine",
    "StacksSaved",
    "StacksState",
    "TimerExpired",
]

# A node takes at most four and a half seconds, agent/processes/stacks.py; and the ask has to get there and back.
LIMIT_S = 7.0


class StacksState(Enum):
    """See the module's docstring."""

    IDLE = auto()
    SAVING = auto()
    WAITING = auto()


# Events, beside those of ``rendezvous.asks``


class OfStacks(Struct):
    """The agent's machine hands these on, whatever they are."""


class TimerExpired(OfStacks):
    """A process of the job did not leave a block in time. ``signal`` is what it wants to be ended by."""

    pid: int
    signal: int
    scope: str
    started: int = 0
    """When it began, in the kernel's ticks: its number may be another's before it is ended."""


class StacksSaved(OfStacks):
    """What could be had of this node's stacks is in files."""

    number: int


# Commands


class SaveStacks(Struct):
    """Save the stacks of this node's workers and post ``StacksSaved``, with this number, however that went."""

    number: int
    reason: str


class EndSlow(Struct):
    """Send a process of the job its signal, and remember why; nothing to one that has ended."""

    pid: int
    signal: int
    scope: str
    started: int = 0
    late: str = ""
    """What to say if it still ran: only who looks at the process can know."""


class StacksMachine(Machine[StacksState]):
    """For one round on one node; ``group`` is looked at, and never told anything.

    Its commands include ``AskSent`` and ``AskDone``, which are events of the membership. ``before`` is the machine of
    the round before: what that one began to save may be told of only now, and is not this one's.
    """

    def __init__(self, group: GroupMachine, before: StacksMachine | None = None) -> None:
        self.state = StacksState.IDLE
        self._group = group
        self._number: int = 0 if before is None else before._number
        self._slow: dict[int, TimerExpired] = {}
        self._owed: list[str] = []  # asks of other nodes that are answered when stacks are saved
        self._is_waited_for = False  # the other nodes: they were asked, and have not answered
        self._limit_at: float | None = None
        # By another signal than SIGKILL, and until when.
        self._told_to_end: dict[int, tuple[float, TimerExpired]] = {}

    def step(self, event: object, now: float) -> list[Any]:
        """As the base; who was told to end and lives on is a matter of time, whatever the state is."""
        commands = [*super().step(event, now), *self._kill_overdue(now)]
        times = [self._limit_at, *(at for at, _ in self._told_to_end.values())]
        self.deadline = min((at for at in times if at is not None), default=None)
        return commands

    # Arrows

    def _expired(self, event: TimerExpired, now: float) -> list[Any]:
        if self._group.state is not GroupState.RUNNING:
            # The round ends already, for a reason that has its evidence: a stop is not made longer.
            return self._end(event, now)
        reason = f"{self._name_of(event.pid)} is too slow in {event.scope}"
        told = Say(f"{reason}: the stacks of all ranks are saved, then it is ended")
        return [told, *self._begin(reason, now), *self._add(event, reason)]

    def _expired_meanwhile(self, event: TimerExpired, now: float) -> list[Any]:
        """What is being saved serves for this one, too: a collective that hangs is over for all ranks at once."""
        if event.pid in self._slow:
            return []
        reason = f"{self._name_of(event.pid)} is too slow in {event.scope}"
        return [Say(f"{reason}, too"), *self._add(event, reason)]

    def _heard(self, event: AskHeard, now: float) -> list[Any]:
        if event.what is not Ask.STACKS:
            return []
        if self._group.state is not GroupState.RUNNING:
            return [AskDone(event.what, event.id)]
        self._owed.append(event.id)
        return [
            Say(f"the stacks of this node's ranks are saved: {event.reason}"),
            *self._begin(event.reason, now),
        ]

    def _heard_meanwhile(self, event: AskHeard, now: float) -> None:
        if event.what is Ask.STACKS:
            self._owed.append(event.id)

    def _heard_when_saved(self, event: AskHeard, now: float) -> list[Any]:
        """They are a moment old."""
        return [AskDone(event.what, event.id)] if event.what is Ask.STACKS else []

    def _saved(self, event: StacksSaved, now: float) -> list[Any]:
        if event.number != self._number:
            return []  # of an earlier time, which was given up
        answers = [AskDone(Ask.STACKS, one) for one in self._owed]
        self._owed.clear()
        if self._slow and self._is_waited_for:
            self.state = StacksState.WAITING
            return [*answers, AskDone(Ask.STACKS, "")]
        return [*answers, *self._finish(now)]

    def _answered_early(self, event: AskAnswered, now: float) -> None:
        if event.what is Ask.STACKS:
            self._is_waited_for = False

    def _answered(self, event: AskAnswered, now: float) -> list[Any]:
        return self._finish(now) if event.what is Ask.STACKS else []

    def _time_passed(self, event: DeadlinePassed, now: float) -> list[Any]:
        if self._limit_at is None or now < self._limit_at:
            return []
        told: list[Any] = []
        if self._slow:
            whose = "other nodes" if self.state is StacksState.WAITING else "this node's ranks"
            told.append(Say(f"not all stacks of {whose} could be saved within {LIMIT_S:g} s"))
        answers = [AskDone(Ask.STACKS, one) for one in self._owed]
        return [*told, *answers, *self._finish(now)]

    # Parts of arrows

    def _begin(self, reason: str, now: float) -> list[Any]:
        self.state = StacksState.SAVING
        self._limit_at = now + LIMIT_S
        self._number += 1
        return [SaveStacks(self._number, reason)]

    def _add(self, event: TimerExpired, reason: str) -> list[Any]:
        """Others are asked once; if another node has asked already, the store makes one ask of both."""
        is_first = not self._slow
        self._slow[event.pid] = event
        settled = self._group.round
        if not is_first or settled is None or settled.group_world_size == 1:
            return []
        self._is_waited_for = True
        return [AskSent(Ask.STACKS, reason)]

    def _finish(self, now: float) -> list[Any]:
        """Who has left its block meanwhile is ended all the same: its time was over, and everybody was told so."""
        commands = [command for one in self._slow.values() for command in self._end(one, now)]
        self.state = StacksState.IDLE
        self._limit_at = None
        self._slow.clear()
        self._owed.clear()
        self._is_waited_for = False
        return commands

    def _end(self, slow: TimerExpired, now: float) -> list[Any]:
        if slow.signal not in (SIGKILL, 0):
            self._told_to_end[slow.pid] = (now + self._group.grace_s, slow)
        return [EndSlow(slow.pid, slow.signal, slow.scope, slow.started)]

    def _kill_overdue(self, now: float) -> list[Any]:
        """Whoever is no rank, or has a successor, may have ended unseen: the commands are for who still runs."""
        live = {self._group.pids.get(one) for one in self._group.live}
        ended = set(self._group.pids.values()) - live
        commands: list[Any] = []
        for pid, (at, slow) in list(self._told_to_end.items()):
            if pid in ended:
                del self._told_to_end[pid]
            elif now >= at:
                del self._told_to_end[pid]
                name = Signals(slow.signal).name if slow.signal in set(Signals) else f"signal {slow.signal}"
                late = f"{self._name_of(pid)} has not ended by {name} within {self._group.grace_s:g} s: it is killed"
                commands.append(EndSlow(pid, SIGKILL, slow.scope, slow.started, late))
        return commands

    def _name_of(self, pid: int) -> str:
        settled = self._group.round
        for local_rank, one in self._group.pids.items():
            if one == pid and settled is not None:
                return f"rank {settled.rank(local_rank)}"
        return f"process {pid}, which is no rank,"

    def check(self) -> None:
        """Somebody is waited for exactly as long as there is a limit to it."""
        is_idle = self.state is StacksState.IDLE
        assert is_idle == (self._limit_at is None), "what is waited for has a limit"
        assert not is_idle or not (self._slow or self._owed), "nobody is forgotten"
        assert self.state is not StacksState.WAITING or self._slow, (
            "others are waited for only to end somebody"
        )

    _IDLE = Void("nothing is waited for any more")

    table: ClassVar[dict[type, dict[StacksState, Arrow | Void]]] = {
        TimerExpired: {
            StacksState.IDLE: _expired,
            StacksState.SAVING: _expired_meanwhile,
            StacksState.WAITING: _expired_meanwhile,
        },
        AskHeard: {
            StacksState.IDLE: _heard,
            StacksState.SAVING: _heard_meanwhile,
            StacksState.WAITING: _heard_when_saved,
        },
        StacksSaved: {
            StacksState.IDLE: Void("it came after the limit"),
            StacksState.SAVING: _saved,
            StacksState.WAITING: Void("of an earlier time, which was given up"),
        },
        AskAnswered: {
            StacksState.IDLE: _IDLE,
            StacksState.SAVING: _answered_early,
            StacksState.WAITING: _answered,
        },
        DeadlinePassed: {
            StacksState.IDLE: Void("somebody else's, or about who was told to end"),
            StacksState.SAVING: _time_passed,
            StacksState.WAITING: _time_passed,
        },
    }
