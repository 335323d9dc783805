"""What the nodes of a round ask of each other: who hears it, once, and when it counts as done by all."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rendezvous.fleet import Agent, Fleet

from phalanx.rendezvous.asks import Ask, AskAnswered, AskDone, AskHeard, AskSent
from phalanx.rendezvous.settings import Growth
from phalanx.rendezvous.stored import AskRecord, encode
from phalanx.store.port import Put


class Listening(Agent):
    """An agent that only writes down what is asked of it."""

    def __init__(self, fleet: Fleet, name: str, settings: dict[str, Any]) -> None:
        super().__init__(fleet, name, settings)
        self.heard: list[AskHeard | AskAnswered] = []

        def take(_: object, notice: Any, now: float) -> None:
            self.heard.append(notice)

        notices = {**self.machine._notices, AskHeard: take, AskAnswered: take}
        setattr(self.machine, "_notices", notices)  # noqa: B010 # for this agent alone

    def says(self, event: AskSent | AskDone) -> None:
        for command in self.machine._tell(event, self.fleet.now):
            self._perform(command)
        self.fleet.work()


class Round(Fleet):
    """Three nodes that run."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"min_nodes": 1, "max_nodes": 3, "last_call_s": 5.0, **settings})
        self.start("a", "b", "c")
        self.run_until_running("a", "b", "c")

    def make(self, name: str, settings: dict[str, Any]) -> Agent:
        return Listening(self, name, settings)

    def node(self, name: str) -> Listening:
        found = self[name]
        assert isinstance(found, Listening)
        return found

    def everybody_is_done(self, *names: str) -> None:
        for name in names:
            (heard,) = [one for one in self.node(name).heard if isinstance(one, AskHeard)]
            self.node(name).says(AskDone(heard.what, heard.id))


STACKS = AskSent(Ask.STACKS, "rank 2 is too slow in forward")


@pytest.mark.parametrize("asking", ["a", "c"])  # the leader, and one that is not
def test_all_others_hear_what_a_node_asks_and_it_hears_when_all_have_done_it(asking: str) -> None:
    fleet = Round()
    others = [name for name in "abc" if name != asking]
    fleet.node(asking).says(STACKS)
    for name in others:
        (heard,) = fleet.node(name).heard
        assert isinstance(heard, AskHeard)
        assert (heard.what, heard.reason) == (Ask.STACKS, STACKS.reason)
    fleet.everybody_is_done(others[0])
    assert fleet.node(asking).heard == []
    fleet.everybody_is_done(others[1])
    assert fleet.node(asking).heard == [AskAnswered(Ask.STACKS)]
    fleet.run(100)
    assert [len(fleet.node(name).heard) for name in "abc"] == [1, 1, 1], "once"


def test_two_nodes_can_ask_at_the_same_time_and_one_twice() -> None:
    fleet = Round()
    for name in ("a", "b", "b"):
        fleet.node(name).says(STACKS)
    for name in "abc":
        for heard in list(fleet.node(name).heard):
            assert isinstance(heard, AskHeard)
            fleet.node(name).says(AskDone(heard.what, heard.id))
    answers = {
        name: [one for one in fleet.node(name).heard if isinstance(one, AskAnswered)] for name in "abc"
    }
    assert {name: len(answered) for name, answered in answers.items()} == {"a": 1, "b": 1, "c": 0}
    ids = {one.id for one in fleet.node("c").heard if isinstance(one, AskHeard)}
    assert len(ids) == 3


def test_who_asks_for_a_checkpoint_hears_it_as_all_do_by_the_same_id() -> None:
    fleet = Round()
    for reason in ("SIGUSR1", "SIGUSR2"):
        fleet.node("b").says(AskSent(Ask.CHECKPOINT, reason))
    heard = [[one for one in fleet.node(name).heard if isinstance(one, AskHeard)] for name in "abc"]
    assert heard == [heard[0]] * 3
    assert [(one.what, one.reason) for one in heard[0]] == [
        (Ask.CHECKPOINT, "SIGUSR1"),
        (Ask.CHECKPOINT, "SIGUSR2"),
    ]
    assert len({one.id for one in heard[0]}) == 2


def test_who_is_lost_or_has_ended_is_not_waited_for() -> None:
    fleet = Round()
    fleet.finish("b")
    fleet.node("a").says(STACKS)
    fleet.everybody_is_done("c")
    assert fleet.node("a").heard == [AskAnswered(Ask.STACKS)]


def test_a_node_alone_is_answered_at_once() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=1)
    fleet.make = lambda name, settings: Listening(fleet, name, settings)  # type: ignore[method-assign]
    fleet.start("a")
    fleet.run_until_running("a")
    alone = fleet["a"]
    assert isinstance(alone, Listening)
    alone.says(STACKS)
    assert alone.heard == [AskAnswered(Ask.STACKS)]


def test_a_watch_that_begins_anew_tells_nobody_twice_and_nobody_misses_what_came_in_between() -> None:
    fleet = Round()
    fleet.node("a").says(STACKS)
    fleet["b"].link.catch_up()
    fleet.work()
    assert len(fleet.node("b").heard) == 1
    record = AskRecord(id="x.1.9", node_id="x", round=fleet.record.number)
    fleet.write(Put(fleet.keys.ask("stacks", "x"), encode(record)))
    fleet["b"].link.catch_up()
    fleet.work()
    assert [one.id for one in fleet.node("b").heard if isinstance(one, AskHeard)][1:] == ["x.1.9"]


def test_what_was_asked_in_a_round_is_nothing_in_the_next() -> None:
    fleet = Round(max_restarts=1)
    fleet.node("a").says(STACKS)
    heard = fleet.node("b").heard[0]
    assert isinstance(heard, AskHeard)
    fleet.fail("c")
    fleet.run_until_running("a", "b", "c", number=2)
    assert fleet.under(fleet.keys.asks) == []
    fleet.node("b").says(AskDone(heard.what, heard.id))
    fleet.node("c").says(AskDone(heard.what, heard.id))
    fleet.run(10)
    assert not [one for one in fleet.node("a").heard if isinstance(one, AskAnswered)]


def test_nonsense_under_the_key_of_an_ask_is_named_and_asks_nothing() -> None:
    fleet = Round()
    for key, value in (
        (fleet.keys.ask("stacks", "x"), b"{"),
        (fleet.keys.ask("coffee", "x"), encode(AskRecord(id="x", node_id="x", round=1))),
        (f"{fleet.keys.asks}", encode(AskRecord(id="x", node_id="x", round=1))),
    ):
        fleet.write(Put(key, value))
    fleet.run(10)
    assert all(fleet.node(name).heard == [] for name in "abc")
    assert any("passed over" in line for line in fleet["a"].said)


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_new_leader_asks_again_for_the_checkpoint_that_newcomers_wait_for(lost: str) -> None:
    fleet = Round(max_nodes=4, growth=Growth.AT_CHECKPOINT)
    fleet.start("d")
    fleet.run(30)
    assert [len(fleet.node(name).heard) for name in "abc"] == [1, 1, 1]
    fleet.run(500)
    assert [len(fleet.node(name).heard) for name in "abc"] == [1, 1, 1]
    fleet.leave(lost)
    fleet.run_until_running(*(name for name in "abcd" if name != lost), number=2)


def test_without_workers_there_is_nobody_to_ask_for() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a")
    fleet.work()
    assert fleet["a"].member.step(AskSent(Ask.STACKS), fleet.now) == []
