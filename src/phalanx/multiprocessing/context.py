"""Worker processes of one attempt: start, wait, signal, reap, explain, and leave nothing behind.

``PContext`` has two faces over one core. The synchronous one is torchelastic's: ``start``, ``wait``, ``pids``,
``close``. The other is for an event loop: ``fileno`` is readable while an ended worker is unreported, ``reap`` reports
it. No face polls. A context belongs to one thread and is used once. It installs no signal handler and waits for no
child but its workers.
"""

from __future__ import annotations

import abc
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.multiprocessing.descriptors import RESERVE, hold_back, make_room
from phalanx.multiprocessing.machine import StopMachine, StopRequested, StopState, SweepRequested
from phalanx.multiprocessing.nameless import NamelessFile, crash_in
from phalanx.multiprocessing.pidfd import has_ended, make_exits_observable
from phalanx.multiprocessing.results import RunProcsResult
from phalanx.multiprocessing.spawning import SpawnError, cannot_open
from phalanx.multiprocessing.stopping import SignalException, Stopper
from phalanx.multiprocessing.streams import StreamEnds, WorkerStreams
from phalanx.multiprocessing.trees import JobProcess, ProcessTree

if TYPE_CHECKING:
    from phalanx.errors import ProcessFailure
    from phalanx.multiprocessing.logs import LogsDest, LogsSpecs
    from phalanx.multiprocessing.pidfd import Child, Remains

__all__ = ["PContext", "RunProcsResult", "SignalException", "SpawnError"]

# The last words of ended workers are in pipes and files already; more than this is a console that does not read.
CLOSE_DRAIN_S = 5.0


class PContext(abc.ABC):
    """The workers of one attempt. ``args`` and ``envs`` have one entry per local rank ``0…n-1``.

    Workers get the environment of this process overlaid with ``envs``. ``tree``: the process tree to count the workers
    into; by default one of their own. ``affinity``: the CPUs that a worker is born with; else those of its starter.

    >>> [name for name in ("start", "wait", "pids", "close") if not hasattr(PContext, name)]
    []
    """

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any] | str,
        args: Mapping[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
        *,
        tree: ProcessTree | None = None,
        affinity: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        self.name = name
        self.entrypoint = entrypoint
        self.args = args
        self.envs = envs
        self.nprocs = len(envs)
        _check_ranks(args, self.nprocs, "args")
        _check_ranks(envs, self.nprocs, "envs")
        self.affinity = dict(affinity or {})
        logs = logs_specs.reify(envs)
        self.stdouts = logs.stdouts
        self.stderrs = logs.stderrs
        self.error_files = logs.error_files
        given = next((env["PHALANX_JOB"] for env in envs.values() if "PHALANX_JOB" in env), "")
        self.job = given or os.urandom(16).hex()
        # The mark of a job inside a job is a list; the last token is this one's.
        self.tree = tree if tree is not None else ProcessTree(self.job.rpartition("/")[2])
        self._owns_tree = tree is None
        self.return_values: dict[int, Any] = {}
        # To be set before ``start()``: the local ranks that have our standard input, and our output and error as is.
        self.stdin_rank: int | None = 0
        self.terminal_rank: int | None = None
        self._streams = WorkerStreams(
            logs,
            local_ranks=range(self.nprocs),
            prefixes=log_line_prefixes,
            name=name,
            stdout_filters=duplicate_stdout_filters or (),
            stderr_filters=duplicate_stderr_filters or (),
            forks=self._forks(),
        )
        self._stopper = Stopper(StopMachine(range(self.nprocs)), self, self.tree)
        self._machine = self._stopper.machine
        self._epoll: select.epoll | None = None
        self._pids: dict[int, int] = {}
        self._live: dict[int, Child] = {}
        self._unreported: dict[int, int] = {}
        self._exit_codes: dict[int, int] = {}
        self._remains: dict[int, Remains | None] = {}
        self._crash_files: dict[int, NamelessFile] = {}
        self._crash_texts: dict[int, str] = {}
        self._tails: dict[int, bytes] = {}
        self._is_released = False
        self._result: RunProcsResult | None = None

    # Starting

    def start(self) -> None:
        """Start all workers, in the order of their local ranks. Raises ``SpawnError``, with none left running.

        Raises this process's soft limit of open files (``ulimit -n``) when they need it; they get the old one.
        """
        if self._epoll is not None or self._is_released:
            raise RuntimeError(f"{self.name}: a context is started once")
        make_exits_observable()
        # When the limit may be too low, it is to be met here, with enough left to find and end what was started.
        reserve = 0 if make_room(self.nprocs) else RESERVE
        try:
            with self._opening(0, "the descriptors by which it is watched"), hold_back(reserve):
                self._epoll = select.epoll()
                for local_rank in range(self.nprocs):
                    self._start_worker(local_rank)
        except BaseException:
            self._abandon()
            raise

    def _start_worker(self, local_rank: int) -> None:
        with self._opening(local_rank, "the pipe or terminal for its output"):
            is_ours = local_rank == self.terminal_rank
            ends = StreamEnds(None, None) if is_ours else self._streams.open_for(local_rank)
        try:
            with self._opening(local_rank, "the descriptors by which it is started and watched"):
                self._take(local_rank, self._spawn(local_rank, ends.stdout, ends.stderr))
        finally:
            self._streams.spawned(local_rank)

    def _take(self, local_rank: int, child: Child) -> None:
        self._pids[local_rank] = child.pid
        self._live[local_rank] = child
        self.tree.add(child.pid)
        assert self._epoll is not None
        self._epoll.register(child.fileno(), select.EPOLLIN)

    def start_single(self, local_rank: int, env: dict[str, str], logs: LogsDest) -> None:
        """Start a worker anew whose end was reaped, while the others run. Raises ``SpawnError``; they run on then.

        Its ``failure`` is forgotten: ask first. Nothing that it left may write to its logs any more. Not for workers
        that are made by ``fork``: the log thread runs.
        """
        assert local_rank not in self._live, "it runs"
        assert not self._forks(), "forking beside a thread is unsafe"
        self.envs[local_rank] = env
        self.error_files.update(logs.error_files)
        self._streams.renew(local_rank, logs)
        if (crash := self._crash_files.pop(local_rank, None)) is not None:
            crash.close()
        for known in (self._exit_codes, self._remains, self.return_values):
            known.pop(local_rank, None)
        try:
            self._start_worker(local_rank)
        except BaseException:
            self._streams.worker_ended(local_rank)
            raise

    def _abandon(self) -> None:
        """End what a start that failed has started.

        Without grace, and without waiting for a console that does not read: workers that are milliseconds old have
        nothing to save and little to say, and the agent's event loop stands still meanwhile. The tree gets TERM at
        once, before a worker's end can hide its children; where no tree can be read, the workers do.
        """
        try:
            if self._epoll is not None:
                has_trees = sys.platform == "linux"
                self._stopper.run(SweepRequested() if has_trees else StopRequested(signal.SIGTERM, 0.0))
        finally:
            self.release()

    @contextlib.contextmanager
    def _opening(self, local_rank: int, what: str) -> Iterator[None]:
        """Say of an ``OSError`` within the block what could not be opened, and for whom."""
        try:
            yield
        except SpawnError:
            raise
        except OSError as error:
            command = getattr(self.entrypoint, "__qualname__", None) or str(self.entrypoint)
            raise cannot_open(local_rank, command, what, error, workers=self.nprocs) from error

    @abc.abstractmethod
    def _spawn(self, local_rank: int, stdout: int | None, stderr: int | None) -> Child:
        """Start one worker with these descriptors (None: inherit). Raises ``SpawnError``.

        Any other ``OSError`` is taken to be about the means to watch it; nothing is left of the worker then.
        """

    def _forks(self) -> bool:
        """Whether workers are made by ``fork`` alone: a thread must not exist then."""
        return False

    def _additions(self, local_rank: int) -> dict[str, str]:
        """What a worker's environment has over ours."""
        streams = {
            name: value for name, value in self._streams.environment().items() if name not in os.environ
        }
        return {**streams, **self.envs[local_rank], "PHALANX_JOB": self.job}

    def _boot_order(self, local_rank: int) -> str:
        """What the boot file is told: ``<parent pid or empty>:<crash file or empty>``."""
        # The parent-death signal follows the thread that forked, not the process: only the main thread lives as long.
        parent = str(os.getpid()) if threading.current_thread() is threading.main_thread() else ""
        return f"{parent}:{self.crash_file(local_rank).path}"

    def crash_file(self, local_rank: int) -> NamelessFile:
        """Where the worker's faulthandler writes, of a crash and when it is asked for its stacks."""
        if local_rank not in self._crash_files:
            with self._opening(local_rank, "the file for its crash report"):
                self._crash_files[local_rank] = NamelessFile(f"phalanx-crash-{local_rank}")
        return self._crash_files[local_rank]

    # For an event loop

    def fileno(self) -> int:
        """A descriptor that is readable while an ended worker is unreported. ``reap()`` then."""
        assert self._epoll is not None, "start() first"
        return self._epoll.fileno()

    def sentinels(self) -> dict[int, int]:
        """One descriptor per live worker, readable when it has ended; each is closed when it is reaped."""
        return {local_rank: child.fileno() for local_rank, child in self._live.items()}

    def reap(self) -> dict[int, int]:
        """The exit codes (negative: signal) of workers that ended, each once. Never waits for one to end."""
        self.collect()
        reported, self._unreported = self._unreported, {}
        return reported

    def collect(self) -> Collection[int]:
        """Reap into what ``reap()`` will report; return the local ranks that still run."""
        if self._epoll is not None and self._live:
            by_fd = {child.fileno(): local_rank for local_rank, child in self._live.items()}
            for fd, _ in self._epoll.poll(0, len(by_fd)):
                local_rank = by_fd[fd]
                code = self._live[local_rank].poll()
                if code is not None:
                    self._note_exit(local_rank, code)
        return self._live.keys()

    def _note_exit(self, local_rank: int, code: int) -> None:
        child = self._live.pop(local_rank)
        self._remains[local_rank] = child.remains
        self.tree.ended(child.pid)
        # Explicitly: a forked worker may hold a copy of the descriptor, and the set follows copies, not numbers.
        assert self._epoll is not None
        self._epoll.unregister(child.fileno())
        child.close()
        self._exit_codes[local_rank] = self._unreported[local_rank] = self._conclude(local_rank, code)
        self._streams.worker_ended(local_rank)

    def _conclude(self, local_rank: int, code: int) -> int:
        """Take in what an ended worker left, and return the exit code that counts."""
        if code == 0:
            self.return_values[local_rank] = None  # a command has none; torchelastic's result says so by rank
        return code

    def send_signal(self, signum: int, local_ranks: Collection[int] | None = None) -> list[int]:
        """Signal live workers, and nothing else; return the local ranks of those that could hear it."""
        return [
            local_rank
            for local_rank, child in self._live.items()
            if (local_ranks is None or local_rank in local_ranks) and child.send_signal(signum)
        ]

    def failure(self, local_rank: int) -> ProcessFailure:
        """Everything known about a worker that ended badly; reads its error file."""
        from phalanx.errors import ProcessFailure

        return ProcessFailure(
            local_rank=local_rank,
            pid=self._pids[local_rank],
            # One that was killed and never came back (a debugger holds it, the kernel does) counts as killed.
            exitcode=self._exit_codes.get(local_rank, -signal.SIGKILL),
            error_file="" if self.error_files[local_rank] == os.devnull else self.error_files[local_rank],
            crash=self._crash_text(local_rank),
            stderr_tail=self.stderr_tail(local_rank).decode("utf-8", "replace"),
        )

    def remains(self, local_rank: int) -> Remains | None:
        """What the kernel told of an ended worker, its peak of memory for one; None: it runs, or nobody could look."""
        return self._remains.get(local_rank)

    def stderr_tail(self, local_rank: int) -> bytes:
        """The last bytes that the worker wrote to stderr, as many as the logs specs keep; after ``drain`` complete."""
        return self._tails[local_rank] if self._is_released else self._streams.stderr_tail(local_rank)

    def _crash_text(self, local_rank: int) -> str:
        file = self._crash_files.get(local_rank)
        if file is None:
            return self._crash_texts.get(local_rank, "")
        return crash_in(file.read())

    def drain(self, timeout_s: float) -> bool:
        """Wait until what ended workers wrote is in files and on the console; False when time ran out."""
        return self._streams.drain(timeout_s)

    def release(self) -> None:
        """Close descriptors and the log pump; processes are left as they are. Idempotent; ``failure`` still answers."""
        if self._is_released:
            return
        for local_rank in self._pids:
            self._tails[local_rank] = self._streams.stderr_tail(local_rank)
            self._crash_texts[local_rank] = self._crash_text(local_rank)
        self._is_released = True
        self._streams.close()
        for file in self._crash_files.values():
            file.close()
        self._crash_files.clear()
        for child in self._live.values():
            child.close()
        self._live.clear()
        if self._epoll is not None:
            self._epoll.close()
        if self._owns_tree:
            self.tree.close()

    # Synchronous, as torchelastic's

    def wait(self, timeout: float = -1, period: float = 1) -> RunProcsResult | None:
        """Wait for the group's end, ``timeout`` seconds (negative: for ever; 0: only look); None when time ran out.

        The group ends when all workers have, or at the first failure: the others are then stopped as by ``close()``.
        Workers that were stopped are no failures, whatever their exit codes. Returns within milliseconds of the event;
        ``period`` is torchelastic's polling interval and has no meaning here.
        """
        del period
        give_up_at = None if timeout < 0 else time.monotonic() + timeout
        while True:
            result = self._look()
            if result is not None:
                return result
            left_s = -1.0 if give_up_at is None else give_up_at - time.monotonic()
            if give_up_at is not None and left_s <= 0:
                return None
            has_ended(self.fileno(), left_s)

    def _look(self) -> RunProcsResult | None:
        if self._result is not None:
            return self._result
        if self.collect() and not any(self._exit_codes.values()):
            return None
        self.close()
        failed = [
            local_rank
            for local_rank, code in sorted(self._exit_codes.items())
            if code != 0 and local_rank not in self._stopper.asked
        ]
        self._result = RunProcsResult(
            return_values={} if failed else dict(sorted(self.return_values.items())),
            failures={local_rank: self.failure(local_rank) for local_rank in failed},
            stdouts=self.stdouts,
            stderrs=self.stderrs,
        )
        return self._result

    def pids(self) -> dict[int, int]:
        """Process ids by local rank, of all workers that were started."""
        return dict(self._pids)

    def close(self, death_sig: signal.Signals | None = None, timeout: float = 30) -> None:
        """Stop the workers and all that they started, drain their logs, and release everything. Idempotent.

        Live workers get ``death_sig`` (SIGTERM) and ``timeout`` seconds; then the whole process tree gets SIGTERM,
        SIGKILL after 0.5 s, and at most 5 s to go. A signal handler that raises meanwhile shortens the grace.
        """
        if self._is_released:
            return
        try:
            if self._epoll is not None and self._machine.state is not StopState.ENDED:
                self._stopper.run(self._first_event(death_sig, timeout))
            self.drain(CLOSE_DRAIN_S)
        finally:
            self.release()

    def _first_event(self, death_sig: signal.Signals | None, timeout: float) -> object:
        running = self.collect()
        return StopRequested(death_sig or signal.SIGTERM, timeout) if running else SweepRequested()

    def stuck(self) -> list[JobProcess]:
        """After ``close()``: the processes that SIGKILL did not end (they wait in the kernel)."""
        return self._stopper.stuck


def _check_ranks(given: Mapping[int, object], nprocs: int, what: str) -> None:
    if set(given) != set(range(nprocs)):
        raise RuntimeError(f"{what} needs one entry per local rank 0…{nprocs - 1}; it has {sorted(given)}")
