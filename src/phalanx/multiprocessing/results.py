"""What torchelastic's ``PContext.wait()`` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.errors import ProcessFailure

__all__ = ["RunProcsResult"]


@dataclass
class RunProcsResult:
    """How a worker group ended: all return values, or the failures; and the log paths, all by local rank.

    >>> RunProcsResult(return_values={0: "done"}).is_failed()
    False
    """

    return_values: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, ProcessFailure] = field(default_factory=dict)
    stdouts: dict[int, str] = field(default_factory=dict)
    stderrs: dict[int, str] = field(default_factory=dict)

    def is_failed(self) -> bool:
        """Whether a worker failed."""
        return bool(self.failures)
