"""Simulated machines: their clocks, the processes of a job on them, and the keeper that outlives its agent.

What is here is the kernel's part and the keeper's. It knows nothing of rounds or stores.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from signal import SIGKILL, SIGTERM
from typing import Protocol

from phalanx.testing.loop import HAIR_S
from phalanx.testing.timeline import Entry, NodeClock, Timeline

__all__ = ["Keeper", "Node", "Process", "ProcessLife"]

DEATH_S = (0.0005, 0.02)  # from SIGKILL to the exit
KEEPER_WAKE_S = (0.0005, 0.02)


class ProcessLife(Protocol):
    """What a process does with its life."""

    def signalled(self, process: Process, number: int) -> None:
        """A signal other than SIGKILL arrived."""

    def ended(self, process: Process) -> None:
        """It has ended; ``process.exit_code`` says how."""


class Process:
    """One process of a job on a node."""

    __slots__ = ("_end", "_killed", "exit_code", "is_stuck", "is_worker", "job", "life", "node", "pid", "why")

    def __init__(self, node: Node, pid: int, job: str, life: ProcessLife, *, is_worker: bool) -> None:
        self.node = node
        self.pid = pid
        self.job = job
        self.life = life
        self.is_worker = is_worker
        self.exit_code: int | None = None
        self.why = ""
        self.is_stuck = False
        """It waits in the kernel for a device, and does nothing else: it does not even die."""
        self._killed: Entry | None = None
        self._end: tuple[int, str] | None = None

    @property
    def is_alive(self) -> bool:
        """It runs, or could run if its node were not suspended."""
        return self.exit_code is None

    def signal(self, number: int, why: str = "") -> None:
        """Deliver a signal; nothing happens to the dead."""
        if not self.is_alive or self._killed is not None:
            return
        if number == SIGKILL:
            self._killed = self.node.after(
                self.node.rng.uniform(*DEATH_S), self.end, -SIGKILL, why or "killed"
            )
        else:
            self.life.signalled(self, number)

    def end(self, exit_code: int, why: str) -> None:
        """It exits."""
        if not self.is_alive:
            return
        if self.is_stuck:
            self._end = self._end or (exit_code, why)
            return
        self.exit_code = exit_code
        self.why = why
        if self._killed is not None:
            self._killed.cancel()
        self.node.processes.pop(self.pid, None)
        self.life.ended(self)

    def let_go(self) -> None:
        """The device answers: what should have happened happens now."""
        self.is_stuck = False
        if self._end is not None:
            self.end(*self._end)


class Node:
    """A machine. Suspended, nothing on it happens, and its entries happen after it has resumed."""

    def __init__(self, timeline: Timeline, name: str, rng: Random, clock: NodeClock) -> None:
        self.timeline = timeline
        self.name = name
        self.rng = rng
        self.clock = clock
        self.processes: dict[int, Process] = {}
        self.keepers: list[Keeper] = []
        self.is_suspended = False
        self.is_off = False
        self.boots = 1
        self._next_pid = 100
        self._late: list[Entry] = []

    @property
    def boot_id(self) -> str:
        """As the kernel's: another one after each start."""
        return f"{self.name} boot {self.boots}"

    def after(self, delay_s: float, callback: Callable[..., object], *args: object) -> Entry:
        """Let something happen on this node after a while; cancelled, it does not, also if it was late."""
        what = Entry(self.timeline.now + delay_s, callback, args)
        self.timeline.at(what.when, self._happen, what)
        return what

    def _happen(self, what: Entry) -> None:
        if what.callback is None:
            return
        if self.is_suspended:
            self._late.append(what)
            return
        callback, args = what.callback, what.args
        what.cancel()
        callback(*args)

    def start_process(self, job: str, life: ProcessLife, *, is_worker: bool) -> Process:
        """Start a process of a job."""
        self._next_pid += 1
        process = Process(self, self._next_pid, job, life, is_worker=is_worker)
        self.processes[process.pid] = process
        return process

    def of_job(self, job: str) -> list[Process]:
        """The live processes of a job."""
        return [process for process in self.processes.values() if process.job == job]

    def suspend(self) -> None:
        """Stop the whole machine, as a hypervisor does. Its boot-time clock goes on."""
        self.is_suspended = True
        self.clock.suspend()

    def resume(self) -> None:
        """Let it go on; what was due meanwhile happens within milliseconds."""
        self.is_suspended = False
        self.clock.resume()
        late, self._late = self._late, []
        for what in late:
            self.timeline.after(self.rng.uniform(0.0, 0.005), self._happen, what)

    def lose_power(self) -> None:
        """Everything on it is gone at once."""
        self.resume()
        self.is_off = True
        for keeper in self.keepers:
            keeper.is_gone = True
        self.keepers.clear()
        for process in list(self.processes.values()):
            process.is_stuck = False
            process.end(-SIGKILL, "its node lost power")

    def power_on(self) -> None:
        """It starts anew; what was due on it before is forgotten."""
        self.is_off = False
        self.boots += 1


class Keeper:
    """Kills a job's processes when its agent is gone, and then goes; or when the fence falls, and then stays."""

    def __init__(self, node: Node, job: str, *, is_gone: bool = False) -> None:
        self._node = node
        self._job = job
        self._fence = 0  # which one stands; those before it do not fall any more
        self.is_gone = is_gone
        node.keepers.append(self)

    def fence(self, deadline: float | None) -> None:
        """Kill the job when the node's boot-time clock shows ``deadline``; None: never.

        A fence that has fallen and still finds processes is over with the next one.
        """
        self._fence += 1
        if deadline is None or self.is_gone:
            return
        due = max(self._node.timeline.now, self._node.clock.true_at_boottime(deadline) + HAIR_S)
        self._node.after(due - self._node.timeline.now, self._fall, self._fence)

    def agent_is_gone(self) -> None:
        """The agent has died without saying that all is done."""
        self._node.after(self._node.rng.uniform(*KEEPER_WAKE_S), self._end_job)

    def done(self) -> None:
        """The job has ended in order."""
        self.fence(None)
        self._leave()

    def _fall(self, fence: int) -> None:
        if fence == self._fence and not self.is_gone and self._kill_all("the fence fell"):
            self._node.after(max(DEATH_S), self._fall, fence)  # it scans until it finds none

    def _end_job(self) -> None:
        if self.is_gone:
            return
        if self._kill_all("its agent died"):
            self._node.after(max(DEATH_S), self._end_job)
        else:
            self.done()

    def _kill_all(self, why: str) -> bool:
        """Whether there was anybody."""
        members = self._node.of_job(self._job)
        for process in members:
            process.signal(SIGKILL, f"killed by the keeper: {why}")
        return bool(members)

    def _leave(self) -> None:
        self.is_gone = True
        if self in self._node.keepers:
            self._node.keepers.remove(self)


class Leftover:
    """A child that outlives its worker. ``is_deaf``: only SIGKILL ends it."""

    def __init__(self, is_deaf: bool, ended: Callable[[Process], None]) -> None:
        self._is_deaf = is_deaf
        self._ended = ended

    def signalled(self, process: Process, number: int) -> None:
        """It ends of SIGTERM unless it is deaf."""
        if number == SIGTERM and not self._is_deaf:
            process.node.after(process.node.rng.uniform(*DEATH_S), process.end, -number, "a child, asked")

    def ended(self, process: Process) -> None:
        """Tell."""
        self._ended(process)
