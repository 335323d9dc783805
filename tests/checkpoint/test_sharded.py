"""Each rank writes its part, and a step is there when all have: or no rank believes that it is."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from phalanx.checkpoint import Checkpointer, SavedStep, SaveFailed
from phalanx.checkpoint.agreement import Member
from phalanx.checkpoint.peers import Circle, StorePeers
from phalanx.checkpoint.sharded import Sharded
from phalanx.checkpoint.shelf import Shelf
from phalanx.checkpoint.staging import Staging

LIMIT_S = 60.0


class Shared:
    """The store of ranks that are threads here: torch's methods, as far as they are needed."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
            return int(self.values[key])

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None


Ranks = Sequence[Checkpointer]


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ranks]:
    """The checkpointers of a round's ranks."""
    rounds = [0]

    def make(count: int, folder: Path = tmp_path / "steps", **options: Any) -> Ranks:
        rounds[0] += 1
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
        monkeypatch.setenv("PHALANX_ROUND", str(rounds[0]))
        store = options.pop("store", None) or Shared()
        made = [
            Checkpointer(
                folder, sharded=True, rank=rank, world_size=count, store=store, timeout_s=LIMIT_S, **options
            )
            for rank in range(count)
        ]
        for one in made:
            one._saves._circle()._name = "c"  # each rank is a process, whose first checkpointer this is
        return made

    return make


def _together(ranks: Ranks, run: Callable[[Checkpointer], Any]) -> list[Any]:
    """What each rank returned or raised."""

    def settled(rank: Checkpointer) -> Any:
        try:
            return run(rank)
        except Exception as error:  # noqa: BLE001 # it is what the test asks for
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return [future.result(LIMIT_S) for future in [pool.submit(settled, rank) for rank in ranks]]


def _save(step: int) -> Callable[[Checkpointer], Any]:
    return lambda rank: rank.save(
        step, {"mine": [rank._settings.rank, step]}, {"epoch": step if rank._settings.rank == 0 else -1}
    )


def _value(rank: Checkpointer) -> Any:
    loaded = rank.load_latest()
    return None if loaded is None else (loaded.step, loaded.meta, [part["mine"] for part in loaded.value])


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_step_has_the_parts_of_all_ranks_and_the_metadata_of_the_first(
    ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    four = ranks(4)
    assert _together(four, _save(100)) == [None] * 4
    assert _names(tmp_path / "steps") == ["latest", "step-000000100"]
    assert _names(tmp_path / "steps" / "latest") == [
        "manifest.json",
        *(f"rank-0000{rank}" for rank in range(4)),
    ]
    expected = (100, {"epoch": 100}, [[rank, 100] for rank in range(4)])
    assert _together(four, _value) == [expected] * 4


@pytest.mark.parametrize("count", [1, 2, 6])
def test_another_number_of_ranks_reads_all_parts(ranks: Callable[..., Ranks], count: int) -> None:
    _together(ranks(4), _save(100))
    seen: list[SavedStep] = []

    def read(saved: SavedStep) -> int:
        seen.append(saved)
        return saved.world_size

    def load(rank: Checkpointer) -> Any:
        loaded = rank.load_latest(read)
        return None if loaded is None else loaded.value

    others = ranks(count)
    values = _together(others, load)
    assert values == [4] * count
    assert all(
        [part.name for part in saved.parts] == [f"rank-0000{rank}" for rank in range(4)] for saved in seen
    )
    assert _together(others, _save(200)) == [None] * count
    assert _value(ranks(1)[0])[2] == [[rank, 200] for rank in range(count)]


def test_a_rank_that_fails_tells_all_and_the_same_step_can_be_saved_again(
    ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    four = ranks(4)
    _together(four, _save(100))

    def save(rank: Checkpointer) -> Any:
        def write(folder: Path) -> None:
            (folder / "half").write_bytes(b"1")
            if rank._settings.rank == 2:
                raise OSError(28, "No space left on device")

        return rank.save(200, write)

    for _ in range(2):
        errors = _together(four, save)
        assert all(isinstance(error, SaveFailed) for error in errors)
        assert all(
            "rank 2: " in str(errors[rank]) and "No space left" in str(errors[rank]) for rank in (0, 1, 3)
        )
        assert "No space left" in str(errors[2])
        assert _names(tmp_path / "steps") == ["latest", "step-000000100"]
    assert _together(four, _save(200)) == [None] * 4
    assert _together(four, _value) == [(200, {"epoch": 200}, [[rank, 200] for rank in range(4)])] * 4


def test_ranks_that_save_different_steps_are_told_and_none_is_published(
    ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    errors = _together(ranks(3), lambda rank: _save(200 if rank._settings.rank == 1 else 100)(rank))
    assert len({str(error).partition(": ")[2] for error in errors}) == 1
    assert "ranks 0 and 2 save step 100, rank 1 saves step 200" in str(errors[0])
    assert not any(name.startswith("step") for name in _names(tmp_path / "steps"))


def test_a_rank_whose_arguments_cannot_be_saved_does_not_leave_the_others_waiting(
    ranks: Callable[..., Ranks],
) -> None:
    three = ranks(3)
    errors = _together(
        three,
        lambda rank: rank.save(100, {"a": 1}, {"loss": float("nan") if rank._settings.rank == 1 else 0.5}),
    )
    assert isinstance(errors[1], ValueError)
    assert [type(error) for error in errors[::2]] == [SaveFailed] * 2
    assert "rank 1: meta['loss'] is nan" in str(errors[0])
    assert _together(three, _save(100)) == [None] * 3


def test_a_rank_that_resumes_while_others_save_is_named(ranks: Callable[..., Ranks]) -> None:
    errors = _together(
        ranks(3), lambda rank: rank.load_latest() if rank._settings.rank == 0 else _save(100)(rank)
    )
    assert all("rank 0 resumes" in str(error) for error in errors)


def test_one_rank_alone_saves_its_part_without_a_store(tmp_path: Path) -> None:
    alone = Checkpointer(tmp_path / "steps", sharded=True, rank=0, world_size=1)
    alone.save(1, {"mine": [0, 1]})
    assert _names(tmp_path / "steps" / "latest") == ["manifest.json", "rank-00000"]
    assert _value(alone) == (1, {}, [[0, 1]])


def test_old_steps_are_removed_by_one_rank(ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    two = ranks(2, keep=2)
    for step in (1, 2, 3, 4):
        assert _together(two, _save(step)) == [None] * 2
    assert _names(tmp_path / "steps") == ["latest", "step-000000003", "step-000000004"]


class Ended(Shared):
    """The store of a round that is over once every rank has said that its part is written."""

    def add(self, key: str, amount: int) -> int:
        if key.endswith("/looks"):
            raise ConnectionError("the round is over")
        return super().add(key, amount)


def test_a_save_of_a_round_that_is_over_is_not_published(ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    errors = _together(ranks(3, store=Ended()), _save(100))
    assert [type(error) for error in errors] == [SaveFailed] * 3
    assert all("the round is over" in str(error) for error in errors)
    assert not any(name.startswith("step") for name in _names(tmp_path / "steps"))


def test_what_a_dead_round_has_left_is_tidied_by_the_next(
    ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    old = ranks(2)[1]
    staging = old._saves._open_staging(100, 1)
    staging.write({"mine": [1, 100]})
    staging.release()  # as the kernel does for a process that was killed
    assert ".step-000000100.job.r1.1.partial" in _names(tmp_path / "steps")
    assert _together(ranks(2), _save(100)) == [None] * 2
    assert _names(tmp_path / "steps") == ["latest", "step-000000100"]


def test_parts_of_another_save_are_not_published(tmp_path: Path) -> None:
    store, shelf = Shared(), Shelf(tmp_path / "steps")

    def save(rank: int) -> Any:
        circle = Circle(StorePeers(store), Member(rank, 2), LIMIT_S, name="c")

        def open_staging(step: int, number: int) -> Staging:
            return Staging(
                shelf, step, part=rank, world_size=2, layout="sharded", run_id="job", attempt=number
            )

        marks = {"run_id": "job", "round": rank}  # of another round, in the same folder
        return Sharded(circle, shelf.files, open_staging, lambda _: None, marks).save(1, 100, {"a": 1}, {})

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(save, rank) for rank in range(2)]
        errors = [future.exception(LIMIT_S) for future in futures]
    assert all("is of another save: round" in str(error) for error in errors)
    assert shelf.steps() == []


def test_records_of_parts_do_not_stay_in_the_step(ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    _together(ranks(2), _save(100))
    manifest = json.loads((tmp_path / "steps" / "latest" / "manifest.json").read_text())
    assert {name.partition("/")[0] for name in manifest["files"]} == {"rank-00000", "rank-00001"}


def test_saves_in_the_background_are_in_one_order_on_all_ranks(
    ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    three = ranks(3, background=2, keep=9)

    def train(rank: Checkpointer) -> None:
        for step in range(1, 6):
            rank.save(step, {"mine": [rank._settings.rank, step]})
        rank.wait()

    assert _together(three, train) == [None] * 3
    assert three[0].steps() == [1, 2, 3, 4, 5]
    assert _together(three, _value) == [(5, {}, [[rank, 5] for rank in range(3)])] * 3


def test_a_rank_that_hears_late_of_a_failed_background_save_stays_in_step_with_the_others(
    ranks: Callable[..., Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    three = ranks(3, background=3)

    def fail(folder: Path) -> None:
        raise OSError(28, "No space left on device")

    def train(rank: Checkpointer) -> list[str]:
        said = []
        for step in (1, 2, 3, 4):
            try:
                rank.save(
                    step,
                    fail if rank._settings.rank == 1 and step == 1 else {"mine": [rank._settings.rank, step]},
                )
            except SaveFailed as error:
                said.append(str(error))
        while True:
            try:
                rank.wait(LIMIT_S)
            except SaveFailed as error:
                said.append(str(error))
            else:
                break
        rank.save(5, {"mine": [rank._settings.rank, 5]})
        rank.close()
        return said

    for said in _together(three, train):
        assert "No space left" in said[0]
    assert 5 in three[0].steps()


def test_an_object_without_a_snapshot_is_refused_in_the_background_on_all_ranks(
    ranks: Callable[..., Ranks],
) -> None:
    class Live:
        def write(self, folder: Path) -> None:
            (folder / "a").write_bytes(b"1")

    two = ranks(2, background=True)

    def save(rank: Checkpointer) -> None:
        rank.save(1, Live() if rank._settings.rank == 0 else {"a": 1})
        rank.close()

    errors = _together(two, save)
    assert isinstance(errors[0], TypeError)
    assert "rank 0: Live has write() and no snapshot()" in str(errors[1])
