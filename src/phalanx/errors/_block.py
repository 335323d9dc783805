"""The lines of torchelastic's report on failed workers, which tools parse. Pure: texts in, text out.

What we know beyond its fields (crash traces) follows the line ``traceback``, indented, where such tools expect text of
any length.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["NOT_AVAILABLE", "block", "entry"]

NOT_AVAILABLE = "<N/A>"
_WIDEST = 60  # of the rules, as torchelastic's


def block(name: str, root: str, others: Sequence[str], *, border: str = "=", rule: str = "-") -> str:
    """The whole report; ``root`` is the entry of the first failure. Begins with an empty line."""
    title = f"{name} FAILED"
    width = max(len(line) for text in (title, root, *others) for line in text.split("\n"))
    borders, rules = (one * min(width, _WIDEST) for one in (border, rule))
    return "\n".join(
        [
            *("", borders, title, rules),
            *("Failures:", *(others or ["  <NO_OTHER_FAILURES>"]), rules),
            *("Root Cause (first observed failure):", root, borders),
        ]
    )


def entry(
    index: int,
    *,
    time: str,
    host: str,
    rank: int,
    local_rank: int,
    exit_code: int,
    signal_name: str,
    pid: int,
    error_file: str,
    explanation: str,
) -> str:
    """One failure. ``exit_code`` is negative for a signal, and ``signal_name`` its name then, else empty."""
    by_signal = f" ({signal_name})" if signal_name else ""
    return "\n  ".join(
        (
            f"[{index}]:",
            f"time      : {time}",
            f"host      : {host}",
            f"rank      : {rank} (local_rank: {local_rank})",
            f"exitcode  : {exit_code} (pid: {pid}) {by_signal}",
            f"error_file: {error_file}",
            "traceback : " + explanation.replace("\n", "\n  "),
        )
    )
