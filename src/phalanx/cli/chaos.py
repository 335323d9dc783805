"""``phalanx chaos``: its words and pages. Faults on purpose, to see what a script and its job do about them."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from phalanx.cli import convert
from phalanx.cli.mistakes import UsageError, nearest

if TYPE_CHECKING:
    from phalanx.chaos.orders import Orders
    from phalanx.chaos.plan import Aim, Span

__all__ = ["ACTS", "flags_of", "main", "orders_of", "page"]

T = TypeVar("T")
_WIDTH = 80
_USAGE = "phalanx chaos ACT [flags] [-- COMMAND ...]"
_OF_SOME_ACTS = ("for_s", "signum", "share")

# One line, and what it is in real life; an example.
ACTS: dict[str, tuple[str, str, str]] = {
    "kill": (
        "end a worker, or the launcher, as a crash does",
        (
            "A lost worker: the kernel ran out of memory, a driver failed, a machine was\n"
            "taken away. The job is to notice, restart, and go on from its checkpoint.\n"
            "With --agent it is the launcher of a node that dies: its workers must not\n"
            "outlive it, and the other nodes go on without it."
        ),
        "phalanx chaos kill --job any --rank random --after 30s",
    ),
    "stop": (
        "stop a worker for a while, then let it go on (SIGSTOP, SIGCONT)",
        (
            "A hung worker: a disk or a network folder that does not answer, a deadlock, a\n"
            "debugger. The others wait in their next collective; watchdogs and timeouts\n"
            "are to see it, and what was only slow is to go on. All that the worker has\n"
            "started stands still with it."
        ),
        "phalanx chaos stop --job any --rank 3 --for 20s",
    ),
    "freeze": (
        "stop the launcher of a node for a while; its workers run on",
        (
            "A machine that swaps, or a virtual one that is being moved. The node's lease\n"
            "ends, the others go on without it, and its keeper ends its workers in time;\n"
            "when it thaws it has to join as a newcomer."
        ),
        "phalanx chaos freeze --job any --node 1 --for 30s",
    ),
    "cut": (
        "cut the launcher of a node from the store, as a broken network does",
        (
            "A network partition: no packet passes, and no connection is closed. The cut\n"
            "node ends its workers before the others start without it, and comes back when\n"
            "it heals. Needs root and nft (nftables). The kernel heals it in time, even if\n"
            "chaos is killed. A node that serves the store cannot be cut from itself."
        ),
        "phalanx chaos cut --job any --node 1 --for 20s",
    ),
    "slow": (
        "let a worker run for a share of the time",
        (
            "A straggler: a hot GPU, a neighbour on the same CPUs, a bad cable. Collectives\n"
            "make the whole job as slow as its slowest worker; nothing is to fail."
        ),
        "phalanx chaos slow --job any --rank 0 --to 25% --for 60s",
    ),
}

_ABOUT = """\
Make faults on purpose in a job on this machine, to see what it does about them:
start, kill, watch, check. Attaches to the job that --job names, or starts
COMMAND and ends with its exit code. What was done is printed on stderr, one
line each. With neither, it lists the jobs that are here and does nothing.
"""

_MORE = """\
examples:
  phalanx chaos kill --after 10s -- phalanx run --max-restarts 3 train.py
  phalanx chaos kill --job my-run --every 30s:60s --times 5 --seed 7 --wait 60s
  phalanx chaos kill --at-step 100 -- phalanx run --max-restarts 3 train.py
{acts}

phalanx chaos ACT --help lists the flags of an act.

A random rank and a time such as 30s:60s come from the seed, which is printed:
with --seed the same job is hit in the same way again. Whatever was stopped,
slowed or cut is healed when chaos ends, also if it is interrupted or killed.

exit codes: that of COMMAND; without one 0 when the plan is done or the job has
ended; 1 nothing was done; 2 a mistake, or nothing that can be done here (a job
that chaos has started is told to stop then); 128+N stopped by signal N.
"""


def main(words: Sequence[str]) -> int:
    """Do what the words ask for, and return the exit code.

    Mistakes begin as all other lines of chaos do: those of its command stand beside them.
    """
    try:
        return _main(words)
    except UsageError as mistake:
        print(f"chaos: error: {mistake}", file=sys.stderr)
        return 2


def _main(words: Sequence[str]) -> int:
    if words and words[0] in ("-h", "--help"):
        from phalanx.cli.showing import show

        show(page())
        return 0
    from phalanx.chaos.injector import Mistaken, inject

    orders = orders_of(words)
    if orders is None:
        return 0
    try:
        return inject(orders)
    except Mistaken as reason:
        raise UsageError(str(reason)) from None


def page() -> str:
    """Return the page of ``phalanx chaos --help``."""
    acts = "\n".join(f"  {name:8}{about}" for name, (about, _, _) in ACTS.items())
    examples = "\n".join(f"  {example}" for _, _, example in ACTS.values())
    return f"usage: {_USAGE}\n\n{_ABOUT}\nacts:\n{acts}\n\n{_MORE.format(acts=examples)}"


def orders_of(words: Sequence[str]) -> Orders | None:
    """What these words ask for; None if that was a page, which has been printed. Raises ``UsageError``.

    >>> orders_of(["stop", "--rank", "3", "--for", "20s"]).for_s
    20.0
    """
    own, command = _split(words)
    if not own or own[0].startswith("-"):
        raise UsageError(f"chaos takes an act first: {', '.join(ACTS)}; write {_USAGE}")
    act, *flags = own
    if act not in ACTS:
        raise UsageError(
            f"{act!r} is no act of chaos{nearest(act, ACTS) or '; write one of ' + ', '.join(ACTS)}"
        )
    parser = _parser(act)
    if {"-h", "--help"} & set(flags):
        from phalanx.cli.showing import show

        show(parser.format_help())
        return None
    return _orders(act, parser.parse_args(flags), command)


def flags_of(act: str) -> dict[str, bool]:
    """The flags of an act and whether a value follows, for completion.

    >>> flags_of("kill")["--signal"], flags_of("kill")["--agent"], "--signal" in flags_of("stop")
    (True, False, False)
    """
    actions = _parser(act)._actions
    return {one: a.nargs != 0 for a in actions for one in a.option_strings if one.startswith("--")}


def _split(words: Sequence[str]) -> tuple[list[str], tuple[str, ...]]:
    """Our words, and those of the command behind the first ``--``."""
    if "--" not in words:
        return list(words), ()
    at = list(words).index("--")
    if at == len(words) - 1:
        raise UsageError("no command follows --; write the whole line there, such as -- phalanx run train.py")
    return list(words[:at]), tuple(words[at + 1 :])


class _Parser(argparse.ArgumentParser):
    """One whose mistakes are ours: one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raise ``UsageError``."""
        if message.startswith("unrecognized arguments: "):
            word = message.removeprefix("unrecognized arguments: ").split()[0]
            flags = [flag for action in self._actions for flag in action.option_strings]
            if word.startswith("-"):
                raise UsageError(f"chaos has no flag {word} here{nearest(word, flags)}")
            raise UsageError(f"chaos does not know what to do with {word!r}; a command follows --")
        raise UsageError(message.removeprefix("argument "))


def _parser(act: str) -> argparse.ArgumentParser:
    about, life, example = ACTS[act]
    parser = _Parser(
        prog=f"phalanx chaos {act}",
        usage=f"phalanx chaos {act} [flags] [-- COMMAND ...]",
        description=f"{about[0].upper()}{about[1:]}.\n\n{life}\n\n  {example}\n",
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=_WIDTH),
    )
    whom = parser.add_argument_group("whom")
    whom.add_argument(
        "--job",
        metavar="ID|any",
        help="the job that runs: its run id, or an agent's pid; any: the only one here",
    )
    if act in ("kill", "stop", "slow"):
        whom.add_argument(
            "--rank",
            type=_read(_ranks),
            metavar="N,...|random|all",
            help="ranks of the job (default: random)",
        )
        whom.add_argument(
            "--local-rank", type=_read(_numbers), metavar="N,...", help="local ranks of one node instead"
        )
        node = "of this node (its GROUP_RANK) alone; without --rank all its ranks"
    else:
        node = "which node's, if several run on this machine: its GROUP_RANK"
    whom.add_argument("--node", type=_read(_node), metavar="N|random", help=node)
    what = parser.add_argument_group("what", argument_default=argparse.SUPPRESS)  # Orders have the defaults
    if act == "kill":
        whom.add_argument("--agent", action="store_true", help="the launcher of the node, not its workers")
        what.add_argument(
            "--signal", dest="signum", type=_read(_signal), metavar="SIGNAL", help="(default: SIGKILL)"
        )
    else:
        what.add_argument(
            "--for", dest="for_s", type=_read(convert.span), metavar="TIME", help="how long (default: 20s)"
        )
    if act == "slow":
        share = "share of the time (default: 25%%)"
        what.add_argument("--to", dest="share", type=_read(_share), metavar="SHARE", help=share)
    _add_when(parser.add_argument_group("when"))
    return parser


def _add_when(when: argparse._ArgumentGroup) -> None:
    when.add_argument(
        "--after",
        type=_read(_span),
        metavar="TIME[:TIME]",
        help="how long after the job's workers are there (default: at once)",
    )
    when.add_argument(
        "--at-step",
        type=_read(convert.count),
        metavar="N",
        help="when a worker has told of this step by phalanx.progress; --after counts from there",
    )
    when.add_argument(
        "--events-file",
        metavar="FILE",
        help="where the job's --events-file is, for --at-step; a COMMAND is told of it by its environment",
    )
    when.add_argument(
        "--every",
        type=_read(_span),
        metavar="TIME[:TIME]",
        help="do it again so long after each time, until the job ends",
    )
    when.add_argument("--times", type=_read(convert.count), metavar="N", help="how often at most")
    when.add_argument(
        "--seed", metavar="WORD", help="what random ranks and times come from (default: by chance)"
    )
    when.add_argument(
        "--wait",
        type=_read(convert.duration),
        metavar="TIME",
        default=0.0,
        help="wait so long for the job to appear (default: not at all)",
    )
    when.add_argument("--dry-run", action="store_true", help="print the plan, and do nothing")


def _orders(act: str, given: argparse.Namespace, command: tuple[str, ...]) -> Orders:
    from phalanx.chaos.orders import Orders
    from phalanx.chaos.plan import Act, Schedule, Span

    if given.times == 0:
        raise UsageError("--times: 0 is no time at all; write 1 or more")
    if given.times not in (None, 1) and given.every is None:
        raise UsageError("--times needs --every, the wait between one time and the next")
    if given.events_file is not None and given.at_step is None:
        raise UsageError("--events-file has no effect without --at-step")
    if given.at_step is not None and given.events_file is None and not command:
        raise UsageError("--at-step needs --events-file, the file that the job's own --events-file names")
    if command and given.wait:
        raise UsageError("--wait has no effect on a command, whose job is waited for as long as it runs")
    at_once = Span(0.0, 0.0)
    times = given.times if given.every is not None else 1
    options: dict[str, Any] = vars(given)
    is_agent = act in ("freeze", "cut") or options.get("agent", False)
    return Orders(
        act=Act(act),
        aim=_aim(options, is_agent=is_agent),
        is_agent=is_agent,
        schedule=Schedule(after=given.after or at_once, every=given.every or at_once, times=times),
        at_step=given.at_step,
        events_file=given.events_file,
        seed=given.seed,
        job=given.job,
        wait_s=given.wait,
        is_dry=given.dry_run,
        command=command,
        **{field: options[field] for field in _OF_SOME_ACTS if field in options},
    )


def _aim(options: dict[str, Any], *, is_agent: bool) -> Aim:
    from phalanx.chaos.plan import Aim

    ranks, local_ranks, node = options.get("rank"), options.get("local_rank"), options["node"]
    if ranks is not None and local_ranks is not None:
        raise UsageError("--rank and --local-rank name workers in two ways; write one of them")
    if is_agent and (ranks is not None or local_ranks is not None):
        raise UsageError("--agent means the launcher, not a worker; say which with --node")
    if isinstance(ranks, tuple) and node == "random":
        raise UsageError("a rank is on one node; leave --node out")
    return Aim(
        ranks=ranks if isinstance(ranks, tuple) else (),
        local_ranks=local_ranks or (),
        all_ranks=ranks == "all" or (ranks is None and local_ranks is None and node is not None),
        node=node if isinstance(node, int) else None,
        random_node=node == "random",
    )


def _read(reader: Callable[[str], T]) -> Callable[[str], T]:
    """A reader whose ``ValueError`` is told as it is."""

    def read(raw: str) -> T:
        try:
            return reader(raw)
        except ValueError as reason:
            raise argparse.ArgumentTypeError(str(reason)) from None

    return read


def _numbers(raw: str) -> tuple[int, ...]:
    return tuple(dict.fromkeys(convert.count(part) for part in raw.split(",")))


def _ranks(raw: str) -> tuple[int, ...] | str:
    return raw if raw in ("random", "all") else _numbers(raw)


def _node(raw: str) -> int | str:
    return raw if raw == "random" else convert.count(raw)


def _span(raw: str) -> Span:
    from phalanx.chaos.plan import Span

    low, colon, high = raw.partition(":")
    low_s = convert.duration(low)
    high_s = convert.duration(high) if colon else low_s
    if high_s < low_s:
        raise ValueError(f"{raw[:40]!r}: the longest time is shorter than the shortest")
    return Span(low_s, high_s)


def _signal(raw: str) -> int:
    import signal

    name = raw.strip().upper()
    try:
        if name.isdecimal():
            return int(signal.Signals(int(name)))
        return int(signal.Signals[f"SIG{name.removeprefix('SIG')}"])
    except (KeyError, ValueError):
        raise ValueError(f"{raw[:40]!r} is no signal of this system; write SIGKILL, TERM or 9") from None


def _share(raw: str) -> float:
    digits = raw.strip().removesuffix("%")
    try:
        share = float(digits) / 100
    except ValueError:
        share = -1.0
    if not raw.strip().endswith("%") or not 0.01 <= share <= 0.99:
        raise ValueError(f"{raw[:40]!r} is no share; write 1% to 99%")
    return share
