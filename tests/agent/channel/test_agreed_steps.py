"""Ranks that agree on steps over the real channel, and what is wrong with the agent or the store meanwhile."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.channel.test_server import Agent, _fresh_client, _wait_until

from phalanx.errors import _agreed_steps
from phalanx.errors import channel as client_end
from phalanx.store.values import SharedValues


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    agent.close()


@pytest.fixture
def worker(agent: Agent, monkeypatch: Any) -> Iterator[Any]:
    """The client's module, as in the only worker of a round."""
    variables = {"PHALANX_AGENT": agent.path, "PHALANX_ROUND": "1", "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in {**variables, "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    yield from _fresh_client(monkeypatch)


class Rank:
    """A worker with a connection of its own; all are in this process."""

    def __init__(self) -> None:
        self.client = client_end._Client()

    def should_stop(self, step: int) -> bool:
        return self.client.is_told_to_stop() and self.client.agreed_steps.should_stop(step, 2)

    def should_checkpoint(self, step: int) -> bool:
        is_told = self.client.is_told_to_stop()
        return (is_told or self.client.has_request) and self.client.agreed_steps.should_checkpoint(step, 2)


@pytest.fixture
def ranks(worker: Any, monkeypatch: Any) -> Iterator[Callable[[int], list[Rank]]]:
    made: list[Rank] = []

    def make(count: int) -> list[Rank]:
        monkeypatch.setenv("WORLD_SIZE", str(count))
        for number in range(count):
            monkeypatch.setenv("RANK", str(number))
            made.append(Rank())
            assert (
                made[-1].client.agreed_steps is not None
            )  # made while the environment says which rank it is
        monkeypatch.setenv("RANK", "0")
        return made

    yield make
    for one in made:
        one.client.forget()


def first(asked: Callable[[int], bool], steps: int = 1000) -> int | None:
    """The first step at which it is True."""
    return next((step for step in range(steps) if asked(step)), None)


def test_without_a_step_a_request_stands_until_this_process_has_a_checkpoint(
    agent: Agent, worker: Any
) -> None:
    assert worker.should_checkpoint() is False
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.1")
    _wait_until(worker.should_checkpoint)
    assert worker.should_checkpoint() is True
    worker.checkpoint_done(7)
    assert worker.should_checkpoint() is False
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.2")
    _wait_until(worker.should_checkpoint)


def test_without_a_step_a_request_is_answered_when_the_state_is_taken_not_when_it_is_written(
    agent: Agent, worker: Any
) -> None:
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.1")
    _wait_until(worker.should_checkpoint)
    worker.checkpoint_taken()
    assert worker.should_checkpoint() is False, "a save in the background is not asked for again"
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.2")
    _wait_until(worker.should_checkpoint)
    worker.checkpoint_done(7)
    assert worker.should_checkpoint() is True, "the checkpoint of step 7 was taken before it was asked for"
    worker.checkpoint_taken()
    assert worker.should_checkpoint() is False


def test_who_connects_late_or_again_hears_the_last_request_and_not_twice(agent: Agent, worker: Any) -> None:
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.1")
    agent.call(agent.server.announce_stop, "SIGTERM", 30.0)
    _wait_until(worker.should_stop)
    client = worker._client()
    assert list(client.requests) == ["n1.1.1"]
    worker.checkpoint_done(1)
    client._lose()
    client._retry_at = 0.0
    client.stop = None
    _wait_until(worker.should_stop)
    assert not client.wanted


def test_a_stop_is_a_reason_for_a_checkpoint(agent: Agent, worker: Any) -> None:
    agent.call(agent.server.announce_stop, "SIGTERM", 30.0)
    _wait_until(worker.should_checkpoint)
    assert worker.should_checkpoint(3)
    assert worker.should_stop(3)
    assert worker.should_checkpoint(4), "as long as it is to stop"


def test_a_single_rank_has_nobody_to_agree_with(agent: Agent, worker: Any) -> None:
    assert not worker.should_checkpoint(1)
    for number in (1, 2):
        agent.call(agent.server.announce_checkpoint, "SIGUSR1", f"n1.1.{number}")
        _wait_until(worker.should_checkpoint)
        assert [worker.should_checkpoint(step) for step in range(3)] == [True, False, False]
        assert not worker.should_checkpoint(), "a rank that saved by steps has answered the request"


def test_a_request_that_another_thread_has_just_taken_raises_nothing(agent: Agent, ranks: Any) -> None:
    class TakenAtOnce(dict[str, None]):
        def __bool__(self) -> bool:
            return True

    one, _ = ranks(2)
    one.client.requests = TakenAtOnce()
    assert one.should_checkpoint(1) is False


def test_ranks_agree_over_their_channel(agent: Agent, ranks: Any) -> None:
    everyone = ranks(3)
    for one in everyone:
        assert not one.should_checkpoint(0)
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.1")
    for one in everyone:
        _wait_until(functools.partial(_is_asked, one.client))
    said = [[one.should_checkpoint(step) for one in everyone] for step in range(1, 200)]
    assert [each for each in said if any(each)] == [[True] * 3]
    agent.call(agent.server.announce_stop, "SIGTERM", 600.0)
    for one in everyone:
        _wait_until(one.client.is_told_to_stop)
    said = [[one.should_stop(step) for one in everyone] for step in range(200, 400)]
    begins = said.index([True] * 3)
    assert not any(any(each) for each in said[:begins])
    assert all(all(each) for each in said[begins:])


@pytest.mark.parametrize("cause", ["failure", "loss"])
def test_nobody_waits_where_a_rank_is_gone(agent: Agent, ranks: Any, cause: str) -> None:
    one, _ = ranks(2)
    agent.call(agent.server.announce_stop, "SIGTERM", 600.0, cause)
    _wait_until(one.client.is_told_to_stop)
    assert one.should_stop(5)


def test_a_loss_that_is_told_within_a_stop_ends_it_for_those_who_wait(agent: Agent, ranks: Any) -> None:
    one, _ = ranks(2)
    agent.call(agent.server.announce_stop, "SIGTERM", 600.0)
    _wait_until(one.client.is_told_to_stop)
    assert first(one.should_stop, 20) is None
    agent.call(agent.server.announce_stop, "SIGTERM", 600.0, "loss")
    assert first(one.should_stop, 100_000) is not None


@pytest.mark.parametrize("when", ["before the stop", "during the stop"])
@pytest.mark.parametrize("code", [0, 3])
def test_nobody_waits_for_a_worker_that_has_ended(agent: Agent, ranks: Any, when: str, code: int) -> None:
    one, _ = ranks(2)
    if when == "before the stop":
        agent.call(agent.server.wills.worker_ended, 1, code)
    agent.call(agent.server.announce_stop, "SIGTERM", 600.0)
    _wait_until(one.client.is_told_to_stop)
    if when == "during the stop":
        assert first(one.should_stop, 20) is None
        agent.call(agent.server.wills.worker_ended, 1, code)
    assert first(one.should_stop, 100_000) is not None


def test_an_agreement_stands_when_workers_end_by_it(agent: Agent, ranks: Any) -> None:
    one, other = ranks(2)
    agent.call(agent.server.announce_stop, "SIGTERM", 600.0)
    for each in (one, other):
        _wait_until(each.client.is_told_to_stop)
    said = [(one.should_stop(step), other.should_stop(step)) for step in range(2)]
    assert said == [(False, False)] * 2
    agent.call(agent.server.wills.worker_ended, 1, 0)
    assert (
        agent.run(SharedValues(agent.store, "/phalanx/job/kv/1/").get("phalanx/agree/stop/0/line"))
        == b"at 2\nstop"
    )
    assert [one.should_stop(step) for step in (1, 2)] == [False, True]


def test_where_workers_share_no_values_a_stop_is_at_once_and_a_checkpoint_never(
    agent: Agent, ranks: Any, caplog: Any
) -> None:
    agent.call(agent.server.new_round, 1, None)
    one, _ = ranks(2)
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.1")
    one.client.is_told_to_stop()
    _wait_until(lambda: one.client.has_request or one.client.is_told_to_stop())
    with caplog.at_level(logging.WARNING, "phalanx"):
        assert first(one.should_checkpoint, 50) is None
    assert [line.getMessage() for line in caplog.records] == [
        "rank 0 cannot agree with the other ranks on a step: the workers of this round share no values"
    ]
    agent.call(agent.server.announce_stop, "SIGTERM", 600.0)
    _wait_until(one.client.is_told_to_stop)
    assert one.should_stop(51)


class SilentStore:
    """It never answers."""

    def __getattr__(self, name: str) -> Any:
        async def never(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        return never


def test_a_store_that_is_silent_delays_a_call_for_a_bounded_time_and_a_stop_until_half_of_the_grace(
    agent: Agent, ranks: Any, monkeypatch: Any, caplog: Any
) -> None:
    monkeypatch.setattr(_agreed_steps, "_CALL_S", 0.2)
    monkeypatch.setattr(_agreed_steps, "_AGAIN_S", 0.05)
    agent.call(agent.server.new_round, 1, SharedValues(SilentStore(), "/phalanx/job/kv/1/"))  # type: ignore[arg-type]
    one, _ = ranks(2)
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.1")
    one.client.is_told_to_stop()
    _wait_until(lambda: one.client.has_request or one.client.is_told_to_stop())
    assert first(one.should_checkpoint, 5) is None
    agent.call(agent.server.announce_stop, "SIGTERM", 600.0)
    _wait_until(one.client.is_told_to_stop)
    assert not one.should_stop(6)
    agent.call(agent.server.announce_stop, "SIGTERM", 2.0)
    assert first(one.should_stop, 10_000) is not None
    assert len(caplog.records) == 1, "said once"


def _is_asked(client: Any) -> bool:
    client.is_told_to_stop()
    return bool(client.has_request)


class Gate:
    """A store that is out of reach while it is shut."""

    def __init__(self, store: Any) -> None:
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        async def through(*arguments: Any, **named: Any) -> Any:
            await self.is_open.wait()
            return await found(*arguments, **named)

        return through


@pytest.mark.parametrize("ends_by", ["the store is back", "a stop"])
def test_who_could_pass_the_step_of_the_others_waits_for_the_store_and_not_beyond_a_stop(
    agent: Agent, ranks: Any, monkeypatch: Any, ends_by: str, caplog: Any
) -> None:
    monkeypatch.setattr(_agreed_steps, "_PATIENCE_S", 1000.0)
    gate = Gate(agent.store)
    agent.call(agent.server.new_round, 1, SharedValues(gate, "/phalanx/job/kv/1/"))  # type: ignore[arg-type]
    one, other = ranks(2)
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.1")
    for client in (one.client, other.client):
        _wait_until(functools.partial(_is_asked, client))
    assert not one.should_checkpoint(0)
    monkeypatch.setattr(_agreed_steps, "_CALL_S", 0.1)
    agent.call(gate.is_open.clear)
    said: list[bool] = []
    asking = threading.Thread(target=lambda: said.extend(map(one.should_checkpoint, range(1, 4))))
    asking.start()
    _wait_until(lambda: len(said) == 1 and caplog.records)  # step 1 it may pass; step 2 it may not
    assert asking.is_alive()
    if ends_by == "a stop":
        agent.call(agent.server.announce_stop, "SIGTERM", 600.0)
        asking.join(60)
        assert not asking.is_alive()
        return
    monkeypatch.setattr(_agreed_steps, "_CALL_S", 10.0)
    agent.call(gate.is_open.set)
    asking.join(60)
    assert said == [False] * 3
    assert first(other.should_checkpoint) == 4
    assert one.should_checkpoint(4)


@pytest.mark.parametrize(("cause", "grace_s"), [("loss", 600.0), ("failure", 600.0), ("asked", 0.4)])
def test_a_silent_store_keeps_no_worker_that_has_no_time(
    agent: Agent, ranks: Any, monkeypatch: Any, cause: str, grace_s: float
) -> None:
    monkeypatch.setattr(_agreed_steps, "_CALL_S", 1000.0)  # a question would outlast this test
    agent.call(agent.server.new_round, 1, SharedValues(SilentStore(), "/phalanx/job/kv/1/"))  # type: ignore[arg-type]
    one, _ = ranks(2)
    agent.call(agent.server.announce_stop, "SIGTERM", grace_s, cause)
    _wait_until(one.client.is_told_to_stop)
    assert one.should_stop(1)


def test_an_agent_that_dies_while_ranks_agree_raises_nothing(agent: Agent, ranks: Any) -> None:
    one, _ = ranks(2)
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.1")
    one.client.is_told_to_stop()
    _wait_until(lambda: one.client.has_request or one.client.is_told_to_stop())
    assert not one.should_checkpoint(1)
    agent.run(agent.server.close())
    assert first(one.should_checkpoint, 20) is None


class ToldLock:
    """A lock that tells when somebody has waited for it in vain."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.release = lock.release
        self.was_in_vain = threading.Event()

    def acquire(self, timeout: float) -> bool:
        has_it = bool(self._lock.acquire(timeout=timeout))
        if not has_it:
            self.was_in_vain.set()
        return has_it


def test_a_thread_waits_for_the_answer_of_another_as_long_as_that_one_may_ask(
    agent: Agent, ranks: Any, monkeypatch: Any
) -> None:
    for name, seconds in {"_CALL_S": 0.05, "_AGAIN_S": 0.05, "_PATIENCE_S": 1000.0}.items():
        monkeypatch.setattr(_agreed_steps, name, seconds)
    one, _ = ranks(2)
    agent.call(agent.server.announce_stop, "SIGTERM", 10_000.0, "planned")
    _wait_until(one.client.is_told_to_stop)
    agreed = one.client.agreed_steps
    lock = agreed._lock = ToldLock(agreed._lock)
    is_asking, answered = threading.Event(), threading.Event()

    def ask_patiently(*_: object) -> bool:
        is_asking.set()
        return answered.wait(60)

    monkeypatch.setattr(agreed, "_ask_patiently", ask_patiently)
    monkeypatch.setattr(type(agreed._stop), "is_open", True)
    said: list[bool] = []
    threads = [threading.Thread(target=lambda: said.append(one.should_stop(6))) for _ in range(2)]
    threads[0].start()
    assert is_asking.wait(60)
    threads[1].start()
    assert lock.was_in_vain.wait(60)
    answered.set()
    for thread in threads:
        thread.join(60)
    assert said == [True, True]


def test_a_thread_waits_for_no_other_when_it_has_no_time_left(
    agent: Agent, ranks: Any, monkeypatch: Any
) -> None:
    for name, seconds in {"_CALL_S": 0.05, "_AGAIN_S": 0.05, "_PATIENCE_S": 1000.0}.items():
        monkeypatch.setattr(_agreed_steps, name, seconds)
    one, _ = ranks(2)
    agent.call(agent.server.announce_checkpoint, "SIGUSR1", "n1.1.1")
    _wait_until(functools.partial(_is_asked, one.client))
    agreed = one.client.agreed_steps
    with agreed._lock:
        said: list[bool] = []
        asking = threading.Thread(target=lambda: said.append(agreed.should_checkpoint(1, 2)))
        asking.start()
        agent.call(agent.server.announce_stop, "SIGTERM", 600.0, "loss")
        asking.join(60)
        assert not asking.is_alive()


def test_without_an_agent_nothing_is_asked_for(monkeypatch: Any) -> None:
    for client in _fresh_client(monkeypatch):
        assert not client.should_stop(1)
        assert not client.should_checkpoint(1, margin=5)
        assert not client.should_checkpoint()
