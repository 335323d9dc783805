"""The leader's decisions one by one: what it writes for a view, and when it wants to be asked again.

Whole jobs are in ``test_forming``, ``test_failures``, ``test_leaving`` and ``test_silence``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.rendezvous import events
from phalanx.rendezvous.events import KeyRead, Read, StartWatch, StopWatch, Transact
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.leader import Leader
from phalanx.rendezvous.leading import LEAD, NODES_FEW, Leading
from phalanx.rendezvous.pending import Pending
from phalanx.rendezvous.policy import EndJob, NextRound, Policy, RoundReports
from phalanx.rendezvous.settings import Growth, MembershipSettings
from phalanx.rendezvous.stored import (
    Joined,
    Member,
    Members,
    NodeRecord,
    Outcome,
    Phase,
    Report,
    RoundRecord,
    VerdictRecord,
    Waiting,
    decode,
    encode,
)
from phalanx.rendezvous.view import Here, JobView, RoundTimes, View
from phalanx.store.port import Batch, Change, Compare, Delete, Field, KeyValue, Operation, Put

KEYS = JobKeys("job")
NOW = 50.0


class Asked:
    """A policy that answers as it is told, and keeps what it was asked."""

    def __init__(self, answer: NextRound | EndJob) -> None:
        self.answer = answer
        self.questions: list[RoundReports] = []

    def policy(self) -> Policy:
        def decide(reports: RoundReports) -> NextRound | EndJob:
            self.questions.append(reports)
            return self.answer

        return Policy(
            decide,
            lambda reports: f"{reports.round.policy_state} passed",
            lambda _: "succeeded",
            lambda reason, _: f"not formed: {reason}",
        )


AGAIN = NextRound(restart_count=1, policy_state="s", reason="restart 1")


def settings(**options: Any) -> MembershipSettings:
    values = {
        "run_id": "job",
        "node_id": "a",
        "host": "a",
        "slots": 1,
        "min_nodes": 2,
        "max_nodes": 3,
        **options,
    }
    return MembershipSettings(**{"last_call_s": 20.0, "join_timeout_s": 300.0, "ttl_s": 15.0, **values})


def leader(answer: NextRound | EndJob = AGAIN, **options: Any) -> Leader:
    return Leader(settings(**options), KEYS, Asked(answer).policy())


def node(name: str, registration: int, **facts: Any) -> tuple[str, Here]:
    record = NodeRecord(**{"host": name, "address": f"10.0.0.{registration}", "slots": 1, **facts})
    return name, Here(registration, record)


def member(name: str, registration: int) -> Member:
    return Member(node_id=name, registration=registration, host=name, slots=1)


def view(
    phase: Phase | None,
    *here: tuple[str, Here],
    joined: Mapping[str, int] | None = None,
    members: tuple[Member, ...] = (),
    reports: Mapping[str, Outcome] | None = None,
    failing: frozenset[str] = frozenset(),
    straggling: frozenset[str] = frozenset(),
    checkpoints: int = 0,
    open_s: float = 0.0,
    ran_s: float = 0.0,
    **record: Any,
) -> View:
    found = None if phase is None else RoundRecord(**{"number": 2, "phase": phase, "previous": 1, **record})
    return View(
        round=found,
        here=dict(here),
        joined={name: Joined(registration=one, port=9000 + one) for name, one in (joined or {}).items()},
        reports={name: Report(outcome=one) for name, one in (reports or {}).items()},
        signs={},
        failing=failing,
        straggling=straggling,
        members=members,
        checkpoints=checkpoints,
        open_s=open_s,
        ran_s=ran_s,
    )


def record_in(writes: tuple[Operation, ...]) -> RoundRecord:
    (found,) = [one for one in writes if isinstance(one, Put) and one.key == KEYS.round]
    return decode(RoundRecord, found.value)


def verdict_in(writes: tuple[Operation, ...]) -> str:
    (found,) = writes
    assert isinstance(found, Put)
    assert found.key == KEYS.verdict
    return decode(VerdictRecord, found.value).text


A, B, C = node("a", 1), node("b", 2), node("c", 3)
MEMBERS = (member("a", 1), member("b", 2))


def test_the_first_round_of_a_job_opens_at_once() -> None:
    record = record_in(leader().decide(view(None, A), NOW))
    assert (record.number, record.phase, record.previous, record.restart_count) == (1, Phase.JOINING, 0, 0)


def test_the_first_round_at_an_empty_store_goes_on_from_what_survivors_remember() -> None:
    survivor = node("a", 1, last_round=7, last_restart_count=2)
    record = record_in(leader().decide(view(None, survivor, B), NOW))
    assert (record.number, record.restart_count) == (8, 2)


def test_a_round_that_is_older_than_what_a_survivor_remembers_is_opened_anew() -> None:
    survivor = node("a", 1, last_round=7, last_restart_count=2)
    record = record_in(leader().decide(view(Phase.JOINING, survivor, number=3, previous=0), NOW))
    assert (record.number, record.restart_count, record.phase) == (8, 2, Phase.JOINING)


def test_settling_names_the_members_the_master_and_its_port_in_one_write() -> None:
    writes = leader().decide(
        view(Phase.JOINING, A, B, joined={"a": 1, "b": 2}, members=MEMBERS, restart_count=1, reason="why"),
        NOW,
    )
    record = record_in(writes)
    assert (record.number, record.phase, record.restart_count, record.reason) == (2, Phase.SETTLED, 1, "why")
    assert (record.master_addr, record.master_port) == ("10.0.0.1", 9001)
    (members,) = [one for one in writes if isinstance(one, Put) and one.key == KEYS.members(2)]
    assert decode(Members, members.value).members == MEMBERS
    assert Delete(KEYS.waiting) in writes


@pytest.mark.parametrize(
    ("here", "joined"),
    [
        ((A, B), {"a": 1}),
        ((A, B), {"a": 1, "b": 99}),
        ((A,), {"a": 1, "b": 2}),
        ((A, node("b", 2, is_leaving=True)), {"a": 1, "b": 2}),
        ((A, B, node("c", 3, is_busy=True)), {"a": 1, "b": 2}),
        ((A, B, node("c", 3, is_busy=True, is_leaving=True)), {"a": 1, "b": 2}),
    ],
    ids=[
        "one is missing",
        "another life joined",
        "the lease is gone",
        "it leaves",
        "a busy one",
        "a busy leaver",
    ],
)
def test_nothing_settles(here: tuple[tuple[str, Here], ...], joined: dict[str, int]) -> None:
    one = leader()
    for now in (NOW, NOW + 100.0):
        found = one.decide(view(Phase.JOINING, *here, joined=joined, members=MEMBERS), now)
        assert not any(isinstance(write, Put) and write.key == KEYS.round for write in found)


@given(st.floats(0, 1e6), st.sampled_from([{}, {"a": 1}, {"a": 1, "b": 2}]), st.integers(2, 3))
def test_who_is_asked_again_is_asked_later(now: float, joined: dict[str, int], low: int) -> None:
    """A time of the past would be a loop without rest."""
    one = leader(min_nodes=low)
    busy = node("c", 3, is_busy=True)
    for at in (now, now + 1, now + 6, now + 25, now + 250):
        one.decide(view(Phase.JOINING, A, B, busy, joined=joined, members=MEMBERS), at)
        assert one.deadline is None or one.deadline > at


def test_waiting_in_vain_ends_the_job_but_not_while_enough_are_ready() -> None:
    one = leader()
    waiting = view(Phase.JOINING, A, B, joined={"a": 1}, members=MEMBERS)
    one.decide(waiting, NOW)
    one.decide(waiting, NOW + 10)
    text = verdict_in(one.decide(waiting, NOW + 300))
    assert text.startswith(
        "not formed: 1 of 2 to 3 nodes are ready (a); still stopping workers: b; 1 more needed"
    )
    one = leader()
    blocked = view(Phase.JOINING, A, B, node("c", 3, is_busy=True), joined={"a": 1, "b": 2}, members=MEMBERS)
    for now in (NOW, NOW + 10, NOW + 20, NOW + 299, NOW + 1000):
        assert not any(
            isinstance(write, Put) and write.key == KEYS.verdict for write in one.decide(blocked, now)
        )


def test_lines_about_waiting_are_written_late_rarely_and_never_twice() -> None:
    one = leader(min_nodes=3)
    found = []
    for second in range(40):
        here = (A, B) if second < 20 else (A,)
        for write in one.decide(view(Phase.JOINING, *here, joined={"a": 1, "b": 2}), NOW + second):
            assert isinstance(write, Put)
            found.append((second, decode(Waiting, write.value).text))
    assert [second for second, _ in found] == [5, 20]
    assert found[0][1] == "2 of 3 nodes are ready (a, b); 1 more needed; gives up in 295 s"


def test_a_settled_round_that_runs_asks_for_nothing() -> None:
    one = leader()
    assert one.decide(view(Phase.SETTLED, A, B, members=MEMBERS), NOW) == ()
    assert one.deadline is None


def test_all_succeeded_is_the_end() -> None:
    done = {"a": Outcome.SUCCEEDED, "b": Outcome.SUCCEEDED}
    for phase in (Phase.SETTLED, Phase.COLLECTING):
        assert verdict_in(leader().decide(view(phase, A, members=MEMBERS, reports=done), NOW)) == "succeeded"


@pytest.mark.parametrize("phase", [Phase.SETTLED, Phase.COLLECTING])
def test_a_round_without_members_is_no_success(phase: Phase) -> None:
    text = verdict_in(leader().decide(view(phase, A, B), NOW))
    assert text == "not formed: the store does not say who is in round 2"


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"failing": frozenset({"b"})}, "a worker failed on b"),
        ({"reports": {"b": Outcome.FAILED}}, "a worker failed on b"),
        ({"reports": {"b": Outcome.STOPPED}}, "node b stopped its workers"),
    ],
)
def test_what_ends_a_round_is_its_reason(facts: dict[str, Any], reason: str) -> None:
    record = record_in(leader().decide(view(Phase.SETTLED, A, B, members=MEMBERS, **facts), NOW))
    assert (record.phase, record.number, record.reason) == (Phase.COLLECTING, 2, reason)
    assert record.is_failure == ("failed" in reason)


def test_workers_that_are_late_on_one_node_are_late_on_all_that_have_not_succeeded() -> None:
    late = view(Phase.SETTLED, A, B, members=MEMBERS, straggling=frozenset({"b"}))
    record = record_in(leader().decide(late, NOW))
    assert (record.phase, record.has_stragglers, record.is_failure) == (Phase.COLLECTING, True, True)
    assert record.reason == "still running on a, b long after others had ended"


def test_a_leaver_and_a_newcomer_are_planned_and_a_loss_and_a_failure_are_not() -> None:
    going = node("b", B[1].registration, is_leaving=True)
    for planned in (
        view(Phase.SETTLED, A, going, members=MEMBERS),
        view(Phase.SETTLED, A, B, C, members=MEMBERS),
    ):
        assert record_in(leader(max_nodes=3).decide(planned, NOW)).is_planned
    for sudden in (
        view(Phase.SETTLED, A, members=MEMBERS),
        view(Phase.SETTLED, A, going, members=MEMBERS, failing=frozenset({"a"})),
        view(Phase.SETTLED, A, B, members=MEMBERS, reports={"b": Outcome.STOPPED}),
        view(Phase.SETTLED, A, B, members=MEMBERS, straggling=frozenset({"b"})),
    ):
        assert not record_in(leader().decide(sudden, NOW)).is_planned


def test_a_lost_member_and_one_that_registered_anew_end_a_round() -> None:
    for here in ((A,), (A, node("b", 9))):
        record = record_in(leader().decide(view(Phase.SETTLED, *here, members=MEMBERS), NOW))
        assert record.reason == "node b was lost"


def test_a_newcomer_is_taken_in_when_its_window_is_over_or_nothing_more_fits() -> None:
    one = leader(max_nodes=4)
    grown = view(Phase.SETTLED, A, B, C, members=MEMBERS)
    assert one.decide(grown, NOW) == ()
    assert one.deadline == NOW + 20
    assert record_in(one.decide(grown, NOW + 20)).reason == "a node joined: c"
    assert record_in(leader(max_nodes=3).decide(grown, NOW)).phase is Phase.COLLECTING
    assert leader(max_nodes=2).decide(grown, NOW) == ()
    assert leader(max_nodes=3, growth=Growth.NEVER).decide(grown, NOW) == ()


def test_a_window_that_lost_its_newcomer_starts_anew_with_the_next() -> None:
    one = leader(max_nodes=4)
    one.decide(view(Phase.SETTLED, A, B, C, members=MEMBERS), NOW)
    one.decide(view(Phase.SETTLED, A, B, members=MEMBERS), NOW + 10)
    assert one.decide(view(Phase.SETTLED, A, B, C, members=MEMBERS), NOW + 21) == ()
    assert one.deadline == NOW + 41


def test_checkpoints_before_the_newcomer_came_do_not_count() -> None:
    one = leader(growth=Growth.AT_CHECKPOINT)
    waiting = view(Phase.SETTLED, A, B, C, members=MEMBERS, checkpoints=5)
    assert [one.key for one in one.decide(waiting, NOW)] == [KEYS.ask("checkpoint", "")]
    assert one.deadline is None, "news will come"
    grown = one.decide(view(Phase.SETTLED, A, B, C, members=MEMBERS, checkpoints=6), NOW + 1)
    assert record_in(grown).reason == "a node joined: c"


def test_collecting_waits_for_each_member_that_lives_and_does_not_leave() -> None:
    one = leader()
    assert (
        one.decide(view(Phase.COLLECTING, A, B, members=MEMBERS, reports={"a": Outcome.STOPPED}), NOW) == ()
    )
    leaving = node("b", 2, is_leaving=True)
    opened = one.decide(
        view(Phase.COLLECTING, A, leaving, members=MEMBERS, reports={"a": Outcome.STOPPED}), NOW
    )
    assert record_in(opened).number == 3
    failing = view(
        Phase.COLLECTING,
        A,
        leaving,
        members=MEMBERS,
        reports={"a": Outcome.STOPPED},
        failing=frozenset({"b"}),
    )
    assert one.decide(failing, NOW) == (), "its evidence is still to come"


def test_the_policy_is_asked_once_with_all_that_is_known_and_its_answer_is_the_next_round() -> None:
    asked = Asked(AGAIN)
    one = Leader(settings(), KEYS, asked.policy())
    writes = one.decide(
        view(Phase.COLLECTING, A, members=MEMBERS, reports={"a": Outcome.FAILED}, restart_count=0), NOW
    )
    record = record_in(writes)
    assert (record.number, record.previous, record.phase) == (3, 2, Phase.JOINING)
    assert (record.restart_count, record.policy_state, record.reason) == (1, "s", "restart 1")
    (question,) = asked.questions
    assert [(one.group_rank, one.first_rank, one.is_lost) for one in question.members] == [
        (0, 0, False),
        (1, 1, True),
    ]
    assert question.world_size == 2


def test_the_policy_may_end_the_job_and_is_not_asked_where_nothing_failed() -> None:
    failed = view(Phase.COLLECTING, A, members=MEMBERS, reports={"a": Outcome.FAILED})
    assert verdict_in(leader(EndJob("over")).decide(failed, NOW)) == "over"
    lost = view(
        Phase.COLLECTING, A, members=MEMBERS, reports={"a": Outcome.STOPPED}, restart_count=1, reason="r"
    )
    record = record_in(leader(EndJob("over")).decide(lost, NOW))
    assert (record.restart_count, record.reason) == (1, "node b was lost")


def test_a_new_round_takes_away_what_only_the_round_before_the_last_needed() -> None:
    writes = leader().decide(view(Phase.COLLECTING, A, members=MEMBERS, reports={"a": Outcome.STOPPED}), NOW)
    assert {one.key for one in writes if isinstance(one, Delete)} == {
        KEYS.waiting,
        KEYS.all_answers,
        KEYS.asks,
        KEYS.joined(2),
        KEYS.reports(1),
        KEYS.members(1),
        KEYS.values(1),
    }


# Rounds that wait, and nodes that are not to be used


def test_a_round_that_waits_settles_when_its_time_since_the_opening_is_over_and_says_when() -> None:
    one = leader(max_nodes=2)
    ready: dict[str, Any] = {"joined": {"a": 1, "b": 2}, "members": MEMBERS, "delay_s": 30.0}
    assert one.decide(view(Phase.JOINING, A, B, **ready, open_s=12.0), NOW) == ()
    assert one.deadline == NOW + 5, "the line about it is due first"
    (line,) = one.decide(view(Phase.JOINING, A, B, **ready, open_s=17.0), NOW + 5)
    assert isinstance(line, Put)
    assert decode(Waiting, line.value).text == "2 of 2 nodes are ready (a, b); starts in 13 s"
    assert one.deadline == NOW + 18
    assert one.decide(view(Phase.JOINING, A, B, **ready, open_s=29.9), NOW + 17.9) == ()
    settled = record_in(one.decide(view(Phase.JOINING, A, B, **ready, open_s=30.0), NOW + 18))
    assert (settled.phase, settled.delay_s) == (Phase.SETTLED, 30.0)


def test_a_wait_and_a_last_call_pass_together() -> None:
    one = leader(max_nodes=4)
    partly: dict[str, Any] = {"joined": {"a": 1, "b": 2}, "delay_s": 5.0}
    for second, settles in ((0.0, False), (5.0, False), (20.0, True)):
        writes = one.decide(view(Phase.JOINING, A, B, C, **partly, open_s=second), NOW + second)
        assert any(isinstance(write, Put) and write.key == KEYS.round for write in writes) == settles
    one = leader(max_nodes=4)
    late = view(Phase.JOINING, A, B, C, joined={"a": 1, "b": 2}, delay_s=100.0, open_s=20.0)
    one.decide(view(Phase.JOINING, A, B, C, joined={"a": 1, "b": 2}, delay_s=100.0), NOW)
    assert not any(isinstance(one, Put) and one.key == KEYS.round for one in one.decide(late, NOW + 20))


def test_a_round_that_must_be_opened_anew_waits_as_the_first_would_have() -> None:
    older = view(
        Phase.JOINING, node("a", 1, last_round=7), number=3, previous=0, delay_s=9.0, policy_state="s"
    )
    record = record_in(leader().decide(older, NOW))
    assert (record.number, record.delay_s, record.policy_state) == (8, 9.0, "s")


def test_the_answer_of_the_policy_has_the_wait() -> None:
    answer = NextRound(restart_count=1, policy_state="s", reason="restart 1", delay_s=4.5)
    failed = view(Phase.COLLECTING, A, members=MEMBERS, reports={"a": Outcome.FAILED})
    assert record_in(leader(answer).decide(failed, NOW)).delay_s == 4.5


def test_a_round_that_ended_without_a_failure_tells_the_policy_and_does_not_wait() -> None:
    lost = view(
        Phase.COLLECTING,
        A,
        members=MEMBERS,
        reports={"a": Outcome.STOPPED},
        policy_state="state",
        delay_s=9.0,
    )
    record = record_in(leader().decide(lost, NOW))
    assert (record.policy_state, record.delay_s) == ("state passed", 0.0)


def test_the_policy_is_told_how_long_it_went_and_who_is_excluded() -> None:
    asked = Asked(AGAIN)
    Leader(settings(), KEYS, asked.policy()).decide(
        view(
            Phase.COLLECTING,
            A,
            node("b", 2, excluded="GPU 3"),
            C,
            members=MEMBERS,
            reports={"a": Outcome.STOPPED, "b": Outcome.FAILED},
            open_s=70.0,
            ran_s=60.0,
        ),
        NOW,
    )
    (question,) = asked.questions
    assert (question.open_s, question.ran_s) == (70.0, 60.0)
    assert [one.is_excluded for one in question.members] == [False, True]
    assert 0.0 <= question.jitter <= 1.0


EXCLUDED_B = node("b", 2, excluded="GPU 3")


def test_a_member_that_is_excluded_ends_the_round_where_others_can_go_on() -> None:
    now_excluded = node("b", 2, excluded="GPU 3", excluded_in=2)
    settled = view(Phase.SETTLED, A, now_excluded, C, members=MEMBERS, number=2)
    record = record_in(leader().decide(settled, NOW))
    assert (record.phase, record.reason) == (Phase.COLLECTING, "node b is excluded: GPU 3")
    assert not record.is_failure


def test_a_member_that_was_excluded_before_makes_room_as_a_free_place_does() -> None:
    before = node("b", 2, excluded="GPU 3", excluded_in=1)
    settled = view(Phase.SETTLED, A, before, C, members=MEMBERS, number=2)
    assert leader(growth=Growth.NEVER, max_nodes=2).decide(settled, NOW) == ()
    record = record_in(leader(max_nodes=2).decide(settled, NOW))
    assert (record.reason, record.is_planned) == ("a node joined: c", True)


@pytest.mark.parametrize(
    "others",
    [(), (node("c", 3, is_leaving=True),), (node("c", 3, excluded="GPU 4"),)],
    ids=["nobody else", "a leaver", "another excluded one"],
)
def test_a_member_that_is_excluded_stays_where_others_are_too_few(
    others: tuple[tuple[str, Here], ...],
) -> None:
    one = leader(growth=Growth.NEVER)
    assert one.decide(view(Phase.SETTLED, A, EXCLUDED_B, *others, members=MEMBERS), NOW) == ()
    joined = {"a": 1, "b": 2}
    record = record_in(
        leader(max_nodes=2).decide(
            view(Phase.JOINING, A, EXCLUDED_B, *others, joined=joined, members=MEMBERS), NOW
        )
    )
    assert record.phase is Phase.SETTLED


def test_an_excluded_node_is_neither_chosen_nor_waited_for_once_its_workers_are_gone() -> None:
    here = (A, EXCLUDED_B, C)
    waits = leader().decide(view(Phase.JOINING, *here, joined={"a": 1, "c": 3}, members=MEMBERS), NOW)
    assert waits == (), "its workers may still live"
    writes = leader().decide(
        view(Phase.JOINING, *here, joined={"a": 1, "b": 2, "c": 3}, members=MEMBERS), NOW
    )
    (members,) = [one for one in writes if isinstance(one, Put) and one.key == KEYS.members(2)]
    assert [one.node_id for one in decode(Members, members.value).members] == ["a", "c"]
    new = leader().decide(view(Phase.JOINING, *here, joined={"a": 1, "c": 3}, members=(MEMBERS[0],)), NOW)
    assert record_in(new).phase is Phase.SETTLED


def test_an_excluded_node_is_no_newcomer_until_its_time_is_over() -> None:
    one = leader()
    grown = view(Phase.SETTLED, A, B, node("c", 3, excluded="GPU 3"), members=MEMBERS)
    assert one.decide(grown, NOW) == ()
    assert one.deadline is None
    assert (
        record_in(one.decide(view(Phase.SETTLED, A, B, C, members=MEMBERS), NOW)).reason == "a node joined: c"
    )


def test_who_waits_for_others_names_the_excluded_ones() -> None:
    one = leader(min_nodes=2, max_nodes=4)
    waiting = view(Phase.JOINING, A, EXCLUDED_B, C, joined={"a": 1}, members=(MEMBERS[0],))
    one.decide(waiting, NOW)
    (line,) = one.decide(waiting, NOW + 6)
    assert isinstance(line, Put)
    text = decode(Waiting, line.value).text
    assert text == "1 of 2 to 4 nodes are ready (a); excluded: b; 1 more needed; gives up in 294 s"


# Leading: the view is kept, the decision becomes a guarded transaction


def kv(key: str, value: bytes, revision: int) -> KeyValue:
    return KeyValue(key, value, revision, revision, 1, 7)


def job_view(*items: KeyValue, revision: int = 20) -> JobView:
    job = JobView(KEYS)
    job.listed(revision, (kv(KEYS.leader, b"a", 4), *items))
    return job


def leading() -> Leading:
    found = Leading(settings(), KEYS, Asked(AGAIN).policy())
    assert found.begin() == [StartWatch(KEYS.nodes)]
    return found


def test_each_decision_is_guarded_by_the_leadership_the_round_and_the_verdict() -> None:
    one = leading()
    pending = Pending()
    assert one.decide(job_view(), RoundTimes(), pending, NOW) == [], (
        "before the nodes are listed nothing is known"
    )
    one.hear(events.KeysListed(KEYS.nodes, 9, (kv(KEYS.here("a"), encode(A[1].node), 3),)))
    (command,) = one.decide(job_view(), RoundTimes(), pending, NOW)
    assert isinstance(command, Transact)
    assert command.purpose == LEAD
    assert command.compares == (
        Compare(KEYS.leader, Field.CREATE_REVISION, 4),
        Compare(KEYS.round, Field.MOD_REVISION, 0),
        Compare(KEYS.verdict, Field.CREATE_REVISION, 0),
    )
    assert one.decide(job_view(), RoundTimes(), pending, NOW) == [], "one at a time"


def test_nothing_more_is_decided_until_the_watch_has_told_of_the_last_decision() -> None:
    one = leading()
    one.hear(events.KeysListed(KEYS.nodes, 9, ()))
    one.succeeded(21)
    assert one.decide(job_view(revision=20), RoundTimes(), Pending(), NOW) == []
    assert one.decide(job_view(revision=21), RoundTimes(), Pending(), NOW) != []


def test_the_members_of_a_round_are_read_once_and_again_for_another_round() -> None:
    one = leading()
    one.hear(events.KeysListed(KEYS.nodes, 9, ()))
    settled = kv(KEYS.round, encode(RoundRecord(number=3, phase=Phase.SETTLED, previous=2)), 10)
    job = job_view(settled)
    assert one.decide(job, RoundTimes(), Pending(), NOW) == [Read(KEYS.members(3))]
    assert one.decide(job, RoundTimes(), Pending(), NOW) == [], "it is on its way"
    one.read(KeyRead(KEYS.members(3), kv(KEYS.members(3), encode(Members(members=MEMBERS)), 10)))
    (command,) = one.decide(job, RoundTimes(), Pending(), NOW)
    assert b"were lost" in command.then[0].value or b"was lost" in command.then[0].value
    joining = kv(KEYS.round, encode(RoundRecord(number=4, phase=Phase.JOINING, previous=3)), 11)
    one.decide(job_view(joining), RoundTimes(), Pending(), NOW)
    other = kv(KEYS.round, encode(RoundRecord(number=9, phase=Phase.JOINING, previous=8)), 12)
    assert one.decide(job_view(other), RoundTimes(), Pending(), NOW) == [Read(KEYS.members(8))]


def test_who_leads_no_more_watches_no_more_and_decides_nothing() -> None:
    one = leading()
    one.hear(events.KeysListed(KEYS.nodes, 9, ()))
    assert one.end() == [StopWatch(KEYS.nodes)]
    assert one.end() == []
    assert not one.is_leading
    assert one.decide(job_view(), RoundTimes(), Pending(), NOW) == []


def test_a_large_membership_is_not_looked_at_for_each_of_its_news() -> None:
    one = leading()
    many = [kv(KEYS.here(f"n{i}"), encode(A[1].node), i + 1) for i in range(2 * NODES_FEW)]
    one.hear(events.KeysListed(KEYS.nodes, 9, tuple(many)))
    joining = kv(KEYS.round, encode(RoundRecord(number=1, phase=Phase.JOINING)), 19)
    assert one.decide(job_view(joining), RoundTimes(), Pending(), NOW) == []
    one.hear(
        events.KeyChanged(
            KEYS.nodes, Batch(30, (Change(kv(KEYS.joined(1, "n0"), encode(Joined(registration=1)), 30)),))
        )
    )
    assert one.decide(job_view(joining), RoundTimes(), Pending(), NOW) == []
    assert one.deadline is not None
    assert NOW < one.deadline < NOW + 0.1
    one.decide(job_view(joining), RoundTimes(), Pending(), NOW + 0.1)
    assert one.deadline > NOW + 0.1
