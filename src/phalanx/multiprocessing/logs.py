"""Where the logs of a worker group go: decides paths and makes folders; never opens, writes or deletes a log.

The layout is torchelastic's, below the log folder:

    <run id>_<8 letters>/attempt_<n>/<local rank>/{stdout.log, stderr.log, error.json}

a worker that had a single restart has its k-th successor in ``<local rank>.<k>`` beside it. Nothing that exists is
ever removed: an attempt folder that is taken gets a ``.<k>`` suffix, too. Errors:

    OSError
      LogDirError    the log folder cannot be used; the message is one sentence for the user
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.multiprocessing.folders import LogDirError, make, new_folder, remove_if_blank, temporary_folder
from phalanx.multiprocessing.std import Std, to_map

RUN_ID_CHARACTERS = 50  # of a folder's name; with four bytes each still below the 255 that a name may have

__all__ = ["DefaultLogsSpecs", "LogDirError", "LogsDest", "LogsSpecs"]


@dataclass
class LogsDest:
    """The destinations of one attempt, by local rank. An empty path means: not redirected.

    The first seven fields are torchelastic's. ``stderr_tail`` is how many of the last bytes of stderr are
    kept for the failure report (0: none, un-redirected stderr is inherited); ``max_bytes`` caps each log file
    (None: no cap).

    >>> LogsDest(stdouts={0: "/logs/0/stdout.log"}).stderr_tail
    65536
    """

    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)
    tee_stdouts: dict[int, str] = field(default_factory=dict)
    tee_stderrs: dict[int, str] = field(default_factory=dict)
    error_files: dict[int, str] = field(default_factory=dict)
    filtered_stdout: str = field(default_factory=str)
    filtered_stderr: str = field(default_factory=str)
    stderr_tail: int = field(default=65536, kw_only=True)
    max_bytes: int | None = field(default=None, kw_only=True)


class LogsSpecs(ABC):
    """What the user asked for; `reify` turns it into paths once per attempt. A plug-in point: subclass it.

    >>> class Flat(LogsSpecs):
    ...     def reify(self, envs):
    ...         return LogsDest(stdouts={rank: f"/logs/{rank}.out" for rank in envs})
    ...     @property
    ...     def root_log_dir(self):
    ...         return "/logs"
    >>> Flat().reify({0: {}, 1: {}}).stdouts
    {0: '/logs/0.out', 1: '/logs/1.out'}
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | Mapping[int, Std] = Std.NONE,
        tee: Std | Mapping[int, Std] = Std.NONE,
        local_ranks_filter: Collection[int] | None = None,
    ) -> None:
        self._root_log_dir = log_dir
        self._redirects = redirects
        self._tee = tee
        self._local_ranks_filter = local_ranks_filter

    @abstractmethod
    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the destinations of an attempt; ``envs`` are the workers' environments by local rank."""

    def reify_single(self, local_rank: int, env: dict[str, str]) -> LogsDest:
        """Make destinations for the single restart of a worker, beside those of the attempt that runs.

        A subclass that does not know of this has its ``reify`` called for the one worker.
        """
        return self.reify({local_rank: env})

    @property
    @abstractmethod
    def root_log_dir(self) -> str:
        """The folder that holds the logs of all attempts."""

    @property
    def run_log_dir(self) -> str | None:
        """The folder of this run alone, where the launcher may leave an account of it; None: there is none."""
        return None

    @property
    def temporary_root(self) -> str | None:
        """The temporary folder that ``discard_if_empty`` would remove; None: there is none."""
        return None

    def discard_if_empty(self) -> bool:
        """Remove what was made for the logs of a job that wrote none; True when it is gone, ``run_log_dir`` too."""
        return False


class DefaultLogsSpecs(LogsSpecs):
    """torchelastic's layout under ``log_dir``, or under a new ``torchelastic_*`` temporary folder when it is None.

    ``log_dir="/dev/null"`` keeps nothing: streams are inherited and workers get no error file. A rank that is
    not in ``local_ranks_filter`` is silent on the console: its teed streams go to their files alone, and its
    streams without a file to ``/dev/null``. An empty filter is no filter. Raises `LogDirError`.

    >>> dest = DefaultLogsSpecs("logs", tee=Std.OUT).reify({0: {}})
    >>> dest.stdouts[0].endswith("/attempt_0/0/stdout.log"), dest.stderrs[0]
    (True, '')
    """

    def __init__(
        self,
        log_dir: str | None = None,
        redirects: Std | Mapping[int, Std] = Std.NONE,
        tee: Std | Mapping[int, Std] = Std.NONE,
        local_ranks_filter: Collection[int] | None = None,
        *,
        stderr_tail: int = 65536,
        max_bytes: int | None = None,
    ) -> None:
        # Absolute: a worker may change its folder before it writes its error file.
        super().__init__(
            None if log_dir is None else os.path.abspath(log_dir), redirects, tee, local_ranks_filter
        )
        self._stderr_tail = stderr_tail
        self._max_bytes = max_bytes
        self._run_log_dir: str | None = None
        self._own_root: str | None = None
        self._attempt = ""
        self._nprocs = 0
        if log_dir is not None and log_dir != os.devnull:
            _ensure_usable(log_dir)

    def settings(self) -> dict[str, Any]:
        """What this was made with, by the names of the fields of the launcher's options."""
        return {
            "log_dir": self._root_log_dir,
            "redirects": self._redirects,
            "tee": self._tee,
            "local_ranks_filter": self._local_ranks_filter,
            "stderr_tail": self._stderr_tail,
            "log_max_size": self._max_bytes,
        }

    @property
    def root_log_dir(self) -> str:
        """The root folder. A temporary one is made when it is first asked for, so that a refused job leaves none."""
        if self._root_log_dir is None:
            self._own_root = self._root_log_dir = new_folder(temporary_folder(), "torchelastic_")
        return self._root_log_dir

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Make the attempt's folders and set ``TORCHELASTIC_ERROR_FILE`` in each worker's environment, in place.

        The attempt's number is ``PHALANX_ROUND`` - 1, else ``TORCHELASTIC_RESTART_COUNT``, of the first
        environment.
        """
        if self.root_log_dir == os.devnull:
            return self._reify_nothing(envs)
        self._attempt = self._new_attempt_folder(next(iter(envs.values()), {}))
        self._nprocs = len(envs)
        dest = self._destinations()
        for local_rank, env in envs.items():
            folder = os.path.join(self._attempt, str(local_rank))
            make(folder)
            self._add(dest, local_rank, env, folder)
        return dest

    def reify_single(self, local_rank: int, env: dict[str, str]) -> LogsDest:
        """Make the folder ``<local rank>.<k>`` of the latest attempt and set the error file, as ``reify`` does."""
        if self.root_log_dir == os.devnull:
            return self._reify_nothing({local_rank: env})
        if not os.path.isdir(self._attempt):
            self._attempt = self._new_attempt_folder(env)
        dest = self._destinations()
        self._add(dest, local_rank, env, _make_numbered(os.path.join(self._attempt, str(local_rank))))
        return dest

    def _destinations(self) -> LogsDest:
        return LogsDest(
            filtered_stdout=os.path.join(self._attempt, "filtered_stdout.log"),
            filtered_stderr=os.path.join(self._attempt, "filtered_stderr.log"),
            stderr_tail=self._stderr_tail,
            max_bytes=self._max_bytes,
        )

    def _add(self, dest: LogsDest, local_rank: int, env: dict[str, str], folder: str) -> None:
        redirects, tee = to_map(self._redirects, self._nprocs), to_map(self._tee, self._nprocs)
        dest.error_files[local_rank] = env["TORCHELASTIC_ERROR_FILE"] = os.path.join(folder, "error.json")
        shown = not self._local_ranks_filter or local_rank in self._local_ranks_filter
        to_file, to_both = redirects.get(local_rank, Std.NONE), tee.get(local_rank, Std.NONE)
        for std, name, paths, teed in (
            (Std.OUT, "stdout.log", dest.stdouts, dest.tee_stdouts),
            (Std.ERR, "stderr.log", dest.stderrs, dest.tee_stderrs),
        ):
            if std in to_file | to_both:
                paths[local_rank] = os.path.join(folder, name)
                if shown and std in to_both:
                    teed[local_rank] = paths[local_rank]
            else:
                paths[local_rank] = "" if shown else os.devnull

    @property
    def run_log_dir(self) -> str | None:
        """The folder of this run below the root, with its attempts; None before the first of them."""
        return self._run_log_dir

    @property
    def temporary_root(self) -> str | None:
        """The root if this object has made it."""
        return self._own_root

    def discard_if_empty(self) -> bool:
        """Remove the temporary folder that this object made, if no file in it has a byte; True when it is gone.

        A run that wrote no log and no error file shall not litter. A folder that was given is never touched.
        """
        if self._own_root is None or not remove_if_blank(self._own_root):
            return False
        self._own_root = self._root_log_dir = self._run_log_dir = None
        return True

    def _reify_nothing(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for env in envs.values():
            env["TORCHELASTIC_ERROR_FILE"] = ""
        return LogsDest(
            stdouts=dict.fromkeys(envs, ""),
            stderrs=dict.fromkeys(envs, ""),
            tee_stdouts=dict.fromkeys(envs, os.devnull),
            tee_stderrs=dict.fromkeys(envs, os.devnull),
            error_files=dict.fromkeys(envs, os.devnull),
            filtered_stdout=os.path.join(os.devnull, "filtered_stdout.log"),
            filtered_stderr=os.path.join(os.devnull, "filtered_stderr.log"),
            stderr_tail=self._stderr_tail,
            max_bytes=self._max_bytes,
        )

    def _new_attempt_folder(self, env: Mapping[str, str]) -> str:
        self._forget_what_was_removed()
        if self._run_log_dir is None:
            # A run id such as "team/job 7" must not name a folder elsewhere.
            run_id = re.sub(r"[/\0]", "_", env.get("TORCHELASTIC_RUN_ID", "test_run_id"))[:RUN_ID_CHARACTERS]
            self._run_log_dir = new_folder(self.root_log_dir, f"{run_id}_")
        number = env.get("TORCHELASTIC_RESTART_COUNT", "0")
        if "PHALANX_ROUND" in env:
            number = str(int(env["PHALANX_ROUND"]) - 1)
        first = os.path.join(self._run_log_dir, f"attempt_{number}")
        return first if make(first) else _make_numbered(first)

    def _forget_what_was_removed(self) -> None:
        """A job may outlive its folders: ``/tmp`` is swept after some days. They get successors, and new names.

        A folder that was given is not made again: it may be where something is mounted, and is not now.
        """
        if self._run_log_dir is not None and not os.path.isdir(self._run_log_dir):
            self._run_log_dir = None
            if self._own_root is not None and not os.path.isdir(self._own_root):
                self._own_root = self._root_log_dir = None

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(log_dir={self._root_log_dir!r}, redirects={self._redirects!r}, "
            f"tee={self._tee!r}, local_ranks_filter={self._local_ranks_filter!r})"
        )


def _make_numbered(first: str) -> str:
    """Make ``<first>.<k>``, with the smallest k that is free."""
    number = 1
    while not make(path := f"{first}.{number}"):
        number += 1
    return path


def _ensure_usable(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except FileExistsError:
        raise LogDirError(path, "it is a file") from None
    except OSError as error:
        raise LogDirError(path, error.strerror or str(error)) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise LogDirError(path, "it is not writable")
