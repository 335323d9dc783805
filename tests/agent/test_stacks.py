"""The machine that has the stacks of all ranks saved before a slow worker is ended: stories, and every pair."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.agent.events import JobBegan
from phalanx.agent.graces import Graces
from phalanx.agent.group import (
    DeadlinePassed,
    GroupMachine,
    RoundSettled,
    Say,
    StopAsked,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.machine import AgentMachine
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.stacks import (
    LIMIT_S,
    EndSlow,
    SaveStacks,
    StacksMachine,
    StacksSaved,
    StacksState,
    TimerExpired,
)
from phalanx.machine import Void
from phalanx.rendezvous import events
from phalanx.rendezvous.asks import Ask, AskAnswered, AskDone, AskHeard, AskSent
from phalanx.rendezvous.round import Round

KILL = 9
SLOW = TimerExpired(101, KILL, "forward")
END = EndSlow(101, KILL, "forward")
REASON = "rank 3 is too slow in forward"
HEARD = AskHeard(Ask.STACKS, "n1.1.1", "rank 0 is too slow in step")
OWN_DONE = AskDone(Ask.STACKS, "")
ANSWERED = AskAnswered(Ask.STACKS)


def a_round(nodes: int) -> Round:
    return Round(
        number=1,
        restart_count=0,
        reason="",
        group_rank=nodes - 1,
        group_world_size=nodes,
        first_rank=2 * (nodes - 1),
        local_world_size=2,
        world_size=2 * nodes,
        master_addr="127.0.0.1",
        master_port=29500,
    )


def running(nodes: int = 2) -> tuple[StacksMachine, GroupMachine]:
    group = GroupMachine(2, grace_s=30)
    group.step(RoundSettled(a_round(nodes)), 0)
    group.step(WorkersSpawned({0: 100, 1: 101}), 0)
    return StacksMachine(group), group


def unsaid(commands: list[Any]) -> list[Any]:
    return [one for one in commands if not isinstance(one, Say)]


def test_on_one_node_stacks_are_saved_and_then_the_worker_is_ended() -> None:
    machine, _ = running(nodes=1)

    commands = machine.step(SLOW, 1)

    assert commands[0].text.startswith("rank 1 is too slow in forward: the stacks of all ranks are saved")
    assert unsaid(commands) == [SaveStacks(1, "rank 1 is too slow in forward")]
    assert machine.step(StacksSaved(1), 2) == [END]
    assert (machine.state, machine.deadline) == (StacksState.IDLE, None)


@pytest.mark.parametrize("answer_first", [False, True])
def test_on_several_nodes_the_worker_lives_until_all_have_saved(answer_first: bool) -> None:
    machine, _ = running()
    assert unsaid(machine.step(SLOW, 1)) == [SaveStacks(1, REASON), AskSent(Ask.STACKS, REASON)]
    if answer_first:  # this node was held for lost
        assert machine.step(ANSWERED, 2) == []
        assert machine.step(StacksSaved(1), 3) == [END]
    else:
        assert machine.step(StacksSaved(1), 2) == [OWN_DONE]
        assert machine.step(ANSWERED, 3) == [END]


def test_a_node_that_does_not_answer_keeps_a_slow_worker_alive_for_some_seconds_and_no_longer() -> None:
    machine, _ = running()
    machine.step(SLOW, 1)
    machine.step(StacksSaved(1), 2)
    assert machine.step(DeadlinePassed(), 1 + LIMIT_S - 0.1) == []
    commands = machine.step(DeadlinePassed(), 1 + LIMIT_S)
    assert "of other nodes" in commands[0].text
    assert unsaid(commands) == [END]


def test_ranks_whose_time_is_over_together_are_ended_together() -> None:
    machine, _ = running()
    machine.step(SLOW, 1)
    other = TimerExpired(100, KILL, "backward")
    assert [one.text for one in machine.step(other, 1.1)] == ["rank 2 is too slow in backward, too"]
    assert machine.step(SLOW, 1.2) == []
    machine.step(StacksSaved(1), 2)
    assert machine.step(other, 2.1) == []
    assert machine.step(ANSWERED, 3) == [END, EndSlow(100, KILL, "backward")]


def test_a_node_that_is_asked_saves_and_ends_nobody() -> None:
    machine, _ = running()
    assert unsaid(machine.step(HEARD, 1)) == [SaveStacks(1, HEARD.reason)]
    assert machine.step(StacksSaved(1), 2) == [AskDone(Ask.STACKS, "n1.1.1")]
    assert machine.state is StacksState.IDLE


def test_two_nodes_that_ask_each_other_do_not_wait_for_ever() -> None:
    machine, _ = running()
    machine.step(SLOW, 1)
    assert machine.step(HEARD, 1.1) == []
    assert machine.step(StacksSaved(1), 2) == [AskDone(Ask.STACKS, "n1.1.1"), OWN_DONE]
    again = AskHeard(Ask.STACKS, "n1.1.2", "rank 1")
    assert machine.step(again, 2.1) == [AskDone(Ask.STACKS, "n1.1.2")]
    assert machine.step(ANSWERED, 3) == [END]


def test_a_timer_that_is_over_while_stacks_are_saved_for_another_node_asks_that_node_too() -> None:
    machine, _ = running()
    machine.step(HEARD, 1)
    assert unsaid(machine.step(SLOW, 1.5)) == [AskSent(Ask.STACKS, REASON)]
    assert machine.step(StacksSaved(1), 2) == [AskDone(Ask.STACKS, "n1.1.1"), OWN_DONE]
    assert machine.step(ANSWERED, 3) == [END]


@pytest.mark.parametrize("nodes", [1, 2])
def test_who_refuses_to_end_is_killed_when_the_grace_is_over(nodes: int) -> None:
    machine, group = running(nodes)
    slow = TimerExpired(101, 15, "forward", started=7)
    machine.step(slow, 1)
    machine.step(StacksSaved(1), 2)
    if nodes > 1:
        machine.step(ANSWERED, 2)
    assert (machine.state, machine.deadline) == (StacksState.IDLE, 2 + group.grace_s)
    assert machine.step(DeadlinePassed(), 31.9) == []
    [killed] = machine.step(DeadlinePassed(), 32)  # said by whoever has seen that it still runs
    assert "has not ended by SIGTERM within 30 s: it is killed" in killed.late
    assert (killed.pid, killed.signal, killed.started) == (101, KILL, 7)
    assert (machine.deadline, machine.step(DeadlinePassed(), 99)) == (None, [])


def test_who_ends_when_asked_is_not_killed_and_a_later_hang_has_a_limit_of_its_own() -> None:
    machine, group = running(1)
    for pid in (100, 101):
        machine.step(TimerExpired(pid, 40, "forward"), 1)
    machine.step(StacksSaved(1), 2)
    group.step(WorkersExited({1: 0}), 3)
    machine.step(HEARD, 31)
    assert machine.deadline == 32
    assert [one.pid for one in unsaid(machine.step(DeadlinePassed(), 32))] == [100]
    assert machine.deadline == 31 + LIMIT_S


def test_nothing_makes_a_stop_longer() -> None:
    machine, group = running()
    group.step(StopAsked(15, 30), 1)
    assert machine.step(SLOW, 2) == [END]
    assert machine.step(HEARD, 2) == [AskDone(Ask.STACKS, "n1.1.1")]


def test_files_that_are_written_too_late_belong_to_nobody() -> None:
    machine, _ = running(nodes=1)
    machine.step(SLOW, 1)
    told, *ended = machine.step(DeadlinePassed(), 1 + LIMIT_S)
    assert "of this node's ranks" in told.text
    assert ended == [END]
    machine.step(SLOW, 20)
    assert machine.step(StacksSaved(1), 21) == []
    assert machine.step(StacksSaved(2), 22) == [END]


def test_what_was_begun_in_the_round_before_is_not_this_rounds() -> None:
    before, group = running(nodes=1)
    before.step(SLOW, 1)
    machine = StacksMachine(group, before)
    [begun] = [one for one in machine.step(SLOW, 2) if isinstance(one, SaveStacks)]
    assert machine.step(StacksSaved(1), 2.1) == []
    assert machine.step(StacksSaved(begun.number), 2.2) == [END]


def test_a_process_without_a_rank_is_named_by_its_number() -> None:
    machine, _ = running(nodes=1)
    assert machine.step(TimerExpired(7, KILL, "load"), 1)[0].text.startswith(
        "process 7, which is no rank, is too slow"
    )


def test_what_else_is_asked_is_not_its_affair() -> None:
    checkpoint = AskHeard(Ask.CHECKPOINT, "n1.1.9", "a node joins")
    machine, _ = running()
    for event in (None, SLOW, StacksSaved(1)):
        if event is not None:
            machine.step(event, 1)
        was = machine.state
        assert not machine.step(checkpoint, 1)
        assert not machine.step(AskAnswered(Ask.CHECKPOINT), 1)
        assert machine.state is was


def in_state(state: StacksState) -> StacksMachine:
    machine, _ = running()
    if state is not StacksState.IDLE:
        machine.step(SLOW, 1)
    if state is StacksState.WAITING:
        machine.step(StacksSaved(1), 1)
    assert machine.state is state
    return machine


@pytest.mark.parametrize("state", StacksState)
@pytest.mark.parametrize(
    "event", [SLOW, HEARD, StacksSaved(1), ANSWERED, DeadlinePassed()], ids=lambda one: type(one).__name__
)
def test_every_pair_is_listed(state: StacksState, event: object) -> None:
    machine = in_state(state)
    entry = machine.table[type(event)][state]
    commands = machine.step(event, 100)
    if isinstance(entry, Void):
        assert len(entry.reason.split()) > 2
        assert (commands, machine.state) == ([], state)


class Others:
    """The membership: it keeps what it hears, and says what the test has prepared."""

    is_closed = False
    has_untold = False

    def __init__(self) -> None:
        self.deadline: float | None = None
        self.heard: list[Any] = []
        self.says: list[Any] = []

    def step(self, event: object, now: float) -> list[Any]:
        self.heard.append(event)
        says, self.says = self.says, []
        return says


def agent() -> tuple[AgentMachine, Others]:
    others = Others()
    machine = AgentMachine(2, membership=others, restarts=RestartPolicy(), graces=Graces.alike(30))
    machine.step(JobBegan(), 0)
    others.says = [events.RoundFormed(a_round(2))]
    machine.step(events.Heard(), 0)
    machine.step(WorkersSpawned({0: 100, 1: 101}), 0)
    return machine, others


def test_the_agent_asks_the_other_nodes_and_wakes_when_they_do_not_answer() -> None:
    machine, others = agent()
    assert unsaid(machine.step(SLOW, 1)) == [SaveStacks(1, REASON)]
    assert others.heard[-1] == AskSent(Ask.STACKS, REASON)
    assert machine.deadline == 1 + LIMIT_S
    assert machine.step(StacksSaved(1), 2) == []
    assert unsaid(machine.step(DeadlinePassed(), 1 + LIMIT_S)) == [END]
    assert machine.deadline is None


def test_the_agent_hears_what_other_nodes_ask_and_answer() -> None:
    machine, others = agent()
    others.says = [HEARD]
    assert unsaid(machine.step(events.Heard(), 1)) == [SaveStacks(1, HEARD.reason)]
    machine.step(SLOW, 1.5)
    machine.step(StacksSaved(1), 2)
    assert others.heard[-3:] == [AskSent(Ask.STACKS, REASON), AskDone(Ask.STACKS, "n1.1.1"), OWN_DONE]
    others.says = [ANSWERED]
    assert machine.step(events.Heard(), 3) == [END]


def test_a_timer_of_a_job_whose_workers_are_gone_is_no_news() -> None:
    others = Others()
    machine = AgentMachine(2, membership=others, restarts=RestartPolicy(), graces=Graces.alike(30))
    for event in (SLOW, StacksSaved(1)):
        assert machine.step(event, 0) == []
    machine.step(JobBegan(), 0)
    others.says = [ANSWERED, HEARD]
    assert machine.step(events.Heard(), 1) == []
