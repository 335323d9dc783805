"""``DynamicRendezvousHandler`` as somebody's own agent uses it: nodes are threads, the backend is one value."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from tests.compat.marks import shows_names
from tests.rendezvous.backends import Cell, CellBackend
from tests.rendezvous.halls import Values

from phalanx.records import changed
from phalanx.rendezvous import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from phalanx.rendezvous.dynamic import DynamicRendezvousHandler, RendezvousTimeout, create_handler
from phalanx.rendezvous.stored import Phase
from phalanx.store.port import Store

PATIENCE_S = 60.0
# Twice as long as between two looks at a backend: a node that is told of a round comes in time for it.
LAST_CALL_S = 1.0


class Job:
    """The nodes of one job, on one backend; all leave when the test is over."""

    def __init__(self, low: int, high: int, **limits: float) -> None:
        self.cell = Cell()
        self.values: Any = Values()
        self.low, self.high = low, high
        self.limits = {"join": 30.0, "last_call": LAST_CALL_S, "close": 30.0, "heartbeat": 10.0, **limits}
        self.handlers: list[DynamicRendezvousHandler] = []
        self.threads = ThreadPoolExecutor(16)

    def node(
        self, *, before_call: Callable[[], None] = lambda: None, **options: Any
    ) -> DynamicRendezvousHandler:
        limits = {name: timedelta(seconds=limit) for name, limit in self.limits.items()}
        handler = DynamicRendezvousHandler.from_backend(
            "job/1",
            self.values,
            CellBackend(self.cell, before_call=before_call),
            self.low,
            self.high,
            timeout=RendezvousTimeout(**limits),
            **{"keep_alive_interval": 1, "keep_alive_max_attempt": 10, **options},
        )
        self.handlers.append(handler)
        return handler

    def meet(self, *handlers: DynamicRendezvousHandler) -> list[Future[RendezvousInfo]]:
        """Let nodes call ``next_rendezvous``, each in a thread of its own."""
        return [self.threads.submit(handler.next_rendezvous) for handler in handlers]

    def met(self, *handlers: DynamicRendezvousHandler) -> list[RendezvousInfo]:
        return [one.result(PATIENCE_S) for one in self.meet(*handlers)]

    def taken_in(
        self, member: DynamicRendezvousHandler, late: Future[RendezvousInfo]
    ) -> tuple[RendezvousInfo, RendezvousInfo]:
        """What ``member`` and one that waits hear of the round in which they meet.

        A member that is told of somebody asks for another round. Who is too late for that one's last call waits on, and
        the member is told again.
        """
        for _ in range(5):
            until(member.num_nodes_waiting)
            [info] = self.met(member)
            until(lambda: late.done() or member.num_nodes_waiting())
            if late.done():
                return info, late.result()
        raise AssertionError("it was never taken in")

    def has(self, key: str, handler: DynamicRendezvousHandler) -> bool:
        """Whether the backend has this node's key under this name: "here", "joined"."""
        pattern = rf"{key}/[^\"]*{handler._seat._settings.node_id}"
        return re.search(pattern.encode(), self.cell.value or b"") is not None

    def looks_when(self, holds: Callable[[], Awaitable[bool]], handler: DynamicRendezvousHandler) -> None:
        """Let the join timeout of a node that waits be over only when this holds.

        However short that timeout is: what is shown is what comes after it.
        """
        seat = handler._seat
        look = seat._who_is_here

        async def who_is_here() -> tuple[str, bool]:
            while not await holds():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return await look()

        setattr(seat, "_who_is_here", who_is_here)  # noqa: B010 # of this node alone

    def answers_of(
        self,
        spare: DynamicRendezvousHandler,
        holds: Callable[[], Awaitable[bool]],
        *,
        short: int,
        then_s: float,
    ) -> list[bool]:
        """Let the join timeout of a spare be over only when this holds, and be short until it has asked so many times
        whether it is a spare, and ``then_s`` from then on. What it hears each time is in the list.
        """
        seat, answers = spare._seat, list[bool]()
        ask = seat._is_spare

        async def is_over() -> bool:
            if not await holds():
                return False
            # A node that has its own life by now; this is for how long the seat waits for a last call.
            seat._settings = changed(seat._settings, last_call_s=0.1, ttl_s=0.1)
            set_patience()
            return True

        async def is_spare(store: Store) -> bool:
            answers.append(await ask(store))
            set_patience()
            return answers[-1]

        def set_patience() -> None:
            seat._join_s = then_s if len(answers) >= short else 0.1

        seat._join_s = 0.1
        self.looks_when(is_over, spare)
        setattr(seat, "_is_spare", is_spare)  # noqa: B010
        return answers

    def looks_in(
        self, phase: Phase, spare: DynamicRendezvousHandler, *, then_s: float = PATIENCE_S
    ) -> list[bool]:
        """Let the join timeout of a spare be over only when the present round is in this phase, and last ``then_s``
        from then on. What it hears each time that it asks whether it is a spare is in the list.
        """
        seat = spare._seat

        async def is_in_phase(store: Store) -> bool:
            record, _ = await seat._membership(store)
            return record is not None and record.phase is phase

        return self.answers_of(spare, lambda: seat._ask(is_in_phase), short=0, then_s=then_s)

    def impatient(self, spare: DynamicRendezvousHandler) -> Callable[[], bool]:
        """Let a node's join timeout be short until it has passed twice, and long after that. What is returned tells
        whether it has.

        Whenever it is over the node asks whether it is a spare, and it is none while the round is being formed that
        takes it in.
        """

        async def is_here() -> bool:
            return self.has("here", spare)

        answers = self.answers_of(spare, is_here, short=2, then_s=PATIENCE_S)
        return lambda: len(answers) >= 2


@contextmanager
def job(low: int, high: int, **limits: float) -> Iterator[Job]:
    found = Job(low, high, **limits)
    try:
        yield found
    finally:
        for handler in found.handlers:
            handler.shutdown()
        found.threads.shutdown()


def until(condition: Callable[[], object]) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_at, "it never came"
        time.sleep(0.05)


# Rounds


def test_nodes_that_meet_get_each_place_once_and_hear_the_same() -> None:
    with job(3, 3) as found:
        infos = found.met(*(found.node() for _ in range(3)))
        assert sorted(info.rank for info in infos) == [0, 1, 2]
        assert {info.world_size for info in infos} == {3}
        assert len({info.bootstrap_store_info for info in infos}) == 1


def test_a_round_below_the_maximum_waits_for_the_last_call_only() -> None:
    with job(1, 3) as found:
        [info] = found.met(found.node())
        assert (info.rank, info.world_size) == (0, 1)


def test_the_port_of_the_master_is_free_when_the_round_is_given() -> None:
    with job(1, 1) as found:
        [info] = found.met(found.node(local_addr="127.0.0.1"))
        where = info.bootstrap_store_info
        assert where is not None
        assert where.master_addr == "127.0.0.1"
        with socket.create_server(("127.0.0.1", where.master_port)):
            pass


def test_nodes_of_a_round_share_a_store_which_the_next_round_finds_empty() -> None:
    with job(2, 2) as found:
        a, b = found.node(), found.node()
        one, other = found.met(a, b)
        one.store.set("key", "value")
        assert other.store.get("key") == b"value"
        one, other = found.met(a, b)
        assert not other.store.check(["key"])


def test_a_newcomer_is_seen_and_taken_in() -> None:
    with job(1, 2) as found:
        a, b = found.node(), found.node()
        found.met(a)
        assert a.num_nodes_waiting() == 0
        [late] = found.meet(b)
        until(a.num_nodes_waiting)
        assert a.num_nodes_waiting() == 1
        first, second = found.taken_in(a, late)
        assert (first.rank, second.rank, first.world_size) == (0, 1, 2)
        assert a.num_nodes_waiting() == 0


def test_a_node_that_asks_for_another_round_is_seen_by_the_others() -> None:
    with job(2, 2) as found:
        a, b = found.node(), found.node()
        found.met(a, b)
        [again] = found.meet(a)
        until(b.num_nodes_waiting)
        infos = [*found.met(b), again.result(PATIENCE_S)]
        assert sorted(info.rank for info in infos) == [0, 1]


def test_a_node_that_falls_silent_is_lost_and_the_others_are_told() -> None:
    with job(1, 2) as found:
        cut = threading.Event()

        def before_call() -> None:
            if cut.is_set():
                raise OSError("the cable is out")

        a, b = found.node(), found.node(keep_alive_max_attempt=2, before_call=before_call)
        found.met(a)
        [late] = found.meet(b)  # after the last call for certain, where it waits until it is seen
        found.taken_in(a, late)
        cut.set()
        until(a.num_nodes_waiting)
        [info] = found.met(a)
        assert info.world_size == 1
        until(b.num_nodes_waiting)  # its workers, too, must stop
        cut.clear()
        [back] = found.meet(b)
        assert {info.world_size for info in found.taken_in(a, back)} == {2}


def test_a_spare_waits_without_limit_and_steps_in_for_a_node_that_leaves() -> None:
    with job(1, 1) as found:
        a, b = found.node(), found.node()
        found.met(a)
        has_waited = found.impatient(b)
        [spare] = found.meet(b)
        until(has_waited)
        assert not spare.done()
        a._seat.leave(PATIENCE_S)  # as a process that is told to stop: the job goes on
        assert spare.result(PATIENCE_S).world_size == 1


def test_a_spare_whose_time_is_over_while_a_round_is_formed_anew_waits_for_that_round() -> None:
    with job(2, 2) as found:
        a, b, c = found.node(), found.node(), found.node()
        found.met(a, b)
        answers = found.looks_in(Phase.JOINING, c)
        [spare] = found.meet(c)
        until(lambda: found.has("here", c))
        for member in (a, b):
            member._seat.leave(PATIENCE_S)
        until(lambda: answers)
        assert answers == [False]
        infos = [*found.met(found.node()), spare.result(PATIENCE_S)]
        assert sorted(info.rank for info in infos) == [0, 1]


def test_a_spare_whose_time_is_over_while_a_round_is_ended_waits_for_the_next() -> None:
    with job(2, 2) as found:
        a, b, c = found.node(), found.node(), found.node()
        found.met(a, b)
        answers = found.looks_in(Phase.COLLECTING, c)
        [spare] = found.meet(c)
        until(lambda: found.has("here", c))
        a._seat.leave(PATIENCE_S)
        until(lambda: answers)  # and b has not stopped its workers
        infos = [*found.met(b), spare.result(PATIENCE_S)]
        assert sorted(info.rank for info in infos) == [0, 1]


def test_a_spare_waits_for_a_round_that_is_formed_anew_no_longer_than_others_would() -> None:
    with job(2, 2) as found:
        a, b, c = found.node(), found.node(), found.node()
        found.met(a, b)
        answers = found.looks_in(Phase.JOINING, c, then_s=0.5)
        [spare] = found.meet(c)
        until(lambda: found.has("here", c))
        for member in (a, b):
            member._seat.leave(PATIENCE_S)
        with pytest.raises(RendezvousTimeoutError, match=r"of 2 nodes are ready .+, after 0\.5 s"):
            spare.result(PATIENCE_S)
        assert answers == [False, False]


# Ends


def test_a_closed_rendezvous_gives_no_round_and_everybody_hears_of_it() -> None:
    with job(1, 2) as found:
        a, b = found.node(), found.node()
        assert not a.is_closed()
        a.set_closed()
        a.set_closed()
        assert a.is_closed()
        assert b.is_closed()
        for handler in (a, b):
            with pytest.raises(RendezvousClosedError):
                handler.next_rendezvous()


def test_closing_ends_the_wait_of_the_others() -> None:
    with job(2, 2) as found:
        a, b = found.node(), found.node()
        [waiting] = found.meet(a)
        b.set_closed()
        with pytest.raises(RendezvousClosedError):
            waiting.result(PATIENCE_S)


def test_a_spare_that_was_not_needed_is_told_so_and_that_is_no_failure() -> None:
    with job(1, 1) as found:
        a, b = found.node(), found.node()
        found.met(a)
        has_waited = found.impatient(b)
        [spare] = found.meet(b)
        until(has_waited)
        assert not spare.done()
        a.set_closed()
        with pytest.raises(RendezvousGracefulExitError):
            spare.result(PATIENCE_S)


def test_who_comes_after_the_end_is_no_spare() -> None:
    with job(1, 1) as found:
        a = found.node()
        found.met(a)
        a.shutdown()
        with pytest.raises(RendezvousClosedError):
            found.node().next_rendezvous()


def test_shutting_down_closes_and_leaves_no_thread() -> None:
    with job(1, 1) as found:
        before = set(threading.enumerate())
        handler = found.node()
        handler.next_rendezvous()
        assert set(threading.enumerate()) - before  # of which some, another test's, may end meanwhile
        assert handler.shutdown()
        until(lambda: set(threading.enumerate()) <= before)
        assert handler.is_closed()
        assert handler.num_nodes_waiting() == 0
        assert handler.shutdown()


def test_too_few_nodes_are_named_when_the_join_timeout_is_over_and_may_try_again() -> None:
    with job(2, 2, join=1) as found:
        a = found.node()

        async def has_joined() -> bool:
            return found.has("joined", a)

        found.looks_when(has_joined, a)
        with pytest.raises(
            RendezvousTimeoutError, match=r"1 of 2 nodes are ready \(.+\); 1 more needed, after 1 s"
        ):
            a.next_rendezvous()
        assert not a.is_closed()
        found.limits["join"] = 30.0
        infos = found.met(found.node(), found.node())
        assert {info.world_size for info in infos} == {2}


def test_a_backend_that_cannot_be_reached_is_a_lost_connection_when_the_time_is_over() -> None:
    def before_call() -> None:
        raise RendezvousConnectionError("no route")

    with job(1, 1, join=0.2, close=0.2) as found:
        handler = found.node(before_call=before_call)
        with pytest.raises(RendezvousConnectionError, match="no route"):
            handler.next_rendezvous()
        handler._seat._ask_s = 2.0  # long enough to hear why: the reason is that of an answer which has come
        calls = [found.threads.submit(call) for call in (handler.is_closed, handler.set_closed)]
        for call in calls:
            with pytest.raises(RendezvousConnectionError, match="no route"):
                call.result(PATIENCE_S)
        handler._seat._ask_s = 0.2
        assert not handler.shutdown()


def test_an_interrupted_wait_leaves_the_job() -> None:
    with job(2, 2) as found:
        a, b, c = found.node(), found.node(), found.node()
        [waiting] = found.meet(a)
        until(lambda: found.has("here", a))
        a._seat.leave(PATIENCE_S)
        with pytest.raises(RuntimeError, match="stopped while somebody waited"):
            waiting.result(PATIENCE_S)
        assert {info.world_size for info in found.met(b, c)} == {2}


# Making


def test_a_handler_tells_what_it_was_made_with() -> None:
    with job(1, 4) as found:
        handler = found.node()
        assert (handler.get_backend(), handler.get_run_id()) == ("cell", "job/1")
        assert not handler.use_agent_store
        assert (handler.settings.min_nodes, handler.settings.max_nodes) == (1, 4)
        assert handler.settings.timeout.last_call == timedelta(seconds=LAST_CALL_S)


@pytest.mark.torch
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"join_timeout": "7", "last_call_timeout": 2, "close_timeout": "3", "heartbeat_timeout": 4},
        {"keep_alive_interval": "2", "keep_alive_max_attempt": 9},
        {"join_timeout": 0},
        {"last_call_timeout": -1},
        {"close_timeout": "1.5"},
        {"keep_alive_interval": "x"},
    ],
)
@shows_names("same", "elastic.rendezvous.dynamic_rendezvous", "create_handler")
def test_parameters_mean_what_they_mean_to_torchelastic(options: dict[str, Any]) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters as TheirParameters
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler as theirs

    def settings(create: Any, params: Any) -> Any:
        try:
            found = create(None, CellBackend(Cell()), params).settings
        except ValueError:
            return ValueError
        limits = [getattr(found.timeout, name) for name in ("join", "last_call", "close", "heartbeat")]
        return [
            found.run_id,
            found.min_nodes,
            found.max_nodes,
            found.keep_alive_interval,
            found.keep_alive_max_attempt,
            limits,
        ]

    arguments: Any = ("cell", "", "job", 1, 2)
    own = settings(create_handler, RendezvousParameters(*arguments, **options))
    assert own == settings(theirs, TheirParameters(*arguments, **options))


@pytest.mark.parametrize(("run_id", "low", "high"), [("", 1, 1), ("job", 0, 1), ("job", 2, 1)])
def test_what_no_job_can_meet_is_refused(run_id: str, low: int, high: int) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 # one sentence each
        DynamicRendezvousHandler.from_backend(run_id, None, CellBackend(Cell()), low, high)


# With torch


@pytest.mark.torch
def test_with_a_store_of_torch_process_groups_can_use_what_a_round_shares() -> None:
    from torch import distributed

    with job(1, 1) as found:
        found.values = distributed.HashStore()
        [info] = found.met(found.node())
        assert isinstance(info.store, distributed.PrefixStore)
        info.store.set("key", "value")
        assert info.store.get("key") == b"value"


@pytest.mark.torch
def test_a_job_of_torchelastic_in_the_same_backend_is_no_job_of_ours() -> None:
    from torch.distributed import HashStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (
        C10dRendezvousBackend as TheirBackend,
    )
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler as Theirs

    from phalanx.rendezvous.c10d_backend import C10dRendezvousBackend

    store = HashStore()
    their = Theirs.from_backend("job", store, TheirBackend(store, "job"), 1, 1)
    their.set_closed()
    own = DynamicRendezvousHandler.from_backend("job", store, C10dRendezvousBackend(store, "job"), 1, 1)
    with pytest.raises(
        RendezvousConnectionError, match="agents of torchrun and of Phalanx cannot be in one job"
    ):
        own.next_rendezvous()
    own.shutdown()
    their.shutdown()
