"""The lines that chaos prints. Pure: what was done, to whom, where, by what."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.chaos.plan import Act, Aim, Schedule, Span, names

__all__ = [
    "aim_words",
    "counted",
    "no_job",
    "outlived",
    "schedule_words",
    "share_words",
    "time_words",
    "unnamed",
    "whom",
    "whom_agent",
]

_NOUNS = {Act.KILL: "kill", Act.STOP: "stop", Act.FREEZE: "freeze", Act.CUT: "cut", Act.SLOW: "slow-down"}


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


def schedule_words(schedule: Schedule, at_step: int | None = None) -> str:
    """How often, and when.

    >>> schedule_words(Schedule(after=Span(5.0, 5.0), every=Span(30.0, 60.0), times=None))
    'after 5 s, then every 30 s to 60 s until the job ends'
    >>> schedule_words(Schedule(after=Span(0.0, 0.0), every=Span(0.0, 0.0), times=1), 50)
    'at step 50'
    """
    parts = [] if at_step is None else [f"at step {at_step}"]
    if schedule.after.high_s:
        parts.append(f"after {span_words(schedule.after)}")
    if schedule.times != 1:
        until = " until the job ends" if schedule.times is None else f", {schedule.times} times in all"
        parts.append(f"every {span_words(schedule.every)}{until}")
        parts = parts if len(parts) > 1 else ["at once", *parts]
    return ", then ".join(parts) or "at once"


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


def counted(act: Act, done: int, *, is_fatal: bool = True, outlived: int = 0) -> str:
    """What was done in all; ``is_fatal``: by SIGKILL, which is a kill; ``outlived``: signals that have ended nobody.

    >>> counted(Act.KILL, 2), counted(Act.SLOW, 1), counted(Act.STOP, 0)
    ('2 kills', '1 slow-down', 'nothing')
    >>> counted(Act.KILL, 2, is_fatal=False, outlived=1), counted(Act.KILL, 1, is_fatal=False, outlived=1)
    ('2 signals, 1 of which ended nobody', '1 signal, which ended nobody')
    """
    if not done:
        return "nothing"
    noun = "signal" if act is Act.KILL and not is_fatal else _NOUNS[act]
    words = f"{done} {noun}{'s' if done > 1 else ''}"
    if not outlived:
        return words
    return f"{words}, {f'{outlived} of ' if done > 1 else ''}which ended nobody"


def outlived(ranks: str, signal_name: str, seconds: float, *, count: int) -> str:
    """That workers are still there after a signal that ends who does nothing about it.

    >>> outlived("rank 1", "SIGTERM", 5.0, count=1)[:60]
    'rank 1 still runs 5 s after SIGTERM: the script handles or i'
    """
    verb = "runs" if count == 1 else "run"
    who = ", as one that asks should_stop does" if signal_name == "SIGTERM" else ""
    return (
        f"{ranks} still {verb} {time_words(seconds)} after {signal_name}: the script handles or ignores it{who}, "
        f"so no worker was lost, and no restart was tried"
    )


def unnamed(deed: str, here: Sequence[str]) -> str:
    """Why nothing is done to a job that nobody has named; ``here``: those that there are.

    >>> unnamed("kill rank 1", ["x"])[-41:]
    'or start one: -- phalanx run ...; here: x'
    """
    listed = f"; here: {'; '.join(here)}" if here else ""
    return (
        f"it would {deed}, of a job that is not named: write --job ID, or --job any for whichever is here alone, "
        f"or start one: -- phalanx run ...{listed}"
    )


def no_job(wanted: str | None, here: Sequence[str], *, is_ours: bool) -> str:
    """That there is no such job; ``is_ours``: among those that our command has started.

    >>> no_job("x", [], is_ours=False), no_job("x", ["y"], is_ours=True)
    ("no job 'x' of this user has workers on this machine", "no job 'x' has workers below the command, which has: y")
    """
    named = "" if wanted is None else f" {wanted!r}"
    where = "below the command" if is_ours else "on this machine"
    others = f", which has: {'; '.join(here)}" if named and here else ""
    return f"no job{named}{'' if is_ours or others else ' of this user'} has workers {where}{others}"
