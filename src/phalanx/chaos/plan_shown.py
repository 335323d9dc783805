"""A plan as ``--dry-run`` prints it. Pure."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.chaos import sentences
from phalanx.chaos.orders import Orders
from phalanx.chaos.plan import Act, NotHere, Step, steps

__all__ = ["plan_lines"]

_SHOWN_STEPS = 10  # of a plan without end


def plan_lines(plan: str, orders: Orders, seed: str, *, who: Callable[[Step], str] | None) -> list[str]:
    """What would be done. ``who``: whom a step meets among those who are here now, or ``NotHere``; None: nobody is yet.

    >>> plan_lines("kill a random rank, at once; seed 7", Orders(act=Act.KILL), "7", who=None)
    ['kill a random rank, at once; seed 7', '0.0 s: kill a random rank on this machine']
    """
    lines = [plan]
    at_s = 0.0
    after = "" if orders.at_step is None else f" after step {orders.at_step}"
    lasts_s = 0.0 if orders.act is Act.KILL else orders.for_s
    for step in steps(orders.schedule, seed):
        if step.number > _SHOWN_STEPS:
            return [*lines, "and so on"]
        try:
            whom = who(step) if who else sentences.aim_words(orders.aim, is_agent=orders.is_agent)
        except NotHere as reason:
            whom = f"nobody: {reason}"
        at_s += step.wait_s
        lines.append(f"{at_s:.1f} s{after}: {orders.act.value} {whom}")
        at_s += lasts_s
    return lines
