"""A timer on the boot-time clock, which goes on while the machine is suspended, as leases do.

``poll``'s own timeout stands still in a suspended machine and would let a fence fall late by the time slept. Loaded by
the keeper when it is first told of a deadline: jobs on one machine have none.
"""

from __future__ import annotations

import ctypes
import os

__all__ = ["boot_timer", "has_fallen", "set_boot_timer"]

_CLOCK_BOOTTIME = 7  # linux/time.h; these calls are in the os module from Python 3.13 on
_TFD_TIMER_ABSTIME = 1
_NS_PER_S = 1_000_000_000


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


_libc = ctypes.CDLL(None, use_errno=True)


def boot_timer() -> int:
    """A new descriptor that is readable once its time has come. Raises ``OSError``."""
    return _checked(_libc.timerfd_create(_CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK))


def set_boot_timer(fd: int, deadline_ns: int | None) -> None:
    """Set the timer to an absolute boot time, or off."""
    seconds, nanoseconds = divmod(deadline_ns or 0, _NS_PER_S)
    if deadline_ns is not None and deadline_ns <= 0:
        seconds, nanoseconds = 0, 1  # zero would mean "off"; this is over since the machine was started
    setting = _Setting(_TimeSpec(0, 0), _TimeSpec(seconds, nanoseconds))
    _checked(_libc.timerfd_settime(fd, _TFD_TIMER_ABSTIME, ctypes.byref(setting), None))


def has_fallen(fd: int) -> bool:
    """Whether the timer's time has come since it was set, or since this was asked last."""
    try:
        return len(os.read(fd, 8)) == 8
    except BlockingIOError:  # it was set anew after it was seen to be readable
        return False


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
