"""A member's part, transaction by transaction: what it asks for in each situation, and what it never repeats."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.rendezvous import events
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.part import Part
from phalanx.rendezvous.pending import Pending
from phalanx.rendezvous.registration import NAME_RETRY_S, NAME_TAKEN_LEASES, Registration
from phalanx.rendezvous.settings import Growth, MembershipSettings
from phalanx.rendezvous.stop_cause import StopCause
from phalanx.rendezvous.stored import (
    Joined,
    Member,
    Members,
    NodeRecord,
    Outcome,
    Phase,
    Report,
    RoundRecord,
    decode,
    encode,
)
from phalanx.rendezvous.view import JobView
from phalanx.store.port import Compare, Delete, Field, KeyValue, Put

KEYS = JobKeys("job")
TTL_S = 15.0
LEASE, REGISTRATION = 7, 5
ALIVE = Compare(KEYS.here("a"), Field.CREATE_REVISION, REGISTRATION)


class Node:
    """A part with its registration, and the job as it has heard of it."""

    def __init__(self, *, is_registered: bool = True, **options: Any) -> None:
        values = {
            "run_id": "job",
            "node_id": "a",
            "host": "host a",
            "slots": 2,
            "min_nodes": 1,
            "max_nodes": 2,
        }
        settings = MembershipSettings(**{**values, "ttl_s": TTL_S, **options})
        self.pending = Pending()
        self.here = Registration(settings, KEYS, self.pending)
        self.part = Part(settings, KEYS, self.pending, self.here)
        self.job = JobView(KEYS)
        self.job.listed(1, ())
        self.lease(LEASE)
        if is_registered:
            self.here.register(is_leaving=False, is_busy=False)
            self.pending.answered("register", succeeded=True)
            assert self.here.was_registered(events.Transacted("register", True, REGISTRATION))

    def lease(self, number: int) -> None:
        self.here.leased(
            events.SessionOpened(
                lease=number, sent_at=0.0, address="10.0.0.1", outside_address="", is_host=False
            )
        )

    def round(self, number: int, phase: Phase, **facts: Any) -> None:
        self.pending.seen()
        record = RoundRecord(**{"number": number, "phase": phase, "master_addr": "m", **facts})
        revision = self.job.revision + 1
        self.job.listed(revision, (KeyValue(KEYS.round, encode(record), 1, revision, 1),))

    def answer(self, command: Any, *, succeeded: bool = True, revision: int = 50) -> None:
        self.pending.answered(command.purpose, succeeded=succeeded)
        event = events.Transacted(command.purpose, succeeded, revision)
        (self.part.succeeded if succeeded else self.part.failed)(event)

    def join(self, number: int) -> events.Transact:
        self.round(number, Phase.JOINING)
        assert self.part.follow(self.job) == [events.HoldPort(number)]
        assert self.part.follow(self.job) == [], "one port is enough"
        self.part.note(events.PortHeld(number, 29500))
        (command,) = self.part.follow(self.job)
        assert isinstance(command, events.Transact)
        return command

    def settle(
        self, number: int, registration: int = REGISTRATION, phase: Phase = Phase.SETTLED
    ) -> list[Any]:
        self.round(number, phase)
        assert self.part.follow(self.job) == [events.Read(KEYS.members(number))]
        member = Member(node_id="a", registration=registration, host="h", slots=2)
        kv = KeyValue(KEYS.members(number), encode(Members(members=(member,))), 9, 9, 1)
        return self.part.read(events.KeyRead(kv.key, kv), self.job)

    def run(self, number: int = 1) -> None:
        self.answer(self.join(number))
        assert self.settle(number) == [events.ConfirmLease(number)]
        fence, formed = self.part.lease_confirmed(number, self.job, 12.0)
        assert fence == events.Fence(12.0)
        assert isinstance(formed, events.RoundFormed)
        assert self.part.running == formed.round


def test_a_registration_says_who_the_node_is_and_is_guarded_against_another_of_its_name() -> None:
    node = Node(is_registered=False, order_hint=3, boot_id="k", topology="rack", local_addr="10.9.9.9")
    command = node.here.register(is_leaving=False, is_busy=False)
    assert command.compares == (Compare(KEYS.here("a"), Field.CREATE_REVISION, 0),)
    (put,) = command.then
    assert isinstance(put, Put)
    assert put.lease == LEASE
    record = decode(NodeRecord, put.value)
    assert (record.host, record.address, record.slots) == ("host a", "10.9.9.9", 2)
    assert (record.order_hint, record.boot_id, record.topology) == (3, "k", "rack")


def found(lease: int, created: int = 4) -> events.Transacted:
    there = KeyValue(
        KEYS.here("a"), encode(NodeRecord(host="other", address="x", slots=1)), created, created, 1, lease
    )
    return events.Transacted("register", False, 9, ((there,),))


def test_an_attempt_that_seemed_to_have_failed_may_have_registered_us() -> None:
    node = Node(is_registered=False)
    assert node.here.was_registered(found(LEASE, 4))
    assert node.here.revision == 4
    assert not Node(is_registered=False).here.was_registered(found(99))


def test_a_registration_of_an_earlier_life_is_taken_away_and_nobody_elses() -> None:
    node = Node(is_registered=False)
    node.lease(8)
    (command,), failure = node.here.not_registered(found(LEASE, 4), 100.0)
    assert failure is None
    assert command.compares == (Compare(KEYS.here("a"), Field.CREATE_REVISION, 4),)
    assert command.then == (Delete(KEYS.here("a")),)


def test_somebody_elses_registration_is_waited_for_and_then_named() -> None:
    node = Node(is_registered=False, order_hint=1)
    assert node.here.not_registered(found(99), 100.0) == ([], None)
    assert node.here.again_at == 100.0 + NAME_RETRY_S
    late = 100.0 + NAME_TAKEN_LEASES * TTL_S
    assert node.here.not_registered(found(99), late - 0.1) == ([], None)
    commands, failure = node.here.not_registered(found(99), late)
    assert commands == []
    assert failure is not None
    assert failure.startswith("another agent, on other, has the node rank 1 of this job")


def test_joining_is_guarded_by_this_life_and_by_the_round_as_it_was_seen() -> None:
    node = Node()
    command = node.join(3)
    assert command.compares == (ALIVE, Compare(KEYS.round, Field.MOD_REVISION, node.job.round_revision))
    (put,) = command.then
    assert isinstance(put, Put)
    assert (put.key, put.lease) == (KEYS.joined(3, "a"), LEASE)
    assert decode(Joined, put.value) == Joined(registration=REGISTRATION, port=29500)
    assert node.part.follow(node.job) == [], "it is under way"
    node.answer(command)
    assert node.part.follow(node.job) == [], "it is done"


def test_a_join_without_an_answer_is_asked_again_and_one_that_was_refused_only_with_news() -> None:
    node = Node()
    command = node.join(3)
    node.pending.unclear(command.purpose, 0.0)
    (again,) = node.part.follow(node.job)
    assert again == command
    node.answer(again, succeeded=False)
    assert node.part.follow(node.job) == []
    node.pending.seen()
    assert len(node.part.follow(node.job)) == 1


@pytest.mark.parametrize("phase", [Phase.SETTLED, Phase.COLLECTING])
def test_who_does_not_know_whether_it_has_joined_looks(phase: Phase) -> None:
    node = Node()
    node.pending.unclear(node.join(3).purpose, 0.0)
    node.round(3, phase)
    assert node.part.follow(node.job) == [events.Read(KEYS.members(3))]


def test_a_leaver_does_not_join() -> None:
    node = Node()
    node.part.note(events.LeaveAsked())
    node.round(3, Phase.JOINING)
    assert node.part.follow(node.job) == []


def test_workers_start_only_when_the_lease_was_confirmed_for_this_very_round() -> None:
    node = Node()
    node.answer(node.join(3))
    node.settle(3)
    assert node.part.lease_confirmed(2, node.job, 12.0) == []
    node.round(3, Phase.COLLECTING)
    assert node.part.lease_confirmed(3, node.job, 12.0) == []
    assert node.part.running is None


def test_workers_start_once() -> None:
    node = Node()
    node.run(3)
    assert node.part.lease_confirmed(3, node.job, 13.0) == []


def test_another_life_of_this_node_is_no_member() -> None:
    node = Node()
    node.answer(node.join(3))
    release, told = node.settle(3, registration=4)
    assert release == events.ReleasePort()
    assert told == events.Told("round 3 has its 1 node; this one waits for another round")
    assert node.part.lease_confirmed(3, node.job, 12.0) == []


def test_members_that_cannot_be_read_are_told() -> None:
    node = Node()
    node.answer(node.join(3))
    node.round(3, Phase.SETTLED)
    node.part.follow(node.job)
    (told,) = node.part.read(
        events.KeyRead(KEYS.members(3), KeyValue(KEYS.members(3), b"?", 9, 9, 1)), node.job
    )
    assert "round 3 cannot be read" in told.text


@pytest.mark.parametrize(("number", "phase"), [(1, Phase.COLLECTING), (2, Phase.JOINING), (2, Phase.SETTLED)])
def test_workers_are_stopped_once_when_their_round_is_over(number: int, phase: Phase) -> None:
    node = Node()
    node.run()
    node.round(number, phase, reason="why")
    assert node.part.follow(node.job) == [events.StopRound("why")]
    assert node.part.follow(node.job) == []
    assert node.part.stop("another reason", StopCause.END) == []
    late = node.part.stop("the store is silent", StopCause.LOSS, grace_s=1.0, is_own=True)
    assert late == [events.StopRound("the store is silent", 1.0, is_own=True, cause=StopCause.LOSS)], (
        "they may have been warned only, and have two minutes"
    )


def test_who_did_not_start_in_time_reports_that_it_was_stopped() -> None:
    node = Node()
    node.answer(node.join(3))
    (command,) = node.settle(3, phase=Phase.COLLECTING)
    (put,) = command.then
    assert put.key == KEYS.report(3, "a", "outcome")
    assert decode(Report, put.value).outcome is Outcome.STOPPED
    assert node.part.follow(node.job) == []


def test_a_confirmation_that_came_too_late_is_asked_for_again() -> None:
    node = Node()
    node.answer(node.join(1))
    assert node.settle(1) == [events.ConfirmLease(1)]
    assert node.part.follow(node.job) == [], "it is under way"
    node.part.not_confirmed()
    assert node.part.follow(node.job) == [events.ConfirmLease(1)]


def test_each_report_is_written_once_by_this_life_and_only_the_first_of_a_kind_counts() -> None:
    node = Node()
    node.run()
    node.part.note(events.FirstSignSeen("ValueError: x"))
    node.part.note(events.FirstSignSeen("another"))
    (command,) = node.part.tell(node.job)
    key = KEYS.report(1, "a", "first_sign")
    assert command.compares == (ALIVE, Compare(key, Field.CREATE_REVISION, 0))
    assert command.then == (Put(key, b"ValueError: x"),)
    assert node.part.tell(node.job) == []
    node.answer(command, succeeded=False)  # an attempt without an answer had written it
    assert node.part.tell(node.job) == []
    assert not node.part.has_to_tell(node.job)


def test_what_happened_in_a_round_of_the_past_is_of_no_interest() -> None:
    node = Node()
    node.run()
    node.part.note(events.WorkerFailed())
    node.round(2, Phase.JOINING)
    assert node.part.tell(node.job) == []


def test_the_outcome_of_workers_of_an_earlier_life_is_told_to_nobody() -> None:
    node = Node()
    node.run()
    node.part.unregistered()
    node.lease(8)
    assert node.here.was_registered(events.Transacted("register", True, 60))
    assert node.part.fence(99.0) == [], "nor do renewals of this life move their fence"
    assert node.part.workers_gone(Report(outcome=Outcome.FAILED), 10.0) == [events.Fence(None)]
    node.round(1, Phase.SETTLED)
    assert node.part.tell(node.job) == []


def test_who_registers_anew_tells_what_it_has_seen_and_what_ran_here() -> None:
    node = Node()
    node.run(3)
    node.round(4, Phase.SETTLED, restart_count=2)
    node.part.follow(node.job)
    node.part.unregistered()
    (put,) = node.here.register(is_leaving=False, is_busy=True).then
    assert isinstance(put, Put)
    record = decode(NodeRecord, put.value)
    assert record.is_busy
    assert (record.last_round, record.last_restart_count, record.last_ran) == (4, 2, 3)
    assert (record.last_group_rank, record.last_group_world_size) == (0, 1)


def test_checkpoints_are_told_only_where_newcomers_wait_for_them() -> None:
    node = Node(growth=Growth.AT_CHECKPOINT)
    node.run()
    node.part.note(events.CheckpointDone(7))
    (command,) = node.part.tell(node.job)
    assert command.then == (Put(KEYS.report(1, "a", "checkpoint"), b"7"),)
    node.answer(command)
    assert node.part.tell(node.job) == []
    node = Node()
    node.run()
    node.part.note(events.CheckpointDone(7))
    assert node.part.tell(node.job) == []


def test_a_leaver_tells_it_with_the_leadership_in_one_write_if_it_has_that() -> None:
    for is_leader in (True, False):
        node = Node()
        items = (KeyValue(KEYS.leader, b"a", 4, 4, 1, LEASE if is_leader else 99),)
        node.job.listed(6, items)
        node.part.note(events.LeaveAsked())
        assert node.part.has_to_tell(node.job)
        (command,) = node.part.tell(node.job)
        here, *leader = command.then
        assert decode(NodeRecord, here.value).is_leaving
        assert leader == ([Delete(KEYS.leader)] if is_leader else [])
        node.answer(command)
        assert node.part.tell(node.job) == []
        assert not node.part.has_to_tell(node.job)


def test_a_campaign_is_for_who_stays_and_only_while_nobody_leads() -> None:
    node = Node()
    (command,) = node.part.campaign(node.job)
    assert command.compares == (ALIVE, Compare(KEYS.leader, Field.CREATE_REVISION, 0))
    node.answer(command, revision=50)
    assert node.part.campaign(node.job) == [], "it was won, and the watch will say so"
    node.job.listed(50, (KeyValue(KEYS.leader, b"b", 40, 40, 1, 9),))
    assert node.part.campaign(node.job) == []
    leaver = Node()
    leaver.part.note(events.LeaveAsked())
    assert leaver.part.campaign(leaver.job) == []


def test_a_success_starts_the_exit_barrier_and_nothing_else_does() -> None:
    for outcome, at in ((Outcome.SUCCEEDED, 70.0), (Outcome.FAILED, None)):
        node = Node(exit_barrier_s=60.0)
        node.run()
        node.part.workers_gone(Report(outcome=outcome), 10.0)
        assert node.part.barrier_at == at
