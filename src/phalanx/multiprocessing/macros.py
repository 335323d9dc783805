"""Names in a command's arguments that stand for what only a worker's start can know: one rule for all launchers. Pure.

What a user types after the script's name is the script's. So ``${local_rank}`` alone is replaced in it, and
``$local_rank``, ``$$`` and other ``${names}`` arrive as they were given. torchelastic parses each argument as a
``string.Template``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["LOCAL_RANK", "arguments_for", "has_macro"]

LOCAL_RANK = "${local_rank}"


def arguments_for(local_rank: int, args: Iterable[Any]) -> tuple[Any, ...]:
    """Return the arguments of one worker; what is no text stays as it is.

    >>> arguments_for(3, ["--rank=${local_rank}", "$local_rank", "$$", "${HOME}", 7])
    ('--rank=3', '$local_rank', '$$', '${HOME}', 7)
    """
    rank = str(local_rank)
    return tuple(one.replace(LOCAL_RANK, rank) if isinstance(one, str) else one for one in args)


def has_macro(args: Iterable[Any]) -> bool:
    """Whether the workers' arguments differ."""
    return any(isinstance(one, str) and LOCAL_RANK in one for one in args)
