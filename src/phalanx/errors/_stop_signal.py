"""Who asks whether it should stop does not die of the stop signal: SIGTERM does nothing in it from then on.

The agent sends SIGTERM at the moment in which ``should_stop`` becomes true, and its default action ends a worker before
it can look. A handler that does nothing leaves the end to the worker, within its grace. It is only for the process
that the agent signals, and only where the action is still the default; forked children have the default again.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    import signal as _signal
    from typing import Any
else:
    import _signal  # the C module's names: no enum, and no ``signal.py`` beside the script takes its place

__all__ = ["is_ours", "leave_by_itself"]

_masks: dict[int, set[Any]] = {}  # of signals, of threads that are forking
_watches_forks = False


def leave_by_itself() -> bool:
    """Have SIGTERM do nothing here, unless that is not for us to say. False: not in this thread, try it in another."""
    threading = sys.modules.get("threading")
    if threading is not None and threading.main_thread().ident != get_ident():
        return False
    if not (_is_signalled_by_agent() and _has_default_action()):
        return True
    try:
        _signal.signal(_signal.SIGTERM, _do_nothing)
    except ValueError:  # not the main thread of the main interpreter
        return False
    _signal.siginterrupt(_signal.SIGTERM, False)  # nor are system calls of C libraries interrupted
    global _watches_forks  # noqa: PLW0603 # hooks cannot be taken back
    if not _watches_forks:
        _watches_forks = True
        os.register_at_fork(
            before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child
        )
    return True


def is_ours() -> bool:
    """Whether SIGTERM does nothing here by our doing. A script may set a handler of its own at any time."""
    return _signal.getsignal(_signal.SIGTERM) is _do_nothing


def _is_signalled_by_agent() -> bool:
    """A worker leads a session. What it starts has to end by its parent's signals, and hears nothing of the agent's."""
    try:
        return os.getsid(0) == os.getpid()
    except OSError:
        return False


def _has_default_action() -> bool:
    if _signal.getsignal(_signal.SIGTERM) != _signal.SIG_DFL:
        return False
    try:  # a library in C may have a handler of which Python does not know
        with open("/proc/self/status", "rb") as status:
            caught = next(int(line.split()[1], 16) for line in status if line.startswith(b"SigCgt:"))
    except (OSError, ValueError, IndexError, StopIteration):
        return True
    return not caught >> (_signal.SIGTERM - 1) & 1


def _do_nothing(_number: int, _frame: object) -> None:
    """``should_stop`` tells it."""


# Between the fork and its hook a child has our handler, and would swallow what terminate() sends at once. So SIGTERM
# waits for that long. Each of these functions may be ended by a signal handler that raises: the mask is kept first.


def _before_fork() -> None:
    if is_ours():
        _masks[get_ident()] = _signal.pthread_sigmask(_signal.SIG_BLOCK, ())
        _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTERM,))


def _after_fork() -> None:
    mask = _masks.pop(get_ident(), None)
    if mask is not None:
        _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    if is_ours():
        _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
    _after_fork()
    _masks.clear()
