"""The user's program of a simulated job: workers that work together, and notice when one of them is gone.

They do what training scripts do: need a while to begin, obey a stop signal late or never, leave children behind,
record an exception and take seconds to exit, and fail with "Connection reset by peer" when a peer has died. They may
tell of the steps that they have done, and of checkpoints, from which the next round goes on.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from phalanx.records import Struct
from phalanx.rendezvous.round import Round
from phalanx.testing.nodes import Leftover, Node, Process
from phalanx.testing.timeline import Entry, Timeline
from phalanx.testing.trace import Fault, ProgressMade, Trace, WorkerEnded, WorkerStarted

__all__ = ["NO_MODULE", "PORT_TAKEN", "Employer", "Habits", "Worker", "Workload"]

PEER_GONE = "RuntimeError: [Errno 104] Connection reset by peer"
PORT_TAKEN = "OSError: [Errno 98] Address already in use"
NO_MODULE = "ModuleNotFoundError: No module named 'model'"
IMPORTS_S = (0.05, 2.0)
SWITCHED_OFF_S = (0.05, 30.0)  # nobody says good-bye for a machine without power: time-outs tell


class Habits(Struct, kw_only=True):
    """How the user's program behaves. Pairs are the least and the greatest of a time in seconds."""

    cannot_start: float = 0.0
    """How many groups of workers cannot be started, because the command of one is missing just then."""
    asked_s: tuple[float, float] = (0.01, 2.0)
    """From a stop signal to the exit."""
    deaf: float = 0.03
    """How many workers ignore SIGTERM."""
    leaves_child: float = 0.05
    deaf_child: float = 0.3
    breaks_s: tuple[float, float] = (0.01, 1.0)
    """From the end of a peer to the collective that fails of it."""
    hangs: float = 0.3
    """How many workers never notice that a peer is gone."""
    ends_within_s: float = 5.0
    """How far apart workers come to their normal end."""
    step_s: float | None = None
    """How long a step takes of which workers tell; None: they tell of none."""
    steps_per_checkpoint: int = 5
    saves_when_asked: bool = False
    """Its ranks ask ``should_checkpoint(step)`` in each step."""


class Employer(Struct):
    """Who started a worker, and what it wants to be told."""

    agent: str
    ended: Callable[[Worker], None]
    recorded: Callable[[Worker, str], None]
    """It has recorded an exception."""
    child_ended: Callable[[Worker], None]
    progressed: Callable[[Worker, int], None]
    checkpointed: Callable[[Worker, int], None]
    exclude: Callable[[Worker], None]
    """It asks that its node be not used for a while."""


class Worker:
    """One worker of one round."""

    def __init__(
        self, workload: Workload, node: Node, job: str, employer: Employer, settled: Round, local_rank: int
    ) -> None:
        self.round = settled
        self.local_rank = local_rank
        self.employer = employer
        self.message = ""
        """Of the exception that it recorded."""
        self.is_peer_trouble = False
        """It fails because another one is gone."""
        self._workload = workload
        habits, rng = workload.habits, workload.rng
        self._is_deaf = rng.random() < habits.deaf
        self._hangs = rng.random() < habits.hangs
        self._is_dying = False
        self._is_asked_to_save = False
        self._end: Entry | None = None
        self.step = workload.checkpoint
        self.process = node.start_process(job, self, is_worker=True)
        self.children: list[Process] = []
        if rng.random() < habits.leaves_child:
            child = Leftover(rng.random() < habits.deaf_child, lambda _: employer.child_ended(self))
            self.children.append(node.start_process(job, child, is_worker=False))
        if workload.is_broken:
            node.after(rng.uniform(*IMPORTS_S), self.miss_module)
        elif habits.step_s is not None:
            node.after(habits.step_s, self._make_step)

    @property
    def rank(self) -> int:
        """Its global rank."""
        return self.round.rank(self.local_rank)

    @property
    def is_healthy(self) -> bool:
        """It works, and nothing has gone wrong yet."""
        return self.process.is_alive and not self._is_dying and not self.process.is_stuck

    def finish_after(self, delay_s: float) -> None:
        """Come to the normal end."""
        if self.process.is_alive and not self._is_dying:
            self._end = self.process.node.after(delay_s, self._finish)

    def _finish(self) -> None:
        if not self._is_dying:
            self.process.end(0, "done")

    def fail(self, exit_code: int, *, message: str = "", exit_after_s: float = 0.0) -> None:
        """Fail: record an exception if there is a message, and exit after a while."""
        if not self.is_healthy:
            return
        self._is_dying = True
        if message:
            self.message = message
            self.employer.recorded(self, message)
            self._workload.trouble(self)
        self.process.node.after(exit_after_s, self.process.end, exit_code, message or "its own fault")

    def miss_module(self) -> None:
        """Fail as every worker of this program does, wherever and whenever it is started."""
        if self.is_healthy:
            self._workload.tell_fault("module is missing", self, exit_code=1, is_hopeless=True)
            self.fail(1, message=NO_MODULE)

    def _make_step(self) -> None:
        habits = self._workload.habits
        if not self.process.is_alive or self._is_dying or habits.step_s is None:
            return
        self.process.node.after(habits.step_s, self._make_step)
        if self.process.is_stuck:
            return
        self.step += 1
        self._workload.tell_step(self)
        self.employer.progressed(self, self.step)
        is_due = self._is_asked_to_save or self.step % habits.steps_per_checkpoint == 0
        self._is_asked_to_save = False
        if self.rank == 0 and is_due:
            self._workload.checkpoint = self.step
            self.employer.checkpointed(self, self.step)

    def ask_to_save(self) -> None:
        """Its agent asks for a checkpoint: the next step has one, which rank 0 tells of."""
        self._is_asked_to_save = self._workload.habits.saves_when_asked

    def lose_peer(self, delay_s: float) -> None:
        """A peer is gone: the next collective fails, unless this worker never takes part in one again."""
        if self._hangs or not self.is_healthy:
            return
        self.process.node.after(delay_s, self._break)

    def _break(self) -> None:
        self.is_peer_trouble = self.is_healthy
        self.fail(1, message=PEER_GONE, exit_after_s=self._workload.rng.uniform(0.0, 0.2))

    def signalled(self, process: Process, number: int) -> None:
        """Obey a stop signal after a while, with the code of the signal or of an own handler."""
        if self._is_deaf or self._is_dying:
            return
        self._is_dying = True
        rng = self._workload.rng
        code = -number if rng.random() < 0.7 else rng.choice((0, 1))
        process.node.after(rng.uniform(*self._workload.habits.asked_s), process.end, code, "asked to stop")

    def ended(self, process: Process) -> None:
        """Tell everybody whom it concerns."""
        if self._end is not None:
            self._end.cancel()
        self._workload.worker_ended(self)
        self.employer.ended(self)


class Workload:
    """All workers of a job, on all nodes."""

    def __init__(self, timeline: Timeline, rng: Random, trace: Trace, habits: Habits) -> None:
        self.rng = rng
        self.habits = habits
        self.workers: dict[tuple[int, str, int], set[Worker]] = {}
        """Round number and master → live workers: two lives of a job may have the same numbers, and nothing else."""
        self.started: list[Worker] = []
        """All that ever were."""
        self.checkpoint = 0
        """The step with which workers begin."""
        self.is_broken = False
        """The program is: its workers fail as they begin."""
        self._timeline = timeline
        self._trace = trace
        self._is_finishing = False

    @property
    def live(self) -> list[Worker]:
        """Every live worker, in an order that depends on nothing but the seed."""
        everyone = (worker for number in sorted(self.workers) for worker in self.workers[number])
        return sorted(everyone, key=lambda one: (one.round.number, one.rank, one.process.node.name))

    def start(self, node: Node, job: str, employer: Employer, settled: Round, local_rank: int) -> Worker:
        """Start a worker."""
        worker = Worker(self, node, job, employer, settled, local_rank)
        self.workers.setdefault(_meeting(settled), set()).add(worker)
        self.started.append(worker)
        self._trace.add(WorkerStarted(employer.agent, worker.process.pid, settled, local_rank))
        if self._is_finishing:
            worker.finish_after(self.rng.uniform(0.1, self.habits.ends_within_s))
        return worker

    def finish(self) -> None:
        """The work is done: workers come to their normal end, those of later rounds too."""
        self._is_finishing = True
        for worker in self.live:
            worker.finish_after(self.rng.uniform(0.1, self.habits.ends_within_s))

    def tell_fault(
        self, kind: str, worker: Worker, *, exit_code: int | None = None, is_hopeless: bool = False
    ) -> None:
        """Note that a worker fails by its own fault; ``exit_code`` if it exits with that at once."""
        agent = worker.employer.agent
        self._trace.add(Fault(kind, agent, worker.rank, worker.round.number, exit_code, is_hopeless))

    def tell_step(self, worker: Worker) -> None:
        """Note that a worker has told of a step."""
        self._trace.add(ProgressMade(worker.employer.agent, worker.round.number, worker.step))

    def trouble(self, culprit: Worker, within_s: tuple[float, float] | None = None) -> None:
        """Let the peers of a worker notice that it is gone, or as good as gone."""
        peers = self.workers.get(_meeting(culprit.round), ())
        for peer in sorted(peers, key=lambda one: (one.rank, one.process.node.name)):
            if peer is not culprit:
                peer.lose_peer(self.rng.uniform(*(within_s or self.habits.breaks_s)))

    def worker_ended(self, worker: Worker) -> None:
        """For the worker itself."""
        process = worker.process
        exit_code = process.exit_code
        assert exit_code is not None
        peers = self.workers[_meeting(worker.round)]
        peers.discard(worker)
        if not peers:
            del self.workers[_meeting(worker.round)]
        self._trace.add(WorkerEnded(worker.employer.agent, process.pid, exit_code, process.why))
        if exit_code != 0:
            self.trouble(worker, SWITCHED_OFF_S if process.why == "its node lost power" else None)


def _meeting(settled: Round) -> tuple[int, str, int]:
    """What the workers of one round have in common."""
    return settled.number, settled.master_addr, settled.master_port
