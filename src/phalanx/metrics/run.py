"""torchelastic's numbers of a run that has ended, for both kinds of agent. Pure."""

from __future__ import annotations

__all__ = ["Numbers", "numbers_of_run", "worker_metric"]

Numbers = list[tuple[str, int]]


def worker_metric(role: str, name: str) -> str:
    """The full name of a number about the workers of a role."""
    return f"workers.{role}.{name}"


def numbers_of_run(role: str, *, has_failed: bool, used: int, most: int) -> Numbers:
    """The numbers of a run that has used ``used`` of ``most`` restarts, in torchelastic's order.

    ``flakiness`` is 100 for a run that failed, else the part of the budget that was needed.

    >>> numbers_of_run("trainer", has_failed=False, used=1, most=3)[0]
    ('workers.trainer.flakiness', 25)
    """
    left = max(0, most - used)
    numbers = {
        "flakiness": 100 if has_failed else int(100 - 100 * (left + 1) / (most + 1)),
        "run_total": 1,
        "run_success_with_retries": int(not has_failed and used > 0),
        "run_success_no_retries": int(not has_failed and used == 0),
        "run_failed_with_retries": int(has_failed and used > 0),
        "run_failed_no_retries": int(has_failed and used == 0),
    }
    return [(worker_metric(role, name), value) for name, value in numbers.items()]
