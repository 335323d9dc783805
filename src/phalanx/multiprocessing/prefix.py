"""The text before each teed line: torchelastic's template, plus the host, the round and the time of the line."""

from __future__ import annotations

import time
from string import Template

__all__ = ["DEFAULT_TEMPLATE", "LinePrefix", "prefix_for"]

DEFAULT_TEMPLATE = "[${role_name}${local_rank}]:"

# Stands in a finished prefix for the time that only the writer knows. A NUL cannot come from a command line
# or an environment variable, so no user's text is mistaken for it, and prefixes stay the plain strings of
# torchelastic's ``log_line_prefixes``.
_TIME = "\0time\0"


def prefix_for(
    template: str | None,
    *,
    role: str,
    rank: int,
    local_rank: int,
    host: str = "",
    round: int | None = None,  # noqa: A002 (the variable's name in templates)
) -> str:
    """The prefix of one worker's lines, to be handed to `LinePrefix` or ``log_line_prefixes``.

    ``template`` is ``string.Template`` text over ``role_name``, ``rank``, ``local_rank`` (as torchelastic's
    ``TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE``), ``host``, ``round`` and ``time``; other names are left as they
    are. ``None`` gives torchelastic's ``[<role><local rank>]:``.
    """
    values = {"role_name": role, "rank": rank, "local_rank": local_rank, "host": host, "time": _TIME}
    if round is not None:
        values["round"] = round
    return Template(DEFAULT_TEMPLATE if template is None else template).safe_substitute(values)


class LinePrefix:
    """A prefix ready to be written; only one with ``${time}`` costs anything per block, and that once a second."""

    __slots__ = ("_encoded", "_second", "_text")

    def __init__(self, text: str) -> None:
        self._text = text if _TIME in text else None
        self._encoded = text.encode("utf-8", "replace")
        self._second = -1

    def now(self) -> bytes:
        """The prefix for lines written now: local time as ``2026-01-31T23:59:59`` (wall time is for people)."""
        if self._text is not None and (second := int(time.time())) != self._second:
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(second))
            self._encoded = self._text.replace(_TIME, stamp).encode("utf-8", "replace")
            self._second = second
        return self._encoded
