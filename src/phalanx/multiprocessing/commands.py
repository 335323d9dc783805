"""Workers that are commands: found on the worker's PATH, started by vfork and exec, in a session of their own."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.errors import boot_file
from phalanx.multiprocessing.context import PContext
from phalanx.multiprocessing.descriptors import give_back
from phalanx.multiprocessing.pidfd import watch_child
from phalanx.multiprocessing.spawning import SpawnError, born_on

if TYPE_CHECKING:
    from phalanx.multiprocessing.logs import LogsSpecs
    from phalanx.multiprocessing.numa import NumaOptions
    from phalanx.multiprocessing.pidfd import Child
    from phalanx.multiprocessing.trees import ProcessTree

__all__ = ["SubprocessContext"]

BOOT_VARIABLE = "PHALANX_BOOT"
NOT_FOUND, NOT_EXECUTABLE = 127, 126  # a shell's exit codes


class SubprocessContext(PContext):
    """Workers that run ``entrypoint`` with their ``args`` (anything, by ``str``) as a command line.

    ``numa_options`` (torch's) binds each to CPUs from its birth, as ``affinity`` does by local rank. Raises
    ``BindingError`` where this machine has no such binding.

    >>> from phalanx.multiprocessing import DefaultLogsSpecs, start_processes
    >>> context = start_processes("test", "false", {0: ()}, {0: {}}, DefaultLogsSpecs())
    >>> type(context).__name__, context.wait().failures[0].exitcode
    ('SubprocessContext', 1)
    """

    entrypoint: str

    def __init__(
        self,
        name: str,
        entrypoint: str,
        args: Mapping[int, tuple[Any, ...]],
        envs: dict[int, dict[str, str]],
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

    def _spawn(self, local_rank: int, stdout: int | None, stderr: int | None) -> Child:
        command = [self.entrypoint, *map(str, self.args[local_rank])]
        environment = {**os.environ, **self._additions(local_rank)}
        environment.pop(BOOT_VARIABLE, None)  # an outer job's
        if boot_file() in command:
            environment[BOOT_VARIABLE] = self._boot_order(local_rank)
        try:
            # No preexec_fn: it would cost a fork of this whole process where vfork does, and could deadlock on a lock
            # that another thread held. What must run in the child is in the boot file.
            with born_on(self.affinity.get(local_rank), local_rank, self.entrypoint):
                process = subprocess.Popen(
                    command,
                    stdin=None if local_rank == self.stdin_rank else subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    env=environment,
                    start_new_session=True,
                )
        except SpawnError:
            raise
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # Popen needs a pipe of its own: no fault of the command
            raise _explain(local_rank, self.entrypoint, environment, error) from error
        # From here on the child is ours: it is waited for by its pidfd, and Popen must neither wait nor warn.
        process.returncode = 0
        give_back(process.pid)
        try:
            return watch_child(process.pid)
        except BaseException:  # no descriptor is left: a worker that cannot be watched must not be there
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
            raise


def _explain(local_rank: int, command: str, environment: dict[str, str], error: OSError) -> SpawnError:
    """Say which of exec's few error numbers means what; the kernel uses ENOENT for two, EACCES for three things."""
    path = _locate(command, environment)
    if path is None:
        reason, advice = "not found", "give a path (./name for the current folder) or a name on PATH"
        return SpawnError(local_rank, command, reason, advice=advice, exit_code=NOT_FOUND)
    if not os.path.exists(path):
        reason, advice = "not found", f"{path} is a link to {os.readlink(path)!r}, which does not exist"
        return SpawnError(local_rank, command, reason, advice=advice, exit_code=NOT_FOUND)
    if os.path.isdir(path):
        reason, advice = "it is a folder", "give the file to run"
    elif not os.access(path, os.X_OK) and error.errno == errno.EACCES:
        reason, advice = "not executable", f"chmod +x {path}, or start it with its interpreter"
    elif error.errno == errno.ENOEXEC:
        reason, advice = (
            "not a program",
            "its first line must be #!<interpreter>, or it must be built for this machine",
        )
    elif (interpreter := _interpreter_of(path)) and error.errno in (errno.ENOENT, errno.EACCES, errno.ELOOP):
        state = "not executable" if os.path.exists(interpreter) else "not found"
        reason, advice = (
            f"bad interpreter: {interpreter!r} in its first line is {state}",
            f"edit the first line of {path}",
        )
    elif error.errno == errno.ENOENT:
        reason, advice = "bad interpreter: its dynamic loader is not found", "it was built for another system"
    elif error.errno == errno.E2BIG:
        reason, advice = "its arguments and environment are too long", "pass large values through a file"
    elif error.errno in (errno.EAGAIN, errno.ENOMEM):
        reason, advice = (
            f"no more processes can be made ({error.strerror})",
            "raise the limit (ulimit -u, pids cgroup)",
        )
    else:
        reason, advice = error.strerror or str(error), ""
    return SpawnError(local_rank, command, reason, advice=advice, exit_code=NOT_EXECUTABLE)


def _locate(command: str, environment: dict[str, str]) -> str | None:
    """The file that exec would have tried: by path, or the first one of that name on the worker's PATH."""
    if os.path.dirname(command):
        return command if os.path.lexists(command) else None
    candidates = [os.path.join(folder, command) for folder in os.get_exec_path(environment)]
    existing = [path for path in candidates if os.path.exists(path)]
    return next((path for path in existing if os.access(path, os.X_OK)), existing[0] if existing else None)


def _interpreter_of(path: str) -> str | None:
    """The program that the file's ``#!`` line names."""
    try:
        with open(path, "rb") as file:
            line = file.readline(256)  # the kernel reads as much
    except OSError:
        return None
    words = line[2:].split(maxsplit=1)
    return os.fsdecode(words[0]) if line.startswith(b"#!") and words else None
