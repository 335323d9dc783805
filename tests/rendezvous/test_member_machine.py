"""The member machine: every (event, state) pair, and random histories of whole agents over the real store machine."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.rendezvous.fleet import Agent, Fleet

from phalanx.agent.restarts.leader import leader_policy
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.machine import UnlistedEvent, Void
from phalanx.rendezvous import asks, events
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.machine import MemberMachine
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.state import MemberState
from phalanx.rendezvous.stored import Outcome, Phase, Report, RoundRecord, encode
from phalanx.store.port import Batch, Change, KeyValue

KEYS = JobKeys("job")
NOW = 100.0
HERE = KeyValue(KEYS.here("a"), b"{}", 5, 5, 1, 77)
OPENED = events.SessionOpened(
    lease=77, sent_at=NOW, address="10.0.0.1", outside_address="", is_host=True, is_local=True
)
REGISTERED = events.Transacted("register", True, 5, ((),))
RAN = events.KeysListed(
    "/phalanx/job/job/",
    5,
    (
        KeyValue(
            "/phalanx/job/job/round", encode(RoundRecord(number=2, phase=Phase.JOINING, previous=1)), 3, 4, 2
        ),
    ),
)
EMPTY = events.KeysListed(KEYS.job, 4, ())

EVENTS: list[object] = [
    events.MeetingBegan(),
    OPENED,
    events.StoreNotReached("silence"),
    events.StoreFailed("wrong secret"),
    events.StoreWasReset(),
    events.LeaseRenewed(NOW),
    events.LeaseRenewed(NOW, 1),
    events.LeaseEnded(),
    EMPTY,
    events.KeysListed(KEYS.nodes, 4, ()),
    events.KeyChanged(KEYS.job, Batch(6, (Change(KeyValue(KEYS.leader, b"b", 6, 6, 1, 9)),))),
    events.KeyChanged(KEYS.nodes, Batch(6, (Change(HERE),))),
    events.KeyRead(KEYS.members(1), None),
    REGISTERED,
    events.Transacted("register", False, 5, ((HERE,),)),
    events.Transacted("unregister", True, 5),
    events.Transacted("join", False, 5, ((),)),
    events.Transacted("leave", False, 5, ((HERE,),)),
    events.Transacted("lead", True, 5),
    events.Transacted("lead", False, 5),
    events.TransactionUnclear("register"),
    events.TransactionUnclear("campaign"),
    events.SessionClosed(),
    events.PortHeld(1, 29500),
    events.PortNotHeld(1, "no port is free"),
    events.FirstSignSeen("ValueError: x"),
    events.WorkerFailed(),
    events.SingleFailed(0, Report(outcome=Outcome.FAILED)),
    events.CheckpointDone(3),
    events.WorkersGone(Report(outcome=Outcome.STOPPED)),
    events.LeaveAsked(),
    events.NodeExcluded("GPU 3"),
    events.EndAsked("verdict"),
    events.PartEnded(),
    events.HurryAsked(),
    events.TimePassed(),
    events.Slept(0.2),
    events.SignalSent(10),
    asks.AskSent(asks.Ask.STACKS),
    asks.AskDone(asks.Ask.STACKS, "b.1.1"),
]

# A request answered that was never made, a beginning that was, an end that nobody asked for.
IMPOSSIBLE = {
    ("MeetingBegan", "*"),
    ("SessionOpened", "IDLE REGISTERING PRESENT SILENT"),
    ("StoreNotReached", "IDLE REGISTERING PRESENT SILENT"),
    ("SessionClosed", "IDLE OPENING REGISTERING PRESENT SILENT DRAINING CLOSED"),
}


def is_impossible(event: object, state: MemberState) -> bool:
    if isinstance(event, events.MeetingBegan):
        return state is not MemberState.IDLE
    if (
        state is MemberState.IDLE
    ):  # nothing was asked of a store, and the agent tells of nothing before it began
        return not isinstance(event, events.TimePassed)
    return any(name == type(event).__name__ and state.name in states.split() for name, states in IMPOSSIBLE)


def member_in(state: MemberState) -> MemberMachine:
    """A machine that came to this state as a job would. It hosts the store, so that it has something to drain."""
    membership = MembershipSettings(
        run_id="job", node_id="a", host="a", slots=1, min_nodes=2, max_nodes=2, ttl_s=15.0
    )
    machine = MemberMachine(membership, leader_policy(RestartPolicy()))
    present = [
        events.MeetingBegan(),
        OPENED,
        REGISTERED,
        EMPTY,
        events.Transacted("campaign", True, 6, ((HERE,),)),
    ]
    ways: dict[MemberState, list[tuple[object, float]]] = {
        MemberState.IDLE: [],
        MemberState.OPENING: [(one, NOW) for one in present[:1]],
        MemberState.REGISTERING: [(one, NOW) for one in present[:2]],
        MemberState.PRESENT: [(one, NOW) for one in present],
        MemberState.SILENT: [*[(one, NOW) for one in present], (events.TimePassed(), NOW + 9.0)],
        MemberState.DRAINING: [(one, NOW) for one in (*present[:3], RAN, present[4], events.PartEnded())],
        MemberState.CLOSING: [(one, NOW) for one in (*present[:1], events.PartEnded())],
        MemberState.CLOSED: [
            (one, NOW) for one in (*present[:1], events.PartEnded(), events.SessionClosed())
        ],
    }
    for event, now in ways[state]:
        machine.step(event, now)
    assert machine.state is state
    return machine


def test_the_pairs_below_are_of_all_events() -> None:
    assert {type(one) for one in EVENTS} == set(MemberMachine.table)


@pytest.mark.parametrize("state", MemberState, ids=lambda one: one.name)
@pytest.mark.parametrize("event", EVENTS, ids=lambda one: f"{one!r:.40}")
def test_each_pair_is_an_arrow_a_reasoned_void_or_refused_without_a_trace(
    event: object, state: MemberState
) -> None:
    machine = member_in(state)
    entry = machine.table[type(event)].get(state)
    now = NOW + 9.5 if state is MemberState.SILENT else NOW + 1.0
    if is_impossible(event, state):
        assert entry is None, "it cannot happen"
        with pytest.raises(UnlistedEvent):
            machine.step(event, now)
        assert machine.state is state
        return
    assert entry is not None, "listed, or named as impossible above"
    commands = machine.step(event, now)
    if isinstance(entry, Void):
        assert len(entry.reason.split()) > 2, "a void pair tells why"
        assert (commands, machine.state) == ([], state)
    assert machine.deadline is None or machine.deadline > now - 60, "a time to wake at is near, or none"


@pytest.mark.parametrize("state", [MemberState.REGISTERING, MemberState.PRESENT])
@pytest.mark.parametrize("event", EVENTS, ids=lambda one: f"{one!r:.40}")
def test_whoever_wakes_too_late_is_silent_before_anything_else(event: object, state: MemberState) -> None:
    if is_impossible(event, state) or isinstance(
        event, events.LeaseRenewed | events.LeaseEnded | events.Slept
    ):
        return
    machine = member_in(state)
    commands = machine.step(event, NOW + 60)
    assert isinstance(commands[0], events.Told)
    assert "the store has not answered for 60.0 s" in commands[0].text


def test_a_computer_that_slept_for_a_lease_is_silent_although_its_clock_stood_still() -> None:
    machine = member_in(MemberState.PRESENT)
    machine.step(events.Slept(20.0), NOW + 1)
    machine.step(events.TimePassed(), NOW + 1)
    assert machine.state is not MemberState.PRESENT


# Random histories


class AnyFleet(RuleBasedStateMachine):
    """Agents come, leave, fail, freeze and are cut off; answers are lost or late; the store loses its data.

    The fleet itself checks each start of workers: one membership per round, ranks once each, one count and reason, no
    worker beside one of another round. A store without data, found by newcomers alone, cannot know of earlier workers;
    that is a limit which the pages name, and here somebody who remembers is always left.
    """

    MIN, MAX, RESTARTS, NODES_MAX = 2, 3, 3, 6

    @initialize(
        many=st.integers(2, 4), is_running=st.booleans(), stops_all=st.sampled_from([False, False, True])
    )
    def begin(self, many: int, is_running: bool, stops_all: bool) -> None:
        self.fleet = Fleet(
            min_nodes=self.MIN,
            max_nodes=self.MAX,
            max_restarts=self.RESTARTS,
            last_call_s=10.0,
            join_timeout_s=1e5,
            store_timeout_s=1e5,
            stops_all=stops_all,
        )
        self.failures = 0
        self.names = 0
        self.verdicts: set[str] = set()
        self.held: list[Any] = []
        for _ in range(many):
            self.one_more()
        if is_running:
            self.fleet.run(12.0)

    def pick(self, number: int) -> Agent | None:
        alive = [one for one in self.fleet.agents.values() if not one.is_over]
        return alive[number % len(alive)] if alive else None

    numbers = st.integers(0, NODES_MAX - 1)

    @precondition(lambda self: self.names < self.NODES_MAX)
    @rule()
    def one_more(self) -> None:
        self.fleet.start(f"n{self.names}")
        self.names += 1

    @rule(seconds=st.sampled_from([0.1, 0.6, 3.0, 10.0, 16.0, 40.0]))
    def time_passes(self, seconds: float) -> None:
        self.fleet.run(seconds)

    @rule(number=numbers, summary=st.sampled_from(["ValueError: x", "Connection reset by peer"]))
    def a_worker_fails(self, number: int, summary: str) -> None:
        agent = self.pick(number)
        if agent is not None and agent.alive:
            self.failures += 1
            self.fleet.fail(agent.name, summary=summary)

    @rule(number=numbers)
    def workers_finish(self, number: int) -> None:
        agent = self.pick(number)
        if agent is not None and agent.alive:
            self.fleet.finish(agent.name)

    @rule(number=numbers, obeys=st.booleans())
    def workers_are_deaf(self, number: int, obeys: bool) -> None:
        agent = self.pick(number)
        if agent is not None:
            agent.obeys = obeys

    @rule(number=numbers)
    def a_node_leaves(self, number: int) -> None:
        agent = self.pick(number)
        if agent is not None:
            self.fleet.leave(agent.name)

    @rule(number=numbers)
    def a_node_dies(self, number: int) -> None:
        agent = self.pick(number)
        if agent is not None:
            self.fleet.kill(agent.name)

    @rule(number=numbers, what=st.sampled_from(["cut", "freeze"]))
    def a_node_is_apart(self, number: int, what: str) -> None:
        agent = self.pick(number)
        if agent is not None:
            getattr(self.fleet, what)(agent.name)

    @rule(number=numbers)
    def a_node_is_back(self, number: int) -> None:
        agent = self.pick(number)
        if agent is not None:
            self.fleet.thaw(agent.name)
            self.fleet.heal(agent.name)

    @rule(number=numbers, is_deaf=st.booleans())
    def a_node_hears_late(self, number: int, is_deaf: bool) -> None:
        agent = self.pick(number)
        if agent is not None:
            agent.link.is_deaf = is_deaf
            if not is_deaf and not agent.is_frozen:
                self.fleet.heal(agent.name)

    @rule(
        number=numbers,
        purpose=st.sampled_from(["lead", "join", "campaign", "leave", "register", "report outcome"]),
        is_applied=st.booleans(),
    )
    def an_answer_is_lost(self, number: int, purpose: str, is_applied: bool) -> None:
        agent = self.pick(number)
        if agent is not None:
            agent.link.lose_answer(purpose, is_applied=is_applied)

    @rule(
        number=numbers,
        purpose=st.sampled_from(["lead", "join", "campaign", "report outcome"]),
        has_arrived=st.booleans(),
    )
    def a_request_is_slow(self, number: int, purpose: str, has_arrived: bool) -> None:
        agent = self.pick(number)
        if agent is not None and purpose not in agent.link.holds:
            link = agent.link
            self.held.append(link.hold_answers(purpose) if has_arrived else link.hold(purpose))

    @precondition(lambda self: self.held)
    @rule()
    def slow_requests_arrive(self) -> None:
        for one in self.held:
            one.deliver()
        self.held.clear()

    @rule()
    def the_store_is_silent(self) -> None:
        self.fleet.lose_store()

    @rule()
    def the_store_is_back(self) -> None:
        if not self.fleet.is_store_up:
            self.fleet.serve_store(is_empty=False)

    @invariant()
    def the_budget_holds_and_there_is_one_verdict(self) -> None:
        if not hasattr(self, "fleet"):
            return
        found = self.fleet.read(self.fleet.keys.verdict)
        if found is not None:
            self.verdicts.add(found.value.decode())
        assert len(self.verdicts) <= 1, self.fleet.story()
        for agent in self.fleet.agents.values():
            for formed in agent.formed:
                assert formed.restart_count <= min(self.failures, self.RESTARTS), self.fleet.story()

    def teardown(self) -> None:
        """Heal everything, and demand that all who stay run together or have ended."""
        if not hasattr(self, "fleet"):
            return
        fleet = self.fleet
        self.the_store_is_back()
        self.slow_requests_arrive()
        for agent in fleet.agents.values():
            agent.link.losses.clear()
            agent.link.holds.clear()
            agent.link.is_deaf = False
            agent.obeys = True
        fleet.thaw()
        fleet.heal()
        fleet.run(60.0)  # who leaves has left
        self.the_budget_holds_and_there_is_one_verdict()
        if not self.verdicts:
            while sum(not one.is_over for one in fleet.agents.values()) < self.MIN:
                self.names += 1
                fleet.start(f"late{self.names}")
        fleet.run_until(self.is_well, within_s=300.0)

    def is_well(self) -> bool:
        alive = [one for one in self.fleet.agents.values() if not one.is_over]
        if not alive:
            return True
        staying = [one for one in alive if one.machine.state.name != "LEAVING"]
        running = [one for one in staying if one.alive and not one.is_stopping]
        done = [
            one for one in staying if one.formed and not one.alive and one.machine.state.name == "WAITING"
        ]
        numbers = {one.round.number for one in running if one.round is not None}
        # Who has succeeded may leave; who comes after the first success waits for the job's end.
        has_success = any(
            b'"succeeded"' in found.value
            for number in numbers
            for key in self.fleet.under(self.fleet.keys.reports(number))
            if key.endswith("/outcome") and (found := self.fleet.read(key)) is not None
        )
        enough = has_success or len(running) + len(done) >= min(len(staying), self.MIN)
        return len(numbers) <= 1 and enough and len(staying) == len(alive) and bool(running)


AnyFleet.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyFleet = AnyFleet.TestCase


def test_a_store_that_takes_renewals_and_no_write_is_given_up_after_the_store_timeout() -> None:
    machine = member_in(MemberState.PRESENT)
    full = events.TransactionUnclear("exclude", "No space left on device")
    commands: list[object] = machine.step(events.NodeExcluded("GPU 3"), NOW)
    for second in range(0, 66, 3):
        assert not [one for one in commands if isinstance(one, events.MeetingFailed)]
        machine.step(events.LeaseRenewed(NOW + second), NOW + second)
        commands = machine.step(full, NOW + second)
        if second >= 60:
            break
    (failed,) = [one for one in commands if isinstance(one, events.MeetingFailed)]
    assert failed.reason == "the store has taken no write for 60 s (store_timeout): No space left on device"
