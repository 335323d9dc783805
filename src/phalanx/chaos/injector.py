"""``phalanx chaos`` itself: finds the job, waits, acts, says what was done, and ends."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import time

from phalanx.chaos import sentences
from phalanx.chaos.acts import Acts
from phalanx.chaos.cut import Uncuttable, is_cuttable, store_connections, why_no_cut
from phalanx.chaos.hold import Held
from phalanx.chaos.jobs import Agent, Job, find_jobs
from phalanx.chaos.orders import Orders
from phalanx.chaos.plan import Act, NotHere, Step, names, steps
from phalanx.chaos.plan_shown import plan_lines
from phalanx.chaos.progress import Progress
from phalanx.chaos.target import ANY, LATE_S, OTHERS_S, Mistaken, Target, has_started, ranks_of, the_job
from phalanx.chaos.waiting import Child, Signals
from phalanx.chaos.watch import Over, Watch
from phalanx.multiprocessing import pidfd

__all__ = ["EX_NOTHING_DONE", "Mistaken", "inject"]

EX_NOTHING_DONE = 1
_BEING_STARTED = "the job's workers are being started"


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


class _Injector:
    def __init__(self, orders: Orders, signals: Signals) -> None:
        self._orders = orders
        self._signals = signals
        self._watch = Watch(signals)
        self._seed = secrets.token_hex(4) if orders.seed is None else orders.seed
        self._done = 0
        self._progress: Progress | None = None
        self._temp: str | None = None
        self._acts = Acts(orders, say=self._watch.say, did=self._did, waiting_for=self._watch.waiting_for)
        self._deed = f"{orders.act.value} {sentences.aim_words(orders.aim, is_agent=orders.is_agent)}"
        when = sentences.schedule_words(orders.schedule, orders.at_step)
        self._plan = f"{self._deed}, {when}; seed {self._seed}"

    # The whole run

    def run(self) -> int:
        orders = self._orders
        plan: list[str] = []
        try:
            if orders.is_dry and orders.command:
                plan = plan_lines(self._plan, orders, self._seed, who=None)
            else:
                self._begin()
                with contextlib.suppress(Over):
                    plan = self._inject()
        except Mistaken:
            self._watch.end_child()
            raise
        except OSError as error:
            self._watch.end_child()
            raise Mistaken(f"{orders.act.value} is not possible here: {error.strerror or error}") from None
        if orders.is_dry:
            try:
                print(*(f"chaos: plan: {line}" for line in plan), sep="\n", flush=True)
            except OSError as error:
                raise Mistaken(f"the plan cannot be printed: {error.strerror}") from None
            return 0
        if self._watch.child is not None:
            return self._last_words(self._watch.child)
        if self._watch.stopped_by:
            return 128 + self._watch.stopped_by
        if not self._done:
            self._watch.say(f"the job ended before anything was done{self._why_nothing}")
            return EX_NOTHING_DONE
        return 0

    def close(self) -> None:
        if self._watch.target is not None:
            self._watch.target.close()
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
        if orders.command:
            try:
                self._watch.child = Child(orders.command, environ=environ, mask=self._signals.former)
            except OSError as error:
                raise Mistaken(f"{orders.command[0]!r} cannot be started: {error.strerror}") from None

    def _inject(self) -> list[str]:
        """Do the plan, or return its lines."""
        orders = self._orders
        if self._watch.child is None and orders.job is None and not orders.is_dry:
            raise Mistaken(sentences.unnamed(self._deed, list(map(str, find_jobs()))))
        job = self._find()
        self._watch.target = Target(job, below=self._below)
        job = self._checked(job)
        if orders.is_dry:
            return plan_lines(self._plan, orders, self._seed, who=lambda step: self._who(step, job))
        if self._watch.child is None:
            self._watch.say(f"aimed at {job}")
        self._watch.say(f"job {job.run_id}: {self._plan}")
        for step in steps(orders.schedule, self._seed):
            if step.number == 1 and orders.at_step is not None:
                self._wait_for_step(orders.at_step)
            self._watch.pause(step.wait_s)
            self._act(step)
        return []

    # The job

    @property
    def _below(self) -> int | None:
        return None if self._watch.child is None else self._watch.child.pid

    def _find(self) -> Job:
        """Wait until the job is there, and all workers of its agents here with it."""
        wait_s = self._orders.wait_s
        wanted = None if self._orders.job == ANY else self._orders.job
        others_by: float | None = None
        self._watch.begin()
        while True:
            jobs = find_jobs(below=self._below)
            job = the_job(jobs, wanted)
            now = time.monotonic()
            if job is not None:
                others_by = others_by or now + OTHERS_S
                if has_started(job) and (job.is_whole or now >= others_by):
                    return job
                self._watch.look_again(_BEING_STARTED)
                continue
            why = sentences.no_job(wanted, list(map(str, jobs)), is_ours=self._watch.child is not None)
            if self._watch.child is None and now >= self._watch.start_at + wait_s:
                raise Mistaken(
                    f"{why} ({wait_s:g} s of --wait)" if wait_s else f"{why}; --wait 60s waits for one"
                )
            self._watch.look_again(why)

    def _checked(self, job: Job) -> Job:
        """The job as it is when the aim can be met. Raises ``Mistaken`` when that is not so after a moment.

        Agents that start at the same time have their workers one after the other.
        """
        assert self._watch.target is not None
        give_up_at = max(time.monotonic() + OTHERS_S, self._watch.start_at + self._orders.wait_s)
        self._watch.begin()
        while True:
            try:
                self._check(job)
                return job
            except NotHere as reason:
                why = str(reason)
            except Uncuttable as reason:
                others = [one.node for one in job.agents if is_cuttable(one)]
                why = f"{reason}; this machine also has {names('node', others)}" if others else str(reason)
            if time.monotonic() >= give_up_at and (job.is_whole or job.age_s >= LATE_S):
                raise Mistaken(why)
            self._watch.look_again(why)
            job = self._watch.target.look() or job

    def _check(self, job: Job) -> None:
        """Whether the aim can be met now. Raises ``NotHere`` and ``Uncuttable``."""
        if not self._orders.is_agent:
            ranks_of(job, self._orders.aim, 0)
            return
        agent = self._agent(0)
        if self._orders.act is Act.CUT:
            store_connections(agent)

    def _agent(self, draw: int) -> Agent:
        assert self._watch.target is not None
        is_fit = is_cuttable if self._orders.act is Act.CUT else lambda _: True
        return self._watch.target.agent(self._orders.aim, draw, is_fit=is_fit)

    def _who(self, step: Step, job: Job) -> str:
        """Whom a step would meet now. Raises ``NotHere``."""
        if self._orders.is_agent:
            return f"the agent of node {self._agent(step.draw).node}"
        return names("rank", ranks_of(job, self._orders.aim, step.draw))

    def _wait_for_step(self, step: int) -> None:
        assert self._progress is not None
        self._watch.begin()
        while self._progress.look() < step:
            self._watch.look_again(f"no worker has told of step {step}: {self._progress}")

    # Acts

    def _act(self, step: Step) -> None:
        """Do it, as soon as who is meant is there. Raises ``Over``."""
        self._watch.begin()
        while True:
            try:
                why = self._try(step)
            except (NotHere, Uncuttable, Held) as reason:
                self._watch.look_again(str(reason), is_in_the_way=True)
                continue
            except PermissionError:
                raise Mistaken("a process of the job may not be signalled by this user") from None
            if why is None:
                return
            self._watch.look_again(why)

    def _try(self, step: Step) -> str | None:
        """Do it now; or what is not so far yet, and will be. Raises what is in the way."""
        assert self._watch.target is not None
        orders = self._orders
        if orders.is_agent:
            return self._acts.on_agent(self._agent(step.draw))
        job = self._watch.target.look()
        if job is None or not self._watch.target.is_settled(job):
            return _BEING_STARTED
        ranks = ranks_of(job, orders.aim, step.draw)
        workers = [one for one in job.workers if one.rank in ranks]
        why_not = self._acts.on_workers(workers)
        if why_not is None and orders.act is Act.KILL and orders.signum == signal.SIGKILL:
            self._watch.target.killed(job, workers)
        return why_not

    # Saying

    def _did(self, words: str) -> None:
        self._done += 1
        self._watch.say(words)

    @property
    def _why_nothing(self) -> str:
        return f" ({self._watch.why})" if self._watch.why and not self._done else ""

    def _last_words(self, child: Child) -> int:
        code = self._watch.await_child(child)
        done = sentences.counted(
            self._orders.act,
            self._done,
            is_fatal=self._orders.signum == signal.SIGKILL,
            outlived=self._acts.outlived,
        )
        self._watch.say(
            f"injected {done}{self._why_nothing}; the command ended with {code}; seed {self._seed}"
        )
        return EX_NOTHING_DONE if code == 0 and not self._done else code
