"""What is said of countdowns that are over: a hook of its own, which programs replace to save more."""

from __future__ import annotations

import logging

__all__ = ["log_debug_info_for_expired_timers"]

logger = logging.getLogger(__name__)


def log_debug_info_for_expired_timers(run_id: str, expired_timers: dict[int, list[str]]) -> None:
    """Log the countdowns that are over (pid → each of them as JSON), before their workers are ended.

    At level INFO, for programs that look for it: people are told in a sentence. Semantics of torchelastic 2.13.

    >>> log_debug_info_for_expired_timers("job", {})  # nothing is over: nothing is said
    """
    for pid, timers in expired_timers.items():
        logger.info("job %s: timers of process %s are over: %s", run_id, pid, "; ".join(timers))
