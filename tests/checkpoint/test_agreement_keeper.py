"""One rank sets damaged steps aside, once it has seen the damage itself: others may see what is not so."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from tests.checkpoint.thread_ranks import LIMIT_S, Ranks, Shared, together

from phalanx.checkpoint import Checkpointer, NoGoodStep
from phalanx.checkpoint.files import RealFiles

FILES = [f"file{number}" for number in range(6)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    alone = Checkpointer(tmp_path / "steps", keep=9, world_size=1)
    for step in (1, 2):
        alone.save(step, {name: bytes([step]) * 100 for name in FILES})
    return tmp_path / "steps"


@pytest.fixture
def ranks(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Ranks]:
    def make(count: int) -> Ranks:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(count))
        store = Shared()
        made = [
            Checkpointer(folder, rank=rank, local_rank=rank, world_size=count, store=store, timeout_s=LIMIT_S)
            for rank in range(count)
        ]
        for one in made:
            one._saves._rank_group()._name = "c"
        return made

    return make


class Seeing(RealFiles):
    """What a rank sees that has bad memory, or a network file system that has failed it."""

    def __init__(self, see: Callable[[Path], bytes | None]) -> None:
        self.see = see

    def opened(self, path: Path) -> BinaryIO:
        if path.parent.name != "step-000000002" or (data := self.see(path)) is None:
            return super().opened(path)
        read, write = os.pipe()
        os.write(write, data)
        os.close(write)
        return open(read, "rb", buffering=0)


def _steps(rank: Checkpointer) -> Any:
    loaded = rank.load_latest()
    return None if loaded is None else loaded.step


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("who", [1, 2])
@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_step_that_one_rank_alone_sees_damaged_is_passed_over_and_stays(
    ranks: Callable[[int], Ranks], folder: Path, caplog: pytest.LogCaptureFixture, who: int, name: str
) -> None:
    three = ranks(3)
    bad_memory = Seeing(lambda path: b"\1" * 100 if name in (path.stem, path.name) else None)
    three[who]._settings.directory.files = bad_memory
    with caplog.at_level(logging.WARNING, "phalanx.checkpoint"):
        found = together(three, _steps)
    assert found in ([1] * 3, [2] * 3)  # 2: the file is not of this rank's share
    assert three[0].steps() == [1, 2]
    if found == [1] * 3:
        assert f"rank {who}: " in caplog.text
        assert "saw no damage, and left it" in caplog.text
        assert len(caplog.records) == 1
    if name == "manifest.json":
        assert found == [1] * 3


@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_a_step_that_is_damaged_for_all_is_set_aside(
    ranks: Callable[[int], Ranks], folder: Path, name: str
) -> None:
    three = ranks(3)
    [path] = folder.glob(f"step-000000002/{name}*")
    _flip(path)
    assert together(three, _steps) == [1] * 3
    assert three[0].steps() == [1]
    assert (folder / "step-000000002.bad").is_dir()


@pytest.mark.parametrize("whose", [{0}, {1}, {0, 1, 2}])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENXIO])
def test_a_step_that_cannot_be_read_here_is_not_taken_for_a_damaged_one(
    ranks: Callable[[int], Ranks], caplog: pytest.LogCaptureFixture, whose: set[int], number: int
) -> None:
    def fail(path: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    three = ranks(3)
    for rank in whose:
        three[rank]._settings.directory.files = Seeing(fail)
    with caplog.at_level(logging.WARNING, "phalanx.checkpoint"):
        assert together(three, _steps) == [1] * 3
    assert three[0].steps() == [1, 2]
    assert f"cannot be read here: {os.strerror(number)}" in caplog.text


def test_when_there_are_steps_and_none_can_be_used_all_ranks_hear_what_is_seen_and_what_to_do(
    ranks: Callable[[int], Ranks], folder: Path
) -> None:
    for step in (1, 2):
        _flip(folder / f"step-00000000{step}" / "file3.bin")
    set_aside = "all were set aside, by this run or one before it: step-000000002.bad, step-000000001.bad. "
    for expected in ("can be used: step 2: ", set_aside):
        errors = together(ranks(3), _steps)
        assert [type(error) for error in errors] == [NoGoodStep] * 3
        assert len({str(error) for error in errors}) == 1
        assert expected in str(errors[0])
        assert "To begin anew, remove the folder" in str(errors[0])
        assert "per_node=True" not in str(errors[0]), "all see the same"


def test_where_no_rank_sees_any_step_training_begins(ranks: Callable[[int], Ranks], folder: Path) -> None:
    for path in folder.iterdir():
        path.rename(path.with_name(f"other-{path.name}x"))
    assert together(ranks(3), _steps) == [None] * 3
