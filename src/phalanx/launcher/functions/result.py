"""What a launch has returned: each rank's value, of all nodes, and how the job went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NoReturn, TypeVar, overload

from phalanx.launcher.hosting.outcome import Outcome

__all__ = ["LaunchResult", "NotSent"]

R = TypeVar("R")


class NotSent:
    """Stands for the value of a rank on another node that did not come here; the text says why.

    Between nodes only plain data is sent. Whatever is done with the marker but to look at it raises ``TypeError``.

    >>> NotSent(3, "it has something of type numpy.ndarray in it, and between nodes only plain data is sent")
    <the value of rank 3 was not sent: it has something of type numpy.ndarray in it, and between nodes only plain data \
is sent>
    """

    __slots__ = ("_rank", "_reason")

    def __init__(self, rank: int, reason: str) -> None:
        self._rank = rank
        self._reason = reason

    def __repr__(self) -> str:
        return f"<the value of rank {self._rank} was not sent: {self._reason}>"

    def _touched(self, *_: Any) -> NoReturn:
        raise TypeError(f"the value of rank {self._rank} was not sent here: {self._reason}")

    __bool__ = __iter__ = __len__ = __call__ = __getitem__ = __add__ = __radd__ = __mul__ = __sub__ = _touched
    __float__ = __int__ = __index__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = _touched

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # what copying, pickling and notebooks look for
            raise AttributeError(name)
        self._touched()


class LaunchResult(Sequence[R]):
    """The values that all ranks returned, in the order of ranks, on every node the same.

    ``result[0]``, ``len(result)`` and iteration are about ``values``. Those of this node's ranks are the objects that
    came back; of other nodes' ranks plain data comes, and a ``NotSent`` in the place of anything else. A script
    returns nothing: each of its ranks has None.

    >>> from phalanx.agent.verdict.verdict import Ending
    >>> done = Outcome(exit_code=0, ending=Ending.SUCCEEDED, report="")
    >>> result = LaunchResult((1.5, 2.5), run_id="a1", restarts=0, outcome=done)
    >>> result, result[1], sum(result)
    (<LaunchResult of 2 ranks: [1.5, 2.5]>, 2.5, 4.0)
    """

    def __init__(self, values: tuple[R, ...], *, run_id: str, restarts: int, outcome: Outcome) -> None:
        self.values = values
        """By global rank."""
        self.run_id = run_id
        """The job's id; empty if it is not known."""
        self.restarts = restarts
        """How many restarts were charged."""
        self.outcome = outcome
        """The end as the agent told it, with its verdict."""

    @overload
    def __getitem__(self, rank: int) -> R: ...
    @overload
    def __getitem__(self, rank: slice) -> tuple[R, ...]: ...
    def __getitem__(self, rank: int | slice) -> R | tuple[R, ...]:
        """The value of a rank. Raises ``IndexError`` for a rank that the job does not have."""
        return self.values[rank]

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[R]:
        return iter(self.values)

    def __repr__(self) -> str:
        shown = repr(list(self.values[:8]))
        shown = shown if len(shown) <= 400 else f"{shown[:400]}…"
        more = f" and {len(self) - 8} more" if len(self) > 8 else ""
        restarts = f", {self.restarts} restart{'s' if self.restarts > 1 else ''}" if self.restarts else ""
        ranks = f"{len(self)} rank{'s' if len(self) != 1 else ''}"
        return f"<LaunchResult of {ranks}{restarts}: {shown}{more}>"
