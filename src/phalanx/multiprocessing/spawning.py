"""Why a worker cannot be started: one sentence that its user can act on.

OSError
  SpawnError    a worker could not be started; the message is that sentence
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Collection, Iterator

from phalanx.multiprocessing.descriptors import how_to_get_more

__all__ = ["SpawnError", "born_on", "cannot_open"]


class SpawnError(OSError):
    """A worker could not be started; those started before it were ended.

    ``exit_code`` is what a shell reports: 127 for a command that was not found, 126 for one that cannot be executed, 1
    when the reason is not the command.

    >>> print(SpawnError(0, "train", "not found"))
    cannot start 'train' (local rank 0): not found
    """

    def __init__(
        self, local_rank: int, command: str, reason: str, *, advice: str = "", exit_code: int = 1
    ) -> None:
        text = f"cannot start {command!r} (local rank {local_rank}): {reason}"
        super().__init__(f"{text}; {advice}" if advice else text)
        self.local_rank = local_rank
        self.command = command
        self.reason = reason
        self.exit_code = exit_code


@contextlib.contextmanager
def born_on(
    cpus: Collection[int] | None, local_rank: int, command: str, *, server: int = 0
) -> Iterator[None]:
    """Let a worker that is made within the block have these CPUs; None: those of whoever makes it.

    ``server`` is the process whose main thread makes it; 0: the calling thread does. Raises ``SpawnError``.
    """
    if cpus is None:
        yield
        return
    from phalanx.multiprocessing.numa import on_cpus

    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(on_cpus(cpus, server=server))
        except OSError as error:
            reason = f"its CPUs cannot be used any more ({error.strerror or error})"
            advice = "they were taken from this job's cgroup, or have gone offline"
            raise SpawnError(local_rank, command, reason, advice=advice) from error
        yield


def cannot_open(local_rank: int, command: str, what: str, error: OSError, *, workers: int) -> SpawnError:
    """The error for a worker, one of ``workers``, for whom ``what`` could not be opened, or the file in ``error``."""
    path = "" if error.filename is None else os.fsdecode(error.filename)
    reason = f"{repr(path) if path else what} cannot be opened: {error.strerror or error}"
    return SpawnError(local_rank, command, reason, advice=_advice(error.errno, path, workers))


def _advice(number: int | None, path: str, workers: int) -> str:
    if number == errno.EMFILE:
        return how_to_get_more(workers)
    if number == errno.ENFILE:
        return "the whole machine has no more open files to give (sysctl fs.file-max)"
    if number == errno.ENOMEM:
        return "the machine, or the limit of this job's cgroup, has no memory left"
    if not path:
        return ""
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "make room there, or choose another log folder with --log-dir"
    if number in (errno.ENOENT, errno.ENOTDIR):
        return "its folder was there a moment ago: leave it until the job has ended"
    return "choose a log folder that can be written to with --log-dir"
