"""A mistake of the person who typed the command: one sentence on stderr, exit code 2, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Iterable

__all__ = ["UsageError", "nearest", "warn"]


class UsageError(Exception):
    """What was wrong with which word, and what to write instead, in one sentence without a full stop."""


def warn(sentence: str) -> None:
    """Say on stderr what is accepted and has no effect, or another one than the flag's name promises."""
    print(f"phalanx: warning: {sentence}", file=sys.stderr)


def nearest(word: str, names: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` for the name that looks most like ``word``, or nothing."""
    import difflib  # costs a millisecond, and only a mistake needs it

    # Beginnings count too: someone who writes --nporc meant an abbreviation of --nproc-per-node. Dashes do not count:
    # any two short flags would look alike.
    bare = word.lstrip("-")
    by_look: dict[str, str] = {}
    for name in names:
        by_look.setdefault(name.lstrip("-"), name)
        by_look.setdefault(name.lstrip("-")[: len(bare)], name)
    found = difflib.get_close_matches(bare, by_look, n=1)
    return f"; did you mean {by_look[found[0]]}?" if found else ""
