"""Worker processes and their logs: torchelastic's names over an event-driven core.

Names load on first use (PEP 562): a program that wants one of them does not pay for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.errors import ChildFailedError as ChildFailedError
    from phalanx.errors import ProcessFailure as ProcessFailure
    from phalanx.errors import record as record
    from phalanx.multiprocessing.commands import SubprocessContext as SubprocessContext
    from phalanx.multiprocessing.context import PContext as PContext
    from phalanx.multiprocessing.context import RunProcsResult as RunProcsResult
    from phalanx.multiprocessing.context import SignalException as SignalException
    from phalanx.multiprocessing.functions import MultiprocessContext as MultiprocessContext
    from phalanx.multiprocessing.logs import DefaultLogsSpecs as DefaultLogsSpecs
    from phalanx.multiprocessing.logs import LogDirError as LogDirError
    from phalanx.multiprocessing.logs import LogsDest as LogsDest
    from phalanx.multiprocessing.logs import LogsSpecs as LogsSpecs
    from phalanx.multiprocessing.redirects import get_libc as get_libc
    from phalanx.multiprocessing.redirects import redirect as redirect
    from phalanx.multiprocessing.redirects import redirect_stderr as redirect_stderr
    from phalanx.multiprocessing.redirects import redirect_stdout as redirect_stdout
    from phalanx.multiprocessing.spawning import SpawnError as SpawnError
    from phalanx.multiprocessing.start import start_processes as start_processes
    from phalanx.multiprocessing.std import Std as Std
    from phalanx.multiprocessing.std import to_map as to_map
    from phalanx.multiprocessing.tail import TailLog as TailLog
    from phalanx.multiprocessing.tail import tail_logfile as tail_logfile

_HOMES = {
    "ChildFailedError": "phalanx.errors",
    "DefaultLogsSpecs": "phalanx.multiprocessing.logs",
    "LogDirError": "phalanx.multiprocessing.logs",
    "LogsDest": "phalanx.multiprocessing.logs",
    "LogsSpecs": "phalanx.multiprocessing.logs",
    "MultiprocessContext": "phalanx.multiprocessing.functions",
    "PContext": "phalanx.multiprocessing.context",
    "ProcessFailure": "phalanx.errors",
    "RunProcsResult": "phalanx.multiprocessing.context",
    "SignalException": "phalanx.multiprocessing.context",
    "SpawnError": "phalanx.multiprocessing.spawning",
    "Std": "phalanx.multiprocessing.std",
    "SubprocessContext": "phalanx.multiprocessing.commands",
    "TailLog": "phalanx.multiprocessing.tail",
    "get_libc": "phalanx.multiprocessing.redirects",
    "record": "phalanx.errors",
    "redirect": "phalanx.multiprocessing.redirects",
    "redirect_stderr": "phalanx.multiprocessing.redirects",
    "redirect_stdout": "phalanx.multiprocessing.redirects",
    "start_processes": "phalanx.multiprocessing.start",
    "tail_logfile": "phalanx.multiprocessing.tail",
    "to_map": "phalanx.multiprocessing.std",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _HOMES.keys())
