"""Ranks of workers, agreed upon through the store of a handler, by threads that stand for nodes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rendezvous.halls import Values

from phalanx.rendezvous import RendezvousInfo
from phalanx.rendezvous.foreign.agreement import NodeOffer, agree
from phalanx.rendezvous.round import Round

PATIENCE_S = 30.0


def offer(slots: int = 1, **fields: Any) -> NodeOffer:
    usual: dict[str, Any] = {
        "number": 1,
        "restart_count": 0,
        "reason": "",
        "master_addr": "node0",
        "master_port": 1234,
    }
    return NodeOffer(slots=slots, **{**usual, **fields})


def agree_all(store: Any, offers: Sequence[NodeOffer], *, clients: Sequence[Any] = ()) -> list[Round]:
    def one(rank: int) -> Round:
        own = clients[rank] if clients else store
        return agree(RendezvousInfo(own, rank, len(offers), None), offers[rank], within_s=PATIENCE_S)

    with ThreadPoolExecutor(len(offers)) as threads:
        return list(threads.map(one, range(len(offers))))


@settings(max_examples=20)
@given(slots=st.lists(st.integers(1, 9), min_size=1, max_size=5))
def test_every_worker_gets_one_rank_and_all_nodes_hear_the_same(slots: list[int]) -> None:
    rounds = agree_all(Values(), [offer(count) for count in slots])
    ranks = [one.rank(local_rank) for one in rounds for local_rank in range(one.local_world_size)]
    assert ranks == list(range(sum(slots)))
    assert [one.group_rank for one in rounds] == list(range(len(slots)))
    assert {(one.world_size, one.group_world_size) for one in rounds} == {(sum(slots), len(slots))}
    assert [one.local_world_size for one in rounds] == slots
    assert {(one.master_addr, one.master_port) for one in rounds} == {("node0", 1234)}


def test_the_highest_count_of_rounds_and_of_restarts_is_everybodys() -> None:
    offers = [offer(number=3, restart_count=0), offer(number=1, restart_count=2), offer(number=2)]
    assert {(one.number, one.restart_count) for one in agree_all(Values(), offers)} == {(3, 2)}


def test_the_reason_stays_each_nodes_own_and_the_master_is_node_0s() -> None:
    offers = [offer(reason="a"), offer(reason="b", master_addr="node1", master_port=9)]
    rounds = agree_all(Values(), offers)
    assert [one.reason for one in rounds] == ["a", "b"]
    assert {(one.master_addr, one.master_port) for one in rounds} == {("node0", 1234)}


def test_what_an_earlier_round_has_left_in_the_same_store_does_not_count() -> None:
    store = Values()
    for number, slots in enumerate([[1, 2, 3], [4, 5], [6], [7, 8, 9, 10]]):
        rounds = agree_all(store, [offer(count, number=number, master_port=number) for count in slots])
        assert [one.local_world_size for one in rounds] == slots
        assert {(one.number, one.world_size, one.master_port) for one in rounds} == {
            (number, sum(slots), number)
        }
        assert [one.first_rank for one in rounds] == [sum(slots[:rank]) for rank in range(len(slots))]


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["hash", "file", "tcp", "prefix"])
def test_torchs_stores_will_do(kind: str, tmp_path: Path) -> None:
    from torch import distributed

    memory, server = distributed.HashStore(), distributed.TCPStore("localhost", 0, is_master=True)
    clients: list[Any] = [
        {
            "hash": lambda: memory,
            "file": lambda: distributed.FileStore(str(tmp_path / "store"), -1),
            "tcp": lambda: distributed.TCPStore("localhost", server.port),
            "prefix": lambda: distributed.PrefixStore("prefix", memory),
        }[kind]()
        for _ in range(3)
    ]
    for slots in ([2, 3], [1, 1, 4]):
        rounds = agree_all(None, [offer(count) for count in slots], clients=clients)
        assert [one.first_rank for one in rounds] == [sum(slots[:rank]) for rank in range(len(slots))]


def test_a_node_that_does_not_answer_is_named_when_the_time_is_over() -> None:
    store = Values()
    store.set("phalanx/offer/1", "{}")  # of an earlier round
    with pytest.raises(TimeoutError, match="node 1 of 2 has not said how many workers"):
        agree(RendezvousInfo(store, 0, 2, None), offer(), within_s=0.1)
    with pytest.raises(TimeoutError, match="node 0 has not answered"):
        agree(RendezvousInfo(store, 1, 2, None), offer(), within_s=0.1)


@pytest.mark.parametrize("words", ["pickled", "[]", "7", "[" * 100_000])
def test_words_that_are_none_of_ours_are_refused(words: str) -> None:
    store = Values()
    store.set("phalanx/offer/1", words)
    with pytest.raises(ValueError, match="something else than ours at 'phalanx/offer/1'"):
        agree(RendezvousInfo(store, 0, 2, None), offer(), within_s=PATIENCE_S)


@pytest.mark.parametrize("slots", [-1, "4", None, True, 1.5])
def test_a_number_of_workers_that_is_none_is_refused(slots: Any) -> None:
    class Lying(Values):
        """Node 1 answers each call with nonsense."""

        def set(self, key: str, value: str | bytes) -> None:
            super().set(key, value)
            if key == "phalanx/call":
                lie = {"call": value, "slots": slots, "number": 1, "restart_count": 0}
                super().set("phalanx/offer/1", json.dumps(lie))

    with pytest.raises(ValueError, match=r"another node gave .* as 'slots'"):
        agree(RendezvousInfo(Lying(), 0, 2, None), offer(), within_s=PATIENCE_S)


@pytest.mark.parametrize(("field", "value"), [("first_rank", -1), ("master_port", "x"), ("master_addr", 7)])
def test_an_answer_that_is_not_whole_is_refused(field: str, value: Any) -> None:
    whole = {
        "number": 1,
        "restart_count": 0,
        "first_rank": 1,
        "world_size": 2,
        "master_addr": "a",
        "master_port": 1,
    }

    class Lying(Values):
        """Node 0 answers each offer with nonsense."""

        def set(self, key: str, given: str | bytes) -> None:
            super().set(key, given)
            if key == "phalanx/offer/1":
                word = json.loads(given)["word"]
                super().set("phalanx/answer/1", json.dumps({**whole, field: value, "word": word}))

    store = Lying()
    store.set("phalanx/call", "call")
    with pytest.raises(ValueError, match="gave"):
        agree(RendezvousInfo(store, 1, 2, None), offer(), within_s=PATIENCE_S)
