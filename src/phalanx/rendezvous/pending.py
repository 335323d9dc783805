"""Transactions under way: one per purpose, and after a failed guard none until something was heard. Pure."""

from __future__ import annotations

__all__ = ["Pending"]


class Pending:
    """``seen()`` counts what was heard from the store's watches, the only source of a new decision."""

    def __init__(self) -> None:
        self._version = 0
        self._sent: dict[str, int] = {}
        self._failed: dict[str, int] = {}
        self._unclear_since: float | None = None

    def seen(self) -> None:
        """A watch has told something: what failed may be tried again."""
        self._version += 1

    def may_send(self, purpose: str) -> bool:
        """Not while one is under way, nor while nothing has changed since a guard failed.

        A guard fails because the store is ahead of what we have heard. If we heard something while the answer was
        on its way that may have been it; if we did not, it is still to come.
        """
        return purpose not in self._sent and self._failed.get(purpose) != self._version

    def sent(self, purpose: str) -> None:
        """A transaction is under way."""
        self._sent[purpose] = self._version

    def answered(self, purpose: str, *, succeeded: bool) -> None:
        """It was answered."""
        self._unclear_since = None
        version = self._sent.pop(purpose, self._version)
        if not succeeded:
            self._failed[purpose] = version

    def unclear(self, purpose: str, now: float) -> float:
        """No answer came; the same may be asked again, under the same guards. For how long none came to any."""
        self._sent.pop(purpose, None)
        self._unclear_since = now if self._unclear_since is None else self._unclear_since
        return now - self._unclear_since

    def rest(self) -> None:
        """What was unclear is asked again by now, if it is still wanted: else the silence is nobody's who waits.

        An answer that is lost hours later is not the second in a row.
        """
        if not self._sent:
            self._unclear_since = None

    def is_under_way(self) -> bool:
        """Whether any answer is still awaited."""
        return bool(self._sent)

    def clear(self) -> None:
        """The connection is another one: no answer will come."""
        self._sent.clear()
        self._failed.clear()
        self._unclear_since = None
