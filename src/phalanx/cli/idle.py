"""Which options can have no effect in the company of the others, and why: one table, one line of warning for a reason.

torchrun accepts such options, and scripts in the field have them, so they are no mistakes (what is a contradiction is
refused elsewhere). Nobody is warned of an option that he did not give, that says what holds anyway, or that stands in
a variable which is not this launcher's alone (``TORCHELASTIC_…``): that one may be the whole site's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from phalanx.cli.options import OPTIONS
from phalanx.launcher.plugins import BACKENDS

if TYPE_CHECKING:
    from phalanx.cli.values import Values
    from phalanx.launcher.rendezvous.endpoints import Endpoint
    from phalanx.multiprocessing.std import Std

__all__ = ["RULES", "Company", "idle_options"]


class Company(NamedTuple):
    """The other options, read, and what follows from them."""

    values: Values
    nproc: int

    @property
    def is_alone(self) -> bool:
        """This node is the whole job."""
        is_one = self.values["nnodes"][1] == 1 and self.values["rdzv_backend"] in BACKENDS
        return bool(self.values["standalone"] or is_one)

    @property
    def has_one_worker(self) -> bool:
        """There are no others that could be waited for or stopped."""
        return self.is_alone and self.nproc == 1

    @property
    def master(self) -> Endpoint | None:
        """Where rank 0 listens, if the endpoint says it."""
        endpoint = self.values["rdzv_endpoint"]
        if self.values["rdzv_backend"] != "static" or self.values["standalone"] or not endpoint:
            return None
        from phalanx.launcher.rendezvous.endpoints import read_endpoint

        return read_endpoint(endpoint)  # wrong ones have been refused

    @property
    def keeps_logs(self) -> bool:
        """Where streams go is decided here, and there is a place for files."""
        return bool(self.values["log_dir"] != os.devnull)

    @property
    def is_laid_out_here(self) -> bool:
        """No plug-in makes of the words about logs what it likes."""
        return self.values["logs_specs"] in (None, "default")

    def has(self, stream: int, *dests: str) -> bool:
        """Whether one of these options (``tee``, ``redirects``) takes this stream of some worker of this node."""
        return any(
            int(one) & stream for dest in dests for one in _by_rank(self.values[dest], self.nproc).values()
        )

    def plain_restarts(self) -> int | None:
        """The number of restarts, if nothing makes it more."""
        refills = self.values["restart_refill"] != (None, False) or self.values["restart_window"] is not None
        return None if refills else int(self.values["max_restarts"])


def _always(_company: Company) -> bool:
    return True


Rule = tuple[tuple[str, ...], Callable[[Company], bool], str]

_ONE_NODE = "this job has one node"
_ONE_WORKER = "this job has one worker"
_MASTER = "--rdzv-endpoint says where rank 0 listens, with static"
_DEV_NULL = "--log-dir /dev/null keeps no logs"
_OUT, _ERR = 1, 2

RULES: tuple[Rule, ...] = (
    (("module", "no_python"), lambda c: c.values["run_path"], "--run-path runs a script by its path"),
    (("start_method",), _always, "it is about functions, and a program is started by exec"),
    (("monitor_interval",), _always, "an exit is an event here, nothing is polled"),
    # With --nnodes 1 nobody is told: how nodes would meet is what templates of clusters fill in, whatever their number.
    (
        ("rdzv_backend", "rdzv_endpoint", "secret_file"),
        lambda c: c.values["standalone"],
        "with --standalone a node meets nobody",
    ),
    (
        ("rdzv_conf",),
        lambda c: c.values["standalone"] and _is_about_others(c.values["rdzv_conf"]),
        "with --standalone a node meets nobody",
    ),
    (("node_rank",), lambda c: c.is_alone and c.values["node_rank"] > 0, _ONE_NODE),
    (
        ("stop_all", "resize_timeout", "exit_barrier_timeout", "exclude_on", "exclude_for"),
        lambda c: c.is_alone,
        _ONE_NODE,
    ),
    (
        ("master_addr",),
        lambda c: c.master is not None and c.master.host != c.values["master_addr"],
        _MASTER,
    ),
    (
        ("master_port",),
        lambda c: c.master is not None and c.master.port not in (None, c.values["master_port"]),
        _MASTER,
    ),
    (("straggler_timeout", "restart_timeout"), lambda c: c.has_one_worker, _ONE_WORKER),
    (
        ("straggler_timeout",),
        lambda c: not c.has_one_worker and c.values["debug_rank"] is not None,
        "with --debug-rank no worker is late",
    ),
    (
        (
            "restart_window",
            "restart_refill",
            "restart_backoff",
            "give_up_after",
            "restart_on",
            "no_restart_on",
            "restart_scope",
        ),
        lambda c: c.values["max_restarts"] == 0,
        "no restart is allowed; say --max-restarts N",
    ),
    (
        ("no_restart_on",),
        lambda c: c.values["max_restarts"] > 0 and bool(c.values["restart_on"]),
        "--restart-on names all codes that are followed by a restart",
    ),
    (
        ("restart_backoff",),
        lambda c: c.plain_restarts() == 1,
        "nothing waits before the first restart, and one is allowed",
    ),
    (
        ("give_up_after",),
        lambda c: c.is_alone and c.values["give_up_after"] > (c.plain_restarts() or 1 << 30) + 1,
        "the budget of --max-restarts ends before",
    ),
    (("redirects", "tee"), lambda c: not c.keeps_logs and c.is_laid_out_here, _DEV_NULL),
    (
        ("duplicate_stdout_filters",),
        lambda c: c.is_laid_out_here and not c.has(_OUT, "tee"),
        "it is about teed lines, and no stdout is teed; say --tee 1",
    ),
    (
        ("duplicate_stderr_filters",),
        lambda c: c.is_laid_out_here and not c.has(_ERR, "tee"),
        "it is about teed lines, and no stderr is teed; say --tee 2",
    ),
    (
        ("log_line_prefix_template",),
        lambda c: c.is_laid_out_here and not c.has(_OUT | _ERR, "tee"),
        "it is about teed lines, and no stream is teed; say --tee 3",
    ),
    (
        ("log_max_size",),
        lambda c: c.is_laid_out_here and not c.has(_OUT | _ERR, "tee", "redirects"),
        "no stream goes to a file; say --redirects 3 or --tee 3",
    ),
    (
        ("print_format",),
        lambda c: not (c.values["print_config"] or c.values["dry_run"]),
        "nothing is shown; say --print-config or --dry-run",
    ),
)


def idle_options(values: Values, nproc: int) -> Iterator[str]:
    """A sentence for each reason, naming all options that it makes idle; and one for ranks that are not there."""
    company = Company(values, nproc)
    by_reason: dict[str, list[str]] = {}
    for dests, is_idle, reason in RULES:
        asked = [dest for dest in dests if _asks_for_something(values, dest)]
        if asked and is_idle(company):
            by_reason.setdefault(reason, []).extend(values.origins[dest] for dest in asked)
    for reason, origins in by_reason.items():
        yield f"{', '.join(origins)} {'has' if len(origins) == 1 else 'have'} no effect: {reason}"
    yield from _ranks_elsewhere(values, nproc)


def _asks_for_something(values: Values, dest: str) -> bool:
    if dest not in values.given:
        return False
    option = _OPTIONS[dest]
    if values.origins[dest] in option.also:
        return False
    default = None if option.default is None else option.read(option.default)
    return bool(values[dest] != default)


_OPTIONS = {option.dest: option for option in OPTIONS}


def _is_about_others(conf: Mapping[str, str]) -> bool:
    """Whether it has a key that is known (the others are told already) and about meeting; but for one, all are."""
    from phalanx.launcher.rendezvous.conf import SETTINGS

    known = {setting.key for setting in SETTINGS}
    return bool(conf.keys() & known) and "master_port_range" not in conf


def _by_rank(value: Std | Mapping[int, Std], nproc: int) -> Mapping[int, Std]:
    from phalanx.multiprocessing.std import to_map

    return to_map(value, nproc)


def _ranks_elsewhere(values: Values, nproc: int) -> Iterator[str]:
    has = f"this node has {nproc} workers, 0 to {nproc - 1}" if nproc > 1 else "this node has one worker, 0"
    for dest in ("redirects", "tee", "local_ranks_filter"):
        named: Any = values[dest] or ()
        if dest not in values.given or not isinstance(named, Mapping | set | frozenset | tuple | list):
            continue
        beyond = sorted(rank for rank in named if rank >= nproc)
        if not beyond:
            continue
        ranks = f"local rank{'s' * (len(beyond) > 1)} {', '.join(map(str, beyond))}"
        is_silent = dest == "local_ranks_filter" and len(beyond) == len(named)
        yield f"{values.origins[dest]} names {ranks}, and {has}{'; it shows nobody' if is_silent else ''}"
