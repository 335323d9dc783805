"""What the agent says while the job runs, one line each. Pure."""

from __future__ import annotations

from collections.abc import Collection
from signal import Signals

from phalanx.agent.group import GroupMachine, GroupState, StopAsked
from phalanx.agent.restarts.policy import describe
from phalanx.agent.verdict.verdict import Verdict, listed, ranges_of
from phalanx.errors._printable import printable
from phalanx.rendezvous.round import Round

__all__ = [
    "BARRIER_PASSED",
    "PLACE_GIVEN_UP",
    "asked",
    "asked_early",
    "debugging",
    "formed",
    "not_passed",
    "one_line",
    "over",
    "stopped_for",
]

BARRIER_PASSED = (
    "this node's workers have succeeded; it waits for the others no longer (--exit-barrier-timeout)"
)
PLACE_GIVEN_UP = "a process of the job cannot be killed, so this node gives up its place in the job"


def formed(settled: Round) -> list[str]:
    """A round has settled. Nothing is said of a first round on one machine: nobody waits for it."""
    reason = "" if settled.delay_s else settled.reason  # told when the wait began
    if settled.group_world_size > 1:
        why = f"{reason}: " if reason else ""
        first, last = settled.first_rank, settled.first_rank + settled.local_world_size - 1
        here = f"rank {first} is" if first == last else f"ranks {first} to {last} are"
        nodes = f"{settled.group_world_size} nodes, {settled.world_size} workers"
        return [f"{why}round {settled.number} has {nodes}; {here} here"]
    if settled.number == 1 or not settled.reason:
        return []
    many = f"all {settled.local_world_size} workers" if settled.local_world_size > 1 else "the worker"
    return [f"{reason}; starting {many} anew" if reason else f"starting {many} anew"]


def stopped_for(reason: str, group: GroupMachine, event: StopAsked) -> str:
    """The workers are about to be stopped for something that is not theirs."""
    return f"{reason}: {_asked_whom(group, event)}"


def over(verdict: Verdict) -> str:
    """Why workers that run are stopped when the job is over."""
    what = "" if verdict.cause is None else one_line(describe(verdict.cause))
    return "; ".join(filter(None, (what, verdict.reason))) or "the job is over"


def asked(event: StopAsked, group: GroupMachine) -> str:
    """Somebody has sent a stop signal."""
    name = _asked_how(event)
    if group.state is GroupState.STOPPING:
        return f"{name}: the workers are being stopped already; again to end them at once"
    return f"{name}: {_asked_whom(group, event)}; again to end at once"


def asked_early(event: StopAsked) -> str:
    """The same while no workers run."""
    return f"{_asked_how(event)}: no workers run here now, so this node ends at once"


def not_passed(signal: int, local_ranks: Collection[int]) -> str:
    """Workers would have died of a signal that is no request to end."""
    whom = f"local {listed(ranges_of(local_ranks))}"
    have = "have" if len(local_ranks) > 1 else "has"
    return f"{Signals(signal).name} was not passed to {whom}, which {have} no handler for it"


def debugging(rank: int, world_size: int, *, is_here: bool, has_terminal: bool = True) -> str:
    """Who has the terminal in this round, by ``debug_rank``."""
    if rank >= world_size:
        last = "rank 0 alone" if world_size == 1 else f"ranks 0 to {world_size - 1}"
        return f"--debug-rank {rank}: there is no such rank, this round has {last}; nobody has the terminal"
    if not is_here:
        return f"--debug-rank {rank}: it runs on another node, and has that one's terminal"
    if not has_terminal:
        return (
            f"--debug-rank {rank}: standard input is no terminal here, so nobody can type at a breakpoint of rank "
            f"{rank}; start this in a terminal (srun --pty, docker run -it, ssh -t)"
        )
    return (
        f"rank {rank} has this terminal, and Ctrl-C reaches it alone; Ctrl-\\ stops the job. "
        "No time limit on slow workers holds meanwhile"
    )


def debugger_without_input(rank: int, *, is_debug_rank: bool) -> str:
    """A debugger has ended because there was nobody to read from (``bdb.BdbQuit``)."""
    if is_debug_rank:
        return "a debugger had nothing to read: the launcher's standard input is no terminal"
    return f"a debugger had nothing to read; with --debug-rank {rank} it has the launcher's terminal"


def _asked_how(event: StopAsked) -> str:
    return "stopped by the program" if event.by_program else Signals(event.signal).name


def _asked_whom(group: GroupMachine, event: StopAsked) -> str:
    count = group.nproc if group.state is GroupState.STARTING else len(group.running)
    if not count:
        return "no worker runs here now"
    whom = f"{count} workers" if count > 1 else "the worker" if group.nproc == 1 else "1 worker"
    if event.warn_signal is None or not event.warn_s:
        return f"asked {whom} to stop, {event.grace_s:g} s of grace"
    warning = f"{Signals(event.warn_signal).name} to {whom}, {event.warn_s:g} s to end by "
    their = "themselves" if count > 1 else "itself"
    return f"{warning}{their}, then {Signals(event.signal).name} and {event.grace_s:g} s of grace"


def one_line(text: str, width: int = 200) -> str:
    """The first line of a text that somebody else wrote, of bounded length and without control characters."""
    line = printable(text.strip().splitlines()[0]) if text.strip() else ""
    return line if len(line) <= width else f"{line[:width]}…"
