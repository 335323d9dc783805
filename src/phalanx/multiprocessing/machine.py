"""How workers are stopped: warn, ask, wait for the grace, end the tree, kill the tree, give up by name.

One machine for both drivers, ``PContext.close()`` (synchronous) and the agent's loop. It decides and never acts: the
driver sends the signals, reports exits (``WorkerExited``) and the state of the process tree (``TreeEmptied``,
``MembersRemain``), and calls with ``DeadlinePassed`` when ``deadline`` has come.

    RUNNING ─StopRequested→ ASKED ─all exited | grace over→ TREE_TERM ─0.5 s→ TREE_KILL ─5 s, NameStuck→ ENDED
    RUNNING ─the same, with a warning→ WARNED ─time over | asked without one | asked again→ ASKED
    RUNNING ─SweepRequested→ TREE_TERM                      (any tree state) ─all exited and tree empty→ ENDED
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum
from signal import SIGKILL, SIGTERM
from typing import ClassVar

from phalanx.machine import Machine, Void
from phalanx.records import Struct

__all__ = [
    "DeadlinePassed",
    "MembersRemain",
    "NameStuck",
    "SignalTree",
    "SignalWorkers",
    "StopMachine",
    "StopRepeated",
    "StopRequested",
    "StopState",
    "SweepRequested",
    "TreeEmptied",
    "WarnWorkers",
    "WorkerExited",
]

# Wrappers (shells, Slurm, docker) send a stop signal twice within milliseconds; a person needs longer than this.
SAME_REQUEST_S = 0.5
# What a tree gets between TERM and KILL, and what is left of the grace after a second request.
TREE_TERM_S = 0.5
# SIGKILL takes effect at the next return from the kernel. What is not gone by then waits in the kernel (state D).
TREE_KILL_S = 5.0


class StopState(Enum):
    """Where a stop stands."""

    RUNNING = "running"
    WARNED = "warned"
    ASKED = "asked"
    TREE_TERM = "tree-term"
    TREE_KILL = "tree-kill"
    ENDED = "ended"


class StopRequested(Struct):
    """Someone wants the workers stopped; each gets ``signal`` and has ``grace_s`` seconds."""

    signal: int
    grace_s: float
    warn_signal: int | None = None
    """What they get first, if they are prepared for it; then they have ``warn_s`` to end by themselves."""
    warn_s: float = 0.0

    @property
    def has_warning(self) -> bool:
        """Whether there is something to send, and time for it."""
        return self.warn_signal is not None and self.warn_s > 0


class StopRepeated(Struct):
    """Another stop signal arrived while stopping."""


class SweepRequested(Struct):
    """The workers have ended by themselves; whatever they left behind is to go (a live worker would go with it)."""


class WorkerExited(Struct):
    """A worker was reaped."""

    local_rank: int


class TreeEmptied(Struct):
    """A scan found no live process of the job."""


class MembersRemain(Struct):
    """A scan after a death found live processes of the job; some may be new, born of a parent that is gone."""


class DeadlinePassed(Struct):
    """``deadline`` has come."""


class WarnWorkers(Struct):
    """Send ``signal`` to each live worker that is prepared for it, and name the others."""

    signal: int


class SignalWorkers(Struct):
    """Send ``signal`` to each live worker, and to nothing else."""

    signal: int


class SignalTree(Struct):
    """Send ``signal`` to every live process of the job that has not had it, and tell if there is none."""

    signal: int


class NameStuck(Struct):
    """Nothing more can be done: name the processes that SIGKILL did not end."""


Command = WarnWorkers | SignalWorkers | SignalTree | NameStuck


class StopMachine(Machine[StopState]):
    """The stop of one worker group. ``alive`` holds the local ranks whose exit was not reported yet.

    ``is_stuck``: it ended although something was left that SIGKILL does not end.
    """

    def __init__(self, local_ranks: Collection[int]) -> None:
        self.state = StopState.RUNNING
        self.alive = set(local_ranks)
        self.is_stuck = False
        self._tree_is_empty = False
        self._requested_at: float | None = None
        self._request: StopRequested | None = None  # what is to follow the warning

    @property
    def ends_at(self) -> float | None:
        """When those that still run then are ended with their trees; None: nobody is asked to end by himself."""
        if self.state is StopState.WARNED:
            assert self.deadline is not None, "a warning is for some time"
            assert self._request is not None, "somebody has asked"
            return self.deadline + self._request.grace_s
        return self.deadline if self.state is StopState.ASKED else None

    def _ask(self, event: StopRequested, now: float) -> list[Command]:
        if not self.alive:
            return self._end_tree(event, now)
        self._requested_at = now
        if event.has_warning:
            assert event.warn_signal is not None, "there is something to send"
            self.state, self.deadline, self._request = StopState.WARNED, now + event.warn_s, event
            return [WarnWorkers(event.warn_signal)]
        return self._signal_workers(event.signal, now + event.grace_s)

    def _signal_workers(self, signal: int, deadline: float) -> list[Command]:
        self.state, self.deadline = StopState.ASKED, deadline
        return [SignalWorkers(signal)]

    def _ask_while_warned(self, event: StopRequested, now: float) -> list[Command]:
        # No worker has had a stop signal yet, so it can still be this one. The rest is as in _ask_again.
        assert self._request is not None, "somebody has asked"
        grace_s = min(event.grace_s, self._request.grace_s)
        self._requested_at = now
        if not event.has_warning:
            return self._signal_workers(event.signal, now + grace_s)
        self._request = StopRequested(event.signal, grace_s)
        self._bring_forward(now + event.warn_s)
        return []

    def _warned_enough(self, _event: DeadlinePassed, now: float) -> list[Command]:
        if not self._is_due(now):
            return []
        assert self._request is not None, "somebody has asked"
        return self._signal_workers(self._request.signal, now + self._request.grace_s)

    def _hurry_the_warned(self, event: StopRepeated, now: float) -> list[Command]:
        if self._is_double(now):
            return []
        assert self._request is not None, "somebody has asked"
        return self._signal_workers(self._request.signal, now + min(TREE_TERM_S, self._request.grace_s))

    def _ask_again(self, event: StopRequested, now: float) -> None:
        # Another reason to stop (a failure, then a signal) can only bring the end nearer. The workers know already. It
        # counts as a request, so that its own double does not count as impatience.
        self._requested_at = now
        self._bring_forward(now + event.grace_s)

    def _hurry(self, _event: StopRepeated, now: float) -> None:
        if not self._is_double(now):
            self._bring_forward(now + TREE_TERM_S)

    def _is_double(self, now: float) -> bool:
        # Counted from the last request that counted: someone who hammers Ctrl-C must not extend the window.
        if self._requested_at is not None and now - self._requested_at < SAME_REQUEST_S:
            return True
        self._requested_at = now
        return False

    def _exit(self, event: WorkerExited, _now: float) -> None:
        self.alive.discard(event.local_rank)

    def _exit_asked(self, event: WorkerExited, now: float) -> list[Command]:
        self.alive.discard(event.local_rank)
        return [] if self.alive else self._end_tree(event, now)

    def _exit_swept(self, event: WorkerExited, _now: float) -> None:
        self.alive.discard(event.local_rank)
        self._end_if_nothing_is_left()

    def _emptied(self, _event: TreeEmptied, _now: float) -> None:
        self._tree_is_empty = True
        self._end_if_nothing_is_left()

    def _remain(self, _event: MembersRemain, _now: float) -> list[Command]:
        self._tree_is_empty = False
        return [SignalTree(SIGTERM if self.state is StopState.TREE_TERM else SIGKILL)]

    def _grace_over(self, event: DeadlinePassed, now: float) -> list[Command]:
        return self._end_tree(event, now) if self._is_due(now) else []

    def _end_tree(self, _event: object, now: float) -> list[Command]:
        self.state, self.deadline = StopState.TREE_TERM, now + TREE_TERM_S
        return [SignalTree(SIGTERM)]

    def _kill_tree(self, _event: DeadlinePassed, now: float) -> list[Command]:
        if not self._is_due(now):
            return []
        self.state, self.deadline = StopState.TREE_KILL, now + TREE_KILL_S
        return [SignalTree(SIGKILL)]

    def _give_up(self, _event: DeadlinePassed, now: float) -> list[Command]:
        if not self._is_due(now):
            return []
        self.is_stuck = True
        self._end()
        return [NameStuck()]

    def _is_due(self, now: float) -> bool:
        # A driver's timer may have been set for an earlier deadline than the one that holds now, never for a later.
        return self.deadline is not None and now >= self.deadline

    def _bring_forward(self, deadline: float) -> None:
        assert self.deadline is not None
        self.deadline = min(self.deadline, deadline)

    def _end_if_nothing_is_left(self) -> None:
        if self._tree_is_empty and not self.alive:
            self._end()

    def _end(self) -> None:
        self.state, self.deadline = StopState.ENDED, None

    def check(self) -> None:
        """A deadline stands exactly while something is being waited for; asking needs someone to ask."""
        is_waiting = self.state not in (StopState.RUNNING, StopState.ENDED)
        assert (self.deadline is not None) == is_waiting, (self.state, self.deadline)
        assert self.state not in (StopState.WARNED, StopState.ASKED) or self.alive

    table: ClassVar = {
        StopRequested: {
            StopState.RUNNING: _ask,
            StopState.WARNED: _ask_while_warned,
            StopState.ASKED: _ask_again,
            StopState.TREE_TERM: Void("the grace is over; half a second is left"),
            StopState.TREE_KILL: Void("everything is being killed already"),
            StopState.ENDED: Void("nothing is left to stop"),
        },
        StopRepeated: {
            StopState.RUNNING: Void("the request that this repeats was not about workers"),
            StopState.WARNED: _hurry_the_warned,
            StopState.ASKED: _hurry,
            StopState.TREE_TERM: Void("the grace is over; half a second is left"),
            StopState.TREE_KILL: Void("everything is being killed already"),
            StopState.ENDED: Void("nothing is left to stop"),
        },
        SweepRequested: {
            StopState.RUNNING: _end_tree,
            StopState.WARNED: Void("the sweep follows the last exit by itself"),
            StopState.ASKED: Void("the sweep follows the last exit by itself"),
            StopState.TREE_TERM: Void("the sweep is under way"),
            StopState.TREE_KILL: Void("the sweep is under way"),
            StopState.ENDED: Void("the sweep is over"),
        },
        WorkerExited: {
            StopState.RUNNING: _exit,
            StopState.WARNED: _exit_asked,
            StopState.ASKED: _exit_asked,
            StopState.TREE_TERM: _exit_swept,
            StopState.TREE_KILL: _exit_swept,
            StopState.ENDED: _exit,
        },
        TreeEmptied: {
            StopState.RUNNING: Void("nobody asked for a stop; the exits are still to be reported"),
            StopState.WARNED: Void("the workers are zombies; the last report of an exit starts the sweep"),
            StopState.ASKED: Void("the workers are zombies; the last report of an exit starts the sweep"),
            StopState.TREE_TERM: _emptied,
            StopState.TREE_KILL: _emptied,
            StopState.ENDED: Void("the end was seen before"),
        },
        MembersRemain: {
            StopState.RUNNING: Void("nobody asked for a stop"),
            StopState.WARNED: Void("nobody is to be ended yet"),
            StopState.ASKED: Void("the grace belongs to the worker and its children alike"),
            StopState.TREE_TERM: _remain,
            StopState.TREE_KILL: _remain,
            StopState.ENDED: Void("they were named and given up"),
        },
        DeadlinePassed: {
            StopState.RUNNING: Void("no deadline stands: a late timer"),
            StopState.WARNED: _warned_enough,
            StopState.ASKED: _grace_over,
            StopState.TREE_TERM: _kill_tree,
            StopState.TREE_KILL: _give_up,
            StopState.ENDED: Void("no deadline stands: a late timer"),
        },
    }
