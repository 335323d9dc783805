"""The lines that chaos prints. Pure: what was done, to whom, where, by what."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from phalanx.chaos.plan import Act, Aim, Schedule, Span

__all__ = [
    "aim_words",
    "counted",
    "names",
    "schedule_words",
    "share_words",
    "time_words",
    "whom",
    "whom_agent",
]

_NOUNS = {Act.KILL: "kill", Act.STOP: "stop", Act.FREEZE: "freeze", Act.CUT: "cut", Act.SLOW: "slow-down"}


def names(noun: str, numbers: Collection[object]) -> str:
    """Numbers with their noun.

    >>> names("rank", [3]), names("rank", [0, 1, 3])
    ('rank 3', 'ranks 0, 1 and 3')
    """
    words = [str(one) for one in numbers]
    if len(words) < 2:
        return f"{noun} {words[0]}" if words else f"no {noun}"
    return f"{noun}s {', '.join(words[:-1])} and {words[-1]}"


def whom(ranks: Sequence[int], pids: Sequence[int], *, host: str, round_number: int) -> str:
    """Workers, by rank.

    >>> whom([3], [4711], host="n1", round_number=1)
    'rank 3 (pid 4711, host n1, round 1)'
    """
    return f"{names('rank', ranks)} ({names('pid', pids)}, host {host}, round {round_number})"


def whom_agent(node: int, pid: int, *, host: str) -> str:
    """An agent.

    >>> whom_agent(1, 4711, host="n1")
    'the agent of node 1 (pid 4711, host n1)'
    """
    return f"the agent of node {node} (pid {pid}, host {host})"


def time_words(seconds: float) -> str:
    """A time as it is typed.

    >>> time_words(20.0), time_words(0.25), time_words(45.362)
    ('20 s', '0.25 s', '45.362 s')
    """
    return f"{seconds:.3f}".rstrip("0").rstrip(".") + " s"


def share_words(share: float) -> str:
    """A share of the time.

    >>> share_words(0.25)
    '25%'
    """
    return f"{share * 100:g}%"


def span_words(span: Span) -> str:
    """A time, or the two that it is between.

    >>> span_words(Span(30.0, 60.0))
    '30 s to 60 s'
    """
    if span.low_s == span.high_s:
        return time_words(span.low_s)
    return f"{time_words(span.low_s)} to {time_words(span.high_s)}"


def schedule_words(schedule: Schedule) -> str:
    """How often, and when.

    >>> schedule_words(Schedule(after=Span(5.0, 5.0), every=Span(30.0, 60.0), times=None))
    'after 5 s, then every 30 s to 60 s until the job ends'
    """
    first = f"after {span_words(schedule.after)}"
    if schedule.times == 1:
        return f"{first}, once"
    until = " until the job ends" if schedule.times is None else f", {schedule.times} times in all"
    return f"{first}, then every {span_words(schedule.every)}{until}"


def aim_words(aim: Aim, *, is_agent: bool) -> str:
    """Who is meant, before it is known who that is.

    >>> aim_words(Aim(node=1), is_agent=False)
    'a random rank of node 1'
    """
    node = "a random node" if aim.random_node else f"node {aim.node}" if aim.node is not None else ""
    if is_agent:
        return f"the agent of {node}" if node else "the agent"
    if aim.ranks:
        who = names("rank", aim.ranks)
    elif aim.local_ranks:
        who = names("local rank", aim.local_ranks)
    else:
        who = "all ranks" if aim.all_ranks else "a random rank"
    return f"{who} of {node}" if node else f"{who} on this machine"


def counted(done: dict[Act, int]) -> str:
    """What was done in all.

    >>> counted({Act.KILL: 2, Act.SLOW: 1})
    '2 kills, 1 slow-down'
    """
    return ", ".join(f"{n} {_NOUNS[act]}{'s' if n > 1 else ''}" for act, n in done.items()) or "nothing"
