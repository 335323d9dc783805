"""``phalanx chaos`` itself: finds the job, waits, acts, says what was done, and ends.

Nobody tells of a process that appears in ``/proc``, so while a job or a worker is waited for, it is looked at ten times
a second; everything else (times, signals, ends of processes) is waited for in one ``poll``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time

from phalanx.chaos import sentences
from phalanx.chaos.acts import Acts
from phalanx.chaos.cut import Uncuttable, store_connections, why_no_cut
from phalanx.chaos.faults import Opened, Wait
from phalanx.chaos.hold import Held
from phalanx.chaos.jobs import Job, find_jobs
from phalanx.chaos.orders import Orders
from phalanx.chaos.plan import Act, NotHere, Step, steps
from phalanx.chaos.progress import Progress
from phalanx.chaos.target import ANY, Mistaken, Target, ranks_of, the_job
from phalanx.chaos.waiting import Child, Signals, wait_for
from phalanx.early import STOPPING

__all__ = ["EX_NOTHING_DONE", "Mistaken", "inject"]

EX_NOTHING_DONE = 1
LOOK_S = 0.1
# Workers of a round are started one after the other. If some are missing for this long, they have ended.
_COMPLETE_S = 1.0
_SHOWN_STEPS = 10  # of a plan without end


def inject(orders: Orders) -> int:
    """Do what was asked for and return the exit code: 0, that of the command, or 1 if nothing was done.

    Raises ``Mistaken`` with one sentence; a command that was started has been told to stop and has ended then.
    """
    if orders.act is Act.CUT and (reason := why_no_cut()) is not None:
        raise Mistaken(reason)
    with Signals() as signals:
        injector = _Injector(orders, signals)
        try:
            return injector.run()
        finally:
            injector.close()


class _Over(Exception):
    """There is nothing left to do anything to, or we were told to stop."""


class _Injector:
    def __init__(self, orders: Orders, signals: Signals) -> None:
        self._orders = orders
        self._signals = signals
        self._seed = orders.seed or secrets.token_hex(4)
        self._start_at = time.monotonic()
        self._done: dict[Act, int] = {}
        self._stopped_by = 0
        self._child: Child | None = None
        self._target: Target | None = None
        self._progress: Progress | None = None
        self._temp: str | None = None
        self._acts = Acts(orders, say=self._say, did=self._did, waiting_for=self._waiting_for)
        self._rounds: tuple[tuple[tuple[int, int], ...], float] = ((), 0.0)  # those last seen, and since when

    # The whole run

    def run(self) -> int:
        self._begin()
        try:
            with contextlib.suppress(_Over):
                self._inject()
        except Mistaken:
            self._end_child()
            raise
        if self._orders.is_dry:
            self._end_child()
            return 0
        if self._child is not None:
            return self._last_words(self._child)
        if self._stopped_by:
            return 128 + self._stopped_by
        if not self._done:
            self._say("the job ended before anything was done")
            return EX_NOTHING_DONE
        return 0

    def close(self) -> None:
        if self._target is not None:
            self._target.close()
        if self._temp is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._temp)

    def _begin(self) -> None:
        """Start the command, if there is one, and know where its progress is to be read."""
        orders = self._orders
        environ = dict(os.environ)
        file = orders.events_file
        if orders.at_step is not None and file is None:
            import tempfile

            # With a command the job can be told by a variable where to write; what it was told already is stronger.
            file = environ.get("PET_EVENTS_FILE")
            if not file:
                fd, file = tempfile.mkstemp(prefix="phalanx-chaos-", suffix=".jsonl")
                os.close(fd)
                self._temp = environ["PET_EVENTS_FILE"] = file
        if file is not None:
            self._progress = Progress(file, only_new=bool(orders.command))
        if orders.command and not orders.is_dry:
            try:
                self._child = Child(orders.command, environ=environ, mask=self._signals.former)
            except OSError as error:
                raise Mistaken(f"{orders.command[0]!r} cannot be started: {error.strerror}") from None

    def _inject(self) -> None:
        orders = self._orders
        if orders.is_dry and orders.command:
            self._show_plan(None)
            return
        job = self._find()
        self._target = Target(job, below=self._below)
        job = self._checked(job)
        if orders.is_dry:
            self._show_plan(job)
            return
        if self._child is None:
            self._say(f"aimed at {job}")
        plan = "" if orders.schedule.times == 1 else f", {sentences.schedule_words(orders.schedule)}"
        self._say(
            f"job {job.run_id}: {orders.act.value} {sentences.aim_words(orders.aim, is_agent=orders.is_agent)}"
            f"{plan}; seed {self._seed}"
        )
        for step in steps(orders.schedule, self._seed):
            if step.number == 1 and orders.at_step is not None:
                self._wait_for_step(orders.at_step)
            self._pause(step.wait_s)
            self._act(step)

    # The job

    @property
    def _below(self) -> int | None:
        return None if self._child is None else self._child.pid

    def _find(self) -> Job:
        """Wait until the job is there, and all workers of its agents here with it."""
        give_up_at = self._start_at + self._orders.wait_s
        complete_by: float | None = None
        while True:
            jobs = find_jobs(below=self._below)
            if self._child is None and self._orders.job is None and not self._orders.is_dry:
                raise Mistaken(self._unnamed(jobs))
            job = the_job(jobs, None if self._orders.job == ANY else self._orders.job)
            now = time.monotonic()
            if job is not None:
                complete_by = complete_by or now + _COMPLETE_S
                if job.is_complete or now >= complete_by:
                    return job
            elif self._child is None and now >= give_up_at:
                raise Mistaken(self._no_job(jobs))
            self._wait(now + LOOK_S)

    def _unnamed(self, jobs: list[Job]) -> str:
        """Nobody's worker is killed because somebody wanted to see what this command does, or has left out ``--``."""
        orders = self._orders
        here = f"; here: {'; '.join(map(str, jobs))}" if jobs else ""
        act = f"{orders.act.value} {sentences.aim_words(orders.aim, is_agent=orders.is_agent)}"
        return (
            f"it would {act}, of a job that is not named: write --job ID, or --job {ANY} for whichever is here alone, "
            f"or start one: -- phalanx run ...{here}"
        )

    def _no_job(self, jobs: list[Job]) -> str:
        waited = f" within {self._orders.wait_s:g} s" if self._orders.wait_s else ""
        hint = "" if self._orders.wait_s else "; --wait 60s waits for one"
        if self._orders.job in (None, ANY) or not jobs:
            named = "" if self._orders.job in (None, ANY) else f" {self._orders.job!r}"
            return f"no job{named} of this user has workers on this machine{waited}{hint}"
        listed = "; ".join(map(str, jobs))
        return f"no job {self._orders.job!r} has workers on this machine{waited}, which has: {listed}"

    def _checked(self, job: Job) -> Job:
        """The job as it is when the aim can be met. Raises ``Mistaken`` when that is not so after a moment.

        Agents that start at the same time have their workers one after the other.
        """
        assert self._target is not None
        give_up_at = time.monotonic() + _COMPLETE_S
        while True:
            try:
                self._check(job)
                return job
            except (NotHere, Uncuttable) as reason:
                if time.monotonic() >= give_up_at:
                    raise Mistaken(self._with_others(reason, job)) from None
            self._wait(time.monotonic() + LOOK_S)
            job = self._target.look() or job

    def _check(self, job: Job) -> None:
        """Whether the aim can be met now. Raises ``NotHere`` and ``Uncuttable``."""
        if not self._orders.is_agent:
            ranks_of(job, self._orders.aim, 0)
            return
        assert self._target is not None
        agent = self._target.agent(self._orders.aim, 0)
        if self._orders.act is Act.CUT and not self._orders.aim.random_node:
            store_connections(agent)

    def _with_others(self, reason: Exception, job: Job) -> str:
        """Why an agent cannot be cut, and which other ones there are."""
        others = [one.node for one in job.agents if one.node != self._orders.aim.node]
        if isinstance(reason, NotHere) or not others or len(job.agents) == 1:
            return str(reason)
        return f"{reason}; this machine also has {sentences.names('node', others)}"

    def _show_plan(self, job: Job | None) -> None:
        """Print what would be done. Random targets are those of now."""
        orders = self._orders
        act = f"{orders.act.value} {sentences.aim_words(orders.aim, is_agent=orders.is_agent)}"
        print(f"chaos: plan: {act}, {sentences.schedule_words(orders.schedule)}; seed {self._seed}")
        at_s = 0.0
        after = "" if orders.at_step is None else f" after step {orders.at_step}"
        lasts_s = 0.0 if orders.act is Act.KILL else orders.for_s
        for step in steps(orders.schedule, self._seed):
            if step.number > _SHOWN_STEPS:
                print("chaos: plan: and so on")
                break
            at_s += step.wait_s
            print(f"chaos: plan: {at_s:.1f} s{after}: {orders.act.value} {self._who(step, job)}")
            at_s += lasts_s

    def _who(self, step: Step, job: Job | None) -> str:
        aim = self._orders.aim
        if job is None:
            return sentences.aim_words(aim, is_agent=self._orders.is_agent)
        assert self._target is not None
        if self._orders.is_agent:
            return f"the agent of node {self._target.agent(aim, step.draw).node}"
        return sentences.names("rank", ranks_of(job, aim, step.draw))

    # Waiting

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self._wait(until)
        while time.monotonic() < until:
            self._wait(until)

    def _wait(self, until: float) -> None:
        """Wait until then, or until something has happened. Raises ``_Over``."""
        fds = [self._signals.fileno()]
        if self._child is not None:
            fds.append(self._child.pidfd)
        if self._target is not None:
            fds += self._target.fds()
        wait_for(fds, until)
        self._take_signals()
        if self._stopped_by or (self._child is not None and self._child.has_ended):
            raise _Over
        if self._target is not None and self._target.is_over:
            raise _Over

    def _waiting_for(self, found: list[Opened]) -> Wait:
        """How an act waits that lasts until all of these have ended, or the job has."""
        ends = {one.pidfd for one in found}
        return lambda until: self._wait_in_act(until, ends)

    def _wait_in_act(self, until: float, ends: set[int]) -> bool:
        """Wait until then within an act; False when it is to end: a signal, the job's end, or that of all targets."""
        while time.monotonic() < until:
            fds = [self._signals.fileno(), *ends]
            if self._child is not None:
                fds.append(self._child.pidfd)
            ready = wait_for(fds, until)
            self._take_signals()
            ends -= ready
            if self._stopped_by or not ends or (self._child is not None and self._child.has_ended):
                return False
        return True

    def _take_signals(self) -> None:
        while (taken := self._signals.read()) is not None:
            number, is_from_terminal = taken
            if self._child is not None and not is_from_terminal:
                self._child.send(number)
            if number in STOPPING:
                self._stopped_by = self._stopped_by or number

    def _wait_for_step(self, step: int) -> None:
        assert self._progress is not None
        while self._progress.look() < step:
            self._wait(time.monotonic() + LOOK_S)

    # Acts

    def _act(self, step: Step) -> None:
        """Do it, as soon as who is meant is there. Raises ``_Over``."""
        has_told = False
        while True:
            reason = self._try(step)
            if reason is None:
                return
            if not has_told:
                self._say(f"waiting: {reason}")
                has_told = True
            self._wait(time.monotonic() + LOOK_S)

    def _try(self, step: Step) -> str | None:
        """Do it now; or why that is not possible at this moment."""
        assert self._target is not None
        orders = self._orders
        try:
            if orders.is_agent:
                return self._acts.on_agent(self._target.agent(orders.aim, step.draw))
            job = self._target.look()
            if job is None or not self._is_settled(job):
                return "the job's workers are being started"
            ranks = ranks_of(job, orders.aim, step.draw)
            return self._acts.on_workers([one for one in job.workers if one.rank in ranks])
        except NotHere as reason:
            return str(reason)
        except (Uncuttable, Held) as reason:
            return str(reason)
        except PermissionError:
            raise Mistaken("a process of the job may not be signalled by this user") from None
        except OSError as error:
            raise Mistaken(f"{orders.act.value} is not possible here: {error.strerror or error}") from None

    def _is_settled(self, job: Job) -> bool:
        """Whether all workers are there, or those who are not have had the time to be."""
        rounds = tuple(sorted((agent.pid, agent.workers[0].round) for agent in job.agents))
        if rounds != self._rounds[0]:
            self._rounds = (rounds, time.monotonic())
        return job.is_complete or time.monotonic() >= self._rounds[1] + _COMPLETE_S

    # Saying

    def _did(self, words: str) -> None:
        act = self._orders.act
        self._done[act] = self._done.get(act, 0) + 1
        self._say(words)

    def _say(self, words: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
            print(f"chaos: {time.monotonic() - self._start_at:.1f} s: {words}", file=sys.stderr, flush=True)

    # The command

    def _end_child(self) -> None:
        """The experiment is not the one that was meant: have its job stop, and wait for that."""
        if self._child is not None and not self._child.has_ended:
            self._child.send(signal.SIGTERM)
            self._await_child(self._child)

    def _await_child(self, child: Child) -> int:
        while not child.has_ended:
            wait_for([self._signals.fileno(), child.pidfd], time.monotonic() + 3600.0)
            self._take_signals()
        assert child.code is not None
        return child.code

    def _last_words(self, child: Child) -> int:
        code = self._await_child(child)
        self._say(
            f"injected {sentences.counted(self._done)}; the command ended with {code}; seed {self._seed}"
        )
        return EX_NOTHING_DONE if code == 0 and not self._done else code
