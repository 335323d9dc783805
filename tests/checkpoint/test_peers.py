"""Ranks reach each other through whatever store they have, and leave it as they found it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from tests.checkpoint.thread_ranks import Shared, seeing

from phalanx.checkpoint import Checkpointer
from phalanx.checkpoint.agreement import Finding, Member, Publish, Request, finish_save, resume
from phalanx.checkpoint.exceptions import NoPeers
from phalanx.checkpoint.peers import Alone, Peers, RankGroup, StorePeers, find_peers

LIMIT_S = 60.0
MakeStore = Callable[[], Any]


@pytest.fixture(params=["TCPStore", "FileStore", "PrefixStore", "HashStore"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeStore]:
    """Each call is the store of one more rank."""
    distributed = pytest.importorskip("torch.distributed")
    if request.param == "FileStore":
        yield lambda: distributed.FileStore(str(tmp_path / "store"), 4)
        return
    if request.param == "HashStore":
        one = distributed.HashStore()
        yield lambda: one
        return
    host = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def client() -> Any:
        store = distributed.TCPStore(
            "127.0.0.1", host.port, is_master=False, timeout=timedelta(seconds=LIMIT_S)
        )
        return distributed.PrefixStore("job", store) if request.param == "PrefixStore" else store

    yield client


pytestmark = pytest.mark.torch


def test_peers_count_tell_and_hear(stores: MakeStore) -> None:
    one, other = StorePeers(stores(), "x/"), StorePeers(stores(), "x/")
    assert [one.count("n"), other.count("n"), one.count("n", 0)] == [1, 2, 2]
    assert one.hear("m", 0.0) is None
    other.tell("m", b"\0\xff text")
    assert one.hear("m", LIMIT_S) == b"\0\xff text"
    other.forget(["n", "m", "never there"])
    assert one.hear("m", 0.0) is None
    assert one.count("n") == 1


def test_a_rank_that_waits_hears_what_is_told_later(stores: MakeStore) -> None:
    one, other = StorePeers(stores()), StorePeers(stores())
    with ThreadPoolExecutor(1) as pool:
        heard = pool.submit(one.hear, "later", LIMIT_S)
        other.tell("later", b"now")
        assert heard.result(LIMIT_S) == b"now"


def _together(groups: list[RankGroup], run: Callable[[RankGroup], Any]) -> list[Any]:
    with ThreadPoolExecutor(len(groups)) as pool:
        return [future.result(LIMIT_S) for future in [pool.submit(run, rank_group) for rank_group in groups]]


def test_ranks_resume_and_save_and_their_store_is_bounded(stores: MakeStore) -> None:
    ranks = 3
    made = [stores() for _ in range(ranks)]
    groups = [
        RankGroup(StorePeers(store), Member(rank, ranks), LIMIT_S, name="c")
        for rank, store in enumerate(made)
    ]
    keys: list[int] = []
    published: list[int] = []
    for step in range(1, 8):

        def run(rank_group: RankGroup, step: int = step) -> Any:
            if step % 3 == 0:
                number = rank_group.next_number()
                resumption = rank_group.hold(
                    number, seeing(range(step), resume(rank_group.me)), lambda _: Finding()
                )
                return resumption.step

            def publish(request: Request) -> None:
                assert isinstance(request, Publish)
                published.append(step)

            return rank_group.hold(rank_group.next_number(), finish_save(rank_group.me, step, None), publish)

        assert _together(groups, run) == [step - 1 if step % 3 == 0 else None] * ranks
        keys.append(made[0].num_keys())
    assert published == [1, 2, 4, 5, 7]
    # What is left is of the last one: what each rank said, and four more.
    assert keys[6] <= keys[0] + 2, keys


def test_a_rank_that_never_comes_is_named_by_the_others(stores: MakeStore) -> None:
    have_said = threading.Barrier(2)

    class Meeting(StorePeers):
        """Nobody loses patience before both have said that they are here."""

        def tell(self, key: str, message: bytes) -> None:
            super().tell(key, message)
            if "said" in key:
                have_said.wait(LIMIT_S)

    # One of them alone loses it: the other one may be late, too, and has to hear what was decided.
    groups = [
        RankGroup(Meeting(stores()), Member(rank, 3), timeout_s, name="c")
        for rank, timeout_s in ((0, 0.5), (2, LIMIT_S))
    ]
    results = _together(
        groups,
        lambda rank_group: rank_group.hold(
            rank_group.next_number(), finish_save(rank_group.me, 5, None), lambda _: None
        ),
    )
    assert results == ["rank 0 has waited in vain for rank 1"] * 2


def test_one_rank_needs_no_store() -> None:
    rank_group = RankGroup(find_peers(None, 1), Member(0, 1), LIMIT_S, name="c")
    number = rank_group.next_number()
    assert rank_group.hold(number, seeing([3, 4], resume(rank_group.me)), lambda _: Finding()).step == 4
    assert (
        rank_group.hold(rank_group.next_number(), finish_save(rank_group.me, 5, None), lambda _: None) is None
    )


def test_ranks_without_a_store_in_common_are_told_what_to_do() -> None:
    with pytest.raises(NoPeers, match=r"4 ranks .* run under phalanx, .*init_process_group.* or give store="):
        find_peers(None, 4)


def test_the_store_of_torchs_process_group_is_found(tmp_path: Path) -> None:
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        peers = find_peers(None, 2)
        assert isinstance(peers, StorePeers)
        assert [peers.count("n"), peers.count("n")] == [1, 2]
    finally:
        distributed.destroy_process_group()


def test_checkpointers_are_told_apart_in_the_order_in_which_they_begin_to_talk() -> None:
    class Shared(Alone):
        """Two ranks in one process."""

        lock = threading.Lock()

        def count(self, key: str, amount: int = 1) -> int:
            with self.lock:
                return super().count(key, amount)

        def hear(self, key: str, timeout_s: float) -> bytes | None:
            while (found := super().hear(key, timeout_s)) is None and timeout_s:
                threading.Event().wait(0.001)
            return found

    peers: Peers = Shared()
    mine = [RankGroup(peers, Member(1007, 1), LIMIT_S) for _ in range(2)]
    for rank_group in mine:  # were they one, the second would come a second time
        assert (
            rank_group.hold(rank_group.next_number(), finish_save(rank_group.me, 5, None), lambda _: None)
            is None
        )


class Watched(Shared):
    """Tells when a rank has looked for a decision some times, and so has had time to lose its patience."""

    def __init__(self, looks: int = 5) -> None:
        super().__init__()
        self.enough = looks
        self.looks = 0
        self.is_waited_for = threading.Event()

    def check(self, keys: list[str]) -> bool:
        self.looks += any(key.endswith("decided") for key in keys)
        if self.looks > self.enough:
            self.is_waited_for.set()
        return super().check(keys)


class TestRanksThatWaitForLong:
    """One of them says for whom, once."""

    @pytest.fixture
    def said(self, monkeypatch: pytest.MonkeyPatch) -> SimpleQueue[str]:
        said: SimpleQueue[str] = SimpleQueue()
        log = SimpleNamespace(warning=lambda text, *values: said.put(text % values))
        monkeypatch.setattr("phalanx.checkpoint.peers.log", log)
        monkeypatch.setattr("phalanx.checkpoint.peers._TOLD_S", 0.0)
        monkeypatch.setattr("phalanx.checkpoint.peers._LOOK_ROUND_S", 0.01)
        return said

    @pytest.mark.parametrize("early", [(0,), (1, 2)])
    def test_say_for_whom_once(self, early: tuple[int, ...], said: SimpleQueue[str]) -> None:
        store = Watched(looks=50)
        groups = [RankGroup(StorePeers(store), Member(rank, 3), LIMIT_S, name="c") for rank in range(3)]

        def load(rank: int) -> Any:
            rank_group = groups[rank]
            talk = seeing([5], resume(rank_group.me))
            return rank_group.hold(rank_group.next_number(), talk, lambda _: Finding()).step

        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(load, rank) for rank in early]
            text = said.get(timeout=LIMIT_S)
            assert store.is_waited_for.wait(LIMIT_S)
            assert said.empty()
            waiting += [pool.submit(load, rank) for rank in range(3) if rank not in early]
            assert [each.result(LIMIT_S) for each in waiting] == [5] * 3
        if early == (0,):
            assert text.startswith("rank 0 waits for ranks 1 and 2, for up to 60 s: all ranks must call")
        else:  # the other one of them may not have come when the first one looked
            assert " waits for rank" in text

    def test_say_nothing_while_a_step_is_published(self, said: SimpleQueue[str]) -> None:
        all_here = threading.Barrier(2)

        class Meeting(Watched):
            """Nobody waits before both have said that they are here."""

            def set(self, key: str, value: bytes) -> None:
                super().set(key, value)
                if "said" in key:
                    all_here.wait(LIMIT_S)

        store = Meeting(looks=50)
        groups = [RankGroup(StorePeers(store), Member(rank, 2), LIMIT_S, name="c") for rank in range(2)]

        def publish(_: Request) -> None:
            assert store.is_waited_for.wait(LIMIT_S)

        def save(rank_group: RankGroup) -> Any:
            number = rank_group.next_number()
            return rank_group.hold(number, finish_save(rank_group.me, 5, None), publish)

        assert _together(groups, save) == [None, None]
        assert said.empty()


class TestARankWhoseScriptHasEnded:
    """Its saves go on in a thread, and wait for ranks that may never come: they may wait for this one."""

    @pytest.fixture(autouse=True)
    def _has_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("phalanx.checkpoint.peers._ended_at", time.monotonic() - 1000)
        monkeypatch.setattr("phalanx.checkpoint.peers._LOOK_ROUND_S", 0.01)

    @staticmethod
    def groups(store: Shared) -> list[RankGroup]:
        return [RankGroup(StorePeers(store), Member(rank, 2), 1800.0, name="c") for rank in range(2)]

    @staticmethod
    def save(rank_group: RankGroup) -> Any:
        number = rank_group.next_number()
        rank_group.come(number)
        return rank_group.hold(number, finish_save(rank_group.me, 5, None), lambda _: None)

    def test_does_not_wait_for_one_that_has_not_come_for_so_long(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("phalanx.checkpoint.peers._ENDED_S", 0.0)
        first, _ = self.groups(Shared())
        for _ in range(2):
            assert "rank 0 has waited in vain for rank 1" in self.save(first)

    def test_has_all_its_patience_for_one_that_has_come_and_is_writing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("phalanx.checkpoint.peers._ENDED_S", 0.0)
        store = Watched()
        first, second = self.groups(store)
        second.come(second.next_number())

        def write() -> Any:
            assert store.is_waited_for.wait(LIMIT_S)
            return second.hold(1, finish_save(second.me, 5, None), lambda _: None)

        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(write)
            assert self.save(first) is None
            assert late.result(LIMIT_S) is None

    @pytest.mark.parametrize("where", ["write", "tidy", "copy"])
    def test_has_all_its_patience_for_one_that_has_called_save(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
    ) -> None:
        monkeypatch.setattr("phalanx.checkpoint.peers._ENDED_S", 0.0)
        store, has_called = Watched(), threading.Event()
        slow, quick = (
            Checkpointer(
                tmp_path, sharded=True, background=1, rank=rank, world_size=2, store=store, timeout_s=LIMIT_S
            )
            for rank in range(2)
        )

        def wait(*_: object) -> dict[str, int]:
            has_called.set()
            assert store.is_waited_for.wait(LIMIT_S)
            return {}

        def write(folder: Path) -> None:
            (folder / "mine").write_bytes(b"1")
            wait()

        def save(state: object) -> None:
            slow.save(7, state)
            slow.wait()

        for one in (slow, quick):
            one._saves._rank_group()._name = "c"
        if where == "tidy":
            monkeypatch.setattr(slow._saves, "_tidy_shared", wait)
        state = {"write": write, "tidy": {}, "copy": SimpleNamespace(write=write, snapshot=wait)}[where]
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(save, state)
            assert has_called.wait(LIMIT_S)
            quick.save(7, {"mine": 1})
            quick.wait()
            late.result(LIMIT_S)
        assert quick.steps() == [7]

    def test_counts_anew_from_the_last_sign_of_the_others(self) -> None:
        store = Watched()
        first, second = self.groups(store)
        for rank_group in (first, second):  # else they would give up at once: their scripts ended long ago
            rank_group.come(rank_group.next_number())

        def save_the_first(rank_group: RankGroup) -> Any:
            return rank_group.hold(1, finish_save(rank_group.me, 5, None), lambda _: None)

        assert _together([first, second], save_the_first) == [None, None]
        with ThreadPoolExecutor(1) as pool:
            store.looks, store.is_waited_for = 0, threading.Event()
            waits = pool.submit(self.save, first)
            assert store.is_waited_for.wait(LIMIT_S)
            assert self.save(second) is None
            assert waits.result(LIMIT_S) is None


def test_a_new_round_begins_anew_in_a_store_that_outlives_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Shared()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")

    def save(_: int) -> Any:
        me = Member(0, 1)
        rank_group = RankGroup(find_peers(store, 2), me, LIMIT_S, name="c")
        return rank_group.hold(rank_group.next_number(), finish_save(me, 5, None), lambda _: None)

    for number in ("3", "4"):  # a node has joined: no restart
        monkeypatch.setenv("PHALANX_ROUND", number)
        assert save(5) is None
    monkeypatch.delenv("PHALANX_ROUND")
    assert save(5) is None
    assert "comes a second time" in save(5)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert save(5) is None
