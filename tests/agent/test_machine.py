"""The agent machine and the group machine that it owns: stories, every (event, state) pair, and random histories."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from phalanx.agent.group import (
    AnnounceStop,
    DeadlinePassed,
    ExceptionSeen,
    GroupMachine,
    GroupState,
    MembersRemain,
    RoundSettled,
    Say,
    SpawnFailed,
    SpawnWorkers,
    StopAsked,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.machine import (
    AgentMachine,
    AgentState,
    CollectEvidence,
    EvidenceCollected,
    Finish,
    JobBegan,
    OpenRound,
    PassOn,
    RoundFailed,
    SignalPassed,
)
from phalanx.agent.verdict import Ending, Failure
from phalanx.machine import UnlistedEvent, Void
from phalanx.multiprocessing.machine import NameStuck, SignalTree, SignalWorkers, StopRepeated
from phalanx.rendezvous.round import Round

TERM, INT, KILL = 15, 2, 9
PIDS = {0: 100, 1: 101}


def a_round(number: int, restart_count: int = 0, nproc: int = 2) -> Round:
    return Round(
        number=number,
        restart_count=restart_count,
        reason="",
        group_rank=0,
        group_world_size=1,
        first_rank=0,
        local_world_size=nproc,
        world_size=nproc,
        master_addr="127.0.0.1",
        master_port=29500,
    )


def running(max_restarts: int = 0) -> AgentMachine:
    """An agent with two workers that run since second 0."""
    machine = AgentMachine(2, max_restarts=max_restarts, grace_s=30)
    assert machine.step(JobBegan(), 0) == [OpenRound(1, 0, "")]
    settle(machine, 1)
    return machine


def settle(machine: AgentMachine, number: int, now: float = 0) -> None:
    settled = a_round(number)
    assert machine.step(RoundSettled(settled), now) == [SpawnWorkers(settled)]
    assert machine.step(WorkersSpawned(PIDS), now) == []
    assert machine.state is AgentState.RUNNING


def failures_of(command: CollectEvidence) -> tuple[Failure, ...]:
    """What a driver without error files would make of the exits."""
    return tuple(
        Failure(
            rank=one.local_rank,
            local_rank=one.local_rank,
            pid=1,
            exit_code=one.exit_code,
            exited_at=one.at,
            signed_at=one.signed_at,
            stopped_at=one.stopped_at,
            why_not_started=one.why_not_started,
        )
        for one in command.exits
        if one.exit_code != 0
    )


def only(commands: list[Any], kind: type) -> Any:
    """The one command of this kind."""
    (found,) = [one for one in commands if isinstance(one, kind)]
    return found


def collect(machine: AgentMachine, commands: list[Any], now: float) -> list[Any]:
    return machine.step(EvidenceCollected(failures_of(only(commands, CollectEvidence))), now)


def test_a_job_whose_workers_all_succeed_ends_with_0_after_the_sweep() -> None:
    machine = running()
    assert machine.step(WorkersExited({0: 0}), 1) == []
    assert machine.step(WorkersExited({1: 0}), 2) == [SignalTree(TERM)]
    commands = machine.step(TreeEmptied(), 2)
    verdict = only(collect(machine, commands, 2), Finish).verdict
    assert (verdict.ending, verdict.exit_code) == (Ending.SUCCEEDED, 0)


def test_a_failed_worker_stops_the_others_with_the_configured_grace() -> None:
    machine = running()
    assert machine.step(WorkersExited({1: 7}), 1) == [
        Say("rank 1 failed: asked 1 other worker to stop, 30 s of grace"),
        AnnounceStop(TERM, 30),
        SignalWorkers(TERM),
    ]
    assert machine.deadline == 31
    assert machine.step(WorkersExited({0: -TERM}), 2) == [SignalTree(TERM)]
    commands = machine.step(TreeEmptied(), 2)
    verdict = only(collect(machine, commands, 2), Finish).verdict
    assert (verdict.ending, verdict.exit_code, verdict.cause.rank) == (Ending.FAILED, 7, 1)
    assert [one.is_collateral for one in verdict.failures] == [True, False]


def test_two_workers_found_dead_in_one_look_are_both_primary() -> None:
    machine = running()
    machine.step(WorkersExited({0: 3, 1: 7}), 1)
    commands = machine.step(TreeEmptied(), 1)
    verdict = only(collect(machine, commands, 1), Finish).verdict
    assert verdict.exit_code == 3
    assert not any(one.is_collateral for one in verdict.failures)


def test_an_exception_told_early_makes_its_rank_the_cause_although_it_exits_last() -> None:
    machine = running()
    machine.step(ExceptionSeen(1, 6.0), 6.1)
    machine.step(WorkersExited({0: 1}), 7)
    machine.step(WorkersExited({1: 1}), 9)
    verdict = only(collect(machine, machine.step(TreeEmptied(), 9), 9), Finish).verdict
    assert verdict.cause.rank == 1


def test_a_failure_is_retried_as_often_as_the_limit_says_with_a_new_round_each_time() -> None:
    machine = running(max_restarts=2)
    for attempt in (1, 2):
        machine.step(WorkersExited({0: 1, 1: 1}), attempt)
        commands = collect(machine, machine.step(TreeEmptied(), attempt), attempt)
        assert only(commands, OpenRound).number == attempt + 1
        assert only(commands, OpenRound).restart_count == attempt
        assert f"restart {attempt} of 2" in only(commands, Say).text
        settle(machine, attempt + 1, attempt)
    machine.step(WorkersExited({0: 5, 1: 1}), 3)
    verdict = only(collect(machine, machine.step(TreeEmptied(), 3), 3), Finish).verdict
    assert (verdict.exit_code, verdict.reason) == (5, "all 2 restarts are used")


def test_workers_that_ignore_the_request_lose_their_tree_after_the_grace() -> None:
    machine = running()
    machine.step(WorkersExited({1: 7}), 1)
    assert machine.step(DeadlinePassed(), 31) == [
        Say("rank 0 did not end within the grace and will be killed"),
        SignalTree(TERM),
    ]
    assert machine.deadline == pytest.approx(31.5)
    assert machine.step(MembersRemain(), 31.2) == [SignalTree(TERM)]
    assert machine.step(DeadlinePassed(), 31.5) == [SignalTree(KILL)]
    assert machine.step(WorkersExited({0: -KILL}), 31.6) == []
    commands = machine.step(TreeEmptied(), 31.6)
    assert only(collect(machine, commands, 31.6), Finish).verdict.exit_code == 7


def test_a_worker_that_the_kernel_does_not_let_go_is_named_and_never_a_success() -> None:
    machine = running()
    machine.step(WorkersExited({1: 0}), 1)
    machine.step(StopAsked(TERM, 3), 2)
    machine.step(DeadlinePassed(), 5)
    machine.step(DeadlinePassed(), 5.5)
    commands = machine.step(DeadlinePassed(), 10.5)
    assert NameStuck() in commands
    assert {one.local_rank: one.exit_code for one in only(commands, CollectEvidence).exits} == {
        0: -KILL,
        1: 0,
    }
    assert only(collect(machine, commands, 11), Finish).verdict.exit_code == 128 + TERM
    assert machine.step(WorkersExited({0: -KILL}), 100) == []


def test_a_stop_signal_reaches_workers_as_it_came_and_is_announced_first() -> None:
    machine = running(max_restarts=3)
    commands = machine.step(StopAsked(INT, 10), 1)
    assert commands[1:] == [AnnounceStop(INT, 10), SignalWorkers(INT)]
    assert machine.deadline == 11
    machine.step(WorkersExited({0: -INT, 1: 1}), 2)
    verdict = only(collect(machine, machine.step(TreeEmptied(), 2), 2), Finish).verdict
    assert (verdict.ending, verdict.exit_code) == (Ending.STOPPED, 130)


def test_workers_that_end_well_after_a_stop_request_are_a_stopped_job() -> None:
    machine = running()
    machine.step(StopAsked(TERM, 10), 1)
    machine.step(WorkersExited({0: 0, 1: 0}), 2)
    assert only(collect(machine, machine.step(TreeEmptied(), 2), 2), Finish).verdict.exit_code == 143


def test_a_double_signal_is_one_and_a_later_one_cuts_the_grace() -> None:
    machine = running()
    machine.step(StopAsked(TERM, 30), 1)
    machine.step(StopAsked(TERM, 30), 1.2)
    assert machine.deadline == 31
    machine.step(StopAsked(TERM, 30), 2)
    assert machine.deadline == 2.5


def test_a_stop_request_during_a_failure_stop_keeps_its_deadline_and_the_next_one_cuts_it() -> None:
    machine = running(max_restarts=3)
    machine.step(WorkersExited({0: 1}), 1)
    told = machine.step(StopAsked(TERM, 60), 5)
    assert told == [Say("SIGTERM: the workers are being stopped already; again to end them at once")]
    machine.step(StopAsked(TERM, 60), 5.02)
    assert machine.deadline == 31, "the double of the request is no second request"
    machine.step(StopAsked(TERM, 60), 6)
    assert machine.deadline == 6.5


def test_a_stop_request_prevents_the_restart_that_was_due() -> None:
    machine = running(max_restarts=3)
    machine.step(WorkersExited({0: 1}), 1)
    machine.step(StopAsked(TERM, 60), 2)
    machine.step(WorkersExited({1: -TERM}), 3)
    verdict = only(collect(machine, machine.step(TreeEmptied(), 3), 3), Finish).verdict
    assert (verdict.ending, verdict.exit_code) == (Ending.STOPPED, 143)


def test_a_final_failure_before_the_stop_request_stays_the_end_of_the_job() -> None:
    machine = running(max_restarts=0)
    machine.step(WorkersExited({0: 9}), 1)
    machine.step(StopAsked(TERM, 60), 2)
    machine.step(WorkersExited({1: -TERM}), 3)
    verdict = only(collect(machine, machine.step(TreeEmptied(), 3), 3), Finish).verdict
    assert (verdict.ending, verdict.exit_code) == (Ending.FAILED, 9)


def test_a_stop_request_while_the_evidence_of_a_success_is_read_changes_nothing() -> None:
    machine = running()
    machine.step(WorkersExited({0: 0, 1: 0}), 1)
    commands = machine.step(TreeEmptied(), 1)
    machine.step(StopAsked(TERM, 30), 1.1)
    assert only(collect(machine, commands, 1.2), Finish).verdict.exit_code == 0


def test_the_first_of_two_stop_requests_names_the_exit_code() -> None:
    machine = running()
    machine.step(StopAsked(INT, 10), 1)
    machine.step(WorkersExited({0: -INT, 1: -INT}), 2)
    commands = machine.step(TreeEmptied(), 2)
    machine.step(StopAsked(TERM, 10), 2.1)
    assert only(collect(machine, commands, 3), Finish).verdict.exit_code == 130


def test_a_stop_request_between_spawning_and_spawned_is_obeyed_once_the_workers_exist() -> None:
    machine = AgentMachine(2, max_restarts=0, grace_s=30)
    machine.step(JobBegan(), 0)
    machine.step(RoundSettled(a_round(1)), 0)
    machine.step(StopAsked(TERM, 4), 1)
    assert machine.step(WorkersSpawned(PIDS), 2) == [AnnounceStop(TERM, 4), SignalWorkers(TERM)]


def test_a_stop_request_before_any_worker_ends_the_job_at_once() -> None:
    machine = AgentMachine(2, max_restarts=0, grace_s=30)
    machine.step(JobBegan(), 0)
    assert only(machine.step(StopAsked(TERM, 30), 1), Finish).verdict.exit_code == 143


def test_a_round_that_does_not_form_is_exit_code_75() -> None:
    machine = AgentMachine(2, max_restarts=0, grace_s=30)
    machine.step(JobBegan(), 0)
    verdict = only(machine.step(RoundFailed("no port"), 1), Finish).verdict
    assert (verdict.exit_code, verdict.reason) == (75, "no port")


def test_a_command_that_cannot_be_executed_is_a_failure_with_the_shells_code() -> None:
    machine = AgentMachine(2, max_restarts=0, grace_s=30)
    machine.step(JobBegan(), 0)
    machine.step(RoundSettled(a_round(1)), 0)
    assert machine.step(SpawnFailed(1, 127, "'x' was not found"), 0) == [SignalTree(TERM)]
    verdict = only(collect(machine, machine.step(TreeEmptied(), 0), 0), Finish).verdict
    assert (verdict.exit_code, verdict.cause.why_not_started) == (127, "'x' was not found")


def test_a_signal_that_stops_nothing_is_passed_on() -> None:
    machine = running()
    assert machine.step(SignalPassed(10), 1) == [PassOn(10)]
    assert machine.state is AgentState.RUNNING


EVENTS: list[object] = [
    JobBegan(),
    RoundSettled(a_round(2)),
    RoundFailed("no port"),
    WorkersSpawned(PIDS),
    SpawnFailed(1, 127, "not found"),
    WorkersExited({0: 1}),
    ExceptionSeen(1, 0.5),
    StopAsked(TERM, 30),
    StopRepeated(),
    SignalPassed(10),
    TreeEmptied(),
    MembersRemain(),
    DeadlinePassed(),
    EvidenceCollected(()),
]


def agent_in(state: AgentState) -> AgentMachine:
    """A machine that came to this state as a job would."""
    machine = AgentMachine(2, max_restarts=1, grace_s=30)
    steps: dict[AgentState, list[object]] = {
        AgentState.NEW: [],
        AgentState.FORMING: [JobBegan()],
        AgentState.RUNNING: [JobBegan(), RoundSettled(a_round(1)), WorkersSpawned(PIDS)],
        AgentState.LEAVING: [
            JobBegan(),
            RoundSettled(a_round(1)),
            WorkersSpawned(PIDS),
            StopAsked(TERM, 30),
            WorkersExited({1: 0}),
        ],
        AgentState.COLLECTING: [
            JobBegan(),
            RoundSettled(a_round(1)),
            WorkersSpawned(PIDS),
            WorkersExited({0: 0, 1: 0}),
            TreeEmptied(),
        ],
        AgentState.ENDED: [JobBegan(), RoundFailed("no port")],
    }
    for event in steps[state]:
        machine.step(event, 0)
    assert machine.state is state
    return machine


def group_in(state: GroupState) -> GroupMachine:
    machine = GroupMachine(2, grace_s=30)
    ways: dict[GroupState, list[object]] = {
        GroupState.IDLE: [],
        GroupState.STARTING: [RoundSettled(a_round(1))],
        GroupState.RUNNING: [RoundSettled(a_round(1)), WorkersSpawned(PIDS)],
        GroupState.STOPPING: [RoundSettled(a_round(1)), WorkersSpawned(PIDS), WorkersExited({1: 3})],
        GroupState.ENDED: [
            RoundSettled(a_round(1)),
            WorkersSpawned(PIDS),
            WorkersExited({0: 0, 1: 0}),
            TreeEmptied(),
        ],
    }
    for event in ways[state]:
        machine.step(event, 0)
    assert machine.state is state
    return machine


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", [*AgentState, *GroupState], ids=str)
def test_each_pair_is_an_arrow_a_reasoned_void_or_refused_without_a_trace(
    state: AgentState | GroupState, event: object
) -> None:
    machine: AgentMachine | GroupMachine
    name = type(event).__name__
    if isinstance(state, AgentState):
        machine = agent_in(state)
        is_impossible = (name, state.name) in AGENT_IMPOSSIBLE
        if state in (
            AgentState.RUNNING,
            AgentState.LEAVING,
        ):  # handed on to the group, which refuses for itself
            is_impossible |= (name, machine.group.state.name) in GROUP_IMPOSSIBLE
    else:
        machine = group_in(state)
        is_impossible = (name, state.name) in GROUP_IMPOSSIBLE
    row: Any = machine.table.get(type(event), {})
    entry = row.get(state)
    if is_impossible or type(event) not in machine.table:
        with pytest.raises(UnlistedEvent):
            machine.step(event, 1)
        assert machine.state is state
        return
    assert entry is not None, "listed, or named as impossible above"
    commands = machine.step(event, 1)
    machine.check()
    if isinstance(entry, Void):
        assert len(entry.reason.split()) > 2, "a void pair tells why"
        assert (commands, machine.state) == ([], state)


def pairs(event: str, *states: str) -> set[tuple[str, str]]:
    return {(event, state) for state in states}


# What cannot happen, for the reviewer's eye: a worker's news without a worker, an answer without its question.
AGENT_IMPOSSIBLE = {
    *pairs("JobBegan", "FORMING", "RUNNING", "LEAVING", "COLLECTING"),
    *pairs("RoundSettled", "NEW", "RUNNING", "LEAVING", "COLLECTING"),
    *pairs("RoundFailed", "NEW", "RUNNING", "LEAVING", "COLLECTING"),
    *pairs("WorkersSpawned", "NEW", "FORMING", "COLLECTING", "ENDED"),
    *pairs("SpawnFailed", "NEW", "FORMING", "COLLECTING", "ENDED"),
    *pairs("WorkersExited", "NEW"),
    *pairs("TreeEmptied", "NEW"),
    *pairs("MembersRemain", "NEW"),
    *pairs("EvidenceCollected", "NEW", "FORMING", "RUNNING", "LEAVING", "ENDED"),
}
GROUP_IMPOSSIBLE = {
    *pairs("RoundSettled", "STARTING", "RUNNING", "STOPPING", "ENDED"),
    *pairs("WorkersSpawned", "IDLE", "RUNNING", "STOPPING", "ENDED"),
    *pairs("SpawnFailed", "IDLE", "RUNNING", "STOPPING", "ENDED"),
    *pairs("WorkersExited", "IDLE", "STARTING"),
    *pairs("StopRepeated", "IDLE", "RUNNING"),
    *pairs("TreeEmptied", "IDLE", "STARTING", "RUNNING"),
    *pairs("MembersRemain", "IDLE", "STARTING", "RUNNING"),
}


def test_an_unlisted_pair_is_refused_by_name() -> None:
    with pytest.raises(UnlistedEvent, match="WorkersExited in state NEW"):
        AgentMachine(1, max_restarts=0, grace_s=1).step(WorkersExited({0: 0}), 0)
    group = GroupMachine(1, grace_s=1)
    group.step(RoundSettled(a_round(1, nproc=1)), 0)
    group.step(WorkersSpawned({0: 1}), 0)
    with pytest.raises(UnlistedEvent, match="StopRepeated in state RUNNING"):
        group.step(StopRepeated(), 0)


class AnyHistory(RuleBasedStateMachine):
    """A driver that performs commands faithfully while workers die, people signal and time passes at random."""

    @initialize(nproc=st.integers(1, 4), max_restarts=st.integers(0, 3))
    def begin(self, nproc: int, max_restarts: int) -> None:
        self.now = 0.0
        self.nproc = nproc
        self.max_restarts = max_restarts
        self.machine = AgentMachine(nproc, max_restarts=max_restarts, grace_s=5)
        self.alive: set[int] = set()
        self.to_report: dict[int, int] = {}
        self.starts = 0
        self.children_left = False
        self.stuck = False
        self.pending: list[object] = []
        self.post(JobBegan())

    def post(self, event: object) -> None:
        inbox = [event]
        while inbox:
            taken = inbox.pop(0)
            for command in self.machine.step(taken, self.now):
                inbox += self.perform(command)

    def perform(self, command: Any) -> list[object]:
        match command:
            case OpenRound():
                assert not self.alive, "a new round opens only when the old workers are gone"
                self.pending = [RoundSettled(a_round(command.number, command.restart_count, self.nproc))]
            case SpawnWorkers():
                assert not self.alive
                self.starts += 1
                self.alive = set(range(self.nproc))
                return [WorkersSpawned({one: 100 + one for one in self.alive})]
            case SignalTree(signal=9):
                self.children_left = False
                self.to_report.update(dict.fromkeys(self.alive, -9))
                self.alive.clear()
                return [TreeEmptied()]
            case SignalTree():
                return [] if self.children_left or self.alive else [TreeEmptied()]
            case CollectEvidence():
                assert not self.alive, "evidence is read when all are gone"
                self.pending = [EvidenceCollected(failures_of(command))]
        return []

    @precondition(lambda self: self.pending)
    @rule()
    def the_driver_answers(self) -> None:
        self.post(self.pending.pop())

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), code=st.sampled_from([0, 0, 0, 1, 7, -9]), leaves_child=st.booleans())
    def a_worker_ends(self, data: st.DataObject, code: int, leaves_child: bool) -> None:
        rank = data.draw(st.sampled_from(sorted(self.alive)))
        self.alive.discard(rank)
        self.children_left |= leaves_child
        self.to_report[rank] = code

    @precondition(lambda self: self.to_report)
    @rule()
    def exits_are_seen(self) -> None:
        codes, self.to_report = self.to_report, {}
        self.post(WorkersExited(codes))

    @precondition(lambda self: self.children_left)
    @rule()
    def the_children_end(self) -> None:
        self.children_left = False
        if self.machine.group.state is GroupState.STOPPING and not self.alive:
            self.post(TreeEmptied())

    @rule(signal=st.sampled_from([TERM, INT]))
    def somebody_asks_to_stop(self, signal: int) -> None:
        self.post(StopAsked(signal, 5))

    @rule(local_rank=st.integers(0, 3))
    def an_exception_is_told(self, local_rank: int) -> None:
        if local_rank < self.nproc:
            self.post(ExceptionSeen(local_rank, self.now))

    @rule(seconds=st.floats(0.01, 10))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        if self.machine.deadline is not None and self.machine.deadline <= self.now:
            self.post(DeadlinePassed())

    @invariant()
    def the_budget_holds(self) -> None:
        if hasattr(self, "starts"):
            assert self.starts <= self.max_restarts + 1

    def teardown(self) -> None:
        """Whatever happened: with time and a faithful driver the job comes to its end, and nothing is alive then."""
        if not hasattr(self, "machine"):
            return
        self.post(StopAsked(TERM, 5))
        for _ in range(50):
            if self.machine.state is AgentState.ENDED:
                break
            if self.pending:
                self.the_driver_answers()
            elif self.to_report:
                self.exits_are_seen()
            else:
                self.time_passes(10)
        assert self.machine.state is AgentState.ENDED
        assert not self.alive


AnyHistory.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase
