"""At which step all ranks of a round do the same: one rank's part in the agreements of one kind. Pure.

Each call of ``at`` is a generator of questions to the values of the round (``phalanx.values``); it never asks twice
for the same to wait, so no call waits for another rank. Why it is right, and what breaks it: decision 0026.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Any

__all__ = ["ADD", "COMPARE_SET", "GET", "NOW", "Agreed"]

ADD, COMPARE_SET, GET = "add", "compare_set", "get"
"""Questions. ``(ADD, key)`` adds one and has the sum; ``(COMPARE_SET, key, expected, desired)`` and ``(GET, key)`` have
the text that is there then, or None."""

NOW = -1
"""Stands for the step where no rank is to wait for another any more: one of them has ended."""


class Agreed:
    """Requests are known by ids that are the same on all ranks; ids that come in any order, or twice, do no harm.

    Agreements follow each other: the ranks' parts in number ``k`` are under ``<prefix>/<k>``. Each covers the requests
    that any rank knew of when it joined it; for what is not covered, the next one is joined.
    """

    def __init__(self, prefix: str, world_size: int) -> None:
        self._prefix = prefix
        self._world_size = world_size
        self._number = 0
        self._open: dict[
            str, None
        ] = {}  # requests that are not covered, in the order in which they were heard
        self._covered: set[str] = set()
        self._joined = False
        self._must_decide = False  # the last to join, or an answer that was lost may have said so
        self._last: int | None = None  # the step of the last call since we joined
        self._decided: int | None = None
        self.missed: tuple[int, int] | None = None
        """(agreed, own): the agreed step was past here: the ranks are further apart than the margin."""

    @property
    def is_open(self) -> bool:
        """A request is known that no agreement has covered yet, or one that does has not come to its step."""
        return bool(self._open) or self._joined

    @property
    def open(self) -> set[str]:
        """The requests that no agreement has covered yet."""
        return set(self._open)

    def hear(self, request: str) -> None:
        """The agent of this rank told of a request."""
        if request not in self._covered:
            self._open[request] = None

    def at(self, step: int, margin: int) -> Generator[tuple[Any, ...], Any, bool]:
        """Whether ``step``, where this rank is, is the first one at or after the step that was agreed on.

        One question per call; a few in the call that joins. An exception that is thrown in ends the call, not the
        agreement: who does not hear the sum counts as having joined, because a second time would count twice.
        """
        while self.is_open:
            if self._world_size == 1:
                self._next(self._open)
                return True
            # Who joins in this call has passed nothing: an agreement of this step or an earlier one is not its own.
            before, self._last = (step if self._last is None else self._last), step
            if self._decided is None:
                key = f"{self._prefix}/{self._number}"
                has_joined = self._joined
                if not has_joined:
                    yield from self._join(key)
                if self._must_decide:
                    yield from self._decide(key, step + max(margin, 1))
                elif has_joined:
                    yield from self._look(key)
            if self._decided is None or step < self._decided:
                return False
            if self._decided == NOW:
                self._next(())
                return True
            agreed = self._decided
            self._next(())
            if before < agreed:
                return True
            self.missed = (agreed, step)
        return False

    def _join(self, key: str) -> Generator[tuple[Any, ...], Any, None]:
        own, known = list(self._open), None
        while True:  # others write at the same time; each turn of it is somebody's success
            united = _united(known, own)
            if known == united:
                break
            known = yield (COMPARE_SET, f"{key}/requests", known, united)
        self._joined = self._must_decide = True  # unless the sum says that others are to come
        self._must_decide = (yield (ADD, f"{key}/ranks")) >= self._world_size

    def _decide(self, key: str, at: int) -> Generator[tuple[Any, ...], Any, None]:
        """Nobody joins any more, so all will read: this rank was the last, or looks whether it was."""
        if int((yield (GET, f"{key}/ranks")) or 0) < self._world_size:
            return
        requests = yield (GET, f"{key}/requests")
        yield (COMPARE_SET, f"{key}/at", None, f"{at}\n{requests}")  # unless another one has decided
        yield from self._look(key)

    def _look(self, key: str) -> Generator[tuple[Any, ...], Any, None]:
        found = yield (GET, f"{key}/at")
        if found is not None:
            at, _, requests = found.partition("\n")
            self._cover(requests.split("\n"))
            self._decided, self._must_decide = int(at), False

    def _cover(self, requests: Iterable[str]) -> None:
        for one in list(requests):
            self._covered.add(one)
            self._open.pop(one, None)

    def _next(self, requests: Iterable[str]) -> None:
        self._cover(requests)
        self._number += 1
        self._joined = self._must_decide = False
        self._decided = self._last = None


def _united(known: str | None, own: Iterable[str]) -> str:
    ids = dict.fromkeys(() if known is None else known.split("\n"))
    ids.update(dict.fromkeys(own))
    return "\n".join(ids)
