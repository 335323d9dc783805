"""What the nodes of a round ask of each other: who hears it, once, and when it counts as done by all."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rendezvous.fleet import Agent, Fleet

from phalanx.rendezvous import events
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

    def says(self, *said: AskSent | AskDone) -> None:
        for event in said:
            for command in self.machine._tell(event, self.fleet.now):
                self._perform(command)
        self.fleet.work()

    @property
    def answers(self) -> int:
        return sum(isinstance(one, AskAnswered) for one in self.heard)


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

    def are_done(self, *names: str) -> None:
        """They have done what they heard of, and what they asked for themselves."""
        for name in names:
            heard = [one for one in self.node(name).heard if isinstance(one, AskHeard)]
            self.node(name).says(*(AskDone(one.what, one.id) for one in heard), AskDone(Ask.STACKS, ""))


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
    for name in (*others, asking):
        assert fleet.node(asking).answers == 0
        fleet.are_done(name)
    assert fleet.node(asking).heard == [AskAnswered(Ask.STACKS)]
    fleet.run(100)
    assert [len(fleet.node(name).heard) for name in "abc"] == [1, 1, 1], "once"


def test_nodes_that_ask_at_once_ask_one_thing_and_are_answered_together() -> None:
    fleet = Round()
    for name in "abc":  # none has heard of another
        for command in fleet.node(name).machine._tell(STACKS, fleet.now):
            fleet.node(name)._perform(command)
    fleet.work()
    asked = fleet.under(fleet.keys.asks)
    assert len(asked) == 1
    assert sorted(len(fleet.node(name).heard) for name in "abc") == [0, 1, 1]
    fleet.are_done("a", "b")
    assert [fleet.node(name).answers for name in "abc"] == [0, 0, 0]
    fleet.are_done("c")
    assert [fleet.node(name).answers for name in "abc"] == [1, 1, 1]


def test_what_was_answered_can_be_asked_again() -> None:
    fleet = Round()
    for asking in ("b", "c", "c"):
        fleet.node(asking).says(STACKS)
        fleet.are_done("a", "b", "c")
    assert [fleet.node(name).answers for name in "abc"] == [0, 1, 2]


def test_a_node_that_owes_two_answers_gives_both() -> None:
    fleet = Round()
    fleet.node("a").says(STACKS)
    fleet.are_done("a", "b")
    record = AskRecord(id="x.1.9", node_id="x", round=fleet.record.number)
    fleet.write(Put(fleet.keys.ask("stacks", "x"), encode(record)))
    fleet.are_done("c")
    assert fleet.node("a").answers == 1
    fleet.are_done("a", "b")
    assert all(
        '"is_answered":true' in kept.value.decode()
        for kept in map(fleet.read, fleet.under(fleet.keys.asks))
        if kept
    )


def test_requests_for_a_checkpoint_that_meet_are_one_and_a_later_one_is_another() -> None:
    fleet = Round()
    held = fleet["b"].link.hold("ask checkpoint")
    fleet.node("b").says(AskSent(Ask.CHECKPOINT, "first"), AskSent(Ask.CHECKPOINT, "second"))
    fleet.node("c").says(AskSent(Ask.CHECKPOINT, "third"))
    held.deliver()
    fleet.run(5)
    fleet.node("a").says(AskSent(Ask.CHECKPOINT, "later"))
    for name in "abc":  # the one who asks, too: its workers are to know the same id
        reasons = [one.reason for one in fleet.node(name).heard if isinstance(one, AskHeard)]
        assert reasons == ["third", "later"]


def test_a_signal_that_all_launchers_are_sent_at_once_is_one_word_in_the_store() -> None:
    fleet = Round()
    before = fleet.store.revision
    for name in "abc":
        for command in fleet.node(name).machine._tell(events.SignalSent(10), fleet.now):
            fleet.node(name)._perform(command)
    fleet.work()
    assert fleet.store.revision == before + 1


def test_who_is_lost_or_has_ended_is_not_waited_for() -> None:
    fleet = Round()
    fleet.finish("b")
    fleet.node("a").says(STACKS)
    fleet.are_done("a", "c")
    assert fleet.node("a").answers == 1


def test_a_node_alone_is_answered_at_once() -> None:
    fleet = Fleet(min_nodes=1, max_nodes=1)
    fleet.make = lambda name, settings: Listening(fleet, name, settings)  # type: ignore[method-assign]
    fleet.start("a")
    fleet.run_until_running("a")
    alone = fleet["a"]
    assert isinstance(alone, Listening)
    alone.says(STACKS, AskDone(Ask.STACKS, ""))
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


@pytest.mark.parametrize("lost", ["a", "c"])  # the leader, and one that is not
def test_a_node_that_is_lost_while_others_stop_as_planned_is_not_waited_for(lost: str) -> None:
    fleet = Fleet(min_nodes=1, max_nodes=3, last_call_s=5.0)
    fleet.start("a", "b", "c")
    fleet.run_until_running("a", "b", "c")
    staying = [name for name in "abc" if name != lost]
    for name in "abc":
        fleet[name].obeys = False
    fleet.leave("b")
    fleet.run(2)
    causes = {"b": ["asked"], "a": ["planned"], "c": ["planned"]}
    assert {name: [one.cause for one in fleet[name].stops] for name in "abc"} == causes
    was = {name: fleet[name].stops[0].grace_s for name in "abc"}
    fleet.kill(lost)
    fleet.run(20)
    for name in staying:
        _, told = fleet[name].stops
        assert told.cause == "loss"
        assert 0 < told.grace_s < was[name], "the time is the same"
    fleet.run_until_running(*(name for name in staying if name != "b"), number=2)
    assert all(len(fleet[name].stops) == 2 for name in staying), "once"


def test_without_workers_there_is_nobody_to_ask_for() -> None:
    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a")
    fleet.work()
    assert fleet["a"].member.step(AskSent(Ask.STACKS), fleet.now) == []
