"""Whether a failed round is tried again: the table of causes and decisions that docs/restarts.md explains."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.agent.restarts.policy import (
    PAST_CHARACTERS,
    PAST_MAX,
    PORT_RETRIES_MAX,
    SHORT_ROUND_S,
    WINDOW_RESTARTS_MAX,
    GiveUp,
    HowItWent,
    Restart,
    RestartPolicy,
    Standing,
    decide,
    exclusion,
    has_restart_left,
    not_charged,
)
from phalanx.agent.verdict.verdict import Failure
from phalanx.rendezvous.stored import Phase, RoundRecord, encode
from phalanx.rendezvous.waiting import span

FOREVER_S = 1e6


def failure(summary: str = "ValueError: x at t.py:2", **facts: Any) -> Failure:
    values = {"rank": 1, "local_rank": 1, "pid": 7, "exit_code": 1, "exited_at": 1.0, **facts}
    return Failure(summary=summary, **values)


CRASH = failure()
PORT = failure("", rank=0, master_port_taken=True)
ABSENT = failure(
    "", exit_code=127, why_not_started="'x' not found", cannot_heal="a command that cannot be executed"
)
IMPORT = failure(
    "ModuleNotFoundError: No module named 'y' at t.py:1", cannot_heal="a module that cannot be imported"
)
LONG = HowItWent(open_s=FOREVER_S, ran_s=FOREVER_S)
SOON = HowItWent(open_s=2.0, ran_s=1.0)


class Job:
    """One job's restarts: ``fails`` asks the policy, and remembers what it says."""

    def __init__(self, **policy: Any) -> None:
        self.policy = RestartPolicy(**policy)
        self.standing = Standing()
        self.charged = 0

    def fails(self, cause: Failure = CRASH, *, ran_s: float = 1.0, **went: Any) -> Restart | GiveUp:
        facts = HowItWent(open_s=ran_s + 1, ran_s=ran_s, **went)
        decision = decide(cause, self.policy, self.standing, self.charged, facts)
        if isinstance(decision, Restart):
            self.charged = decision.charged
            # As in a job: the leader keeps it in the store, and another one may read it.
            self.standing = Standing.read(decision.standing.text(), charged=self.charged)
        return decision

    def changes(self, *, ran_s: float = 1.0, **went: Any) -> None:
        """Membership does, and a new round begins."""
        facts = HowItWent(open_s=ran_s + 1, ran_s=ran_s, **went)
        self.standing = Standing.read(
            not_charged(self.policy, self.standing, facts).text(), charged=self.charged
        )


def restarts(job: Job, causes: list[Failure], **went: Any) -> int:
    """How many of these failures in a row are answered with a restart."""
    for number, cause in enumerate(causes):
        if isinstance(job.fails(cause, **went), GiveUp):
            return number
    return len(causes)


# The plain count


@pytest.mark.parametrize("most", [0, 1, 2, 5])
def test_the_plain_count_is_a_count_and_nothing_else(most: int) -> None:
    assert restarts(Job(max_restarts=most), [IMPORT] * 10) == most
    assert restarts(Job(max_restarts=most), [CRASH] * 10, ran_s=FOREVER_S, step=7) == most


def test_the_plain_count_never_waits() -> None:
    job = Job(max_restarts=9)
    assert [job.fails().delay_s for _ in range(9)] == [0.0] * 9  # type: ignore[union-attr]


def test_the_reason_names_the_rank_the_error_and_the_count() -> None:
    assert Job(max_restarts=3).fails().reason == "rank 1 failed: ValueError: x at t.py:2 (restart 1 of 3)"


@pytest.mark.parametrize(
    ("most", "reason"), [(0, ""), (1, "the one restart is used"), (3, "all 3 restarts are used")]
)
def test_a_used_up_budget_says_so(most: int, reason: str) -> None:
    job = Job(max_restarts=most)
    assert restarts(job, [CRASH] * most) == most
    assert job.fails() == GiveUp(reason)


# The port of rank 0


def test_a_port_that_was_taken_is_tried_again_without_charge_and_not_for_ever() -> None:
    job = Job(max_restarts=1)
    assert restarts(job, [PORT] * PORT_RETRIES_MAX) == PORT_RETRIES_MAX
    assert job.charged == 0
    decision = job.fails(PORT)
    assert isinstance(decision, Restart)
    assert decision.charged == 1
    assert decision.standing.port_retries == 0


def test_clashes_that_are_far_apart_are_not_in_a_row() -> None:
    job = Job(max_restarts=0)
    assert restarts(job, [PORT] * 20, ran_s=SHORT_ROUND_S) == 20


def test_a_port_that_was_taken_needs_no_budget() -> None:
    assert isinstance(Job(max_restarts=0).fails(PORT), Restart)


# What cannot heal


@pytest.mark.parametrize("cause", [IMPORT, ABSENT], ids=["import", "command"])
def test_what_cannot_heal_is_tried_once_more_and_the_reason_is_told(cause: Failure) -> None:
    job = Job(max_restarts=9, tries_hopeless_once=True)
    assert restarts(job, [cause] * 9) == 1
    assert job.fails(cause) == GiveUp(f"{cause.cannot_heal}, twice in a row: another try would not help")


def test_what_cannot_heal_begins_anew_after_another_failure_and_after_progress() -> None:
    job = Job(max_restarts=9, tries_hopeless_once=True)
    assert restarts(job, [IMPORT, CRASH, IMPORT]) == 3
    job = Job(max_restarts=9, tries_hopeless_once=True)
    assert isinstance(job.fails(IMPORT, step=1), Restart)
    assert isinstance(job.fails(IMPORT, step=2), Restart)
    assert isinstance(job.fails(IMPORT, step=2), GiveUp)


def test_a_rule_that_was_given_goes_before_what_we_think_of_the_error() -> None:
    assert restarts(Job(max_restarts=4, tries_hopeless_once=True, restart_on=(1,)), [IMPORT] * 9) == 4


# Exit codes


@pytest.mark.parametrize(
    ("rules", "code", "reason"),
    [
        ({"no_restart_on": (2, 78)}, 78, "exit code 78 is in --no-restart-on"),
        ({"no_restart_on": (2, 78)}, 77, None),
        ({"no_restart_on": (137,)}, -9, "exit code 137 is in --no-restart-on"),
        ({"restart_on": (75,)}, 75, None),
        ({"restart_on": (75,)}, 1, "exit code 1 is not in --restart-on"),
        ({"restart_on": (139,)}, -11, None),
        ({"restart_on": (3,), "no_restart_on": (4,)}, 4, "exit code 4 is in --no-restart-on"),
    ],
)
def test_exit_codes_decide_where_there_is_a_rule(
    rules: dict[str, tuple[int, ...]], code: int, reason: str | None
) -> None:
    decision = Job(max_restarts=3, **rules).fails(failure(exit_code=code))
    assert isinstance(decision, Restart) if reason is None else decision == GiveUp(reason)


def test_the_code_that_counts_is_the_workers_own_also_when_our_signal_cut_its_way_out_short() -> None:
    cut = failure(exit_code=-15, own_exit_code=78, signed_at=0.5, stopped_at=0.9)
    assert isinstance(Job(max_restarts=3, no_restart_on=(78,)).fails(cut), GiveUp)


# Nodes


def test_a_failure_of_an_excluded_node_costs_nothing_where_others_can_go_on() -> None:
    job = Job(max_restarts=1)
    decision = job.fails(is_node_excluded=True)
    assert isinstance(decision, Restart)
    assert (decision.charged, decision.reason) == (
        0,
        "rank 1 failed: ValueError: x at t.py:2; its node is excluded (not charged)",
    )


def test_a_node_is_excluded_for_the_exit_codes_that_were_named_and_not_for_what_the_launcher_did() -> None:
    policy = RestartPolicy(exclude_on=(42, 137))
    assert exclusion([failure(exit_code=42)], policy) == "rank 1 ended with exit code 42 (--exclude-on)"
    assert exclusion([CRASH], policy) == ""
    symptom = failure("ConnectionResetError: [Errno 104] Connection reset by peer", exit_code=42)
    assert exclusion([symptom], policy) == "rank 1 ended with exit code 42 (--exclude-on)", (
        "nobody else is there"
    )
    of_others = failure("RuntimeError: Connection reset by peer", exit_code=42, group_world_size=4)
    assert exclusion([of_others], policy) == "", "every node would exclude itself for the fault of one"
    killed_by_us = failure(exit_code=-9, exited_at=9.0, stopped_at=1.0)
    assert exclusion([killed_by_us], policy) == ""
    assert exclusion([CRASH, failure(rank=3, exit_code=-9)], policy).startswith(
        "rank 3 ended with exit code 137"
    )


# Single restarts


def test_workers_that_die_together_are_one_failure_of_a_flapping_job_and_each_is_charged() -> None:
    job = Job(max_restarts=20, backoff_s=1.0, tries_hopeless_once=True)
    first = job.fails(IMPORT, ran_s=5.0, life_s=5.0)
    others = [job.fails(IMPORT, ran_s=0.0, life_s=5.0) for _ in range(7)]
    assert [one.delay_s for one in (first, *others)] == [0.0] * 8  # type: ignore[union-attr]
    assert job.charged == 8
    assert isinstance(job.fails(IMPORT, ran_s=5.0, life_s=4.0), GiveUp), "that was another life"


def test_a_worker_that_fails_alone_again_and_again_waits() -> None:
    job = Job(max_restarts=20, backoff_s=2.0)
    delays = [job.fails(ran_s=5.0, life_s=4.0, jitter=1.0).delay_s for _ in range(3)]  # type: ignore[union-attr]
    assert delays == [0, 2, 4]


# The window


def test_with_a_window_only_the_restarts_in_it_count() -> None:
    """Failing every two minutes goes on for ever with three in five minutes, and ends with two."""
    assert restarts(Job(max_restarts=3, window_s=300), [CRASH] * 50, ran_s=119) == 50
    job = Job(max_restarts=2, window_s=300)
    assert restarts(job, [CRASH] * 50, ran_s=119) == 2
    assert job.fails(ran_s=1) == GiveUp("all 2 restarts of the last 5 min are used")


def test_a_change_of_membership_lets_time_pass_in_the_window() -> None:
    job = Job(max_restarts=1, window_s=300)
    assert isinstance(job.fails(), Restart)
    job.changes(ran_s=200)
    job.changes(ran_s=200)
    decision = job.fails()
    assert isinstance(decision, Restart)
    assert decision.reason.endswith("(restart 2, 1 of 1 in 5 min)")


@given(
    st.integers(1, 6),
    st.integers(10, 2000),
    st.lists(st.tuples(st.booleans(), st.floats(0, 500)), max_size=60),
)
def test_no_window_ever_has_more_restarts_than_it_may(
    most: int, window_s: int, rounds: list[tuple[bool, float]]
) -> None:
    job = Job(max_restarts=most, window_s=float(window_s))
    now, charged_at = 0.0, []
    for is_failure, ran_s in rounds:
        now += ran_s + 1
        if not is_failure:
            job.changes(ran_s=ran_s)
            continue
        decision = job.fails(ran_s=ran_s)
        if isinstance(decision, GiveUp):
            break
        charged_at.append(now)
        assert sum(now - at < window_s for at in charged_at) <= most


# Refilling


def test_healthy_time_makes_the_budget_whole_also_when_membership_changed_meanwhile() -> None:
    job = Job(max_restarts=1, refill_after_s=100)
    assert isinstance(job.fails(), Restart)
    job.changes(ran_s=60)
    decision = job.fails(ran_s=60)
    assert isinstance(decision, Restart)
    assert decision.reason.endswith("(restart 2, 1 of 1 since the budget was refilled)")
    assert isinstance(job.fails(ran_s=60), GiveUp)


def test_without_a_refill_no_time_heals() -> None:
    assert restarts(Job(max_restarts=2), [CRASH] * 9, ran_s=FOREVER_S) == 2


def test_progress_makes_the_budget_whole_and_only_new_progress() -> None:
    job = Job(max_restarts=1, refill_on_progress=True)
    for step in (10, 20, 30):
        assert isinstance(job.fails(step=step), Restart)
    assert isinstance(job.fails(step=30), GiveUp), "it came as far as before, and no further"


def test_progress_of_a_round_that_ended_for_another_reason_counts() -> None:
    job = Job(max_restarts=1, refill_on_progress=True)
    assert isinstance(job.fails(step=5), Restart)
    job.changes(step=9)
    assert isinstance(job.fails(), Restart)


# Giving up


def test_the_same_failure_again_and_again_ends_the_job_when_that_was_asked_for() -> None:
    same = [failure(f"ValueError: bad batch {n} on port {n + 5000} at t.py:2", rank=n) for n in range(9)]
    job = Job(max_restarts=9, give_up_after=3)
    assert restarts(job, same) == 2
    assert job.fails(same[8]) == GiveUp("it failed in the same way 3 times in a row (--give-up-after)")
    assert restarts(Job(max_restarts=9), same) == 9


def test_different_failures_are_not_the_same() -> None:
    other_place = [failure(f"ValueError: x at t.py:{n}") for n in range(9)]
    assert restarts(Job(max_restarts=9, give_up_after=3), other_place) == 9
    assert (
        restarts(
            Job(max_restarts=9, give_up_after=2), [CRASH, failure("killed by SIGSEGV", exit_code=-11)] * 4
        )
        == 8
    )


def test_where_workers_tell_of_progress_its_lack_decides_whatever_the_failures_look_like() -> None:
    causes = [failure(f"ValueError: x at t.py:{n}") for n in range(9)]
    job = Job(max_restarts=9, give_up_after=3)
    assert isinstance(job.fails(causes[0], step=100), Restart)
    assert isinstance(job.fails(causes[1], step=90), Restart)
    assert isinstance(job.fails(causes[2]), Restart)
    assert job.fails(causes[3]) == GiveUp(
        "no progress beyond step 100 in 3 rounds in a row (--give-up-after)"
    )
    job = Job(max_restarts=9, give_up_after=2)
    for step in range(9):
        assert isinstance(job.fails(step=step), Restart), "the same failure each time, and each time further"


# Waiting


def test_rounds_that_fail_one_soon_after_the_other_wait_longer_and_longer() -> None:
    job = Job(max_restarts=20, backoff_s=2.0, backoff_max_s=20.0)
    delays = [job.fails(jitter=1.0).delay_s for _ in range(8)]  # type: ignore[union-attr]
    assert delays == [0, 2, 4, 8, 16, 20, 20, 20]


def test_a_round_that_ran_well_or_came_further_begins_the_waits_anew() -> None:
    for healthy in ({"ran_s": SHORT_ROUND_S}, {"step": 5}):
        job = Job(max_restarts=20, backoff_s=2.0)
        assert restarts(job, [CRASH] * 4) == 4
        decision = job.fails(**healthy)
        assert isinstance(decision, Restart)
        assert decision.delay_s == 0


def test_the_jitter_takes_up_to_half_of_a_wait_away() -> None:
    for jitter, delay_s in ((0.0, 1.0), (0.5, 1.5), (1.0, 2.0)):
        job = Job(max_restarts=20, backoff_s=2.0)
        job.fails()
        decision = job.fails(jitter=jitter)
        assert isinstance(decision, Restart)
        assert decision.delay_s == delay_s


def test_a_flapping_job_is_told_as_one() -> None:
    job = Job(max_restarts=5, backoff_s=1.0)
    assert "in a row" not in job.fails().reason
    assert job.fails().reason.endswith("(restart 2 of 5); 2 rounds in a row failed within 1 min")


# What is remembered


def test_the_last_restarts_are_remembered_in_bounded_words() -> None:
    job = Job(max_restarts=9)
    for number in range(5):
        job.fails(failure(f"ValueError: {'x' * 500}"), number=number + 1)
    assert [one.partition(":")[0] for one in job.standing.past] == ["round 3", "round 4", "round 5"]
    assert len(job.standing.past) == PAST_MAX
    assert all(len(one) <= PAST_CHARACTERS for one in job.standing.past)


@pytest.mark.parametrize("free", ["port", "excluded"])
def test_restarts_that_cost_nothing_are_remembered_as_such(free: str) -> None:
    job = Job(max_restarts=9)
    job.fails(number=1)
    if free == "port":
        job.fails(failure("OSError: in use", rank=0, master_port_taken=True), number=2)
    else:
        job.fails(failure("OSError: in use", rank=0), number=2, is_node_excluded=True)
    assert job.standing.used == 1
    assert job.standing.past[1:] == ("round 2: rank 0 failed: OSError: in use (not charged)",)
    for number in range(3, 9):
        job.fails(failure("x" * 500), number=number, is_node_excluded=True)
    assert len(job.standing.past) == PAST_MAX
    assert all(len(one) <= PAST_CHARACTERS and one.endswith(" (not charged)") for one in job.standing.past)


def test_a_round_that_knows_all_of_it_is_small_in_the_store() -> None:
    """Every agent reads it: about a kibibyte, and a few of them in scripts that need several bytes for a letter."""
    for letter, most in (("x", 1500), ("ü", 2500), ("火", 3500)):
        job = Job(max_restarts=99, window_s=1e6, refill_after_s=1e7, backoff_s=1.0, give_up_after=99)
        decisions = [
            job.fails(failure(letter * 500), step=7, number=10**6) for _ in range(WINDOW_RESTARTS_MAX)
        ]
        last = decisions[-1]
        assert isinstance(last, Restart)
        record = RoundRecord(
            number=10**6,
            phase=Phase.SETTLED,
            previous=10**6,
            reason=last.reason,
            restart_count=last.charged,
            policy_state=last.standing.text(),
            delay_s=last.delay_s,
            master_addr="fe80::0123:4567:89ab:cdef%eth0",
            master_port=65535,
        )
        assert len(encode(record)) < most
        assert isinstance(job.fails(failure(letter * 500)), GiveUp), "no window has room for more"


def test_what_is_remembered_stays_small() -> None:
    job = Job(max_restarts=20, window_s=1e6, refill_after_s=1e6, backoff_s=1, give_up_after=99)
    restarts(job, [failure("ü" * 500)] * 20, step=7, number=123456)
    assert len(job.standing.text()) < 3000


standings = st.builds(
    Standing,
    used=st.integers(0, 9),
    ages_s=st.lists(st.integers(0, 10**6), max_size=5).map(tuple),
    healthy_s=st.integers(0, 10**6),
    port_retries=st.integers(0, 3),
    hopeless=st.integers(0, 3),
    short=st.integers(0, 9),
    same=st.integers(0, 9),
    signature=st.integers(0, 2**32 - 1),
    still=st.integers(0, 9),
    step=st.none() | st.integers(-(2**62), 2**62),
    past=st.lists(st.text(max_size=9), max_size=3).map(tuple),
)


@given(standings)
def test_a_standing_is_read_back_as_it_was_written(standing: Standing) -> None:
    assert Standing.read(standing.text(), charged=standing.used) == standing


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "7",
        '{"used": "x"}',
        '{"used": -1}',
        '{"used": true}',
        '{"ages_s": [1.5]}',
        '{"past": [1]}',
        "[" * 10000,
    ],
)
def test_where_the_standing_is_lost_or_nonsense_all_restarts_so_far_are_used(text: str) -> None:
    assert Standing.read(text, charged=2) == Standing(used=2)


def test_what_a_later_release_remembers_is_passed_over() -> None:
    assert Standing.read('{"used":1,"mood":"good"}', charged=4) == Standing(used=1)


@given(st.text())
def test_no_text_does_anything_else(text: str) -> None:
    assert isinstance(Standing.read(text, charged=0), Standing)


# An agent that leaves


def test_an_agent_that_leaves_knows_by_the_count_whether_a_failure_was_final() -> None:
    assert has_restart_left([CRASH], RestartPolicy(max_restarts=2), 1)
    assert not has_restart_left([CRASH], RestartPolicy(max_restarts=2), 2)
    assert not has_restart_left([CRASH], RestartPolicy(max_restarts=2, no_restart_on=(1,)), 0)
    assert not has_restart_left([CRASH], RestartPolicy(max_restarts=2, restart_on=(75,)), 0)


def test_where_budgets_refill_a_failure_may_be_tried_again_whatever_the_count() -> None:
    assert has_restart_left([CRASH], RestartPolicy(max_restarts=1, window_s=60.0), 7)
    assert not has_restart_left([CRASH], RestartPolicy(max_restarts=0, refill_on_progress=True), 0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1, "1 s"), (90, "90 s"), (300, "5 min"), (3600, "1 h"), (0.5, "0.5 s"), (86400, "24 h")],
)
def test_spans_are_told_in_the_largest_unit_that_fits(seconds: float, text: str) -> None:
    assert span(seconds) == text
