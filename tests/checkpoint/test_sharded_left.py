"""A rank that ends in the middle of a sharded save, by sys.exit or by a signal, tells the others before."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.thread_ranks import LIMIT_S, Ranks, Shared, together

from phalanx.checkpoint import Checkpointer, SaveFailed
from phalanx.checkpoint.background import Background
from phalanx.checkpoint.staging import Staging

ENDS = [SystemExit(0), KeyboardInterrupt()]


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., Ranks]:
    def make(count: int, **options: Any) -> Ranks:
        store = Shared()
        made = [
            Checkpointer(
                tmp_path, sharded=True, rank=rank, world_size=count, store=store, timeout_s=1800, **options
            )
            for rank in range(count)
        ]
        for one in made:
            one._saves._rank_group()._name = "c"
        return made

    return make


def _outcome(rank: Checkpointer, run: Callable[[Checkpointer], Any]) -> Any:
    """What it returned or raised, of any kind."""
    try:
        return run(rank)
    except BaseException as error:  # noqa: BLE001 # it is what the test asks for
        return error


def _save(step: int) -> Callable[[Checkpointer], Any]:
    def run(rank: Checkpointer) -> None:
        rank.save(step, {"mine": rank._settings.rank})
        rank.wait(LIMIT_S)

    return run


def _others_fail(outcomes: list[Any], who: int, end: BaseException) -> bool:
    return all(
        isinstance(outcome, SaveFailed) and f"rank {who}: {type(end).__name__}" in str(outcome)
        for rank, outcome in enumerate(outcomes)
        if rank != who
    )


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("who", range(3))
@pytest.mark.parametrize("at", ["fill", "seal"])
@pytest.mark.parametrize("is_collective", [False, True])
def test_who_ends_while_it_writes_tells_the_others_and_they_save_on(
    ranks: Callable[..., Ranks],
    monkeypatch: pytest.MonkeyPatch,
    is_collective: bool,
    at: str,
    who: int,
    end: BaseException,
) -> None:
    class State:
        def write(self, folder: Path) -> None:
            (folder / "mine").write_bytes(b"1")

    State.is_collective = is_collective  # type: ignore[attr-defined]
    three = ranks(3)
    real = getattr(Staging, at)

    def leave(staging: Staging, *arguments: Any) -> Any:
        if (staging.part or 0) == who and staging.step == 7:
            raise end
        return real(staging, *arguments)

    monkeypatch.setattr(Staging, at, leave)
    outcomes = together(three, lambda rank: _outcome(rank, lambda rank: rank.save(7, State())))
    assert outcomes[who] is end
    assert _others_fail(outcomes, who, end)
    assert together(three, _save(8)) == [None] * 3
    assert three[0].steps() == [8]


@pytest.mark.parametrize("end", ENDS)
def test_who_ends_while_it_publishes_tells_the_others(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    def leave(*_: Any, **__: Any) -> None:
        raise end

    monkeypatch.setattr(Staging, "publish", leave)
    outcomes = together(ranks(3), lambda rank: _outcome(rank, _save(7)))
    assert sorted(type(outcome).__name__ for outcome in outcomes) == sorted(
        [type(end).__name__, "SaveFailed", "SaveFailed"]
    )


@pytest.mark.parametrize("end", ENDS)
def test_who_ends_while_it_waits_for_the_decision_has_written_its_part(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    three = ranks(3)
    rank_group, store = three[1]._saves._rank_group(), three[1]._settings.store
    hear, seal = rank_group._hear, Staging.seal

    def leave(key: str, *rest: Any) -> bytes | None:
        if not key.endswith("decided"):
            return hear(key, *rest)
        waits.set()
        store.wait_until_said((0, 2))
        raise end

    def seal_after_it(staging: Staging) -> Any:
        if staging.part != 1:
            assert waits.wait(LIMIT_S)
        return seal(staging)

    waits = threading.Event()
    monkeypatch.setattr(rank_group, "_hear", leave)
    monkeypatch.setattr(Staging, "seal", seal_after_it)
    assert together(three, lambda rank: _outcome(rank, _save(7))) == [None, end, None]
    assert three[0].steps() == [7]


@pytest.mark.parametrize("end", ENDS)
def test_who_ends_while_it_waits_for_all_to_begin_tells_the_others(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    class State:
        is_collective = True

        def write(self, folder: Path) -> None:
            (folder / "mine").write_bytes(b"1")

    three, waits = ranks(3), threading.Event()
    for rank in three:
        rank._saves._rank_group().timeout_s = LIMIT_S

    def leave(*_: Any) -> None:
        waits.set()
        raise end

    def save(rank: Checkpointer) -> None:
        assert rank is three[1] or waits.wait(LIMIT_S)
        rank.save(7, State())

    with monkeypatch.context() as ended:
        ended.setattr(three[1]._saves._rank_group(), "_hear", leave)
        outcomes = together(three, lambda rank: _outcome(rank, save))
    assert outcomes[1] is end
    assert _others_fail(outcomes, 1, end)
    assert together(three, _save(8)) == [None] * 3


@pytest.mark.parametrize("end", ENDS)
def test_who_ends_before_it_writes_tells_the_others(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, end: BaseException
) -> None:
    three = ranks(3, background=True)

    def leave(*_: Any) -> None:
        raise end

    background = three[1]._saves._background
    assert isinstance(background, Background)
    with monkeypatch.context() as ended:
        ended.setattr(background, "make_room", leave)
        outcomes = together(three, lambda rank: _outcome(rank, _save(7)))
    assert outcomes[1] is end
    assert _others_fail(outcomes, 1, end)


def test_who_ends_its_thread_in_the_background_has_failed_on_all_ranks(ranks: Callable[..., Ranks]) -> None:
    class Leaving:
        def write(self, _: Path) -> None:
            raise SystemExit(0)

        def snapshot(self) -> Leaving:
            return self

    def run(rank: Checkpointer) -> None:
        rank.save(7, Leaving() if rank._settings.rank == 1 else {"mine": 1})
        rank.wait(LIMIT_S)

    begun = time.monotonic()
    outcomes = together(ranks(3, background=True), run)
    assert [type(outcome) for outcome in outcomes] == [SaveFailed] * 3
    assert all("SystemExit" in str(outcome) for outcome in outcomes)
    assert time.monotonic() - begun < LIMIT_S
