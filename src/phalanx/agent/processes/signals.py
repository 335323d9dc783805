"""Which signals reach the driver, and what the others do: the dispositions and the mask of the agent's process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterable

from phalanx.early import STOPPING

__all__ = ["watch_signals"]

# Not SIGTERM: who ignores it on our behalf has left no polite way to end the job.
KEPT_IGNORED = set(STOPPING) - {signal.SIGTERM}


def watch_signals(
    loop: asyncio.AbstractEventLoop,
    *,
    stop: Iterable[int],
    pass_on: Iterable[int],
    on_stop: Callable[[int], None],
    on_pass: Callable[[int], None],
    on_child: Callable[[], object],
) -> tuple[int, ...]:
    """Have the loop tell of these signals and of children's ends; returns those that are watched.

    A signal in both lists stops. A hang-up that was ignored when we began (``nohup``) stays ignored, and so do SIGINT
    and SIGQUIT: a shell starts what is to run in its background so, and Ctrl-C is then not meant for it.
    """
    # A mask that was inherited would keep the stop signals from us; the workers shall hear them, too.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, stop)
    calls: dict[int, Callable[[], object]] = {signal.SIGCHLD: on_child}
    for number in pass_on:
        calls[number] = _with(on_pass, number)
    for number in stop:
        if number not in KEPT_IGNORED or signal.getsignal(number) is not signal.SIG_IGN:
            calls[number] = _with(on_stop, number)
    for number, call in calls.items():
        loop.add_signal_handler(number, call)
    for number in (
        set(STOPPING) - calls.keys()
    ):  # the user wants none of it: whatever there was until now is over
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    # asyncio leaves the warning about a full wake-up socket on. In a storm of signals the interpreter then takes a lock
    # inside the signal handler, which the interrupted main thread may hold: a launcher was seen to sleep for ever. Full
    # means that the loop is being woken already.
    signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)
    return tuple(calls)


def _with(call: Callable[[int], None], number: int) -> Callable[[], None]:
    return lambda: call(number)
