"""What happens to a job, told from what the agent's machine hears and decides. Pure.

It looks at each step of the driver, event and commands, and changes nothing: whoever wants another job event adds it
here, and no machine grows for it. The round that is being met for is read from the same key of the store that the
membership reads; with a handler of somebody else, from what that handler is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from signal import Signals
from typing import Any, ClassVar

from phalanx.agent.events import CollectEvidence, EvidenceCollected, Finish, PassOn, WorkerTold
from phalanx.agent.group import (
    AnnounceStop,
    Exit,
    Say,
    SpawnFailed,
    SpawnWorkers,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.restarts.policy import RestartPolicy, Standing
from phalanx.agent.sentences import one_line
from phalanx.agent.single.worker import StartWorker, WorkerExamined, WorkerNotStarted, WorkerStarted
from phalanx.agent.verdict.verdict import Failure, Verdict
from phalanx.events import job
from phalanx.records import changed
from phalanx.rendezvous.events import CheckpointDone, KeyChanged, KeysListed, SessionOpened
from phalanx.rendezvous.foreign.events import Meet
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.stored import BadRecord, Phase, RoundRecord, decode

__all__ = ["PROGRESS_EVERY_S", "Observing"]

# Workers tell of steps as often as they like; somebody who looks on wants to see that they move.
PROGRESS_EVERY_S = 1.0
WAITING = ("waiting: ", "waiting for ")  # how lines begin that say so: the membership's, a foreign handler's


class Observing:
    """Each method returns what is to be told, in order, with the wall time ``at_ns`` in it.

    ``started`` is told first, with the time of the first step. After ``JobEnded`` nothing is told any more.
    """

    def __init__(self, started: job.JobStarted, restarts: RestartPolicy) -> None:
        self._started = started
        self._restarts = restarts
        self._keys = JobKeys(started.run_id)
        self._has_begun = False
        self._at_ns = 0
        self._now = 0.0
        self._waits_since = 0.0
        self._round: Round | None = None  # the last that settled here
        self._told_round = 0  # the last that was told to be open
        self._restart_count = 0
        self._pids: dict[int, int] = {}
        self._ended: set[int] = set()  # local ranks whose end was told
        self._was_asked = False
        self._is_gone = True  # no worker of the round is left; later news of them is none
        self._exits: tuple[Exit, ...] = ()
        self._line = ""  # the last that was printed
        self._waiting = ""
        self._step: int | None = None
        self._told_step: int | None = None
        self._told_step_at = float("-inf")
        self.is_over = False

    def see(self, event: object, commands: list[Any], now: float, at_ns: int) -> list[job.JobEvent]:
        """One step of the driver: an event, and what was decided."""
        if self.is_over:
            return []
        self._now, self._at_ns = now, at_ns
        told = [*self._begin(), *self._take(self._events.get(type(event)), event)]
        for command in commands:
            told += self._take(self._commands.get(type(command)), command)
        is_end = any(isinstance(one, (job.WorkerEnded, job.RoundEnded, job.JobEnded)) for one in told)
        return [*self._last_step(), *told] if is_end else told

    def progressed(self, step: int, now: float, at_ns: int) -> list[job.JobEvent]:
        """A worker told how far it is. What is not told now is due at ``progress_due``."""
        self._now, self._at_ns = now, at_ns
        if self._step is None or step > self._step:
            self._step = step
        return self.progress_passed(now, at_ns)

    def timers_moved(self, at_ns: int) -> list[job.JobEvent]:
        """Workers have begun or ended blocks that have a timer."""
        is_late = self.is_over or self._is_gone
        return [] if is_late else [job.TimerProgress(at_ns=at_ns)]

    @property
    def progress_due(self) -> float | None:
        """When to call ``progress_passed``."""
        if self.is_over or self._step is None or self._step == self._told_step:
            return None
        return self._told_step_at + PROGRESS_EVERY_S

    def progress_passed(self, now: float, at_ns: int) -> list[job.JobEvent]:
        """The time of ``progress_due`` has come, or not."""
        self._now, self._at_ns = now, at_ns
        due = self.progress_due
        return self._tell_step() if due is not None and now >= due else []

    def over(self, verdict: Verdict, at_ns: int) -> list[job.JobEvent]:
        """The driver has ended without the machine: a bug of ours."""
        if self.is_over:
            return []
        self._at_ns = at_ns
        return [*self._begin(), *self._last_step(), *self._finish(Finish(verdict))]

    def _take(self, tell: Callable[..., list[job.JobEvent]] | None, what: object) -> list[job.JobEvent]:
        return [] if tell is None else tell(self, what)

    # The round

    def _begin(self) -> list[job.JobEvent]:
        """Before anything else: an agent may be told to stop before it meets anybody."""
        if self._has_begun:
            return []
        self._has_begun = True
        self._waits_since = self._now
        return [changed(self._started, at_ns=self._at_ns)]

    def _opened(self, event: SessionOpened) -> list[job.JobEvent]:
        if not self._started.run_id:
            self._keys.name(event.run_id)
        return []

    def _listed(self, event: KeysListed) -> list[job.JobEvent]:
        values = [one.value for one in event.items if one.key == self._keys.round]
        return [told for value in values for told in self._round_written(value)]

    def _changed(self, event: KeyChanged) -> list[job.JobEvent]:
        values = [
            one.kv.value
            for one in event.batch.changes
            if one.kv.key == self._keys.round and not one.is_delete
        ]
        return [told for value in values for told in self._round_written(value)]

    def _round_written(self, value: bytes) -> list[job.JobEvent]:
        try:
            record = decode(RoundRecord, value)
        except BadRecord:
            return []  # the membership says so
        if record.phase is not Phase.JOINING:
            return []
        standing = Standing.read(record.policy_state, charged=record.restart_count)
        used = standing.used if self._restarts.window_s is None else len(standing.ages_s)
        return self._next(record.number, record.reason, record.restart_count, used, record.delay_s)

    def _meet(self, command: Meet) -> list[job.JobEvent]:
        """Of a later round the count of restarts is agreed on only there: that is told when it has settled."""
        if self._round is not None:
            return []
        return self._next(command.number, command.reason, command.restart_count, command.restart_count, 0.0)

    def _next(
        self, number: int, reason: str, restart_count: int, used: int, delay_s: float
    ) -> list[job.JobEvent]:
        """There will be a round; told once of each, and by its settling at the latest.

        Another store may count from a lower number: that is another round, too.
        """
        if number == self._told_round:
            return []
        self._told_round = number
        was, self._restart_count = self._restart_count, restart_count
        if self._round is None:
            return [job.RoundOpened(at_ns=self._at_ns, round=number, reason=reason)]
        return [
            job.RestartDecided(
                at_ns=self._at_ns,
                round=number,
                reason=reason,
                is_charged=restart_count > was,
                restart_count=restart_count,
                left=max(0, self._restarts.most - used),
                delay_s=delay_s,
            )
        ]

    def _settled(self, command: SpawnWorkers) -> list[job.JobEvent]:
        settled = command.round
        told = self._next(
            settled.number, settled.reason, settled.restart_count, settled.restart_count, settled.delay_s
        )
        self._round, self._restart_count = settled, settled.restart_count
        self._pids, self._ended, self._exits = {}, set(), ()
        self._was_asked = self._is_gone = False
        self._waiting = ""
        self._step = self._told_step = None
        local_ranks = range(settled.local_world_size)
        return [
            *told,
            job.RoundSettled(
                at_ns=self._at_ns,
                round=settled.number,
                restart_count=settled.restart_count,
                reason=settled.reason,
                run_id=self._keys.run_id,
                group_rank=settled.group_rank,
                group_world_size=settled.group_world_size,
                ranks=tuple(map(settled.rank, local_ranks)),
                world_size=settled.world_size,
                role_ranks=tuple(map(settled.role_rank, local_ranks)),
                role_world_size=settled.role_size,
                master_addr=settled.master_addr,
                master_port=settled.master_port,
                waited_s=max(0.0, self._now - self._waits_since),
            ),
        ]

    # Workers

    def _spawned(self, event: WorkersSpawned) -> list[job.JobEvent]:
        self._pids = dict(event.pids)
        return [job.WorkersStarted(at_ns=self._at_ns, round=self._number, pids=dict(event.pids))]

    def _not_spawned(self, event: SpawnFailed) -> list[job.JobEvent]:
        return self._end(event.local_rank, event.exit_code, event.reason)

    def _exited(self, event: WorkersExited) -> list[job.JobEvent]:
        return [told for local_rank, code in event.codes.items() for told in self._end(local_rank, code)]

    def _single_decided(self, command: StartWorker) -> list[job.JobEvent]:
        settled = command.round
        self._restart_count = settled.restart_count
        return [
            job.RestartDecided(
                at_ns=self._at_ns,
                round=settled.number,
                reason=settled.reason,
                is_charged=True,
                restart_count=settled.restart_count,
                left=max(0, self._restarts.most - settled.restart_count),
                local_rank=command.local_rank,
            )
        ]

    def _single_started(self, event: WorkerStarted) -> list[job.JobEvent]:
        if self._is_gone:
            return []
        self._pids[event.local_rank] = event.pid
        self._ended.discard(event.local_rank)
        return [job.WorkersStarted(at_ns=self._at_ns, round=self._number, pids={event.local_rank: event.pid})]

    def _single_not_started(self, event: WorkerNotStarted) -> list[job.JobEvent]:
        self._pids.pop(event.local_rank, None)
        self._ended.discard(event.local_rank)
        return self._end(event.local_rank, event.exit_code, event.reason)

    def _end(self, local_rank: int, exit_code: int, why_not_started: str = "") -> list[job.JobEvent]:
        if self._is_gone or self._round is None or local_rank in self._ended:
            return []
        self._ended.add(local_rank)
        return [
            job.WorkerEnded(
                at_ns=self._at_ns,
                round=self._number,
                rank=self._round.rank(local_rank),
                local_rank=local_rank,
                pid=self._pids.get(local_rank, 0),
                exit_code=exit_code,
                was_asked=self._was_asked,
                why_not_started=one_line(why_not_started),
            )
        ]

    def _all_gone(self, command: CollectEvidence) -> list[job.JobEvent]:
        """Who was sent SIGKILL and never came back has ended, too."""
        self._exits = command.exits
        told = [told for one in command.exits for told in self._end(one.local_rank, one.exit_code)]
        self._is_gone = True
        return told

    def _examined(self, event: WorkerExamined) -> list[job.JobEvent]:
        return [] if self._is_gone else self._failures(event.failures)

    def _collected(self, event: EvidenceCollected) -> list[job.JobEvent]:
        self._waits_since = self._now
        answered = {one.local_rank for one in self._exits if one.is_void}
        failures = tuple(one for one in event.failures if one.local_rank not in answered)
        was_stopped = any(one.is_void or one.stopped_at is not None for one in self._exits)
        if any(not one.is_collateral for one in failures):
            outcome = "failed"
        else:
            outcome = "stopped" if failures or was_stopped else "succeeded"
        ended = job.RoundEnded(at_ns=self._at_ns, round=self._number, outcome=outcome)
        return [*self._failures(failures), ended]

    def _failures(self, failures: tuple[Failure, ...]) -> list[job.JobEvent]:
        return [self._failed(one) for one in sorted(failures, key=lambda it: it.rank)]

    def _failed(self, one: Failure) -> job.WorkerFailed:
        return job.WorkerFailed(
            at_ns=self._at_ns,
            round=one.round or self._number,
            rank=one.rank,
            local_rank=one.local_rank,
            pid=one.pid,
            exit_code=one.exit_code,
            message=one_line(one.message or one.summary or one.why_not_started),
            traceback=one.traceback,
            host=one.host,
            error_file=one.error_file,
            is_collateral=one.is_collateral,
        )

    @property
    def _number(self) -> int:
        return 0 if self._round is None else self._round.number

    # What workers tell

    def _told(self, event: WorkerTold) -> list[job.JobEvent]:
        if not isinstance(event.what, CheckpointDone):
            return []
        return [job.CheckpointSaved(at_ns=self._at_ns, step=event.what.step)]

    def _last_step(self) -> list[job.JobEvent]:
        """Before workers end, how far they came."""
        is_untold = self._step is not None and self._step != self._told_step
        return self._tell_step() if is_untold else []

    def _tell_step(self) -> list[job.JobEvent]:
        assert self._step is not None, "somebody told it"
        self._told_step, self._told_step_at = self._step, self._now
        return [job.WorkerProgress(at_ns=self._at_ns, step=self._step)]

    # Stops, signals, the end

    def _said(self, command: Say) -> list[job.JobEvent]:
        self._line = command.text
        if not self._is_gone or not command.text.startswith(WAITING) or command.text == self._waiting:
            return []
        self._waiting = command.text
        sentence = command.text.removeprefix(WAITING[0]).removeprefix(WAITING[1])
        return [job.WaitingFor(at_ns=self._at_ns, sentence=sentence)]

    def _stop(self, command: AnnounceStop) -> list[job.JobEvent]:
        if self._was_asked:
            return []  # it was told again, with less time
        self._was_asked = True
        reason = self._line or Signals(command.signal).name
        return [
            job.StopBegan(
                at_ns=self._at_ns,
                round=self._number,
                signal=command.signal,
                grace_s=command.grace_s,
                reason=reason,
            )
        ]

    def _passed_on(self, command: PassOn) -> list[job.JobEvent]:
        return [job.SignalPassedOn(at_ns=self._at_ns, signal=command.signal)]

    def _finish(self, command: Finish) -> list[job.JobEvent]:
        self.is_over = True
        verdict = command.verdict
        return [
            job.JobEnded(
                at_ns=self._at_ns,
                ending=verdict.ending.value,
                exit_code=verdict.exit_code,
                reason=one_line(verdict.reason),
                cause=None if verdict.cause is None else self._failed(verdict.cause),
            )
        ]

    _events: ClassVar[dict[type, Callable[..., list[job.JobEvent]]]] = {
        SessionOpened: _opened,
        KeysListed: _listed,
        KeyChanged: _changed,
        WorkersSpawned: _spawned,
        SpawnFailed: _not_spawned,
        WorkersExited: _exited,
        WorkerStarted: _single_started,
        WorkerNotStarted: _single_not_started,
        WorkerExamined: _examined,
        EvidenceCollected: _collected,
        WorkerTold: _told,
    }
    _commands: ClassVar[dict[type, Callable[..., list[job.JobEvent]]]] = {
        Meet: _meet,
        SpawnWorkers: _settled,
        StartWorker: _single_decided,
        CollectEvidence: _all_gone,
        Say: _said,
        AnnounceStop: _stop,
        PassOn: _passed_on,
        Finish: _finish,
    }
