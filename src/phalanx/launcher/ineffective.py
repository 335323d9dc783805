"""Which options can have no effect in the company of the others, and why: one table, one warning for each reason.

Pure. torchrun accepts such options, and scripts in the field have them, so they are no mistakes (what is a
contradiction is refused in ``checks``). Nobody is warned of an option that he did not give, or that says what holds
anyway: the front ends know what was given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from phalanx.launcher.checks import Called, Finding, ranks_on
from phalanx.records import Struct

if TYPE_CHECKING:
    from phalanx.launcher.options import RunOptions
    from phalanx.launcher.rendezvous.endpoints import Endpoint

__all__ = ["RULES", "Rule", "ineffective"]


class Company(Struct):
    """The other options, and what follows from them."""

    options: RunOptions

    @property
    def has_one_worker(self) -> bool:
        """There are no others that could be waited for or stopped."""
        return self.options.is_alone and self.options.nproc == 1

    @property
    def master(self) -> Endpoint | None:
        """Where rank 0 listens, if the endpoint says it."""
        options = self.options
        if options.rdzv_backend != "static" or options.standalone or not options.rdzv_endpoint:
            return None
        from phalanx.launcher.rendezvous.endpoints import read_endpoint

        try:
            return read_endpoint(options.rdzv_endpoint)
        except ValueError:
            return None  # refused by those who read it to meet there

    @property
    def is_laid_out_here(self) -> bool:
        """No plug-in makes of the words about logs what it likes."""
        return self.options.logs_specs in (None, "default") and self.options.sent_logs is None

    def lacks(self, stream: int, *fields: str) -> bool:
        """Whether none of these (``tee``, ``redirects``) takes this stream of some worker of this node."""
        nproc = self.options.nproc
        return self.is_laid_out_here and not any(
            int(one) & stream
            for field in fields
            for one in ranks_on(getattr(self.options, field), nproc).values()
        )

    def plain_restarts(self) -> int | None:
        """The number of restarts, if nothing makes it more."""
        policy = self.options.restarts
        refills = (
            policy.refill_after_s is not None or policy.refill_on_progress or policy.window_s is not None
        )
        return None if refills else policy.max_restarts

    def gives_up_too_late(self) -> bool:
        """Whether the budget of restarts ends before as many rounds have failed."""
        tries, most = self.options.restarts.give_up_after, self.plain_restarts()
        return self.options.is_alone and tries is not None and bool(most) and tries > (most or 0) + 1


def _alone(company: Company) -> bool:
    return company.options.is_alone


def _standalone(company: Company) -> bool:
    return company.options.standalone


class Rule(NamedTuple):
    """When fields have no effect. The reason may name other fields, in braces; front ends have words for them."""

    fields: tuple[str, ...]
    is_idle: Callable[[Company], bool]
    reason: str


_ONE_NODE = "this job has one node"
_MASTER = "{rdzv_endpoint} says where rank 0 listens, with static"
_OUT, _ERR = 1, 2
_REFERENCE = re.compile(r"\{([a-z_.]+)\}")

RULES: tuple[Rule, ...] = tuple(
    Rule(*one)
    for one in (
        (("start_method",), lambda _: True, "workers are programs here, started by exec"),
        # With one node nobody is told: how nodes would meet is what templates of clusters fill in, for any number.
        (("rdzv_backend", "rdzv_endpoint", "secret"), _standalone, "with {standalone} a node meets nobody"),
        (
            ("rdzv_conf",),
            lambda c: c.options.standalone and _is_about_others(c.options.rdzv_conf),
            "with {standalone} a node meets nobody",
        ),
        (("node_rank",), lambda c: c.options.is_alone and c.options.node_rank > 0, _ONE_NODE),
        (
            ("stop_all", "resize_grace_s", "exit_barrier_s", "restarts.exclude_on", "exclude_for_s"),
            _alone,
            _ONE_NODE,
        ),
        (
            ("master_addr",),
            lambda c: c.master is not None and c.master.host != c.options.master_addr,
            _MASTER,
        ),
        (
            ("master_port",),
            lambda c: c.master is not None and c.master.port not in (None, c.options.master_port),
            _MASTER,
        ),
        (("straggler_s", "restart_grace_s"), lambda c: c.has_one_worker, "this job has one worker"),
        (
            ("straggler_s",),
            lambda c: not c.has_one_worker and c.options.debug_rank is not None,
            "with {debug_rank} no worker is late",
        ),
        (
            ("watchdog",),
            lambda c: c.options.debug_rank is not None,
            "with {debug_rank} nobody is too slow",
        ),
        (
            (
                "restarts.window_s",
                "restarts.refill_after_s",
                "restarts.refill_on_progress",
                "restarts.backoff_s",
                "restarts.give_up_after",
                "restarts.restart_on",
                "restarts.no_restart_on",
                "restart_scope",
            ),
            lambda c: c.options.restarts.max_restarts == 0,
            "no restart is allowed; raise {restarts.max_restarts}",
        ),
        (
            ("restarts.no_restart_on",),
            lambda c: c.options.restarts.max_restarts > 0 and bool(c.options.restarts.restart_on),
            "{restarts.restart_on} names all codes that are followed by a restart",
        ),
        (
            ("restarts.backoff_s",),
            lambda c: c.plain_restarts() == 1,
            "nothing waits before the first restart, and one is allowed",
        ),
        (
            ("restarts.give_up_after",),
            Company.gives_up_too_late,
            "the budget of {restarts.max_restarts} ends before",
        ),
        (
            ("redirects", "tee"),
            lambda c: c.options.log_dir == "/dev/null" and c.is_laid_out_here,
            "{log_dir} /dev/null keeps no logs",
        ),
        (
            ("duplicate_stdout_filters",),
            lambda c: c.lacks(_OUT, "tee"),
            "it is about teed lines, and no stdout is teed; see {tee}",
        ),
        (
            ("duplicate_stderr_filters",),
            lambda c: c.lacks(_ERR, "tee"),
            "it is about teed lines, and no stderr is teed; see {tee}",
        ),
        (
            ("log_line_prefix_template",),
            lambda c: c.lacks(_OUT | _ERR, "tee"),
            "it is about teed lines, and no stream is teed; see {tee}",
        ),
        (
            ("log_max_size",),
            lambda c: c.lacks(_OUT | _ERR, "tee", "redirects"),
            "no stream goes to a file; see {redirects} and {tee}",
        ),
    )
)


def ineffective(options: RunOptions, asked: Collection[str], called: Called) -> Iterator[Finding]:
    """A finding for each reason, with all fields that it makes idle; and one for ranks that are not there."""
    company = Company(options)
    by_reason: dict[str, dict[str, None]] = {}
    for rule in RULES:
        idle = [field for field in rule.fields if field in asked]
        if idle and rule.is_idle(company):
            names = by_reason.setdefault(rule.reason, {})
            for field in idle:  # two fields may be one word of the front end
                if called(field) not in map(called, names):
                    names[field] = None
    for reason, fields in by_reason.items():
        has = "has" if len(fields) == 1 else "have"
        why = _REFERENCE.sub(lambda found: called(found[1]), reason)
        yield Finding(tuple(fields), f"{has} no effect: {why}", is_error=False, joint=" ")
    yield from _ranks_elsewhere(options, asked)


def _is_about_others(conf: Mapping[str, str]) -> bool:
    """Whether it has a key that is known (the others are told already) and about meeting; but for one, all are."""
    from phalanx.launcher.rendezvous.conf import SETTINGS

    known = {setting.key for setting in SETTINGS}
    return bool(conf.keys() & known) and "master_port_range" not in conf


def _ranks_elsewhere(options: RunOptions, asked: Collection[str]) -> Iterator[Finding]:
    nproc = options.nproc
    has = f"this node has {nproc} workers, 0 to {nproc - 1}" if nproc > 1 else "this node has one worker, 0"
    for field in ("redirects", "tee", "local_ranks_filter"):
        named: Any = getattr(options, field) or ()
        if field not in asked or not isinstance(named, Mapping | set | frozenset | tuple | list):
            continue
        beyond = sorted(rank for rank in named if rank >= nproc)
        if not beyond:
            continue
        ranks = f"local rank{'s' * (len(beyond) > 1)} {', '.join(map(str, beyond))}"
        silent = "; it shows nobody" if field == "local_ranks_filter" and len(beyond) == len(named) else ""
        yield Finding((field,), f"names {ranks}, and {has}{silent}", is_error=False, joint=" ")
