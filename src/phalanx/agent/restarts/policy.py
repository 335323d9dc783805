"""Whether a failed job is tried again. Pure: it sees the first failure of a round, what is spent, and how it went.

One budget for the whole job. ``RestartPolicy(max_restarts=n)`` is torchelastic's plain count; everything else is off
unless it is asked for. What the policy remembers from round to round is a ``Standing``, which the leader keeps in the
store: no clock is in it, only spans of time, so that another leader goes on with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.agent.restarts.causes import signature_of
from phalanx.agent.verdict.verdict import Failure, exit_status
from phalanx.records import Struct, changed
from phalanx.rendezvous.waiting import span

__all__ = [
    "PORT_RETRIES_MAX",
    "SHORT_ROUND_S",
    "GiveUp",
    "HowItWent",
    "Restart",
    "RestartPolicy",
    "Standing",
    "decide",
    "describe",
    "exclusion",
    "has_restart_left",
    "not_charged",
]

PORT_RETRIES_MAX = 3  # a fourth failure in a row is no coincidence: the user's own port is in use
SHORT_ROUND_S = 60.0  # a round that fails sooner than that, without progress, is one of a flapping job
TRIES_OF_HOPELESS = 2  # a file system that is late looks like a missing module
# Every agent reads the round's key, so it is to stay small.
PAST_MAX, PAST_CHARACTERS = 3, 90  # earlier restarts that are told
REASON_CHARACTERS = 240
WINDOW_RESTARTS_MAX = 32  # the times of all of them are in it


class RestartPolicy(Struct, kw_only=True):
    """When a failed job is tried again. Times in seconds; exit codes are 1 to 255, 128 + N for signal N.

    >>> hourly = RestartPolicy(max_restarts=3, window_s=3600, no_restart_on=(2,))
    >>> hourly.most
    3
    """

    max_restarts: int = 0
    window_s: float | None = None
    """Only restarts of the last so many seconds count, and ``WINDOW_RESTARTS_MAX`` at most; None: all of the job."""
    refill_after_s: float | None = None
    """The budget is whole again when the job has run for so long without a failure."""
    refill_on_progress: bool = False
    """The budget is whole again when workers have come further than ever before."""
    backoff_s: float = 0.0
    """Wait of the second of several short rounds in a row; it doubles with each. 0: restarts begin at once."""
    backoff_max_s: float = 60.0
    give_up_after: int | None = None
    """End after so many rounds in a row that failed in the same way, or without progress."""
    restart_on: tuple[int, ...] = ()
    """Only these exit codes are tried again; empty: all."""
    no_restart_on: tuple[int, ...] = ()
    exclude_on: tuple[int, ...] = ()
    """A node whose worker ends with one of these is not used for a while."""
    tries_hopeless_once: bool = False
    """An error that cannot heal (a missing module) is tried once more and then no more."""

    @property
    def most(self) -> int:
        """How many restarts the budget has."""
        return self.max_restarts if self.window_s is None else min(self.max_restarts, WINDOW_RESTARTS_MAX)


class Standing(Struct, kw_only=True):
    """What the policy remembers of the rounds so far."""

    used: int = 0
    """Charged restarts since the budget was whole."""
    ages_s: tuple[int, ...] = ()
    """With a window: how long ago each of these was when the current round opened."""
    healthy_s: int = 0
    """For how long rounds have run since the last failure."""
    port_retries: int = 0
    """Uncharged restarts in a row because MASTER_PORT was taken."""
    hopeless: int = 0
    """Failures in a row that cannot heal."""
    short: int = 0
    """Failed rounds in a row that ended soon and without progress."""
    same: int = 0
    """Failed rounds in a row that looked the same and made no progress."""
    signature: int = 0
    still: int = 0
    """Failed rounds in a row without progress, in a job that tells of progress."""
    step: int | None = None
    """The furthest that workers have told of."""
    past: tuple[str, ...] = ()
    """Why the last restarts were, the latest last."""

    def text(self) -> str:
        """As the leader keeps it in the store: what differs from the beginning, as JSON."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        said = {name: one for name, one in fields.items() if one != self.__struct_defaults__[name]}
        if not said:
            return ""
        import json

        return json.dumps(said, separators=(",", ":"), ensure_ascii=False)

    @classmethod
    def read(cls, text: str, *, charged: int) -> Standing:
        """What ``text`` wrote. Where that is lost, all restarts that were ``charged`` so far are taken for used."""
        if not text:
            return cls(used=charged)
        import json

        try:
            said = json.loads(text)
            return cls(
                **{name: _checked(name, one) for name, one in said.items() if name in cls.__struct_set__}
            )
        except (ValueError, TypeError, AttributeError, RecursionError):
            return cls(used=charged)


class HowItWent(Struct, kw_only=True):
    """A round that is over, as the policy needs to know it."""

    number: int = 0
    open_s: float = 0.0
    """Since it was opened, or a single restart was charged to it."""
    ran_s: float = 0.0
    """For how long its workers ran, since the last single restart."""
    life_s: float | None = None
    """For how long the failed worker ran, where restarts are single: that says whether it flaps."""
    step: int | None = None
    """The furthest that any of its workers told of."""
    is_node_excluded: bool = False
    """The node of the first failure is not used any more, and others can run the job without it."""
    jitter: float = 0.5
    """From 0 to 1, drawn for this decision."""


class Restart(Struct, kw_only=True):
    """Try again."""

    reason: str
    charged: int
    """Restarts of the job so far, with this one: what workers see as their restart count."""
    standing: Standing
    delay_s: float = 0.0
    """How long the next round waits before it starts workers."""


class GiveUp(Struct):
    """The job has failed for good."""

    reason: str


def decide(
    cause: Failure, policy: RestartPolicy, standing: Standing, charged: int, went: HowItWent
) -> Restart | GiveUp:
    """Decide once per failed round; ``charged`` is how many restarts the job has seen."""
    what = _clipped(describe(cause), REASON_CHARACTERS)
    passed = not_charged(policy, standing, went)
    if cause.master_port_taken and passed.port_retries < PORT_RETRIES_MAX:
        again = changed(passed, port_retries=passed.port_retries + 1)
        return _for_free(f"{what}: its MASTER_PORT was taken", what, charged, again, went)
    if went.is_node_excluded:
        return _for_free(f"{what}; its node is excluded", what, charged, passed, went)
    if policy.max_restarts == 0:
        return GiveUp("")  # nobody expects one
    now = _counted(cause, standing, passed, went)
    if reason := _why_not(cause, policy, now, went) or _why_used_up(policy, now):
        return GiveUp(reason)
    delay_s = _delay_s(policy, now, went.jitter)
    charged += 1
    spent = changed(
        now,
        used=now.used + 1,
        ages_s=() if policy.window_s is None else (*now.ages_s, 0),
        port_retries=0,
    )
    return Restart(
        reason=f"{what} ({_count(policy, spent, charged)}){_flapping(now, went) if delay_s else ''}",
        charged=charged,
        standing=_with_past(spent, went, what),
        delay_s=delay_s,
    )


def _for_free(reason: str, what: str, charged: int, standing: Standing, went: HowItWent) -> Restart:
    mark = " (not charged)"
    return Restart(reason=reason + mark, charged=charged, standing=_with_past(standing, went, what, mark))


def _with_past(standing: Standing, went: HowItWent, what: str, mark: str = "") -> Standing:
    told = _clipped(f"round {went.number}: {what}", PAST_CHARACTERS - len(mark)) + mark
    return changed(standing, past=(*standing.past, told)[-PAST_MAX:])


def not_charged(policy: RestartPolicy, standing: Standing, went: HowItWent) -> Standing:
    """The standing after a round that ended for a reason that costs nothing, such as a change of membership."""
    moved = _has_moved(standing, went)
    healthy_s = standing.healthy_s + went.ran_s
    is_in_a_row = went.ran_s < SHORT_ROUND_S
    refilled = _is_refilled(policy, moved=moved, healthy_s=healthy_s)
    return changed(
        standing,
        used=0 if refilled else standing.used,
        ages_s=() if refilled else _aged(policy, standing, went),
        healthy_s=int(healthy_s),
        port_retries=standing.port_retries if is_in_a_row else 0,
        step=went.step if moved else standing.step,
        **(dict.fromkeys(("hopeless", "short", "same", "still"), 0) if moved else {}),
    )


def has_restart_left(failures: Sequence[Failure], policy: RestartPolicy, charged: int) -> bool:
    """Whether a failure of these might be tried again: for an agent that leaves, and asks nobody.

    Where budgets refill it knows too little to say no.
    """
    codes = {exit_status(one.blamed_exit_code) for one in failures}
    is_allowed = codes.isdisjoint(policy.no_restart_on) and codes <= set(policy.restart_on or codes)
    refills = policy.window_s is not None or policy.refill_after_s is not None or policy.refill_on_progress
    is_left = charged < policy.max_restarts or (refills and policy.max_restarts > 0)
    return is_left and is_allowed


def exclusion(failures: Sequence[Failure], policy: RestartPolicy) -> str:
    """Why this node should not be used for a while, by what its own workers ended with; nothing if it may be."""
    for one in failures:
        is_symptom = one.is_secondary and one.group_world_size > 1  # of another node, perhaps
        if (
            not (one.is_collateral or is_symptom)
            and (code := exit_status(one.blamed_exit_code)) in policy.exclude_on
        ):
            return f"rank {one.rank} ended with exit code {code} (--exclude-on)"
    return ""


def describe(failure: Failure) -> str:
    """A failure in half a sentence."""
    if failure.why_not_started:
        return f"rank {failure.rank} could not be started: {failure.why_not_started}"
    if failure.summary:
        return f"rank {failure.rank} failed: {failure.summary}"
    return f"rank {failure.rank} ended with exit code {exit_status(failure.exit_code)}"


# Counting


def _counted(cause: Failure, standing: Standing, passed: Standing, went: HowItWent) -> Standing:
    """The standing with this failure in it, before anything is charged; ``passed`` is how it is without the failure."""
    if went.life_s is not None and went.life_s > went.open_s:
        # It was alive when the last restart was charged: workers that die together fail once, not again and again.
        return changed(passed, healthy_s=0, hopeless=passed.hopeless if cause.cannot_heal else 0)
    moved = _has_moved(standing, went)
    signature = signature_of(cause)
    is_same = signature == standing.signature
    is_short = (went.ran_s if went.life_s is None else went.life_s) < SHORT_ROUND_S and not moved
    return changed(
        passed,
        healthy_s=0,
        hopeless=passed.hopeless + 1 if cause.cannot_heal else 0,
        short=passed.short + 1 if is_short else 0,
        same=passed.same + 1 if is_same else 1,
        signature=signature,
        still=0 if moved or passed.step is None else passed.still + 1,
    )


def _has_moved(standing: Standing, went: HowItWent) -> bool:
    return went.step is not None and (standing.step is None or went.step > standing.step)


def _is_refilled(policy: RestartPolicy, *, moved: bool, healthy_s: float) -> bool:
    by_time = policy.refill_after_s is not None and healthy_s >= policy.refill_after_s
    return by_time or (policy.refill_on_progress and moved)


def _aged(policy: RestartPolicy, standing: Standing, went: HowItWent) -> tuple[int, ...]:
    """The restarts that the window still shows. Rounded down: a second too many counts, none too few."""
    if policy.window_s is None:
        return ()
    aged = (age_s + int(went.open_s) for age_s in standing.ages_s)
    return tuple(age_s for age_s in aged if age_s < policy.window_s)


def _why_not(cause: Failure, policy: RestartPolicy, now: Standing, went: HowItWent) -> str:
    """Why another try makes no sense, whatever is left of the budget."""
    code = exit_status(cause.blamed_exit_code)
    if code in policy.no_restart_on:
        return f"exit code {code} is in --no-restart-on"
    if policy.restart_on and code not in policy.restart_on:
        return f"exit code {code} is not in --restart-on"
    if policy.tries_hopeless_once and now.hopeless >= TRIES_OF_HOPELESS and not policy.restart_on:
        return f"{cause.cannot_heal}, {_times(now.hopeless)} in a row: another try would not help"
    limit = policy.give_up_after
    if limit is None:
        return ""
    if now.step is not None and now.still >= limit:
        return f"no progress beyond step {now.step} in {now.still} {_tries(went)} (--give-up-after)"
    if now.step is None and now.same >= limit:
        return f"it failed in the same way {_times(now.same)} in a row (--give-up-after)"
    return ""


def _why_used_up(policy: RestartPolicy, now: Standing) -> str:
    used = now.used if policy.window_s is None else len(now.ages_s)
    if used < policy.most:
        return ""
    all_of_them = "the one restart" if policy.most == 1 else f"all {policy.most} restarts"
    within = "" if policy.window_s is None else f" of the last {span(policy.window_s)}"
    return f"{all_of_them}{within} {'is' if policy.most == 1 else 'are'} used"


def _delay_s(policy: RestartPolicy, now: Standing, jitter: float) -> float:
    """Nothing before the first of several short rounds; half to all of a time that doubles before the next ones."""
    if now.short <= 1 or policy.backoff_s <= 0:
        return 0.0
    doublings = min(now.short - 2, 32)
    return min(policy.backoff_max_s, policy.backoff_s * 2.0**doublings) * (0.5 + jitter / 2)


# Words


def _count(policy: RestartPolicy, spent: Standing, charged: int) -> str:
    most = policy.most
    if policy.window_s is not None:
        return f"restart {charged}, {len(spent.ages_s)} of {most} in {span(policy.window_s)}"
    if spent.used != charged:
        return f"restart {charged}, {spent.used} of {most} since the budget was refilled"
    return f"restart {charged} of {most}"


def _tries(went: HowItWent) -> str:
    return "rounds in a row" if went.life_s is None else "failures in a row"


def _flapping(now: Standing, went: HowItWent) -> str:
    return f"; {now.short} {_tries(went)} {'failed' if went.life_s is None else 'came'} within {span(SHORT_ROUND_S)}"


def _clipped(text: str, room: int) -> str:
    """Both ends of a long sentence say much: what, and where."""
    head = room * 2 // 3
    tail = room - head - 1
    return text if len(text) <= room else f"{text[:head]}…{text[-tail:]}"


def _times(count: int) -> str:
    return "twice" if count == 2 else f"{count} times"  # the word's own meaning


def _checked(name: str, value: Any) -> Any:
    """A field of a standing that was read. Raises ``TypeError``: anybody with the job's secret can write it."""
    kind = Standing.__annotations__[name]
    if kind.startswith("tuple"):
        of = int if "int" in kind else str
        if isinstance(value, list) and all(type(one) is of for one in value):
            return tuple(value)
    elif type(value) is int and (name == "step" or value >= 0):
        return value
    raise TypeError(f"{name} is {str(value)[:60]!r}")
