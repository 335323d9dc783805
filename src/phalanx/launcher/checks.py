"""What cannot be right in a job's options taken together, and what of them has no effect: for every front end.

Pure: it sees one ``RunOptions``. What only the machine knows (plug-ins, devices, how nodes would meet) is asked in
``outside_checks``. A front end says which fields somebody asked for, and how it calls a field: a flag, a variable, the
line of a file, a keyword.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from signal import SIGUSR1, Signals
from typing import TYPE_CHECKING, NamedTuple

from phalanx.agent.restarts.policy import WINDOW_RESTARTS_MAX
from phalanx.launcher.choices import CHOICES, PASS_SIGNALS

if TYPE_CHECKING:
    from phalanx.launcher.options import RunOptions

__all__ = ["Called", "Finding", "check", "check_limits", "sort_signals", "warning_of"]

WARN_BEFORE_S = 30.0
# Smallest and largest value. Ports are the system's, signals and sizes have no upper bound that we know of.
RANGES: dict[str, tuple[float, float]] = {
    "nproc": (1, 32768),
    "stderr_tail": (0, math.inf),
    "log_max_size": (1, math.inf),
    "grace_s": (0, 1e9),
    "restart_grace_s": (0, 1e9),
    "resize_grace_s": (0, 1e9),
    "warn_before_s": (0, 1e9),
    "exclude_for_s": (0, 1e9),
    "exit_barrier_s": (0, 1e9),
    "straggler_s": (0, 1e9),
    "master_port": (0, 65535),
    "node_rank": (0, math.inf),
    "omp_threads": (0, math.inf),
    "min_nodes": (1, math.inf),
    "max_nodes": (1, math.inf),
}

Called = Callable[[str], str]
"""From a field (``grace_s``, ``restarts.window_s``) to the front end's word for it."""


class Finding(NamedTuple):
    """What is wrong with a field, or with several for the same reason.

    >>> Finding(("tee", "redirects"), "have no effect", is_error=False, joint=" ").text("--{}".format)
    '--tee, --redirects have no effect'
    """

    fields: tuple[str, ...]
    sentence: str
    """What follows the name of the field."""
    is_error: bool = True
    """False: it is accepted, and has no effect, or another one than its name promises."""
    joint: str = ": "

    def text(self, called: Called) -> str:
        """The whole sentence, as a front end says it."""
        return f"{', '.join(map(called, self.fields))}{self.joint}{self.sentence}"


def check(
    options: RunOptions, *, asked: Collection[str], called: Called, is_function: bool = False
) -> Iterator[Finding]:
    """Find what contradicts something else, and what is idle in the company of the others.

    ``asked`` are the fields that somebody gave, and not as they are anyway; nobody is warned of the others. An
    ``is_function`` job calls a function, so that there is no program to say something about.
    """
    yield from _program(options, is_function, called)
    yield from _nodes(options, called)
    yield from _restarts(options, called)
    if options.warn_signal in options.stop_signals:
        name = Signals(options.warn_signal).name
        yield Finding(("warn_signal",), f"{name} stops the job, so it warns nobody; choose another")
    from phalanx.launcher.ineffective import ineffective

    yield from ineffective(options, asked, called)


def check_limits(options: RunOptions) -> Iterator[Finding]:
    """Find values that no field of theirs can have. Front ends whose words are read by a table have refused them."""
    for name, (least, most) in RANGES.items():
        value = getattr(options, name)
        if isinstance(value, int | float) and not (least <= value <= most):
            limits = f"from {least:g} to {most:g}" if most < 1e9 else f"{least:g} or more"
            yield Finding((name,), f"{value!r}: it is to be {limits}", joint="=")
    for name, choices in CHOICES.items():
        value = getattr(options, name)
        if value is not None and value not in choices:
            one_of = ", ".join(map(repr, choices))
            yield Finding((name,), f"{value!r}: it is to be one of {one_of}", joint="=")


def sort_signals(
    stop: Collection[int], further: Collection[int], *, is_asked: bool, called: Called
) -> tuple[tuple[int, ...], tuple[int, ...], list[Finding]]:
    """Which signals stop the job and which are passed on to the workers; no signal does both.

    ``is_asked``: somebody named those that stop the job, so one that is in both is a mistake.
    """
    found: list[Finding] = []
    both = [Signals(one).name for one in stop if one in further]
    if both and is_asked:
        found.append(
            Finding(
                (),
                f"{both[0]} is in {called('stop_signals')} and in {called('pass_signals')}; it cannot do both",
                joint="",
            )
        )
    elif both:
        sentence = (
            f"{', '.join(both)} will not stop the job but reach the workers, which is what was asked for"
        )
        found.append(Finding(("pass_signals",), sentence, is_error=False))
    passed = tuple(dict.fromkeys((*PASS_SIGNALS, *map(int, further))))
    return tuple(int(one) for one in stop if one not in passed), passed, found


def warning_of(number: int | None, before_s: float | None) -> tuple[int | None, float]:
    """The signal that goes ahead of a stop, and how long ahead; one of both is enough to have it."""
    if number is None and not before_s:
        return None, 0.0
    return number or int(SIGUSR1), before_s or WARN_BEFORE_S


def _program(options: RunOptions, is_function: bool, called: Called) -> Iterator[Finding]:
    if is_function:
        for field in ("module", "no_python"):
            if getattr(options, field):
                yield Finding((field,), "it is about a program, and a function is launched; leave it out")
        return
    if options.module and options.no_python:
        sentence = f"{called('module')} and {called('no_python')} exclude each other: a module runs in Python"
        yield Finding((), sentence, joint="")
    elif options.no_python and options.python is not None:
        sentence = f"has no effect with {called('no_python')}: a command brings its own interpreter; "
        yield Finding(("python",), sentence + "leave one of them out", joint=" ")


def _nodes(options: RunOptions, called: Called) -> Iterator[Finding]:
    if options.standalone and options.min_nodes > 1:
        sentence = f"at least {options.min_nodes} nodes are asked for, and {called('standalone')} is one node"
        yield Finding(("min_nodes",), sentence)
    rank, nproc = options.debug_rank, options.nproc
    # How many workers other nodes have is known when they have met.
    if rank is not None and rank >= nproc and (options.max_nodes == 1 or options.standalone):
        ranks = "rank 0 alone" if nproc == 1 else f"ranks 0 to {nproc - 1}"
        yield Finding(("debug_rank",), f"there is no rank {rank}; this job has {ranks}")


def _restarts(options: RunOptions, called: Called) -> Iterator[Finding]:
    policy = options.restarts
    if policy.window_s is not None and policy.max_restarts > WINDOW_RESTARTS_MAX:
        yield Finding(
            ("restarts.window_s",),
            f"with a window {called('restarts.max_restarts')} can be {WINDOW_RESTARTS_MAX} at most; "
            f"{policy.max_restarts} were asked for",
        )
    both = sorted(set(policy.restart_on) & set(policy.no_restart_on))
    if both:
        names = f"{called('restarts.restart_on')} and in {called('restarts.no_restart_on')}"
        yield Finding((), f"exit code {both[0]} is in {names}; it cannot do both", joint="")


def ranks_on(value: int | Mapping[int, int], nproc: int) -> Mapping[int, int]:
    """A value for all workers of a node, or for some of them, by local rank."""
    if isinstance(value, Mapping):
        return {rank: one for rank, one in value.items() if rank < nproc}
    return dict.fromkeys(range(nproc), value)
