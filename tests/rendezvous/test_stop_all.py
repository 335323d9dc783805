"""The end of a job that an agent was asked for: written by a member, guarded, and told to everybody before it goes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rendezvous.fleet import Fleet
from tests.rendezvous.foreign.test_session import machine as foreign_machine
from tests.rendezvous.test_member_machine import EMPTY, HERE, NOW, REGISTERED, member_in
from tests.rendezvous.test_part import ALIVE, KEYS, Node

from phalanx.rendezvous import events
from phalanx.rendezvous.state import MemberState
from phalanx.rendezvous.stored import Outcome, Phase, Report, VerdictRecord, decode, encode
from phalanx.store.port import Batch, Change, Compare, Field, KeyValue, Put

INT = 2
ASKED = events.EndAsked("the end")
VERDICT = KeyValue(KEYS.verdict, encode(VerdictRecord(text="the end")), 60, 60, 1)
HEARD = events.KeyChanged(KEYS.job, Batch(60, (Change(VERDICT),)))
ANSWERED = events.Transacted("end", True, 60, ((HERE,),))
REFUSED = events.Transacted("end", False, 60, ((HERE,),))


def transactions(commands: list[Any], purpose: str) -> list[events.Transact]:
    return [one for one in commands if isinstance(one, events.Transact) and one.purpose == purpose]


def told(commands: list[Any]) -> list[str]:
    return [one.text for one in commands if isinstance(one, events.Told)]


def test_the_verdict_is_guarded_by_this_life_of_the_node_and_by_there_being_none() -> None:
    node = Node()
    node.part.note(ASKED)
    (command,) = node.part.tell(node.job)
    assert command.compares == (ALIVE, Compare(KEYS.verdict, Field.CREATE_REVISION, 0))
    (put,) = command.then
    assert isinstance(put, Put)
    assert (put.key, decode(VerdictRecord, put.value).text, put.lease) == (KEYS.verdict, "the end", 0)
    assert node.part.tell(node.job) == [], "one attempt is under way"


@pytest.mark.parametrize("is_ours", [True, False])
def test_it_is_told_once_whether_it_is_ours_or_another_was_there(is_ours: bool) -> None:
    node = Node()
    node.part.note(ASKED)
    (command,) = node.part.tell(node.job)
    node.answer(command, succeeded=is_ours)
    assert node.part.tell(node.job) == []
    assert not node.part.has_untold_end
    assert node.part.has_to_tell(node.job), "until the verdict was heard"


def test_another_life_of_the_node_tells_it_again() -> None:
    node = Node()
    node.part.note(ASKED)
    (command,) = node.part.tell(node.job)
    node.answer(command)
    node.part.unregistered()
    assert node.part.has_untold_end


@pytest.mark.parametrize("answer", [ANSWERED, REFUSED])
def test_a_node_without_workers_goes_when_it_has_heard_the_verdict_and_serves_its_store_on(
    answer: events.Transacted,
) -> None:
    machine = member_in(MemberState.PRESENT)
    assert transactions(machine.step(ASKED, NOW), "end")
    assert machine.step(events.PartEnded(), NOW) == []
    machine.step(answer, NOW)
    states = [machine.state]
    commands = machine.step(HEARD, NOW)
    states.append(machine.state)
    assert events.JobDecided("the end") in commands
    assert states == [MemberState.PRESENT, MemberState.DRAINING], "the others have to hear it, too"


def test_an_unclear_answer_is_asked_again_until_the_store_is_silent_and_then_it_is_said_that_nobody_knows() -> (
    None
):
    machine = member_in(MemberState.IDLE)
    opened = events.SessionOpened(
        lease=77, sent_at=NOW, address="10.0.0.1", outside_address="", is_host=False
    )
    for event in (events.MeetingBegan(), opened, REGISTERED, EMPTY):
        machine.step(event, NOW)
    machine.step(ASKED, NOW)
    machine.step(events.PartEnded(), NOW)
    assert transactions(machine.step(events.TransactionUnclear("end"), NOW + 1), "end")
    commands = machine.step(events.TimePassed(), NOW + 9.5)
    assert machine.state is MemberState.CLOSING
    assert any("were not told to stop" in one for one in told(commands))


@pytest.mark.parametrize("state", [MemberState.OPENING, MemberState.REGISTERING, MemberState.SILENT])
def test_who_has_no_place_in_the_store_says_that_nobody_was_told(state: MemberState) -> None:
    machine = member_in(state)
    now = NOW + 9.5 if state is MemberState.SILENT else NOW
    assert not transactions(machine.step(ASKED, now), "end")
    commands = machine.step(events.PartEnded(), now)
    assert any("were not told to stop" in one for one in told(commands))
    assert machine.state is MemberState.CLOSING


def test_the_same_is_not_said_by_who_was_not_asked() -> None:
    machine = member_in(MemberState.OPENING)
    assert told(machine.step(events.PartEnded(), NOW)) == []


def test_who_ends_the_job_does_not_leave_its_round() -> None:
    node = Node()
    node.run()
    node.part.note(ASKED)
    (command,) = node.part.tell(node.job)
    assert command.purpose == "end"
    assert not node.part.is_leaving
    node.part.workers_gone(Report(outcome=Outcome.STOPPED), 1.0)
    node.round(1, Phase.SETTLED)
    assert [one.purpose for one in node.part.tell(node.job)] == ["report 1 outcome"]


def test_a_handler_of_others_has_no_word_for_it_and_the_node_says_so_and_leaves() -> None:
    machine = foreign_machine()
    machine.step(events.MeetingBegan(), 0.0)
    (line,) = told(machine.step(ASKED, 1.0))
    assert "were not told to stop" in line


# Whole jobs


def a_job(*names: str, **options: Any) -> Fleet:
    fleet = Fleet(min_nodes=2, max_nodes=3, stops_all=True, last_call_s=1.0, **options)
    fleet.start(*names)
    fleet.run_until_running(*names[:3])
    return fleet


def codes(fleet: Fleet) -> dict[str, int]:
    return {
        name: agent.verdict.exit_code for name, agent in fleet.agents.items() if agent.verdict is not None
    }


@pytest.mark.parametrize("name", ["a", "b", "c", "d"])
def test_whoever_is_told_all_end_at_once_by_the_same_signal(name: str) -> None:
    fleet = a_job("a", "b", "c", "d")
    fleet.leave(name, INT)
    fleet.run_until_over(within_s=3.0)
    assert codes(fleet) == dict.fromkeys("abcd", 130)
    for other in set("abcd") - {name}:
        assert any(f"{name} was told to stop by SIGINT (--stop-all)" in line for line in fleet[other].said)


def test_no_leader_is_needed_for_it() -> None:
    fleet = a_job("a", "b", "c")
    assert fleet.leader == "a"
    fleet.freeze("a")
    fleet.leave("b")
    fleet.run(2.0)
    assert codes(fleet) == {"b": 143, "c": 143}
    fleet.thaw("a")
    fleet.run_until_over()
    assert codes(fleet)["a"] == 143


def test_a_request_while_a_round_is_collected_ends_the_job_and_no_further_round_opens() -> None:
    fleet = a_job("a", "b", "c", max_restarts=3)
    fleet["c"].stop_s = 20.0
    fleet.fail("a")
    fleet.run(1.0)
    fleet.leave("b")
    fleet.run_until_over(within_s=30.0)
    assert codes(fleet) == dict.fromkeys("abc", 143)
    assert fleet.record.number == 1


def test_a_verdict_that_was_written_first_is_everybodys() -> None:
    fleet = a_job("a", "b", "c", max_restarts=0)
    held = fleet["b"].link.hold("end")
    fleet["b"].stop_s = 20.0
    fleet.fail("a", code=7)
    fleet.leave("b")
    fleet.run(25.0)
    held.deliver()
    fleet.run_until_over()
    assert codes(fleet) == dict.fromkeys("abc", 7)


def test_who_is_cut_off_ends_alone_and_the_others_go_on() -> None:
    fleet = a_job("a", "b", "c")
    fleet.cut("c")
    fleet.leave("c")
    fleet.run_until_running("a", "b", number=2)
    assert codes(fleet) == {"c": 143}
    assert any("were not told to stop" in line for line in fleet["c"].said)
