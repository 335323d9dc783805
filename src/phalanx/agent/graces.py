"""How long workers have between being asked to stop and being ended, by what stops them. Pure record."""

from __future__ import annotations

from phalanx.records import Struct
from phalanx.rendezvous.stop_cause import StopCause

__all__ = ["Graces"]


class Graces(Struct):
    """Times in seconds. ``restart_s`` is also the grace when the failure of this very node stops the others of it."""

    stop_s: float
    """Somebody asked for a stop, or the job is over."""
    restart_s: float
    """A worker failed, here or elsewhere."""
    resize_s: float
    """Nodes join, leave, or were lost."""
    warn_s: float = 0.0
    """How long workers have after the warning, ahead of a stop that can wait for it."""
    warn_signal: int | None = None

    @classmethod
    def alike(cls, seconds: float) -> Graces:
        """The same grace for all causes, and no warning."""
        return cls(seconds, seconds, seconds)

    def of(self, cause: StopCause) -> float:
        """The grace of workers that are stopped for this cause."""
        return {
            StopCause.FAILURE: self.restart_s,
            StopCause.PLANNED: self.resize_s,
            StopCause.LOSS: self.resize_s,
            StopCause.END: self.stop_s,
        }[cause]
