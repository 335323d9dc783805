"""Workers that are functions, started by the standard library's ``multiprocessing`` (spawn, fork or forkserver).

A worker leaves its result in a nameless file that is read when it has ended: a result of any size blocks nobody.
"""

from __future__ import annotations

import contextlib
import errno
import multiprocessing
import os
import pickle
import threading
import time
from collections.abc import Callable, Collection, Mapping
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from phalanx.multiprocessing import function_worker
from phalanx.multiprocessing.context import PContext
from phalanx.multiprocessing.descriptors import given_limit
from phalanx.multiprocessing.function_worker import Descriptor, Order
from phalanx.multiprocessing.masks import all_signals_blocked
from phalanx.multiprocessing.nameless import NamelessFile
from phalanx.multiprocessing.pidfd import (
    EXIT_CODE_LOST,
    Child,
    PidfdChild,
    has_ended,
    is_supported,
    watch_child,
)
from phalanx.multiprocessing.spawning import SpawnError, born_on

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from phalanx.errors import ProcessFailure
    from phalanx.multiprocessing.logs import LogsDest, LogsSpecs
    from phalanx.multiprocessing.numa import NumaOptions
    from phalanx.multiprocessing.trees import ProcessTree

__all__ = ["MultiprocessContext"]

# The fork server reaps its child and writes the code at once; it is late only if it was stopped, or the machine is.
CODE_TIMEOUT_S = 5.0
CODE_LOOK_S = 0.005
# What a worker reports whose result arrived but cannot be read here.
EXIT_CODE_OF_EXCEPTION = 1


class MultiprocessContext(PContext):
    """Workers that call ``entrypoint(*args[local_rank])``; ``wait()`` returns what the calls returned.

    ``start_method`` is multiprocessing's. With spawn and forkserver the function, its arguments and its result travel
    as pickles: functions and classes by their names. ``numa_options`` and ``affinity`` are
    those of ``SubprocessContext``.

    >>> from phalanx.multiprocessing import DefaultLogsSpecs, start_processes
    >>> context = start_processes("max", max, {0: (1, 2)}, {0: {}}, DefaultLogsSpecs())
    >>> type(context).__name__, context.wait().return_values
    ('MultiprocessContext', {0: 2})
    """

    entrypoint: Callable[..., Any]

    def __init__(
        self,
        name: str,
        entrypoint: Callable[..., Any],
        args: Mapping[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
        start_method: str,
        logs_specs: LogsSpecs,
        log_line_prefixes: Mapping[int, str] | None = None,
        numa_options: NumaOptions | None = None,
        duplicate_stdout_filters: list[str] | None = None,
        duplicate_stderr_filters: list[str] | None = None,
        *,
        tree: ProcessTree | None = None,
        affinity: Mapping[int, Collection[int]] | None = None,
    ) -> None:
        if numa_options is not None:
            from phalanx.multiprocessing.numa import affinity_of

            affinity = affinity_of(numa_options, envs)
        self.start_method = start_method
        self._mp = multiprocessing.get_context(start_method)
        self._results: dict[int, NamelessFile] = {}
        self._unreadable: dict[int, str] = {}
        super().__init__(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
            tree=tree,
            affinity=affinity,
        )

    def _forks(self) -> bool:
        return self.start_method == "fork"

    def _maker(self, local_rank: int) -> int:
        """The process whose main thread makes this worker, before ``Process.start`` returns; 0: we do.

        What multiprocessing keeps for the whole program must not get the CPUs of the worker for which it is started.
        """
        if local_rank not in self.affinity:
            return 0
        from multiprocessing import forkserver, resource_tracker

        resource_tracker.ensure_running()
        if self.start_method != "forkserver":
            return 0
        forkserver.ensure_running()
        return _fork_server() or 0

    def _spawn(self, local_rank: int, stdout: int | None, stderr: int | None) -> Child:
        with self._opening(local_rank, "the file for its result"):
            result = self._results[local_rank] = NamelessFile(f"phalanx-result-{local_rank}")
        # Over a fork: a signal that came before the child has dropped our handlers would be lost.
        with all_signals_blocked() if self._forks() else contextlib.nullcontext() as unblocked:
            return self._spawn_with(local_rank, result, unblocked, stdout, stderr)

    def _spawn_with(
        self,
        local_rank: int,
        result: NamelessFile,
        unblocked: frozenset[int] | None,
        stdout: int | None,
        stderr: int | None,
    ) -> Child:
        order = Order(
            name=_name_of(self.entrypoint),
            local_rank=local_rank,
            has_stdin=local_rank == self.stdin_rank,
            function=self.entrypoint,
            arguments=self.args[local_rank],
            environment=self._additions(local_rank),
            start_method=self.start_method,
            unblocked=unblocked,
            # The parent-death signal follows the thread that forked: only the main thread lives as long as we do. The
            # fork server forks in its own main thread.
            parent=os.getpid() if self.start_method == "forkserver" or _is_main_thread() else None,
            # A forked worker has all our descriptors, and would have no room below the smaller limit.
            open_files=None if self._forks() else given_limit(),
            result=Descriptor(result.fd),
            crash=Descriptor(self.crash_file(local_rank).fd),
            stdout=None if stdout is None else Descriptor(stdout),
            stderr=None if stderr is None else Descriptor(stderr),
        )
        process: BaseProcess = self._mp.Process(  # type: ignore[attr-defined] # of each concrete context
            target=function_worker.run, args=(order,), name=f"{self.name}-{local_rank}"
        )
        try:
            with born_on(
                self.affinity.get(local_rank), local_rank, order.name, server=self._maker(local_rank)
            ):
                process.start()
        except SpawnError:
            raise
        except Exception as error:  # pickling calls code of the user's classes
            if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
                raise
            raise self._explain(local_rank, error) from error
        for pid in _servants():
            self.tree.spare(pid)
        try:
            return _watch(process, is_our_child=self.start_method != "forkserver")
        except BaseException:  # no descriptor is left: a worker that cannot be watched must not be there
            process.kill()
            process.join()
            raise

    def _explain(self, local_rank: int, error: Exception) -> SpawnError:
        command = _name_of(self.entrypoint)
        if isinstance(error, OSError):
            return SpawnError(local_rank, command, error.strerror or str(error))
        culprit = f"a {type(self.entrypoint).__name__}"
        advice = "give a function that can be imported by its name"
        if _pickles(self.entrypoint):
            bad = [(i, value) for i, value in enumerate(self.args[local_rank]) if not _pickles(value)]
            culprit = "something among its arguments"
            if bad:
                culprit = f"argument {bad[0][0]} of type {type(bad[0][1]).__name__!r}"
            advice = "pass plain data, or use start_method='fork'"
        return SpawnError(
            local_rank, command, f"{culprit} cannot be sent to a new process ({error})", advice=advice
        )

    def _conclude(self, local_rank: int, code: int) -> int:
        with contextlib.closing(self._results.pop(local_rank)) as file:
            if code != 0:
                return code
            data = file.read()
        try:
            # No data: the function ended the process itself, by os._exit(0).
            self.return_values[local_rank] = pickle.loads(data) if data else None
        except Exception as error:  # noqa: BLE001 # unpickling runs code of the user's classes
            self._unreadable[local_rank] = (
                f"local rank {local_rank}: {_name_of(self.entrypoint)} returned something that cannot be read here "
                f"({type(error).__name__}: {error}); its type must be importable in the launching program too"
            )
            return EXIT_CODE_OF_EXCEPTION
        return code

    def failure(self, local_rank: int) -> ProcessFailure:
        """Everything known about a worker that ended badly, or whose result cannot be read."""
        failure = super().failure(local_rank)
        if local_rank in self._unreadable:
            failure.message = self._unreadable[local_rank]
        return failure

    def start_single(self, local_rank: int, env: dict[str, str], logs: LogsDest) -> None:
        """As the base."""
        self._unreadable.pop(local_rank, None)
        super().start_single(local_rank, env, logs)

    def release(self) -> None:
        """Close descriptors and the log pump; processes are left as they are. Idempotent."""
        for file in self._results.values():
            file.close()
        self._results.clear()
        super().release()


class _FunctionChild:
    """A multiprocessing child: the end from a pidfd, the code from multiprocessing, which may have reaped it first.

    Whenever a program starts a process, multiprocessing reaps all that have ended; a ``waitid`` of ours would lose.
    The code of a child of the fork server is the server's to send. ``poll`` waits for it, a few milliseconds in a call
    and a few seconds in all: not at all would have our caller ask again and again, since the end is known already.
    """

    __slots__ = ("_lost_at", "_process", "_watch", "pid")
    remains = None  # multiprocessing reaps, and keeps the exit code alone

    def __init__(self, process: BaseProcess, pid: int, watch: Child | None) -> None:
        self._process = process
        self._watch = watch
        self._lost_at: float | None = None
        self.pid = pid

    def fileno(self) -> int:
        return self._process.sentinel if self._watch is None else self._watch.fileno()

    def poll(self) -> int | None:
        if not has_ended(self.fileno()):
            return None
        code = self._process.exitcode
        if code is None and has_ended(self._process.sentinel, CODE_LOOK_S):
            code = self._process.exitcode
        if code is None:
            self._lost_at = self._lost_at or time.monotonic() + CODE_TIMEOUT_S
            return EXIT_CODE_LOST if time.monotonic() >= self._lost_at else None
        return code

    def send_signal(self, signum: int) -> bool:
        return self._watch is not None and self._watch.send_signal(signum)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        with contextlib.suppress(ValueError):  # it still runs: released, not stopped
            self._process.close()


def _watch(process: BaseProcess, *, is_our_child: bool) -> Child:
    assert process.pid is not None
    pid = process.pid
    if is_our_child:
        return _FunctionChild(process, pid, watch_child(pid))
    watch: PidfdChild | None = None
    with contextlib.suppress(ProcessLookupError):
        watch = PidfdChild(pid) if is_supported() else None
    # The server may have reaped it before we looked, and the number could be a stranger's: then the code has arrived.
    if watch is not None and has_ended(process.sentinel):
        watch.close()
        watch = None
    return _FunctionChild(process, pid, watch)


def _fork_server() -> int | None:
    from multiprocessing import forkserver

    return getattr(getattr(forkserver, "_forkserver", None), "_forkserver_pid", None)


def _servants() -> list[int]:
    """The processes that multiprocessing itself keeps for the whole program: no members of any job."""
    from multiprocessing import resource_tracker

    pids = (
        _fork_server(),
        getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None),
    )
    return [pid for pid in pids if pid is not None]


def _pickles(value: object) -> bool:
    try:
        ForkingPickler.dumps(value)
    except RuntimeError:  # queues, locks: they travel only while a process is being started, and do so then
        return True
    except Exception:  # noqa: BLE001 # pickling runs code of the user's classes
        return False
    return True


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
