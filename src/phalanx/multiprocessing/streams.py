"""The streams of one worker group: which descriptors its workers get, and what becomes of what they write.

Used in this order for each worker: `WorkerStreams.open_for`, start the process, `spawned`, …, `worker_ended`; for the
group: `drain`, `stderr_tail`, `close`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from phalanx.multiprocessing.logs import LogsDest

__all__ = ["StreamEnds", "WorkerStreams"]


@dataclass(frozen=True, slots=True)
class StreamEnds:
    """Descriptors to give to a worker as its stdout and stderr; None: it inherits ours."""

    stdout: int | None
    stderr: int | None


class WorkerStreams:
    """All streams of the workers of one attempt. Not thread-safe: one owner calls it."""

    def __init__(
        self,
        dest: LogsDest,
        *,
        local_ranks: Collection[int],
        prefixes: Mapping[int, str] | None = None,
        name: str = "",
        stdout_filters: Sequence[str] = (),
        stderr_filters: Sequence[str] = (),
        forks: bool = False,
    ) -> None:
        self._dest = dest
        self._ends: dict[int, StreamEnds] = {}

    def environment(self) -> dict[str, str]:
        """Variables that workers should get unless they have them: ``FORCE_COLOR`` when a tee goes to a terminal."""
        return {}

    def open_for(self, local_rank: int) -> StreamEnds:
        """Open the worker's ends; call it before the worker starts and `spawned` after, also when it did not start."""
        ends = StreamEnds(
            self._open_file(self._dest.stdouts.get(local_rank, "")), self._open_file(self._dest.stderrs.get(local_rank, ""))
        )
        self._ends[local_rank] = ends
        return ends

    def spawned(self, local_rank: int) -> None:
        """Close our copies of the ends that the worker has now."""
        ends = self._ends.pop(local_rank)
        for fd in (ends.stdout, ends.stderr):
            if fd is not None:
                os.close(fd)

    def worker_ended(self, local_rank: int) -> None:
        """The worker is gone: everything that it wrote is to be read, and its last line completed."""

    def drain(self, timeout_s: float) -> bool:
        """Wait until all that ended workers wrote is in files and on the console; False when time ran out."""
        return True

    def stderr_tail(self, local_rank: int) -> bytes:
        """The last bytes that the worker wrote to stderr, at most ``dest.stderr_tail``."""
        path, size = self._dest.stderrs.get(local_rank, ""), self._dest.stderr_tail
        if not path or size == 0 or path == os.devnull:
            return b""
        try:
            with open(path, "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - size))
                return file.read(size)
        except OSError:
            return b""

    def close(self) -> None:
        """Stop reading and close everything; idempotent."""
        for local_rank in list(self._ends):
            self.spawned(local_rank)

    @staticmethod
    def _open_file(path: str) -> int | None:
        if not path:
            return None
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
