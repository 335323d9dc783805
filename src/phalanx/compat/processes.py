"""Parts of torchelastic's way to start a process, for programs that use them by themselves; Phalanx has its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.multiprocessing.numa import NumaOptions

__all__ = ["SubprocessHandler", "get_std_cm", "get_subprocess_handler"]


def get_std_cm(
    std_rd: str, redirect_fn: Callable[[str], AbstractContextManager[Any]]
) -> AbstractContextManager[Any]:
    """Return ``redirect_fn(std_rd)``, or a context that does nothing when ``std_rd`` is empty. Source: torchelastic.

    >>> with get_std_cm("", open):
    ...     print("here")
    here
    """
    return redirect_fn(std_rd) if std_rd else contextlib.nullcontext()


class SubprocessHandler:
    """Starts a command at once, in a session of its own; ``proc`` is its ``Popen``.

    ``env`` is laid over this process's environment; ``stdout`` and ``stderr`` are files to write, None for this
    process's own. ``numa_options`` binds it to CPUs from its birth. Raises ``OSError`` when the command cannot be
    started, or a file cannot be opened. Source: torchelastic.

    >>> handler = SubprocessHandler("true", (), {}, None, None, 0, None)
    >>> handler.proc.wait()
    0
    >>> handler.close()
    """

    def __init__(
        self,
        entrypoint: str,
        args: tuple[Any, ...],
        env: dict[str, str],
        stdout: str | None,
        stderr: str | None,
        local_rank_id: int,
        numa_options: NumaOptions | None,
    ) -> None:
        self.local_rank_id = local_rank_id
        self._files: list[IO[bytes]] = []
        try:
            out, err = self._open(stdout), self._open(stderr)
            with _born_bound(numa_options, local_rank_id, entrypoint, env):
                self.proc: subprocess.Popen[bytes] = subprocess.Popen(
                    (entrypoint, *map(str, args)),
                    env={**os.environ, **env},
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                )
        except BaseException:
            self._close_files()
            raise

    def close(self, death_sig: signal.Signals | None = None) -> None:
        """Send ``death_sig`` (SIGTERM) to the whole process group, if it is still there, and close the files."""
        # torchelastic's raises ProcessLookupError when everything has ended.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.proc.pid, death_sig or signal.SIGTERM)
        self._close_files()

    def _open(self, path: str | None) -> IO[bytes] | None:
        if not path:
            return None
        file = open(path, "wb")  # noqa: SIM115 # closed by close()
        self._files.append(file)
        return file

    def _close_files(self) -> None:
        while self._files:
            self._files.pop().close()


def get_subprocess_handler(
    entrypoint: str,
    args: tuple[Any, ...],
    env: dict[str, str],
    stdout: str,
    stderr: str,
    local_rank_id: int,
    numa_options: NumaOptions | None = None,
) -> SubprocessHandler:
    """Start a command: ``SubprocessHandler`` with these arguments. Source: torchelastic.

    >>> handler = get_subprocess_handler("true", (), {}, "/dev/null", "/dev/null", 0)
    >>> handler.proc.wait()
    0
    >>> handler.close()
    """
    return SubprocessHandler(entrypoint, args, env, stdout, stderr, local_rank_id, numa_options)


def _born_bound(
    numa_options: NumaOptions | None, local_rank: int, entrypoint: str, env: dict[str, str]
) -> AbstractContextManager[Any]:
    if numa_options is None:
        return contextlib.nullcontext()
    from phalanx.multiprocessing.numa import affinity_of
    from phalanx.multiprocessing.spawning import born_on

    return born_on(affinity_of(numa_options, {local_rank: env})[local_rank], local_rank, entrypoint)
