"""Which signals a node's workers get that were sent to this agent, to another, or to several at once."""

from __future__ import annotations

from phalanx.agent.passing import SAME_SIGNAL_S, PassedSignals
from phalanx.rendezvous.events import SignalHeard

USR1 = 10


def heard(node_id: str) -> SignalHeard:
    return SignalHeard(USR1, node_id)


def test_a_scheduler_that_signals_every_launcher_has_sent_one_signal() -> None:
    passed = PassedSignals((USR1,))
    assert passed.is_new_here(USR1, 10)
    assert not passed.is_new_elsewhere(heard("b"), 10.1)
    late = PassedSignals((USR1,))
    assert late.is_new_elsewhere(heard("b"), 10)
    assert not late.is_new_here(USR1, 10.1)


def test_who_is_sent_nothing_passes_on_once_what_two_others_were_sent_at_once() -> None:
    passed = PassedSignals((USR1,))
    assert passed.is_new_elsewhere(heard("b"), 10)
    assert not passed.is_new_elsewhere(heard("c"), 10.1)
    assert passed.is_new_elsewhere(heard("c"), 10 + SAME_SIGNAL_S)


def test_two_signals_to_one_agent_are_two_everywhere() -> None:
    passed = PassedSignals((USR1,))
    assert [passed.is_new_here(USR1, at) for at in (10, 10.1)] == [True, True]
    other = PassedSignals((USR1,))
    assert [other.is_new_elsewhere(heard("b"), at) for at in (10, 10.1)] == [True, True]


def test_the_word_of_another_agent_is_no_reason_for_a_signal_that_this_one_does_not_pass_on() -> None:
    assert not PassedSignals(()).is_new_elsewhere(heard("b"), 10)
