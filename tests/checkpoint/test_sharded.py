"""Each rank writes its part, and a step is there when all have: or no rank believes that it is."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from tests.checkpoint.thread_ranks import Ranks, Shared, together

from phalanx.checkpoint import Checkpointer, CheckpointError, NoGoodStep, SavedStep, SaveFailed, checksums
from phalanx.checkpoint.agreement import Member
from phalanx.checkpoint.directory import StepDirectory
from phalanx.checkpoint.files import RealFiles
from phalanx.checkpoint.locks import Lock
from phalanx.checkpoint.peers import RankGroup, StorePeers
from phalanx.checkpoint.sharded import Sharded
from phalanx.checkpoint.staging import Staging

LIMIT_S = 60.0


@pytest.fixture(autouse=True, params=["locks reach", "no locks", "locks end at the machine"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How far locks on folders reach: each rank is a machine of its own where they do not."""

    def alone(_: RealFiles, folder: Path, *, exclusive: bool) -> Lock:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        return Lock(descriptor, held=request.param == "locks end at the machine")

    if request.param != "locks reach":
        monkeypatch.setattr(RealFiles, "lock", alone)
    return str(request.param)


@pytest.fixture
def ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ranks]:
    """The checkpointers of a round's ranks."""
    rounds = [0]

    def make(count: int, folder: Path = tmp_path / "steps", **options: Any) -> Ranks:
        rounds[0] += 1
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
        monkeypatch.setenv("PHALANX_ROUND", str(options.pop("round", rounds[0])))
        store = options.pop("store", None) or Shared()
        made = [
            Checkpointer(
                folder, sharded=True, rank=rank, world_size=count, store=store, timeout_s=LIMIT_S, **options
            )
            for rank in range(count)
        ]
        for one in made:
            one._saves._rank_group()._name = "c"  # each rank is a process, whose first checkpointer this is
        return made

    return make


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
    assert together(four, _save(100)) == [None] * 4
    assert _names(tmp_path / "steps") == ["latest", "step-000000100"]
    assert _names(tmp_path / "steps" / "latest") == [
        "manifest.json",
        *(f"rank-0000{rank}" for rank in range(4)),
    ]
    expected = (100, {"epoch": 100}, [[rank, 100] for rank in range(4)])
    assert together(four, _value) == [expected] * 4


@pytest.mark.parametrize("count", [1, 2, 6])
def test_another_number_of_ranks_reads_all_parts(ranks: Callable[..., Ranks], count: int) -> None:
    together(ranks(4), _save(100))
    seen: list[SavedStep] = []

    def read(saved: SavedStep) -> int:
        seen.append(saved)
        return saved.world_size

    def load(rank: Checkpointer) -> Any:
        loaded = rank.load_latest(read)
        return None if loaded is None else loaded.value

    others = ranks(count)
    values = together(others, load)
    assert values == [4] * count
    assert all(
        [part.name for part in saved.parts] == [f"rank-0000{rank}" for rank in range(4)] for saved in seen
    )
    assert together(others, _save(200)) == [None] * count
    assert _value(ranks(1)[0])[2] == [[rank, 200] for rank in range(count)]


def test_a_rank_that_fails_tells_all_and_the_same_step_can_be_saved_again(
    ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    four = ranks(4)
    together(four, _save(100))

    def save(rank: Checkpointer) -> Any:
        def write(folder: Path) -> None:
            (folder / "half").write_bytes(b"1")
            if rank._settings.rank == 2:
                raise OSError(28, "No space left on device")

        return rank.save(200, write)

    for _ in range(2):
        errors = together(four, save)
        assert all(isinstance(error, SaveFailed) for error in errors)
        assert all(
            "rank 2: " in str(errors[rank]) and "No space left" in str(errors[rank]) for rank in (0, 1, 3)
        )
        assert "No space left" in str(errors[2])
        assert _names(tmp_path / "steps") == ["latest", "step-000000100"]
    assert together(four, _save(200)) == [None] * 4
    assert together(four, _value) == [(200, {"epoch": 200}, [[rank, 200] for rank in range(4)])] * 4


def test_ranks_that_save_different_steps_are_told_and_none_is_published(
    ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    errors = together(ranks(3), lambda rank: _save(200 if rank._settings.rank == 1 else 100)(rank))
    assert len({str(error).partition(": ")[2] for error in errors}) == 1
    assert "ranks 0 and 2 save step 100, rank 1 saves step 200" in str(errors[0])
    assert not any(name.startswith("step") for name in _names(tmp_path / "steps"))


def test_a_rank_whose_arguments_cannot_be_saved_does_not_leave_the_others_waiting(
    ranks: Callable[..., Ranks],
) -> None:
    three = ranks(3)
    errors = together(
        three,
        lambda rank: rank.save(100, {"a": 1}, {"loss": float("nan") if rank._settings.rank == 1 else 0.5}),
    )
    assert isinstance(errors[1], ValueError)
    assert [type(error) for error in errors[::2]] == [SaveFailed] * 2
    assert "rank 1: meta['loss'] is nan" in str(errors[0])
    assert together(three, _save(100)) == [None] * 3


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("failing", [0, 1])
def test_a_failed_save_leaves_nothing_whoever_failed(
    ranks: Callable[..., Ranks], tmp_path: Path, failing: int, background: bool
) -> None:
    three = ranks(3, background=background)

    def save(rank: Checkpointer) -> None:
        rank.save(100, {"a": b"1" * 1000}, {"loss": object()} if rank is three[failing] else None)
        rank.wait(LIMIT_S)

    errors = together(three, save)
    assert [type(error) for error in errors].count(SaveFailed) == 2
    together(three, lambda rank: rank.wait(LIMIT_S))
    assert _names(tmp_path / "steps") == []


def test_a_rank_that_resumes_while_others_save_is_named(ranks: Callable[..., Ranks]) -> None:
    errors = together(
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
        assert together(two, _save(step)) == [None] * 2
    assert _names(tmp_path / "steps") == ["latest", "step-000000003", "step-000000004"]


class Ended(Shared):
    """The store of a round that is over once every rank has said that its part is written."""

    def add(self, key: str, amount: int) -> int:
        if key.endswith("/looks"):
            raise ConnectionError("the round is over")
        return super().add(key, amount)


def test_a_save_of_a_round_that_is_over_is_not_published(ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    errors = together(ranks(3, store=Ended()), _save(100))
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
    assert together(ranks(2), _save(100)) == [None] * 2
    assert _names(tmp_path / "steps") == ["latest", "step-000000100"]


def _leave_behind(killed: Ranks, step: int) -> None:
    """What ranks leave that are killed when their parts and records are written."""
    for rank in killed:
        number = rank._saves._rank_group()._number + 1
        sharded = Sharded(
            rank._saves._rank_group(),
            RealFiles(),
            rank._saves._open_staging,
            lambda _: None,
            rank._saves._marks(),
        )
        staging = sharded.begin(number, step, {"mine": "of the dead"})
        sharded._leave_record(staging, number, staging.seal(), {})
        staging.release()  # as the kernel does


@pytest.mark.parametrize("killed", [[0], [1], [0, 1, 2]])
def test_a_job_that_is_started_again_under_its_run_id_replaces_what_the_killed_one_has_left(
    ranks: Callable[..., Ranks], tmp_path: Path, killed: list[int]
) -> None:
    first, again = ranks(3, round=1), ranks(3, round=1)
    _leave_behind([first[rank] for rank in killed], 100)
    assert ".step-000000100.job.r1.1.partial" in _names(tmp_path / "steps")
    assert together(again, _save(100)) == [None] * 3
    assert _names(tmp_path / "steps") == ["latest", "step-000000100"]
    assert together(again, _value) == [(100, {"epoch": 100}, [[rank, 100] for rank in range(3)])] * 3
    assert again[0].verify() == []


def test_a_record_of_a_killed_job_that_is_seen_instead_of_the_new_one_is_never_published(
    ranks: Callable[..., Ranks], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.checkpoint.sharded._LATE_S", 0.3)
    first, again = ranks(2, round=1), ranks(2, round=1)
    _leave_behind(first, 100)
    stale = (tmp_path / "steps" / ".step-000000100.job.r1.1.partial" / "part-00001.json").read_bytes()
    real = RealFiles.opened

    def opened(self: RealFiles, path: Path) -> BinaryIO:
        """A network file system shows another machine's files late."""
        return io.BytesIO(stale) if path.name == "part-00001.json" else real(self, path)

    monkeypatch.setattr(RealFiles, "opened", opened)
    errors = together(again, _save(100))
    assert all("its record is of another save: word" in str(error) for error in errors)
    assert again[0].steps() == []


@pytest.mark.parametrize(
    "old", [b'{"word": "ab', b"", b"[1]", b"\xff"], ids=["cut", "empty", "a list", "no text"]
)
def test_a_record_that_is_not_whole_yet_is_waited_for(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, old: bytes
) -> None:
    real, seen = RealFiles.opened, list[Path]()

    def opened(self: RealFiles, path: Path) -> BinaryIO:
        if path.name == "part-00001.json" and not seen:
            seen.append(path)
            return io.BytesIO(old)
        return real(self, path)

    monkeypatch.setattr(RealFiles, "opened", opened)
    two = ranks(2)
    assert together(two, _save(100)) == [None] * 2
    assert seen
    assert two[0].steps() == [100]


def test_a_disk_that_is_full_when_the_record_is_written_is_a_failed_save(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = RealFiles.write

    def write(self: RealFiles, path: Path, data: bytes) -> None:
        if path.name == "part-00001.json":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        real(self, path, data)

    monkeypatch.setattr(RealFiles, "write", write)
    errors = together(ranks(2), _save(100))
    assert [type(error) for error in errors] == [SaveFailed] * 2
    assert all("No space left on device; free some space" in str(error) for error in errors)
    assert "rank 1: " in str(errors[0])


class Collective:
    """A state whose writers meet, as those of torch.distributed.checkpoint."""

    is_collective = True

    def __init__(self, meeting: threading.Barrier, *, fails: bool = False) -> None:
        self.meeting = meeting
        self.fails = fails

    def write(self, folder: Path) -> None:
        self.meeting.wait(LIMIT_S)
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        (folder / "part").write_bytes(b"1")


def test_a_rank_that_cannot_begin_leaves_nobody_in_the_writing_of_a_collective_state(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    three, meeting = ranks(3), threading.Barrier(3)
    real = three[1]._saves._open_staging

    def full(step: int, number: int) -> Staging:
        raise SaveFailed(f"step {step} was not saved: No space left on device")

    monkeypatch.setattr(three[1]._saves, "_open_staging", full)
    errors = together(three, lambda rank: rank.save(100, Collective(meeting)))
    assert [type(error) for error in errors] == [SaveFailed] * 3
    assert all("No space left" in str(error) for error in errors)
    assert meeting.n_waiting == 0
    monkeypatch.setattr(three[1]._saves, "_open_staging", real)
    refused = together(
        three,
        lambda rank: rank.save(100, Collective(meeting), {"loss": object()} if rank is three[2] else {}),
    )
    assert not any(error is None for error in refused)
    assert meeting.n_waiting == 0
    assert together(three, lambda rank: rank.save(100, Collective(meeting))) == [None] * 3
    assert three[0].verify() == []


def test_a_rank_that_fails_in_the_writing_of_a_collective_state_tells_the_others(
    ranks: Callable[..., Ranks],
) -> None:
    three, meeting = ranks(3), threading.Barrier(3)
    errors = together(three, lambda rank: rank.save(100, Collective(meeting, fails=rank is three[2])))
    assert all("Input/output error" in str(error) for error in errors)
    assert together(three, _save(100)) == [None] * 3


def test_a_collective_state_and_another_one_are_told_apart(ranks: Callable[..., Ranks]) -> None:
    two, meeting = ranks(2), threading.Barrier(2)
    errors = together(two, lambda rank: rank.save(1, Collective(meeting) if rank is two[0] else {"a": 1}))
    assert all(
        "rank 0 saves step 1 together with others, rank 1 saves step 1" in str(error) for error in errors
    )


def test_a_collective_state_is_refused_in_the_background(ranks: Callable[..., Ranks]) -> None:
    two, meeting = ranks(2, background=True), threading.Barrier(2)
    errors = together(two, lambda rank: rank.save(1, Collective(meeting)))
    assert all(isinstance(error, TypeError) and "in the foreground" in str(error) for error in errors)


def test_a_callable_in_the_background_writes_what_is_there_when_it_is_called(
    ranks: Callable[..., Ranks],
) -> None:
    two = ranks(2, background=3)
    weights = [0, 0]

    def train(rank: Checkpointer) -> list[str]:
        me, called_in = rank._settings.rank, []

        def write(folder: Path) -> None:
            called_in.append(threading.current_thread().name)
            (folder / "weights").write_text(str(weights[me]))

        for step in (1, 2, 3):
            weights[me] = step
            rank.save(step, write)
        weights[me] = 7
        rank.close()
        return called_in

    for called_in in together(two, train):
        assert len(called_in) == 3
        assert "phalanx-checkpoint" not in called_in
    for step in (1, 2, 3):
        folder = two[0]._settings.directory.folder_of(step)
        assert [(folder / f"rank-0000{rank}/weights").read_text() for rank in (0, 1)] == [str(step)] * 2


def test_a_callable_that_fails_in_the_background_fails_at_once_and_tells_the_others(
    ranks: Callable[..., Ranks], tmp_path: Path
) -> None:
    two = ranks(2, background=True)

    def fail(folder: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def save(rank: Checkpointer) -> str:
        try:
            rank.save(1, fail if rank is two[0] else {"a": 1})
        except SaveFailed as error:
            return f"at once: {error}"
        rank.wait(LIMIT_S)
        return "saved"

    said = together(two, save)
    assert said[0].startswith("at once: step 1 was not saved: ")
    assert "rank 0: " in str(said[1])
    together(two, lambda rank: rank.wait(LIMIT_S))
    assert together(two, _save(2)) == [None] * 2
    together(two, lambda rank: rank.close())
    assert two[0].steps() == [2]


def test_in_the_background_a_rank_copies_what_it_writes_and_no_more(ranks: Callable[..., Ranks]) -> None:
    copied: list[int] = []

    class Part:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def write(self, folder: Path) -> None:
            (folder / "rank").write_text(str(self.rank))

    class State(Part):
        def snapshot(self) -> Part:
            raise AssertionError("all of it would be copied")

        def snapshot_part(self, rank: int) -> Part:
            copied.append(rank)
            return Part(rank)

    three = ranks(3, background=True)
    assert together(three, lambda rank: rank.save(1, State(-1))) == [None] * 3
    assert together(three, lambda rank: rank.close()) == [None] * 3
    assert sorted(copied) == [0, 1, 2]
    assert three[0].steps() == [1]


def test_a_step_is_loaded_by_all_ranks_and_each_reads_its_share(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    three = ranks(3)
    together(three, _save(100))
    together(three, _save(200))
    read: list[str] = []
    real = checksums.checksums_of

    def noted(kinds: dict[Path, str], *arguments: Any) -> Any:
        read.extend(path.parent.name + path.name for path in kinds)
        return real(kinds, *arguments)

    monkeypatch.setattr("phalanx.checkpoint.verification.checksums_of", noted)

    def load(rank: Checkpointer) -> Any:
        loaded = rank.load(100)
        return loaded.step, [part["mine"] for part in loaded.value]

    assert together(three, load) == [(100, [[rank, 100] for rank in range(3)])] * 3
    assert len(read) == len(set(read)) == 6
    path = tmp_path / "steps" / "step-000000100" / "rank-00001" / "mine.json"
    path.write_bytes(path.read_bytes().replace(b"100", b"101"))
    errors = together(three, lambda rank: rank.load(100))
    assert [type(error) for error in errors] == [NoGoodStep] * 3
    assert all("rank-00001/mine.json is damaged" in str(error) for error in errors)
    assert three[0].steps() == [100, 200]


def test_a_rank_that_cannot_list_its_folder_does_not_say_that_the_step_is_not_there(
    ranks: Callable[..., Ranks], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable() -> list[int]:
        raise OSError(errno.EIO, "Input/output error")

    two = ranks(2)
    together(two, _save(1))
    monkeypatch.setattr(two[1]._settings.directory, "steps", unreadable)
    errors = together(two, lambda rank: rank.load(1))
    assert type(errors[1]) is CheckpointError
    assert all("cannot be listed" in str(error) for error in errors)


def test_ranks_that_load_different_steps_are_told(ranks: Callable[..., Ranks]) -> None:
    two = ranks(2)
    together(two, _save(1))
    together(two, _save(2))
    errors = together(two, lambda rank: rank.load(1 if rank is two[0] else 2))
    assert ["rank 0 loads step 1, rank 1 loads step 2" in str(error) for error in errors] == [True] * 2, (
        errors
    )


def test_parts_of_another_save_are_not_published(tmp_path: Path) -> None:
    store, directory = Shared(), StepDirectory(tmp_path / "steps")

    def save(rank: int) -> Any:
        rank_group = RankGroup(StorePeers(store), Member(rank, 2), LIMIT_S, name="c")

        def open_staging(step: int, number: int) -> Staging:
            return Staging(
                directory, step, part=rank, world_size=2, layout="sharded", run_id="job", attempt=number
            )

        marks = {"run_id": "job", "round": rank}  # of another round, in the same folder
        return Sharded(rank_group, directory.files, open_staging, lambda _: None, marks).save(
            1, 100, {"a": 1}, {}
        )

    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(save, rank) for rank in range(2)]
        errors = [future.exception(LIMIT_S) for future in futures]
    assert all("is of another save: round" in str(error) for error in errors)
    assert directory.steps() == []


def test_records_of_parts_do_not_stay_in_the_step(ranks: Callable[..., Ranks], tmp_path: Path) -> None:
    together(ranks(2), _save(100))
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

    assert together(three, train) == [None] * 3
    assert three[0].steps() == [1, 2, 3, 4, 5]
    assert together(three, _value) == [(5, {}, [[rank, 5] for rank in range(3)])] * 3


def test_a_rank_that_hears_late_of_a_failed_background_save_stays_in_step_with_the_others(
    ranks: Callable[..., Ranks], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    three = ranks(3, background=3, keep=9)

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

    for said in together(three, train):
        assert len(said) == 1
        assert "No space left" in said[0]
    assert three[0].steps() == [2, 3, 4, 5]


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

    errors = together(two, save)
    assert isinstance(errors[0], TypeError)
    assert "rank 0: Live has write() and no snapshot()" in str(errors[1])
