"""The leases of the file store: who renews them, and for how long each has been silent. Blocking.

A lease is an empty file ``<number>.<count>``. A renewal renames it to the next count, an end to ``<number>.ended``: the
file server lets only one of the two find the file where it was, so no lease is ended that was just renewed. Nobody's
clock is compared with another's: each client measures, on its own, for how long a count has stood still.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping

__all__ = ["ENDED", "NO_FILE", "LeaseFiles"]

ENDED, NO_FILE = "ended", ""
# Time in which we did not look is not held against a lease if it is more than this part of its ttl: we, or the file
# server, were frozen, and no renewal could be seen. A look that is a little late is the rule on a busy machine.
LATE_TTLS = 1 / 3
LATE_MIN_S = 1.0
RENEWALS_MAX, RENEWAL_PAUSE_S = 10, 0.05  # somebody else renews the same lease, or a listing is out of date
OLD_S = (
    3600.0  # a file without a lease: its maker died before it could publish it, or after the lease had ended
)


class LeaseFiles:
    """The files of all leases, and what this client has seen of them. Methods raise OSError."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._counts: dict[int, int] = {}  # as far as we know; another client may be further
        self._seen: dict[int, tuple[str, float]] = {}
        self._looked_at = 0.0

    def create(self) -> None:
        """Make the folder, if it is not there."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)

    def begin(self, number: int) -> None:
        """Make the file of a lease, before the log has it. Raises FileExistsError for a number that is in use."""
        os.close(os.open(self._path(number, "0"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    def renew(self, number: int) -> str:
        """Move the count, and return it; or ``ENDED``, or ``NO_FILE``."""
        for _ in range(RENEWALS_MAX):
            count = self._counts.get(number)
            if count is not None and self._rename(number, str(count), str(count + 1)):
                self._counts[number] = count + 1
                return str(count + 1)
            found = self._list().get(number, NO_FILE)
            if found in (ENDED, NO_FILE):
                return found
            if int(found) == count:
                time.sleep(RENEWAL_PAUSE_S)
            self._counts[number] = int(found)
        raise OSError(f"lease {number} is not where {self._folder} lists it")

    def end(self, number: int, seen: str) -> bool:
        """End a lease whose count is ``seen``; False if somebody has renewed it."""
        if seen == ENDED or (
            self._end_lost(number) if seen == NO_FILE else self._rename(number, seen, ENDED)
        ):
            return True
        self._seen.pop(number, None)  # what we saw is out of date: begin to measure anew
        return False

    def forget(self, number: int) -> None:
        """Remove the files of a lease that the log says has ended."""
        self._counts.pop(number, None)
        self._unlink(number, ENDED)
        if (found := self._list().get(number)) is not None:
            self._unlink(number, found)

    def clear_away(self, is_known: Callable[[int], bool]) -> None:
        """Remove the old files of leases that nobody knows."""
        now = self._time_of_server()
        for number, found in self._list().items():
            if not is_known(number):
                with contextlib.suppress(FileNotFoundError):
                    if os.stat(self._path(number, found)).st_mtime < now - OLD_S:
                        self._unlink(number, found)

    def silent(self, ttls_s: Mapping[int, float], now: float) -> list[tuple[int, str]]:
        """Those of these leases that stood still for their ttl, or have been ended, and their last count."""
        listed = self._list() if ttls_s else {}
        unseen_s = now - self._looked_at
        self._looked_at = now
        found: list[tuple[int, str]] = []
        seen: dict[int, tuple[str, float]] = {}
        for number, ttl_s in ttls_s.items():
            before, since = self._seen.get(number, (None, now))
            # A lease that is renamed while we list may be missing; it moves, then. One that stays away was deleted.
            state = listed.get(number, NO_FILE)
            is_late = unseen_s > max(LATE_TTLS * ttl_s, LATE_MIN_S)
            seen[number] = state, (since if state == before and not is_late else now)
            if state == ENDED or now - seen[number][1] >= ttl_s:
                found.append((number, state))
        self._seen = seen
        return found

    def _list(self) -> dict[int, str]:
        """Number → count, or ``ENDED``."""
        found: dict[int, str] = {}
        for name in self._names():
            number, _, state = name.partition(".")
            if number.isdecimal() and (state.isdecimal() or state == ENDED):
                before = found.get(int(number), "0")
                # A file that is renamed while we list may be there twice.
                if state == ENDED or (before != ENDED and int(state) >= int(before)):
                    found[int(number)] = state
        return found

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            os.mkdir(self._folder, 0o700)  # deleted by hand; fails if the whole store is
            return []

    def _end_lost(self, number: int) -> bool:
        """End a lease whose file is gone, so that nobody goes on with it."""
        if self._list().get(number, ENDED) != ENDED:
            return False  # it is back
        os.close(os.open(self._path(number, ENDED), os.O_WRONLY | os.O_CREAT, 0o600))
        return True

    def _time_of_server(self) -> float:
        """Now, by the clock that the files' times are of."""
        path = os.path.join(self._folder, f"clock.{os.getpid()}")
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
        try:
            return os.stat(path).st_mtime
        finally:
            os.unlink(path)

    def _rename(self, number: int, old: str, new: str) -> bool:
        try:
            os.rename(self._path(number, old), self._path(number, new))
        except FileNotFoundError:
            # A lost answer of the server makes rename(2) fail after it was done; to an end this may be somebody else's.
            return new == ENDED and os.path.exists(self._path(number, ENDED))
        return True

    def _unlink(self, number: int, state: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(number, state))

    def _path(self, number: int, state: str) -> str:
        return os.path.join(self._folder, f"{number}.{state}")
