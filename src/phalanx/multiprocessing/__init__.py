"""Worker processes and their logs: torchelastic's names over an event-driven core.

Names load on first use (PEP 562): a program that wants one of them does not pay for the others.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

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

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.errors": "ChildFailedError ProcessFailure record",
        "phalanx.multiprocessing.commands": "SubprocessContext",
        "phalanx.multiprocessing.context": "PContext RunProcsResult SignalException",
        "phalanx.multiprocessing.functions": "MultiprocessContext",
        "phalanx.multiprocessing.logs": "DefaultLogsSpecs LogDirError LogsDest LogsSpecs",
        "phalanx.multiprocessing.redirects": "get_libc redirect redirect_stderr redirect_stdout",
        "phalanx.multiprocessing.spawning": "SpawnError",
        "phalanx.multiprocessing.start": "start_processes",
        "phalanx.multiprocessing.std": "Std to_map",
        "phalanx.multiprocessing.tail": "TailLog tail_logfile",
    },
)
