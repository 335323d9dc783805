"""Log plug-ins: somebody else's class decides where the streams of workers go (``--logs-specs NAME``).

Entry points of ``torchrun.logs_specs`` and of ``phalanx.logs_specs``: name → a class, called with ``log_dir``,
``redirects``, ``tee`` and ``local_ranks_filter``, whose ``reify(envs)`` returns the destinations. A name is looked up
before anything starts; code is loaded when the keeper has been forked, which is to stay small: plug-ins of torchrun
subclass a class of torch's. What an agent needs beyond torch's interface is made up for here. Errors:

    ValueError
      LogPluginError       there is no such plug-in, or it does not load
    OSError
      LogPlacementError    the plug-in failed, or gave something else than destinations
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from phalanx.multiprocessing.logs import LogsDest, LogsSpecs
from phalanx.multiprocessing.std import Std

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["DEFAULT", "LogPlacementError", "LogPluginError", "PluggedLogs", "find_log_plugin"]

OUR_GROUP, TORCHRUN_GROUP = "phalanx.logs_specs", "torchrun.logs_specs"
DEFAULT = "default"
"""The built-in layout, as torchrun calls it."""
_TORCH = "torch.distributed.elastic.multiprocessing.api"
_PATHS = ("stdouts", "stderrs", "tee_stdouts", "tee_stderrs", "error_files")


class LogPluginError(ValueError):
    """There is no such plug-in, or it does not load."""


class LogPlacementError(OSError):
    """A plug-in did not say where logs go."""


def find_log_plugin(name: str) -> EntryPoint | None:
    """The plug-in of this name, not loaded; None for the built-in layout. Raises ``LogPluginError``."""
    if name == DEFAULT:
        return None
    from importlib.metadata import entry_points

    every = [one for group in (OUR_GROUP, TORCHRUN_GROUP) for one in entry_points(group=group)]
    found = {one.value: one for one in every if one.name == name}
    if not found:
        known = ", ".join(sorted({DEFAULT, *(one.name for one in every)}))
        raise LogPluginError(
            f"no log plug-in is called {name!r} (there are: {known}); install a package with an entry point of "
            f"{OUR_GROUP} or {TORCHRUN_GROUP}"
        )
    if len(found) > 1:
        raise LogPluginError(
            f"several installed packages offer a log plug-in {name!r} ({', '.join(sorted(found))}); uninstall all "
            "but one"
        )
    return next(iter(found.values()))


class PluggedLogs(LogsSpecs):
    """A plug-in as the agent sees it: ``load`` it once, before anything else is asked of it."""

    def __init__(
        self,
        entry: EntryPoint,
        log_dir: str | None,
        redirects: Std | Mapping[int, Std],
        tee: Std | Mapping[int, Std],
        local_ranks_filter: Collection[int] | None,
        *,
        stderr_tail: int = 65536,
        max_bytes: int | None = None,
    ) -> None:
        super().__init__(log_dir, redirects, tee, local_ranks_filter)
        self._entry = entry
        self._stderr_tail = stderr_tail
        self._max_bytes = max_bytes
        self._specs: Any = None
        self._run_log_dir: str | None = None

    def load(self, *, one_by_one: bool = False) -> None:
        """Import the plug-in and make its object; ``one_by_one``: workers are restarted alone.

        Raises ``LogPluginError``, whatever its code raises.
        """
        try:
            kind = self._entry.load()
            std = _std_of(kind)
            self._specs = kind(
                log_dir=self._root_log_dir,
                redirects=_converted(self._redirects, std),
                tee=_converted(self._tee, std),
                local_ranks_filter=set(self._local_ranks_filter) if self._local_ranks_filter else None,
            )
        except Exception as error:
            raise LogPluginError(f"{self._title} did not load: {type(error).__name__}: {error}") from error
        if not callable(getattr(self._specs, "reify", None)):
            raise LogPluginError(f"{self._title} gave {self._specs!r}, which has no reify(envs)")
        # torch's own class would empty the folder of the attempt, into which the others write.
        if one_by_one and not callable(getattr(self._specs, "reify_single", None)):
            raise LogPluginError(
                f"--restart-scope worker: {self._title} has no reify_single(local_rank, env), so it cannot place the "
                "logs of one worker beside those of the others; use --restart-scope group"
            )

    @property
    def _title(self) -> str:
        return f"the log plug-in {self._entry.name!r} ({self._entry.value})"

    @property
    def root_log_dir(self) -> str:
        """The plug-in's own answer."""
        return str(self._specs.root_log_dir)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Ask the plug-in. A rank that it does not name has its streams as they are, and no error file.

        Raises ``LogPlacementError``.
        """
        return self._placed(envs, "reify", envs)

    def reify_single(self, local_rank: int, env: dict[str, str]) -> LogsDest:
        """The same for one worker."""
        return self._placed({local_rank: env}, "reify_single", local_rank, env)

    def _placed(self, envs: dict[int, dict[str, str]], method: str, *given: Any) -> LogsDest:
        try:
            theirs = getattr(self._specs, method)(*given)
            maps = {name: _paths(getattr(theirs, name)) for name in _PATHS}
            # Older ones have no such fields.
            filtered_stdout = str(getattr(theirs, "filtered_stdout", ""))
            filtered_stderr = str(getattr(theirs, "filtered_stderr", ""))
        except Exception as error:
            raise LogPlacementError(
                f"{self._title} failed in {method}: {type(error).__name__}: {error}"
            ) from error
        for local_rank, env in envs.items():
            for name in ("stdouts", "stderrs"):
                maps[name].setdefault(local_rank, "")
            file = maps["error_files"].setdefault(local_rank, os.devnull) or os.devnull
            # torch's own class tells the worker; one that gives a path alone means the same.
            if not env.get("TORCHELASTIC_ERROR_FILE"):
                env["TORCHELASTIC_ERROR_FILE"] = "" if file == os.devnull else file
        dest = LogsDest(
            stdouts=maps["stdouts"],
            stderrs=maps["stderrs"],
            tee_stdouts=maps["tee_stdouts"],
            tee_stderrs=maps["tee_stderrs"],
            error_files=maps["error_files"],
            filtered_stdout=filtered_stdout,
            filtered_stderr=filtered_stderr,
            stderr_tail=self._stderr_tail,
            max_bytes=self._max_bytes,
        )
        self._run_log_dir = self._folder_of(dest) or self._run_log_dir
        return dest

    def _folder_of(self, dest: LogsDest) -> str | None:
        """The folder directly below the root that has all files, if there is one: that of this run."""
        root = os.path.join(os.path.abspath(self.root_log_dir), "")
        files = [
            os.path.abspath(path)
            for paths in (dest.stdouts, dest.stderrs, dest.error_files)
            for path in paths.values()
            if path and path != os.devnull
        ]
        below = {path.removeprefix(root).partition(os.sep)[0] for path in files if path.startswith(root)}
        is_one = len(below) == 1 and all(path.startswith(root) for path in files)
        folder = os.path.join(root, below.pop()) if is_one else ""
        return folder if os.path.isdir(folder) else None

    @property
    def run_log_dir(self) -> str | None:
        """The plug-in's own answer, if it has one; else the folder below its root that has all files."""
        told = getattr(self._specs, "run_log_dir", None)
        return str(told) if told else self._run_log_dir

    @property
    def temporary_root(self) -> str | None:
        """The plug-in's own answer, if it has one."""
        told = getattr(self._specs, "temporary_root", None)
        return str(told) if told else None

    def discard_if_empty(self) -> bool:
        """Let a plug-in that knows of this tidy up. Never raises: it is not worth a job's end."""
        discard = getattr(self._specs, "discard_if_empty", None)
        try:
            return bool(discard()) if callable(discard) else False
        except Exception:  # noqa: BLE001 # the plug-in's code
            return False


def _std_of(kind: object) -> Any:
    """The enumeration that a class expects: torch's for a subclass of torch's, which looks at the type."""
    torch = sys.modules.get(_TORCH)
    theirs = getattr(torch, "LogsSpecs", None)
    if isinstance(kind, type) and isinstance(theirs, type) and issubclass(kind, theirs):
        return getattr(torch, "Std", Std)
    return Std


def _converted(value: Std | Mapping[int, Std], std: Any) -> Any:
    if isinstance(value, Mapping):
        return {local_rank: std(int(one)) for local_rank, one in value.items()}
    return std(int(value))


def _paths(value: Mapping[int, object]) -> dict[int, str]:
    return {int(local_rank): os.fspath(path) if path else "" for local_rank, path in value.items()}  # type: ignore[call-overload]
