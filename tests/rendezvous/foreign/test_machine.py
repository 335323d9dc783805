"""The machine for handlers of others, with the agent's, on all ways that a handler, workers and signals can take it."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from phalanx.agent.events import CollectEvidence, EvidenceCollected, Finish, JobBegan
from phalanx.agent.graces import Graces
from phalanx.agent.group import (
    DeadlinePassed,
    SpawnWorkers,
    StopAsked,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.machine import AgentMachine
from phalanx.agent.restarts.leader import leader_policy
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.verdict.verdict import Failure, Verdict
from phalanx.machine import Void
from phalanx.multiprocessing.machine import SignalTree, SignalWorkers
from phalanx.rendezvous import asks, events
from phalanx.rendezvous.foreign import events as foreign_events
from phalanx.rendezvous.foreign.machine import ForeignMachine, ForeignState
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.stored import Outcome, Report

STEPS_MAX = 400


def settled(number: int = 1, restart_count: int = 0) -> Round:
    return Round(
        number=number,
        restart_count=restart_count,
        reason="",
        group_rank=0,
        group_world_size=2,
        first_rank=0,
        local_world_size=1,
        world_size=2,
        master_addr="a",
        master_port=1,
    )


def foreign_machine(max_restarts: int = 1, **settings: Any) -> ForeignMachine:
    record = MembershipSettings(
        run_id="job", node_id="a", host="a", slots=1, min_nodes=1, max_nodes=2, **settings
    )
    return ForeignMachine(record, leader_policy(RestartPolicy(max_restarts=max_restarts)), backend="hall")


class World:
    """One agent whose handler, worker and user do what ``choose`` says. What can happen next is ``possible``."""

    def __init__(self, max_restarts: int) -> None:
        self.membership = foreign_machine(max_restarts)
        restarts = RestartPolicy(max_restarts=max_restarts)
        self.agent = AgentMachine(1, membership=self.membership, restarts=restarts, graces=Graces.alike(5.0))
        self.now = 0.0
        self.verdict: Verdict | None = None
        self.has_worker = False
        self.rounds: list[Round] = []
        self.answers: list[Any] = []  # what the handler's one call can end with
        self.is_watching = False
        self.stops = 0
        self.closed: list[type] = []
        self._inbox: deque[Any] = deque()
        self.post(JobBegan())

    def post(self, what: Any) -> None:
        self._inbox.append(what)
        while self._inbox and self.verdict is None:
            for command in self.agent.step(self._inbox.popleft(), self.now):
                self._perform(command)

    def _perform(self, command: Any) -> None:
        if isinstance(command, events.HoldPort):
            self._inbox.append(events.PortHeld(command.number, 5))
        elif isinstance(command, foreign_events.Meet):
            assert not self.has_worker, "a round was asked for beside a worker of the last one"
            self.is_watching = False
            self.answers = [
                foreign_events.Met(settled(command.number, command.restart_count)),
                foreign_events.Met(settled(command.number + 2, command.restart_count + 1)),
                foreign_events.NotMet("timeout"),
                foreign_events.NoMeeting("closed"),
                foreign_events.NotNeeded(),
            ]
        elif isinstance(command, foreign_events.WatchNodes):
            self.is_watching, self.answers = True, []
        elif isinstance(command, foreign_events.AwaitOthers):
            self.is_watching, self.answers = True, [foreign_events.OthersDone()]
        elif isinstance(command, foreign_events.CloseHandler | foreign_events.LeaveHandler):
            self.closed.append(type(command))
            self.is_watching = False
            self.answers = [foreign_events.HandlerClosed(), foreign_events.HandlerClosed("gone")]
        elif isinstance(command, SpawnWorkers):
            self.has_worker = True
            self.rounds.append(command.round)
            self._inbox.append(WorkersSpawned({0: 1}))
        elif isinstance(command, SignalTree):
            self._inbox.append(TreeEmptied())
        elif isinstance(command, SignalWorkers):
            self._end_worker(-command.signal)
        elif isinstance(command, CollectEvidence):
            failures = tuple(
                Failure(
                    rank=0,
                    local_rank=0,
                    pid=1,
                    exit_code=one.exit_code,
                    exited_at=one.at,
                    stopped_at=one.stopped_at,
                )
                for one in command.exits
                if one.exit_code
            )
            self._inbox.append(EvidenceCollected(failures))
        elif isinstance(command, Finish):
            self.verdict = command.verdict

    def _end_worker(self, code: int) -> None:
        if self.has_worker:
            self.has_worker = False
            self._inbox.append(WorkersExited({0: code}))

    def possible(self) -> list[str]:
        found = [f"answer {index}" for index in range(len(self.answers))]
        if self.is_watching:
            found += ["nodes", "no look"]
        if self.has_worker:
            found += ["succeed", "fail"]
        if self.agent.deadline is not None:
            found.append("time")
        if self.stops < 3:
            found.append("stop")
        return found

    def happen(self, what: str) -> None:
        self.now += 1.0
        word, _, index = what.partition(" ")
        if word == "answer":
            answer, self.answers = self.answers[int(index)], []
            self.post(answer)
        elif what == "nodes":
            self.is_watching, self.answers = False, []
            self.post(foreign_events.NodesArrived(1))
        elif what == "no look":
            self.post(foreign_events.LookFailed("timeout"))
        elif what in ("succeed", "fail"):
            self.has_worker = False
            self.post(WorkersExited({0: 0 if what == "succeed" else 3}))
        elif what == "time":
            assert self.agent.deadline is not None
            self.now = max(self.now, self.agent.deadline)
            self.post(DeadlinePassed())
        elif what == "stop":
            self.stops += 1
            self.post(StopAsked(15, 5.0))


@given(data=st.data(), max_restarts=st.integers(0, 2))
def test_whatever_happens_rounds_follow_one_another_and_the_agent_ends(
    data: st.DataObject, max_restarts: int
) -> None:
    world = World(max_restarts)
    for _ in range(data.draw(st.integers(0, 25), label="steps")):
        if world.verdict is not None:
            break
        world.happen(data.draw(st.sampled_from(world.possible())))
    for _ in range(STEPS_MAX):  # from here on all goes well
        if world.verdict is not None:
            break
        world.happen(next(one for one in ("answer 0", "succeed", "time", "stop") if one in world.possible()))
    assert world.verdict is not None, "it did not end"
    assert not world.has_worker
    numbers = [one.number for one in world.rounds]
    assert numbers == sorted(set(numbers))
    counts = [one.restart_count for one in world.rounds]
    assert counts == sorted(counts)
    if world.stops and foreign_events.CloseHandler in world.closed:
        assert world.verdict.ending.value != "stopped", "who is told to stop closes nothing"
    event(f"{world.verdict.ending.value} {world.verdict.exit_code}")


# Every pair of the table


WAYS: dict[ForeignState, list[Any]] = {
    ForeignState.IDLE: [],
    ForeignState.PREPARING: [events.MeetingBegan()],
    ForeignState.MEETING: [events.MeetingBegan(), events.PortHeld(1, 5)],
    ForeignState.RUNNING: [events.MeetingBegan(), events.PortHeld(1, 5), foreign_events.Met(settled())],
}
WAYS[ForeignState.STOPPING] = [*WAYS[ForeignState.RUNNING], foreign_events.NodesArrived(1)]
WAYS[ForeignState.AWAITING] = [
    *WAYS[ForeignState.RUNNING],
    events.WorkersGone(Report(outcome=Outcome.SUCCEEDED)),
]
WAYS[ForeignState.DECIDED] = [*WAYS[ForeignState.AWAITING], foreign_events.OthersDone()]
WAYS[ForeignState.CLOSING] = [*WAYS[ForeignState.DECIDED], events.PartEnded()]
WAYS[ForeignState.CLOSED] = [*WAYS[ForeignState.CLOSING], foreign_events.HandlerClosed()]

SAMPLES: dict[type, Any] = {
    type(one): one
    for one in (
        *WAYS[ForeignState.CLOSED],
        events.CheckpointDone(1),
        events.FirstSignSeen("x"),
        events.HurryAsked(),
        events.LeaveAsked(),
        events.EndAsked("the end"),
        events.EndAsked("verdict"),
        events.SignalSent(10),
        asks.AskSent(asks.Ask.STACKS),
        asks.AskDone(asks.Ask.STACKS, "b.1.1"),
        events.NodeExcluded("broken"),
        events.PortNotHeld(1, "none is free"),
        events.TimePassed(),
        events.WorkerFailed(),
        foreign_events.LookFailed("x"),
        foreign_events.NoMeeting("x"),
        foreign_events.NodesArrived(1),
        foreign_events.NotMet("x"),
        foreign_events.NotNeeded(),
    )
}
PAIRS = [(state, kind) for kind, row in ForeignMachine.table.items() for state in row]


@pytest.mark.parametrize(
    ("state", "kind"), PAIRS, ids=lambda one: getattr(one, "name", getattr(one, "__name__", ""))
)
def test_a_listed_pair_can_be_taken_and_one_in_which_nothing_happens_changes_nothing(
    state: ForeignState, kind: type
) -> None:
    machine = foreign_machine()
    for one in WAYS[state]:
        machine.step(one, 1.0)
    assert machine.state is state
    before = dict(vars(machine))
    commands = machine.step(SAMPLES[kind], 2.0)
    if isinstance(ForeignMachine.table[kind][state], Void):
        assert commands == []
        assert vars(machine) == before


def test_workers_hear_of_the_checkpoint_that_this_node_wants_though_no_other_node_can_be_asked() -> None:
    machine = foreign_machine()
    for one in WAYS[ForeignState.RUNNING]:
        machine.step(one, 1.0)
    heard = [machine.step(asks.AskSent(asks.Ask.CHECKPOINT, "SIGUSR1"), 2.0)[0] for _ in range(2)]
    assert [(one.what, one.reason) for one in heard] == [(asks.Ask.CHECKPOINT, "SIGUSR1")] * 2
    assert len({one.id for one in heard}) == 2
    assert machine.step(asks.AskSent(asks.Ask.STACKS), 2.0) == []


def test_every_event_has_a_row() -> None:
    heard = {
        one
        for one in vars(foreign_events).values()
        if isinstance(one, type) and issubclass(one, events.Heard)
    }
    assert heard - {events.Heard} <= set(ForeignMachine.table)
