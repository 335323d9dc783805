"""The inside of a function worker: becomes a worker like any other, calls the function, leaves the result.

Runs in the child alone and imports nothing of the agent's. How the function failed is recorded by ``phalanx.errors``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = ["Descriptor", "Order", "run"]

_PR_SET_PDEATHSIG = 1


class Descriptor:
    """An open descriptor among a worker's arguments: the same one after fork, a copy after spawn and forkserver."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Callable[[Any], Descriptor], tuple[Any]]:
        from multiprocessing.reduction import DupFd

        return _received, (DupFd(self.fd),)


def _received(copy: Any) -> Descriptor:
    return Descriptor(copy.detach())


@dataclass(frozen=True, slots=True)
class Order:
    """What a worker is told.

    ``parent``: the agent's pid, None if the agent's thread may end before the agent. ``unblocked``: the signal mask to
    go on with, when the worker was forked with all signals blocked. ``open_files``: the soft limit of open files to go
    on with; None: the one it was started with.
    """

    name: str
    local_rank: int
    has_stdin: bool
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    environment: dict[str, str]
    start_method: str
    unblocked: frozenset[int] | None
    parent: int | None
    open_files: int | None
    result: Descriptor
    crash: Descriptor
    stdout: Descriptor | None
    stderr: Descriptor | None


def run(order: Order) -> None:
    """Be the worker. Ends by returning, or by the function's own exception."""
    os.setsid()
    if order.unblocked is not None:
        _forget_signal_handlers()
        signal.pthread_sigmask(signal.SIG_SETMASK, order.unblocked)
    if order.parent is not None:
        _die_with(order.parent, order.start_method)
    if order.open_files is not None:
        _limit_open_files(order.open_files)
    _use_streams(order)
    os.environ.update(order.environment)
    _watch_for_crashes(order.crash.fd)

    from phalanx.errors import record

    record(_call)(order)


def _call(order: Order) -> None:
    value = order.function(*order.arguments)

    from multiprocessing.reduction import ForkingPickler

    try:
        data = ForkingPickler.dumps(value)
    except Exception as error:
        raise TypeError(
            f"local rank {order.local_rank}: the result of {order.name} cannot be sent back: type "
            f"{type(value).__name__!r} cannot be pickled ({error}); return plain data, or save it to a file"
        ) from error
    with open(order.result.fd, "wb", closefd=False) as file:
        file.write(data)


def _forget_signal_handlers() -> None:
    """Drop what a forked worker inherited: its parent's handlers would swallow the signals that stop it."""
    signal.set_wakeup_fd(-1)
    for signum in signal.valid_signals():
        handler = signal.getsignal(signum)
        if callable(handler) and handler is not signal.default_int_handler:
            signal.signal(signum, signal.SIG_DFL)


def _die_with(agent: int, start_method: str) -> None:
    """Have the kernel kill us when our parent ends, and end now if the agent is gone already."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if start_method == "forkserver":
        # Our parent is the server. It ends with the agent once no worker holds the pipe by which it sees that.
        import multiprocessing

        _let_the_fork_server_go()
        parent = multiprocessing.parent_process()
        is_orphan = parent is None or not parent.is_alive()
    else:
        is_orphan = os.getppid() != agent
    if is_orphan:
        os.kill(os.getpid(), signal.SIGKILL)


def _let_the_fork_server_go() -> None:
    """Put something harmless in the place of the fork server's lifeline, which it gives to each of its children.

    They need a descriptor there to start children of their own by the same server; they need not keep it alive.
    """
    from multiprocessing import forkserver

    lifeline = getattr(getattr(forkserver, "_forkserver", None), "_forkserver_alive_fd", None)
    if lifeline is not None:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, lifeline, inheritable=False)
        os.close(null)


def _limit_open_files(soft: int) -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


def _use_streams(order: Order) -> None:
    for name, descriptor, number in (("stdout", order.stdout, 1), ("stderr", order.stderr, 2)):
        if descriptor is None:
            continue
        os.dup2(descriptor.fd, number)
        if descriptor.fd > 2:
            os.close(descriptor.fd)
        if not _writes_to(getattr(sys, name), number):
            # Forked from a program that had replaced it (a notebook, a test runner): that one's is not the worker's.
            setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115
    if not order.has_stdin:
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)


def _writes_to(stream: Any, number: int) -> bool:
    try:
        return bool(stream.fileno() == number)
    except (AttributeError, OSError, ValueError):
        return False


def _watch_for_crashes(fd: int) -> None:
    import faulthandler

    from phalanx.errors._boot import write_stacks_to

    if not faulthandler.is_enabled():
        faulthandler.enable(fd)
    write_stacks_to(fd)
