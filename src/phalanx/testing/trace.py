"""What happened in a world, in the order of true time: for the checkers, and to be read when one of them complains.

An observation is what somebody outside could see: a process that begins or ends, a verdict, a fault, what is written
in the store. Nothing of it is told by an agent about itself but its verdict and its lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.agent.verdict.verdict import Verdict
from phalanx.events.job import JobEvent
from phalanx.records import Struct
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.stored import NodeRecord, Report, RoundRecord

__all__ = [
    "AgentCrashed",
    "AgentEnded",
    "AgentStarted",
    "ExclusionAsked",
    "Fault",
    "Happened",
    "Healed",
    "LetGo",
    "Line",
    "NodeWritten",
    "Observation",
    "ProgressMade",
    "ReportWritten",
    "Resumed",
    "RoundWritten",
    "StopSignalled",
    "StoreLost",
    "Stuck",
    "Suspended",
    "Trace",
    "VerdictWritten",
    "WorkerEnded",
    "WorkerStarted",
]


class AgentStarted(Struct):
    """An agent process began on a node; ``agent`` is ``<node>.<how many there were>``."""

    agent: str


class AgentEnded(Struct):
    """It came to its end by itself. ``verdict`` is what it would say, ``last_words`` what it printed."""

    agent: str
    exit_code: int
    verdict: object
    last_words: str
    is_orderly: bool


class AgentCrashed(Struct):
    """It was killed, alone or with its node."""

    agent: str


class StopSignalled(Struct):
    """Somebody outside sent a stop signal to an agent."""

    agent: str
    signal: int


class WorkerStarted(Struct):
    """A process of the user's program began."""

    agent: str
    pid: int
    round: Round
    local_rank: int


class WorkerEnded(Struct):
    """A process of the user's program ended, or was lost with its node. ``why`` is for people."""

    agent: str
    pid: int
    exit_code: int
    why: str


class Fault(Struct):
    """Something bad that the scenario did."""

    kind: str
    target: str
    rank: int | None = None
    """The rank whose own fault it is; None: nobody's but the world's."""
    round: int | None = None
    """The round of that rank."""
    exit_code: int | None = None
    """What the worker ends with at once; None: it takes its time, and may end otherwise."""
    is_hopeless: bool = False
    """Another try would meet the same."""


class ProgressMade(Struct):
    """A worker told its agent of a step."""

    agent: str
    round: int
    step: int


class ExclusionAsked(Struct):
    """A worker asked its agent that its node be not used for a while."""

    agent: str


class Happened(Struct):
    """What an agent tells who looks on; only in a world that is observed so."""

    agent: str
    job_event: JobEvent


class RoundWritten(Struct):
    """The store has a round, or another phase of it. ``incarnation`` tells stores with other data apart."""

    incarnation: int
    record: RoundRecord


class NodeWritten(Struct):
    """An agent's registration in the store; None: it is gone."""

    agent: str
    record: NodeRecord | None


class ReportWritten(Struct):
    """How an agent's part in a round ended, as the store has it; or a question for a single restart."""

    agent: str
    round: int
    report: Report


class VerdictWritten(Struct):
    """The store says how the job has ended."""

    incarnation: int
    verdict: Verdict


class Stuck(Struct):
    """A process waits in the kernel for a device, and cannot be killed."""

    agent: str
    pid: int


class LetGo(Struct):
    """It does so no more."""

    agent: str
    pid: int


class Healed(Struct):
    """No more faults from here on: now progress is demanded."""


class StoreLost(Struct):
    """The process that held the store's data is gone, and the data with it."""


class Suspended(Struct):
    """A whole machine stopped, as a hypervisor does it: what is on it lives, and does nothing."""

    node: str


class Resumed(Struct):
    """It goes on."""

    node: str


class Line(Struct):
    """Something that an agent said."""

    agent: str
    text: str


Observation = (
    AgentStarted
    | AgentEnded
    | AgentCrashed
    | StopSignalled
    | WorkerStarted
    | WorkerEnded
    | Fault
    | Happened
    | ProgressMade
    | ExclusionAsked
    | RoundWritten
    | NodeWritten
    | ReportWritten
    | VerdictWritten
    | Stuck
    | LetGo
    | Healed
    | StoreLost
    | Suspended
    | Resumed
    | Line
)


class Trace:
    """The observations of one world. Checkers listen; each sees all, in order.

    What a listener raises is kept in ``error``, and nobody is told anything after that: raised through an agent it
    would look like a bug of that agent.
    """

    def __init__(self, now: Callable[[], float], *, on_error: Callable[[], None] = lambda: None) -> None:
        self._now = now
        self._on_error = on_error
        self._listeners: list[Callable[[float, Any], None]] = []
        self.error: Exception | None = None
        self.entries: list[tuple[float, Observation]] = []

    def listen(self, listener: Callable[[float, Any], None]) -> None:
        """Call ``listener(at, observation)`` for each from now on."""
        self._listeners.append(listener)

    def add(self, observation: Observation) -> None:
        """It happened now."""
        at = self._now()
        self.entries.append((at, observation))
        if self.error is not None:
            return
        try:
            for listener in self._listeners:
                listener(at, observation)
        except Exception as error:  # noqa: BLE001 # a border: see above
            self.error = error
            self._on_error()

    def text(self, last: int | None = None) -> str:
        """Every observation as a line, or the last ones."""
        entries = [one for one in self.entries if not isinstance(one[1], NodeWritten | ProgressMade)]
        if last is not None:
            entries = entries[-last:]
        return "\n".join(f"{at:10.3f}  {_line(one)}" for at, one in entries)


def _store_line(one: RoundWritten | ReportWritten | VerdictWritten) -> str:
    if isinstance(one, VerdictWritten):
        return f"store: the job has {one.verdict.ending.value}, exit code {one.verdict.exit_code}"
    if isinstance(one, ReportWritten):
        report = one.report
        return f"store: {one.agent} reports of round {one.round}: {report.outcome.value}, step {report.step}"
    record = one.record
    wait = f", waits {record.delay_s:.1f} s" if record.delay_s else ""
    return f"store: round {record.number} {record.phase.value}, restart count {record.restart_count}{wait}"


def _line(one: Observation) -> str:
    match one:
        case Line(agent, text):
            return f"{agent}: {text}"
        case WorkerStarted(agent, pid, settled, local_rank):
            return (
                f"{agent}: round {settled.number} begins rank {settled.rank(local_rank)} of {settled.world_size} "
                f"(pid {pid}, node {settled.group_rank} of {settled.group_world_size}, restart count "
                f"{settled.restart_count}, master {settled.master_addr}:{settled.master_port}, "
                f"reason {settled.reason!r})"
            )
        case WorkerEnded(agent, pid, exit_code, why):
            return f"{agent}: pid {pid} ended with {exit_code} ({why})"
        case RoundWritten() | ReportWritten() | VerdictWritten():
            return _store_line(one)
        case Fault(kind, target, rank, number):
            return f"*** {kind} {target}{'' if rank is None else f' (rank {rank} of round {number})'}"
        case Healed():
            return "*** all is healed"
        case AgentEnded(agent, exit_code, verdict, _, _):
            return f"{agent}: the agent ended with exit code {exit_code}: {verdict!r}"
        case _:
            return repr(one)
