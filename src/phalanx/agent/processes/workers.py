"""The workers of one round, as the driver sees them: start, signal, watch, and end with everything they started.

A thin edge over ``PContext`` and ``ProcessTree``: it performs and never decides. Python that the event loop calls must
not block, so waiting for logs to drain happens on a thread when it is not over at once.
"""

from __future__ import annotations

import asyncio
import os
import signal

from phalanx.agent.processes.keeper import Keeper
from phalanx.agent.spec import JobSpec
from phalanx.errors import ProcessFailure
from phalanx.multiprocessing.commands import SubprocessContext
from phalanx.multiprocessing.context import PContext
from phalanx.multiprocessing.nameless import NamelessFile
from phalanx.multiprocessing.pidfd import Remains
from phalanx.multiprocessing.trees import ProcessTree
from phalanx.rendezvous.round import Round

__all__ = ["Workers"]

WORKER_MARK = "PHALANX_WORKER"


class Workers:
    """The processes of one round on this node."""

    def __init__(
        self, spec: JobSpec, settled: Round, channel_path: str, *, keeper: Keeper, tree: ProcessTree
    ) -> None:
        self.round = settled
        self.tree = tree
        self._spec = spec
        self._channel_path = channel_path
        self._keeper = keeper
        self._context = _make_context(spec, settled, channel_path, tree)
        self.terminal_rank = terminal_rank(spec, settled)
        self._context.terminal_rank = self.terminal_rank
        # One reader in the whole job: two that share a terminal would each get half of what is typed.
        is_first = settled.group_rank == 0 and spec.debug_rank is None
        self._context.stdin_rank = 0 if is_first else self.terminal_rank

    def start(self) -> dict[int, int]:
        """Start them all. Raises ``SpawnError`` when one cannot be; those already started are ended then."""
        self._context.start()
        for local_rank, pidfd in self._context.sentinels().items():
            self._keeper.watch(self.pids[local_rank], pidfd)
        return self.pids

    def branch(self, local_rank: int) -> ProcessTree:
        """All that this ended worker has started, and nothing of the others; with ``restart_scope`` "worker"."""
        token = _token_of(self._spec, self.round, local_rank)
        return self.tree.branch(self.pids[local_rank], token, WORKER_MARK)

    def start_single(self, local_rank: int, settled: Round) -> int:
        """Start an ended worker anew, beside the others; ``settled`` is the same round with other words and counts.

        Raises ``SpawnError``, and ``OSError`` when its logs cannot be opened.
        """
        self.tree.forget(self.pids[local_rank])
        environment = _environment(self._spec, settled, local_rank, self._channel_path)
        destinations = self._spec.logs.reify_single(local_rank, environment)
        self._context.start_single(local_rank, environment, destinations)
        pid = self.pids[local_rank]
        self._keeper.watch(pid, self._context.sentinels()[local_rank])
        return pid

    def has_terminal(self, local_rank: int) -> bool:
        """Whether somebody can type for this worker."""
        return local_rank == self._context.stdin_rank and os.isatty(0)

    @property
    def pids(self) -> dict[int, int]:
        """Local rank → process id."""
        return self._context.pids()

    def fileno(self) -> int:
        """Readable while a worker has ended and ``reap`` has not told."""
        return self._context.fileno()

    def reap(self) -> dict[int, int]:
        """Workers that ended since the last call: local rank → exit code."""
        codes = self._context.reap()
        if any(codes.values()):
            from phalanx.errors._writing import remove_unfinished

            for local_rank in codes:
                remove_unfinished(self._context.error_files[local_rank], self.pids[local_rank])
        return codes

    @property
    def live(self) -> list[int]:
        """Local ranks whose end was not reaped yet."""
        return list(self._context.sentinels())

    def crash_file(self, local_rank: int) -> NamelessFile:
        """Where its faulthandler writes."""
        return self._context.crash_file(local_rank)

    def stacks_folder(self, local_rank: int) -> str:
        """The folder of its logs; empty: there is none."""
        error_file = self._context.error_files[local_rank]
        return "" if error_file in ("", os.devnull) else os.path.dirname(error_file)

    def send_to(self, local_rank: int, number: int) -> bool:
        """Signal this worker alone; False when it has ended."""
        return bool(self._context.send_signal(number, [local_rank]))

    def send_signal(self, number: int) -> None:
        """To each live worker alone, not to what it started."""
        self._context.send_signal(signal.Signals(number))

    def interrupt(self, local_rank: int) -> bool:
        """Send this worker alone what Ctrl-C sends; False when it has ended."""
        return self.send_to(local_rank, signal.SIGINT)

    def pass_on(self, number: int) -> list[int]:
        """Deliver a signal to each live worker that catches or ignores it; returns the local ranks left out.

        The default action of USR1 and its like is death: a worker that has not installed its handler yet must not
        die of a warning.
        """
        prepared = [one for one, pid in self.pids.items() if _is_prepared_for(pid, number)]
        reached = self._context.send_signal(signal.Signals(number), prepared)
        return [
            one for one, pid in self.pids.items() if one not in reached and os.path.exists(f"/proc/{pid}/fd")
        ]

    def failure(self, local_rank: int) -> ProcessFailure:
        """What is known of a worker that failed."""
        return self._context.failure(local_rank)

    def remains(self, local_rank: int) -> Remains | None:
        """What the kernel told of an ended worker."""
        return self._context.remains(local_rank)

    def stderr_tail(self, local_rank: int) -> bytes:
        """The last bytes of its standard error."""
        return self._context.stderr_tail(local_rank)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until what the ended workers wrote is in the files and on the console. False: time was over."""
        if self._context.drain(0):
            return True
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, self._context.drain, timeout_s)

    def release(self) -> None:
        """Give back descriptors and threads."""
        self._context.release()

    def end_at_once(self, grace_s: float) -> None:
        """The synchronous way out, for when our own loop can no longer be trusted."""
        self._context.close(signal.SIGTERM, int(grace_s))


def terminal_rank(spec: JobSpec, settled: Round) -> int | None:
    """The local rank of this node that has the launcher's terminal (``debug_rank``), if it has one."""
    if spec.debug_rank is None:
        return None
    return next(
        (one for one in range(settled.local_world_size) if settled.rank(one) == spec.debug_rank), None
    )


def _make_context(spec: JobSpec, settled: Round, channel_path: str, tree: ProcessTree) -> PContext:
    ranks = range(settled.local_world_size)
    prefixes = {one: text for one in ranks if (text := spec.log_line_prefix(settled, one)) is not None}
    arguments = {one: spec.arguments(one) for one in ranks}
    environments = {one: _environment(spec, settled, one, channel_path) for one in ranks}
    stdout_filters = list(spec.duplicate_stdout_filters) or None
    stderr_filters = list(spec.duplicate_stderr_filters) or None
    if isinstance(spec.entrypoint, str):
        return SubprocessContext(
            spec.role,
            spec.entrypoint,
            arguments,
            environments,
            spec.logs,
            prefixes or None,
            duplicate_stdout_filters=stdout_filters,
            duplicate_stderr_filters=stderr_filters,
            tree=tree,
            affinity=spec.affinity,
        )
    from phalanx.multiprocessing.functions import MultiprocessContext

    return MultiprocessContext(
        spec.role,
        spec.entrypoint,
        arguments,
        environments,
        spec.start_method,
        spec.logs,
        prefixes or None,
        duplicate_stdout_filters=stdout_filters,
        duplicate_stderr_filters=stderr_filters,
        tree=tree,
        affinity=spec.affinity,
    )


def _environment(spec: JobSpec, settled: Round, local_rank: int, channel_path: str) -> dict[str, str]:
    environment = spec.environment(settled, local_rank, channel_path)
    if spec.restart_scope == "worker":
        # A worker inside a worker of another job is a child of both: whoever ends the outer one finds it.
        outer = os.environ.get(WORKER_MARK)
        environment[WORKER_MARK] = "/".join(filter(None, (outer, _token_of(spec, settled, local_rank))))
    return environment


def _token_of(spec: JobSpec, settled: Round, local_rank: int) -> str:
    """Its lives share it: of the one before nothing is left when the next one starts."""
    return f"{spec.job_token}.{settled.number}.{local_rank}"


def _is_prepared_for(pid: int, number: int) -> bool:
    """Whether the process catches or ignores the signal (``SigCgt`` and ``SigIgn`` of proc(5))."""
    try:
        with open(f"/proc/{pid}/status") as status:
            masks = [int(line.split()[1], 16) for line in status if line.startswith(("SigCgt:", "SigIgn:"))]
    except OSError:
        return False
    return any(mask >> (number - 1) & 1 for mask in masks)
