"""``phalanx chaos`` itself: finds the job, waits, acts, says what was done, and ends.

Nobody tells of a process that appears in ``/proc``, so while a job or a worker is waited for, it is looked at ten times
a second; everything else (times, signals, ends of processes) is waited for in one ``poll``.
"""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import signal
import sys
import time

from phalanx.chaos import sentences
from phalanx.chaos.acts import Acts
from phalanx.chaos.cut import Uncuttable, is_cuttable, store_connections, why_no_cut
from phalanx.chaos.faults import Opened, Wait
from phalanx.chaos.hold import Held
from phalanx.chaos.jobs import Agent, Job, find_jobs
from phalanx.chaos.orders import Orders
from phalanx.chaos.plan import Act, NotHere, Step, names, steps
from phalanx.chaos.progress import Progress
from phalanx.chaos.target import ANY, COMPLETE_S, Mistaken, Target, ranks_of, the_job
from phalanx.chaos.waiting import Child, Signals, wait_for
from phalanx.early import STOPPING
from phalanx.multiprocessing import pidfd

__all__ = ["EX_NOTHING_DONE", "Mistaken", "inject"]

EX_NOTHING_DONE = 1
LOOK_S = 0.1
_BEING_STARTED = "the job's workers are being started"
_QUIET_S = 10.0  # what is waited for so long is told
_SHOWN_STEPS = 10  # of a plan without end


def inject(orders: Orders) -> int:
    """Do what was asked for and return the exit code: 0, that of the command, or 1 if nothing was done.

    Raises ``Mistaken`` with one sentence; a command that was started has been told to stop and has ended then.
    """
    if not pidfd.is_supported():
        raise Mistaken("chaos needs pidfds: Linux 5.4 or newer, and no sandbox that forbids them")
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
        self._seed = secrets.token_hex(4) if orders.seed is None else orders.seed
        self._start_at = time.monotonic()
        self._done: dict[Act, int] = {}
        self._stopped_by = 0
        self._child: Child | None = None
        self._target: Target | None = None
        self._progress: Progress | None = None
        self._temp: str | None = None
        self._acts = Acts(orders, say=self._say, did=self._did, waiting_for=self._waiting_for)
        self._deed = f"{orders.act.value} {sentences.aim_words(orders.aim, is_agent=orders.is_agent)}"
        self._why = ""  # nothing is done yet

    # The whole run

    def run(self) -> int:
        try:
            self._begin()
            with contextlib.suppress(_Over):
                self._inject()
        except Mistaken:
            self._end_child()
            raise
        except OSError as error:
            self._end_child()
            raise Mistaken(
                f"{self._orders.act.value} is not possible here: {error.strerror or error}"
            ) from None
        if self._orders.is_dry:
            self._end_child()
            return 0
        if self._child is not None:
            return self._last_words(self._child)
        if self._stopped_by:
            return 128 + self._stopped_by
        if not self._done:
            self._say(f"the job ended before anything was done{self._why_nothing}")
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
        if orders.command and orders.at_step is not None:
            # The job is told by a variable where to write, wherever the command goes first.
            file = os.path.abspath(file) if file else environ.get("PET_EVENTS_FILE")
            if not file:
                import tempfile

                fd, file = tempfile.mkstemp(prefix="phalanx-chaos-", suffix=".jsonl")
                os.close(fd)
                self._temp = file
            environ["PET_EVENTS_FILE"] = file
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
        self._say(f"job {job.run_id}: {self._plan}")
        for step in steps(orders.schedule, self._seed):
            if step.number == 1 and orders.at_step is not None:
                self._wait_for_step(orders.at_step)
            self._pause(step.wait_s)
            self._act(step)

    @property
    def _plan(self) -> str:
        when = sentences.schedule_words(self._orders.schedule, self._orders.at_step)
        return f"{self._deed}, {when}; seed {self._seed}"

    # The job

    @property
    def _below(self) -> int | None:
        return None if self._child is None else self._child.pid

    def _find(self) -> Job:
        """Wait until the job is there, and all workers of its agents here with it."""
        wait_s = self._orders.wait_s
        wanted = None if self._orders.job == ANY else self._orders.job
        complete_by: float | None = None
        say_at = self._start_at + _QUIET_S
        while True:
            jobs = find_jobs(below=self._below)
            here = list(map(str, jobs))
            if self._child is None and self._orders.job is None and not self._orders.is_dry:
                raise Mistaken(sentences.unnamed(self._deed, here))
            job = the_job(jobs, wanted)
            now = time.monotonic()
            if job is not None:
                complete_by = complete_by or now + COMPLETE_S
                if (job.is_complete and job.is_whole) or now >= complete_by:
                    return job
                say_at = self._look_again(_BEING_STARTED, say_at)
                continue
            why = sentences.no_job(wanted, here, is_ours=self._child is not None)
            if self._child is None and now >= self._start_at + wait_s:
                raise Mistaken(
                    f"{why} ({wait_s:g} s of --wait)" if wait_s else f"{why}; --wait 60s waits for one"
                )
            say_at = self._look_again(why, say_at)

    def _checked(self, job: Job) -> Job:
        """The job as it is when the aim can be met. Raises ``Mistaken`` when that is not so after a moment.

        Agents that start at the same time have their workers one after the other.
        """
        assert self._target is not None
        give_up_at = max(time.monotonic() + COMPLETE_S, self._start_at + self._orders.wait_s)
        say_at = time.monotonic() + _QUIET_S
        while True:
            try:
                self._check(job)
                return job
            except (NotHere, Uncuttable) as reason:
                why = self._with_others(reason, job)
            if time.monotonic() >= give_up_at:
                raise Mistaken(why)
            say_at = self._look_again(why, say_at)
            job = self._target.look() or job

    def _check(self, job: Job) -> None:
        """Whether the aim can be met now. Raises ``NotHere`` and ``Uncuttable``."""
        if not self._orders.is_agent:
            ranks_of(job, self._orders.aim, 0)
            return
        agent = self._agent(0)
        if self._orders.act is Act.CUT:
            store_connections(agent)

    def _agent(self, draw: int) -> Agent:
        assert self._target is not None
        is_fit = is_cuttable if self._orders.act is Act.CUT else lambda _: True
        return self._target.agent(self._orders.aim, draw, is_fit=is_fit)

    def _with_others(self, reason: Exception, job: Job) -> str:
        """Why an agent cannot be cut, and which other ones there are."""
        others = [one.node for one in job.agents if one.node != self._orders.aim.node]
        if isinstance(reason, NotHere) or not others or len(job.agents) == 1:
            return str(reason)
        return f"{reason}; this machine also has {names('node', others)}"

    def _show_plan(self, job: Job | None) -> None:
        """Print what would be done. Random targets are those of now."""
        orders = self._orders
        print(f"chaos: plan: {self._plan}")
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
        try:
            if self._orders.is_agent:
                return f"the agent of node {self._agent(step.draw).node}"
            return names("rank", ranks_of(job, aim, step.draw))
        except NotHere as reason:
            return f"nobody: {reason}"

    # Waiting

    def _look_again(self, why: str, say_at: float) -> float:
        """Wait a moment, for nobody tells of it; from ``say_at`` on say once why. Return when it is to be said."""
        self._why = why
        if time.monotonic() >= say_at:
            self._say(f"waiting: {why}")
            say_at = math.inf
        self._wait(time.monotonic() + LOOK_S)
        return say_at

    def _pause(self, seconds: float) -> None:
        self._why = f"{sentences.time_words(seconds)} of waiting were not over" if seconds else ""
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
        say_at = time.monotonic() + _QUIET_S
        while self._progress.look() < step:
            say_at = self._look_again(f"no worker has told of step {step}: {self._progress}", say_at)

    # Acts

    def _act(self, step: Step) -> None:
        """Do it, as soon as who is meant is there. Raises ``_Over``."""
        say_at = 0.0
        while (reason := self._try(step)) is not None:
            say_at = self._look_again(reason, say_at)

    def _try(self, step: Step) -> str | None:
        """Do it now; or why that is not possible at this moment."""
        assert self._target is not None
        orders = self._orders
        try:
            if orders.is_agent:
                return self._acts.on_agent(self._agent(step.draw))
            job = self._target.look()
            if job is None or not self._target.is_settled(job, time.monotonic()):
                return _BEING_STARTED
            ranks = ranks_of(job, orders.aim, step.draw)
            workers = [one for one in job.workers if one.rank in ranks]
            why_not = self._acts.on_workers(workers)
            if why_not is None and orders.act is Act.KILL and orders.signum == signal.SIGKILL:
                self._target.killed(job, workers)
            return why_not
        except (NotHere, Uncuttable, Held) as reason:
            return str(reason)
        except PermissionError:
            raise Mistaken("a process of the job may not be signalled by this user") from None

    # Saying

    def _did(self, words: str) -> None:
        act = self._orders.act
        self._done[act] = self._done.get(act, 0) + 1
        self._say(words)

    @property
    def _why_nothing(self) -> str:
        return f" ({self._why})" if self._why and not self._done else ""

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
            f"injected {sentences.counted(self._done)}{self._why_nothing}; the command ended with {code}; "
            f"seed {self._seed}"
        )
        return EX_NOTHING_DONE if code == 0 and not self._done else code
