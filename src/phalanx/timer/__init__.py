"""Watchdog timers: a worker says how long a block of code may take, and a server ends it when it takes longer.

torchelastic's names, protocol and meaning. Each name loads when it is used; a worker needs the client alone.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.timer.client import TimerClient as TimerClient
    from phalanx.timer.client import configure as configure
    from phalanx.timer.client import expires as expires
    from phalanx.timer.debug_info import (
        log_debug_info_for_expired_timers as log_debug_info_for_expired_timers,
    )
    from phalanx.timer.file_client import FileTimerClient as FileTimerClient
    from phalanx.timer.file_server import FileTimerServer as FileTimerServer
    from phalanx.timer.local import LocalTimerClient as LocalTimerClient
    from phalanx.timer.local import LocalTimerServer as LocalTimerServer
    from phalanx.timer.local import MultiprocessingRequestQueue as MultiprocessingRequestQueue
    from phalanx.timer.requests import FileTimerRequest as FileTimerRequest
    from phalanx.timer.requests import TimerRequest as TimerRequest
    from phalanx.timer.server import RequestQueue as RequestQueue
    from phalanx.timer.server import TimerServer as TimerServer

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.timer.client": "TimerClient configure expires",
        "phalanx.timer.debug_info": "log_debug_info_for_expired_timers",
        "phalanx.timer.file_client": "FileTimerClient",
        "phalanx.timer.file_server": "FileTimerServer",
        "phalanx.timer.local": "LocalTimerClient LocalTimerServer MultiprocessingRequestQueue",
        "phalanx.timer.requests": "FileTimerRequest TimerRequest",
        "phalanx.timer.server": "RequestQueue TimerServer",
    },
)
