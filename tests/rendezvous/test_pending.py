"""When a transaction may be sent: one per purpose at a time, and after a failed guard only with news."""

from __future__ import annotations

from phalanx.rendezvous.pending import Pending


def test_one_of_a_purpose_is_under_way_at_a_time() -> None:
    pending = Pending()
    assert pending.may_send("join")
    pending.sent("join")
    assert not pending.may_send("join")
    assert pending.may_send("leave")
    assert pending.is_under_way()
    pending.answered("join", succeeded=True)
    assert pending.may_send("join")
    assert not pending.is_under_way()


def test_after_a_failed_guard_nothing_is_tried_until_something_was_heard() -> None:
    pending = Pending()
    pending.sent("lead")
    pending.answered("lead", succeeded=False)
    assert not pending.may_send("lead")
    assert pending.may_send("join"), "another purpose has other guards"
    pending.seen()
    assert pending.may_send("lead")


def test_what_was_heard_while_the_answer_was_on_its_way_may_have_been_the_reason() -> None:
    pending = Pending()
    pending.sent("lead")
    pending.seen()
    pending.answered("lead", succeeded=False)
    assert pending.may_send("lead")


def test_an_unclear_answer_may_be_followed_by_the_same_question() -> None:
    pending = Pending()
    pending.sent("join")
    assert pending.unclear("join", 7.0) == 0
    assert pending.may_send("join")


def test_another_connection_owes_no_answers() -> None:
    pending = Pending()
    pending.sent("join")
    pending.sent("lead")
    pending.answered("lead", succeeded=False)
    pending.clear()
    assert pending.may_send("join")
    assert pending.may_send("lead")
    assert not pending.is_under_way()


def test_unclear_answers_with_a_rest_between_them_are_not_one_silence() -> None:
    pending = Pending()
    pending.sent("join")
    assert pending.unclear("join", 7.0) == 0
    pending.sent("join")  # again
    pending.rest()
    assert pending.unclear("join", 9.0) == 2.0
    pending.rest()  # somebody else's news has made it needless
    pending.sent("leave")
    assert pending.unclear("leave", 5000.0) == 0
