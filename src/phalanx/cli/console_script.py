"""A launcher's ``main()`` that the program itself calls, as the script ``torchrun`` does, is the command.

torch has one function for two uses. ``sys.exit(main())`` in the file of a command means the launcher: standard input
for rank 0, the terminal, its exit codes. ``main([...])`` in a program that does other things means one job of many.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType

__all__ = ["be_command", "is_command"]


def is_command(caller: FrameType) -> bool:
    """Whether the caller of a ``main()`` without words is the file that was started, at its top level.

    Such a file has nothing else to do, and the words are the process's own. A notebook's cell has no file, and a
    function may have a caller that handles exceptions, or an event loop.
    """
    names = caller.f_globals
    return (
        names.get("__name__") == "__main__"
        and "__file__" in names
        and caller.f_code.co_name == "<module>"
        and threading.current_thread() is threading.main_thread()
    )


def be_command(command: str) -> None:
    """Run ``phalanx <command>`` with this process's words, in this process; return when the exit code is 0.

    Else the program ends with the code (``SystemExit``). After a success what stands behind the call is run, as with
    torch's ``main()``, so the signals are the program's again.
    """
    from phalanx.cli import main
    from phalanx.early import end_by_stop_signals

    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    handlers = {number: signal.getsignal(number) for number in signal.valid_signals()}
    end_by_stop_signals()
    code = main([command, *sys.argv[1:]])
    if code:
        raise SystemExit(code)
    for number, handler in handlers.items():
        if handler is not None and signal.getsignal(number) is not handler:  # None: a library's own
            signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
