"""What workers are told of their stop over their channel: at once, and again when there is news in it. Pure."""

from __future__ import annotations

from phalanx.errors._channel_protocol import CAUSES_WITHOUT_A_STEP
from phalanx.records import Struct

__all__ = ["AnnounceStop", "Announced", "NoStepLeft"]

LOSS = "loss"


class NoStepLeft(Struct):
    """An event: some rank of another node comes to no step any more, where workers are being stopped."""


class AnnounceStop(Struct):
    """Tell workers that they are being stopped, before the signal reaches them."""

    signal: int
    grace_s: float
    """Until their trees are ended, the time of a warning included."""
    cause: str = "asked"


class Announced:
    """What workers have been told. They may wait for each other, and for half of their time: both may become less."""

    def __init__(self) -> None:
        self._until = 0.0
        self._cause = ""
        self._signal = 0
        self._is_lost = False  # some rank, which may be heard before the stop

    def first(self, signal: int, time_s: float, ends_at: float, cause: str) -> AnnounceStop:
        """The stop begins, and ends at ``ends_at`` by the machine that ends it, whose last bit another sum may miss."""
        if self._is_lost and cause not in CAUSES_WITHOUT_A_STEP:
            cause = LOSS
        self._until, self._cause, self._signal = ends_at, cause, signal
        return AnnounceStop(signal, time_s, cause)

    def again(self, signal: int, ends_at: float | None, cause: str, now: float) -> list[AnnounceStop]:
        """It was asked for again, and ends at ``ends_at`` now (None: nobody has any time). A later end is no news."""
        if not self._cause:
            return []  # nobody was asked: workers have ended by themselves, and what they left is swept
        until = self._until if ends_at is None else min(self._until, ends_at)
        if cause not in CAUSES_WITHOUT_A_STEP or self._cause in CAUSES_WITHOUT_A_STEP:
            cause = self._cause
        if (until, cause) == (self._until, self._cause):
            return []
        self._until, self._cause = until, cause
        return [AnnounceStop(signal, max(0.0, until - now), cause)]

    def no_step_left(self, ends_at: float | None, now: float) -> list[AnnounceStop]:
        """A rank was lost; the time stays."""
        self._is_lost = True
        return self.again(self._signal, ends_at, LOSS, now)
