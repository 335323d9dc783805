"""Watchdog timers: a worker says how long a block of code may take, and a server ends it when it takes longer.

torchelastic's names, protocol and meaning. Each name loads when it is used; a worker needs the client alone.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.timer.client import TimerClient, configure, expires
    from phalanx.timer.debug_info import log_debug_info_for_expired_timers
    from phalanx.timer.file_client import FileTimerClient
    from phalanx.timer.file_server import FileTimerServer
    from phalanx.timer.local import LocalTimerClient, LocalTimerServer, MultiprocessingRequestQueue
    from phalanx.timer.requests import FileTimerRequest, TimerRequest
    from phalanx.timer.server import RequestQueue, TimerServer

__all__ = [
    "FileTimerClient",
    "FileTimerRequest",
    "FileTimerServer",
    "LocalTimerClient",
    "LocalTimerServer",
    "MultiprocessingRequestQueue",
    "RequestQueue",
    "TimerClient",
    "TimerRequest",
    "TimerServer",
    "configure",
    "expires",
    "log_debug_info_for_expired_timers",
]

_MODULES = {
    "FileTimerClient": "file_client",
    "FileTimerRequest": "requests",
    "FileTimerServer": "file_server",
    "LocalTimerClient": "local",
    "LocalTimerServer": "local",
    "MultiprocessingRequestQueue": "local",
    "RequestQueue": "server",
    "TimerClient": "client",
    "TimerRequest": "requests",
    "TimerServer": "server",
    "configure": "client",
    "expires": "client",
    "log_debug_info_for_expired_timers": "debug_info",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
