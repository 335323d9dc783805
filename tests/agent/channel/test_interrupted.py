"""Threads and signal handlers of a script within its questions to the agent: no answer is taken for another's."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.agent.channel.test_agreed_steps import Rank, agent, ranks, worker  # noqa: F401 # fixtures
from tests.agent.channel.test_server import Agent, _wait_until

from phalanx.errors._connection import Connection
from phalanx.errors.channel import _Client

LONG_S = 60.0


class Preempted(BaseException):
    """As a script's handler raises it."""


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have a handler raise in the middle of the next call of a connection's method that has done what it does."""

    def once(name: str) -> None:
        real = getattr(Connection, name)

        def interrupted(self: Connection, *arguments: Any) -> Any:
            real(self, *arguments)  # where it raises, as when nothing was said yet, the next call is the one
            monkeypatch.setattr(Connection, name, real)
            raise Preempted

        monkeypatch.setattr(Connection, name, interrupted)

    return once


def told_to_stop(agent: Agent, everyone: list[Rank], grace_s: float = 600.0) -> None:  # noqa: F811
    agent.call(agent.server.announce_stop, "SIGTERM", grace_s)
    for one in everyone:
        _wait_until(one.client.is_told_to_stop)


def test_a_question_that_was_interrupted_has_no_answer_for_the_next_one(
    agent: Agent,  # noqa: F811
    ranks: Any,  # noqa: F811
    interrupt: Callable[[str], None],
) -> None:
    everyone = ranks(2)
    told_to_stop(agent, everyone)
    steps = everyone[0].client.agreed_steps
    assert not everyone[0].should_stop(0)
    assert steps._connection is not None
    interrupt("send")
    with pytest.raises(Preempted):
        everyone[0].should_stop(1)
    assert steps._connection is None, "an answer is under way on it"
    said = [[one.should_stop(step) for one in everyone] for step in range(1, 100)]
    assert [True, True] in said
    assert all(len(set(each)) == 1 for each in said)


def test_answers_that_come_too_late_are_nobodys(agent: Agent, worker: Any) -> None:  # noqa: F811
    worker.values().set("first", b"1")
    worker.values().set("second", b"2")
    connection = Connection(agent.path, LONG_S)
    connection.send({"id": 0, "type": "get", "key": "first", "wait_s": 0.0}, LONG_S)
    connection._asked = 1  # its answer was not waited for
    [answer] = connection.answers([{"type": "get", "key": "second", "wait_s": 0.0}], LONG_S)
    connection.socket.close()
    assert answer["value"] == "Mg=="


@pytest.mark.parametrize("within", ["receive", "send"])
def test_a_stop_is_heard_though_a_handler_raised_while_it_was_read(
    agent: Agent,  # noqa: F811
    worker: Any,  # noqa: F811
    interrupt: Callable[[str], None],
    within: str,
) -> None:
    client = worker._client()
    assert not client.is_told_to_stop()
    agent.call(agent.server.announce_stop, "SIGTERM", 600.0)
    interrupt(within)
    with pytest.raises(Preempted):
        worker.checkpoint_done(1) if within == "send" else _wait_until(client.is_told_to_stop)
    assert client._notices is None
    _wait_until(client.is_told_to_stop)


def test_a_handler_may_use_values_while_its_thread_tells_something(agent: Agent, worker: Any) -> None:  # noqa: F811
    client: _Client = worker._client()
    assert client._lock.acquire(timeout=1.0)  # as in the middle of progress()
    try:
        done = threading.Thread(target=worker.values().set, args=("a", b"1"))
        done.start()
        done.join(LONG_S)
        assert not done.is_alive()
    finally:
        client._lock.release()


def test_threads_that_ask_at_the_same_step_hear_the_same(agent: Agent, ranks: Any) -> None:  # noqa: F811
    """Here the first one's question is under way when the second one asks."""
    everyone = ranks(2)
    told_to_stop(agent, everyone)
    steps, others = (one.client.agreed_steps for one in everyone)
    assert not steps.should_stop(5, 1)
    assert not others.should_stop(5, 1), "it decides, for step 6"
    real, is_asked, goes_on = steps._answer, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        is_asked.set()
        assert goes_on.wait(LONG_S)
        return real(*arguments)

    steps._answer = slow
    said: dict[str, bool] = {}

    def ask(name: str) -> None:
        said[name] = steps.should_stop(6, 1)

    first, second = (threading.Thread(target=ask, args=(name,)) for name in ("first", "second"))
    first.start()
    assert is_asked.wait(LONG_S)
    second.start()
    time.sleep(0.1)  # it may get as far as it can: whoever does not wait has answered by now
    goes_on.set()
    for one_thread in (first, second):
        one_thread.join(LONG_S)
    assert said == {"first": True, "second": True}


def test_each_thread_hears_once_of_a_checkpoint(agent: Agent, worker: Any) -> None:  # noqa: F811
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.1")
    _wait_until(worker.should_checkpoint)
    said: list[bool] = []
    thread = threading.Thread(target=lambda: said.append(worker.should_checkpoint(5)))
    thread.start()
    thread.join(LONG_S)
    assert said == [True]
    assert worker.should_checkpoint(5)
    assert not worker.should_checkpoint(6)


def test_a_handler_that_asks_within_a_question_of_its_thread_does_not_wait(agent: Agent, ranks: Any) -> None:  # noqa: F811
    everyone = ranks(2)
    told_to_stop(agent, everyone)
    steps = everyone[0].client.agreed_steps
    real, said = steps._answer, []

    def interrupted(*arguments: Any) -> Any:
        steps._answer = real
        said.append(everyone[0].should_stop(0))
        return real(*arguments)

    steps._answer = interrupted
    assert not everyone[0].should_stop(0)
    assert said == [False]


def test_a_stop_with_less_time_than_was_told_first_is_obeyed_in_time(agent: Agent, ranks: Any) -> None:  # noqa: F811
    everyone = ranks(2)
    told_to_stop(agent, everyone)
    assert not everyone[0].should_stop(1)
    agent.call(agent.server.announce_stop, "SIGTERM", 0.0)
    _wait_until(lambda: everyone[0].should_stop(1))
