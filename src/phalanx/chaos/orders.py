"""What ``phalanx chaos`` was asked for. Pure."""

from __future__ import annotations

import signal

from phalanx.chaos.plan import Act, Aim, Schedule, Span
from phalanx.records import Struct

__all__ = ["Orders"]

_AT_ONCE = Span(0.0, 0.0)


class Orders(Struct, kw_only=True):
    """One act, its target, its times. ``seed`` None: chosen by chance. ``command``: start it, instead of attaching.

    >>> Orders(act=Act.STOP).for_s
    20.0
    """

    act: Act
    aim: Aim = Aim()
    is_agent: bool = False
    """The agent is meant, not a worker: always with freeze and cut, with kill if it is said."""
    schedule: Schedule = Schedule(after=_AT_ONCE, every=_AT_ONCE, times=1)
    at_step: int | None = None
    events_file: str | None = None
    for_s: float = 20.0
    signum: int = int(signal.SIGKILL)
    share: float = 0.25
    seed: str | None = None
    job: str | None = None
    wait_s: float = 0.0
    is_dry: bool = False
    command: tuple[str, ...] = ()
