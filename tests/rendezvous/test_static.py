"""``StaticTCPRendezvous`` as somebody's own agent uses it: nodes are threads on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from tests.compat.marks import shows_names
from tests.store.etcd.servers import free_ports

from phalanx.rendezvous import (
    RendezvousConnectionError,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from phalanx.rendezvous.static import StaticTCPRendezvous, create_rdzv_handler
from phalanx.store.port import StoreError

PATIENCE_S = 60.0


@contextmanager
def nodes(
    size: int, *, timeout: int = 30, ranks: tuple[int, ...] | None = None
) -> Iterator[list[StaticTCPRendezvous]]:
    port, store_port = free_ports(2)
    made = [
        StaticTCPRendezvous("127.0.0.1", port, rank, size, "job/1", timeout, store_port=store_port)
        for rank in (range(size) if ranks is None else ranks)
    ]
    try:
        yield made
    finally:
        with ThreadPoolExecutor(size) as threads:  # rank 0 waits for the others
            assert all(threads.map(StaticTCPRendezvous.shutdown, made))


def meet(handlers: list[StaticTCPRendezvous]) -> list[RendezvousInfo]:
    with ThreadPoolExecutor(len(handlers)) as threads:
        return list(threads.map(StaticTCPRendezvous.next_rendezvous, handlers))


def test_each_node_gets_the_rank_that_it_was_given_and_the_master_that_it_was_told() -> None:
    with nodes(3) as handlers:
        infos = meet(handlers)
        assert [(info.rank, info.world_size) for info in infos] == [(0, 3), (1, 3), (2, 3)]
        [where] = {info.bootstrap_store_info for info in infos}
        assert where is not None
        assert (where.master_addr, where.master_port) == ("127.0.0.1", handlers[0].master_port)


def test_nodes_share_a_store_which_the_next_round_finds_empty() -> None:
    with nodes(2) as handlers:
        one, other = meet(handlers)
        one.store.set("key", "value")
        assert other.store.get("key") == b"value"
        one, other = meet(handlers)
        assert [one.rank, other.rank] == [0, 1]
        assert not other.store.check(["key"])


def looks_when_it_has_joined(handler: StaticTCPRendezvous) -> None:
    """However short the time is in which the nodes have to come: this one has."""
    seat = handler._seat
    look = seat._who_is_here

    async def has_joined() -> bool:
        assert seat._store is not None
        with contextlib.suppress(StoreError, OSError):
            return bool((await (await seat._store.get()).list(seat._keys.all_joined)).items)
        return False

    async def who_is_here() -> tuple[str, bool]:
        while not await has_joined():  # noqa: ASYNC110 # it has no event that a test could wait for
            await asyncio.sleep(0.01)
        return await look()

    setattr(seat, "_who_is_here", who_is_here)  # noqa: B010 # of this node alone


def test_a_node_that_does_not_come_is_missed_when_the_time_is_over() -> None:
    with nodes(2, timeout=1, ranks=(0,)) as [first]:
        looks_when_it_has_joined(first)
        with pytest.raises(
            RendezvousTimeoutError, match=r"1 of 2 nodes are ready \(.+\); 1 more needed, after 1 s"
        ):
            first.next_rendezvous()


def test_without_node_0_there_is_nobody_to_meet() -> None:
    with nodes(2, timeout=1, ranks=(1,)) as [second], pytest.raises(RendezvousConnectionError):
        second.next_rendezvous()


def test_node_0_may_come_last() -> None:
    with nodes(2) as handlers, ThreadPoolExecutor(2) as threads:
        late = threads.submit(handlers[1].next_rendezvous)
        time.sleep(1)
        assert not late.done()
        assert handlers[0].next_rendezvous().rank == 0
        assert late.result(PATIENCE_S).rank == 1


def test_one_node_meets_itself() -> None:
    with nodes(1) as [handler]:
        assert [info.world_size for info in (handler.next_rendezvous(), handler.next_rendezvous())] == [1, 1]


# As torchelastic


@pytest.mark.torch
@shows_names("same", "elastic.rendezvous.static_tcp_rendezvous", "StaticTCPRendezvous")
def test_what_never_changes_is_answered_as_torchelastic_answers() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters as TheirParameters
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler as theirs

    arguments: Any = ("static", " 127.0.0.1:29500 ", "job", 2, 2)
    answers = []
    handlers: list[Any] = [
        theirs(TheirParameters(*arguments, rank="1", timeout="5")),
        create_rdzv_handler(RendezvousParameters(*arguments, rank="1", timeout="5")),
    ]
    for handler in handlers:
        handler.set_closed()
        answers.append(
            [
                handler.get_backend(),
                handler.get_run_id(),
                handler.is_closed(),
                handler.num_nodes_waiting(),
                handler.master_addr,
                handler.master_port,
                int(handler.rank),
                handler.world_size,
                handler.shutdown(),
            ]
        )
    assert answers[0] == answers[1]


@pytest.mark.torch
@pytest.mark.parametrize("endpoint", ["", "host", "host:29500", "[::1]:5", "host:x", "a b:1"])
@pytest.mark.parametrize(
    "options", [{}, {"rank": 0}, {"rank": "1"}, {"rank": "x"}, {"rank": 0, "timeout": "x"}]
)
@shows_names(
    "better",
    "elastic.rendezvous.static_tcp_rendezvous",
    "create_rdzv_handler",
    how="a rank that is no number is refused",
)
def test_parameters_that_torchelastic_refuses_are_refused(endpoint: str, options: dict[str, Any]) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters as TheirParameters
    from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import create_rdzv_handler as theirs

    def is_refused(create: Any, params: Any) -> bool:
        try:
            create(params)
        except ValueError:
            return True
        return False

    arguments: Any = ("static", endpoint, "job", 2, 2)
    expected = is_refused(theirs, TheirParameters(*arguments, **options))
    found = is_refused(create_rdzv_handler, RendezvousParameters(*arguments, **options))
    assert found == (expected or options.get("rank") == "x")  # which torchelastic takes, and which is no rank
