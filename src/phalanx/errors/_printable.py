"""Text of others in lines of ours. Pure, and without an import: it is used on every side."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    r"""``text`` on one line, without what a terminal would obey: names of files and words of workers are anybody's.

    >>> print(printable("a\x1b[2J\nstep 7"))
    a\x1b[2J\nstep 7
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() else sign.encode("unicode_escape").decode("ascii") for sign in text
    )
