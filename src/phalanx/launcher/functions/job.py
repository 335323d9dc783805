"""A job that a program has started and goes on beside: ``phalanx.start``. ``phalanx.launch`` waits for one of these."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable, Collection, Generator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from phalanx.agent.verdict.verdict import Ending
from phalanx.events.job import JobEvent
from phalanx.events.status import JobStatus
from phalanx.launcher.functions.failure import raised_by
from phalanx.launcher.functions.function_job import FunctionJob
from phalanx.launcher.functions.output import Output
from phalanx.launcher.functions.result import LaunchResult, NotSent
from phalanx.launcher.hosting.library import AgentProcess
from phalanx.launcher.hosting.outcome import Outcome
from phalanx.launcher.hosting.watching import AsyncWatch, Watch

__all__ = ["Job"]

R = TypeVar("R")


class Job(Generic[R]):
    """A running job. Methods may be called from any thread; ``await job`` is ``job.result()`` in a running loop.

    As a context manager, plain or asynchronous, it stops what still runs when the block is left, and waits: ask for
    ``result()`` inside of it. It is made by ``phalanx.start``.

    >>> import phalanx
    >>> with phalanx.start(max, 3, 5, nproc=2) as job:
    ...     result = job.result()
    >>> result.values, job.status().phase
    ((5, 5), 'ended')
    """

    def __init__(
        self,
        name: str,
        agent: AgentProcess,
        function: FunctionJob | None,
        output: Output,
        temporary: str | None,
        pass_signals: Collection[int],
    ) -> None:
        """``temporary`` is a folder of logs that goes with the end of a job that succeeds."""
        self.name = name
        self.agent = agent
        """The hosted agent, for what this class has no method for."""
        self._function = function
        self._output = output
        self._temporary = temporary
        self._passed = pass_signals
        self._lock = threading.Lock()
        self._host = os.getpid()
        self._result: LaunchResult[Any] | None = None
        self._raised: BaseException | None = None
        self._trace: TracebackType | None = None

    def status(self) -> JobStatus:
        """How the job stands on this node: phase, round, workers, progress. Never waits."""
        return self.agent.status()

    def watch(self, timeout_s: float | None = None) -> Watch:
        """How the job stands now, and then at each change until its end: ``for status in job.watch(): …``.

        Event-driven, and for as many watchers as there are. Raises ``TimeoutError`` as ``result`` does.
        """
        watch = self.agent.watch(timeout_s)
        watch.keeps = self
        return watch

    def watch_async(self, timeout_s: float | None = None) -> AsyncWatch:
        """The same in a running asyncio loop: ``async for status in job.watch_async(): …``."""
        watch = self.agent.watch_async(timeout_s)
        watch.keeps = self
        return watch

    def wait(
        self,
        timeout_s: float | None = None,
        *,
        on_event: Callable[[JobEvent], object] | None = None,
    ) -> bool:
        """Wait for the end, whatever it is; False when ``timeout_s`` was not enough, and the job goes on.

        ``on_event`` is called here with each job event as it comes (``phalanx.events.job``); what it raises is
        raised, and the job goes on. Each job event is handed out once, to whoever asks first.
        """
        return self.agent.wait(timeout_s, on_event=on_event) is not None

    def result(self, timeout_s: float | None = None) -> LaunchResult[R]:
        """Wait for the end, and return the values of all ranks.

        Raises the exception of the worker that failed first, ``WorkerFailed`` if it left none, ``JobStopped`` if the
        job was stopped, and ``TimeoutError`` when ``timeout_s`` was not enough, and the job goes on.
        """
        outcome = self.agent.wait(timeout_s)
        if outcome is None:
            raise TimeoutError(f"{self.name} still runs after {timeout_s:g} s")
        found = self._concluded(outcome)
        if isinstance(found, LaunchResult):
            return found
        raise found

    def signal(self, signum: int) -> bool:
        """Send the workers a signal that is passed on (SIGUSR1 and SIGUSR2 always are). False: the job has ended.

        Raises ``ValueError`` for a signal that is not: ``stop`` ends the job.
        """
        if signum not in self._passed:
            raise ValueError(
                f"{signal.Signals(signum).name} is not passed on to workers; name it in pass_signals, or call stop()"
            )
        return self.agent.send_signal(signum)

    def stop(self) -> bool:
        """Ask the workers to stop; they have their grace. Does not wait. A second time ends them at once.

        False when the job has ended already.
        """
        return self.agent.stop()

    def __await__(self) -> Generator[Any, None, LaunchResult[R]]:
        return self._awaited().__await__()

    async def _awaited(self) -> LaunchResult[R]:
        found = self._concluded(await self.agent.wait_async())
        if isinstance(found, LaunchResult):
            return found
        raise found

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.agent.__exit__(kind, value, trace)
        self._conclude()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.agent.__aexit__(kind, value, trace)
        self._conclude()

    def __repr__(self) -> str:
        return f"<Job {self.name}: {self.agent!r}>"

    def _conclude(self) -> None:
        if os.getpid() != self._host:  # a forked child, which has left its copy of the block
            return
        outcome = self.agent.wait(0)
        if outcome is not None:
            self._concluded(outcome)

    def _concluded(self, outcome: Outcome) -> LaunchResult[R] | BaseException:
        """What ``result`` returns or raises, for who wants no more frames in the traceback than its own."""
        with self._lock:
            self._close(outcome)
            if self._result is not None:
                return self._result
            assert self._raised is not None
            # Each time with the worker's own frames, and not with those of the last one who asked.
            return self._raised.with_traceback(self._trace)

    def _close(self, outcome: Outcome) -> None:
        """Take in what the workers have left, once."""
        if self._result is not None or self._raised is not None:
            return
        self._output.ended()
        try:
            if outcome.ending is Ending.SUCCEEDED:
                self._result = self._collected(outcome)
            else:
                self._raised = raised_by(outcome, self.name, self._exception_of)
        except Exception as reason:  # noqa: BLE001 # a value that cannot be read here is raised to whoever asks for it
            self._raised = reason
        if self._raised is not None:
            self._trace = self._raised.__traceback__
        if self._function is not None:
            self._function.close()
        if self._temporary is not None and outcome.ending is not Ending.FAILED:
            shutil.rmtree(self._temporary, ignore_errors=True)
        elif self._temporary is not None:
            with contextlib.suppress(OSError):  # nothing is in it: no worker came up
                os.rmdir(self._temporary)

    def _exception_of(self, rank: int) -> BaseException | None:
        return None if self._function is None else self._function.raised(rank)

    def _collected(self, outcome: Outcome) -> LaunchResult[Any]:
        values: tuple[Any, ...] = (None,) * self.status().world_size  # what a script returns
        if self._function is not None:
            found: dict[int, Any] = self._function.returned()
            others, unsent = self._function.others()
            found = {**others, **found}
            size = max(self._function.world_size, max(found, default=-1) + 1)
            values = tuple(
                found[rank]
                if rank in found
                else NotSent(rank, unsent.get(rank, "nobody of this node asked for it"))
                for rank in range(size)
            )
        verdict = outcome.verdict
        return LaunchResult(
            values,
            run_id=self.status().run_id,
            restarts=0 if verdict is None else verdict.restart_count,
            outcome=outcome,
        )
