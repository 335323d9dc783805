"""A mistake of the person who typed the command: one sentence on stderr, exit code 2, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

__all__ = ["Collected", "Unread", "UsageError", "nearest", "nearest_name", "warn"]

P = ParamSpec("P")
R = TypeVar("R")


class UsageError(Exception):
    """What was wrong with which word, and what to write instead, in one sentence without a full stop."""


class Unread(Exception):
    """A check needs a value that could not be read. That was told, so there is nothing to say of it here."""


class Collected:
    """What several checks have found, so that all of it is told at once."""

    def __init__(self, told: str = "") -> None:
        self._told = [told] if told else []

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._told)

    def of(self, check: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
        """Call it, and return what it returns; None when it has found a mistake, or needs what could not be read."""
        try:
            return check(*args, **kwargs)
        except Unread:
            return None
        except UsageError as mistake:
            self._told.append(str(mistake))
            return None

    def raise_if_any(self) -> None:
        """Raise ``UsageError`` with a line for each."""
        if self._told:
            raise UsageError("\n".join(self._told))


def warn(sentence: str) -> None:
    """Say on stderr what is accepted and has no effect, or another one than the flag's name promises."""
    print(f"phalanx: warning: {sentence}", file=sys.stderr)


def nearest(word: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for the name that looks most like ``word``, or nothing."""
    name = nearest_name(word, names)
    return f"; did you mean {name}?" if name else ""


def nearest_name(word: str, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """Return the name that looks most like ``word``; ``cutoff`` is from 0, anything, to 1, the word itself."""
    import difflib  # costs a millisecond, and only a mistake needs it

    # Beginnings count too: someone who writes --nporc meant an abbreviation of --nproc-per-node. Dashes do not count:
    # any two short flags would look alike.
    bare = word.lstrip("-")
    by_look: dict[str, str] = {}
    for name in names:
        by_look.setdefault(name.lstrip("-"), name)
        by_look.setdefault(name.lstrip("-")[: len(bare)], name)
    found = difflib.get_close_matches(bare, by_look, n=1, cutoff=cutoff)
    return by_look[found[0]] if found else None
