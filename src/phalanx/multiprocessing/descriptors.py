"""How many descriptors this process may have open: raised for large groups, and not passed on to workers.

The soft limit (``ulimit -n``) is 1024 by default for the sake of programs that use ``select``, which has no room for
larger numbers. A program that does not may raise it up to the hard limit, and is to give its children the old one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["RESERVE", "give_back", "given_limit", "hold_back", "how_to_get_more", "make_room"]

# A worker's pidfd, its two nameless files, multiprocessing's sentinel, its connection to the agent, and for each of
# two streams the file that is followed or the pipe and the files that are written.
PER_WORKER = 12
# For a process tree that is watched (64), for reading /proc, and for what the program around us opens meanwhile.
RESERVE = 128

_raised: tuple[int, int] | None = None  # the soft limit that was given to us, and what we made of it


def make_room(workers: int) -> bool:
    """Raise the soft limit as far as a group of this size needs; False when even the hard limit may be too low.

    The limit is the whole process's, and stays.
    """
    global _raised  # noqa: PLW0603 # the limit is the process's too
    soft, needed = os.sysconf("SC_OPEN_MAX"), _needed(workers)
    if soft < 0 or needed <= soft:  # negative: without limit
        return True
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    if wanted > soft:
        given = given_limit()
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit that is not said
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            _raised = (soft if given is None else given, wanted)
    return os.sysconf("SC_OPEN_MAX") >= needed


def given_limit() -> int | None:
    """The soft limit that workers are to have; None when it is ours, because nothing was raised."""
    # Compared with what holds: if the program around us has set another limit since, that one is meant for children.
    return None if _raised is None or os.sysconf("SC_OPEN_MAX") != _raised[1] else _raised[0]


def give_back(pid: int) -> None:
    """Give a child that has just been started the soft limit that we were given.

    From outside and a moment after its exec, so that a program that asks at once may be told the larger limit. That
    harms nobody who does not open a thousand files in that moment. What would be exact costs more: ``preexec_fn`` a
    fork of this whole process, a shell in between the kernel's words for why an exec failed; and our own limit lowered
    around each start would fail every thread that opens something then, and us once we have more open than that.
    """
    given = given_limit()
    if given is None:
        return
    import resource

    if not hasattr(resource, "prlimit"):
        return
    with contextlib.suppress(OSError):  # it has ended, or has become another user's
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        if _raised is not None and soft == _raised[1]:  # else it has chosen for itself
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (given, hard))


@contextlib.contextmanager
def hold_back(count: int) -> Iterator[None]:
    """Keep ``count`` descriptors occupied, so that they are free after the block. Raises ``OSError`` (EMFILE)."""
    with contextlib.ExitStack() as held:
        for _ in range(0, count, 2):
            for fd in os.pipe():
                held.callback(os.close, fd)
        yield


def how_to_get_more(workers: int) -> str:
    """The advice for who has come to the limit with a group of this size."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = -(-(PER_WORKER * workers + 2 * RESERVE) // 256) * 256
    many = f"{workers} workers" if workers > 1 else "1 worker"
    advice = f"the limit is {soft} and {many} may need {enough}: run 'ulimit -n {enough}' first"
    if hard != resource.RLIM_INFINITY and hard < enough:
        advice += f", for which the hard limit of {hard} must be raised (limits.conf, LimitNOFILE=, docker --ulimit)"
    return advice


def _needed(workers: int) -> int:
    try:
        in_use = len(os.listdir("/dev/fd"))
    except OSError:
        in_use = RESERVE
    return in_use + PER_WORKER * workers + RESERVE
