"""What is removed from a folder of steps, whatever is in the way of it, and what is left to others."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import time
from pathlib import Path
from typing import BinaryIO

import pytest
from tests.checkpoint.scenarios import checkpointer, save, writer
from tests.checkpoint.test_directory import NoLocks, names

from phalanx.checkpoint import Checkpointer, SaveFailed
from phalanx.checkpoint import staging as staging_module
from phalanx.checkpoint.directory import StepDirectory
from phalanx.checkpoint.files import RealFiles
from phalanx.checkpoint.locks import Lock
from phalanx.checkpoint.naming import shared_name, step_name
from phalanx.checkpoint.staging import Staging


class Sticky(RealFiles):
    """One entry belongs to somebody else."""

    def __init__(self, name: str, number: int = errno.EPERM) -> None:
        self.name, self.number = name, number

    def rename(self, old: Path, new: Path) -> None:
        if old.name == self.name:
            raise OSError(self.number, os.strerror(self.number), str(old))
        super().rename(old, new)


def left_over(folder: Path, step: int) -> Path:
    path = folder / f".step-{step:09d}.none.r0.0badf00d.partial"
    path.mkdir()
    (path / "weights").write_bytes(b"1")
    return path


def test_what_cannot_be_tidied_keeps_nothing_else(
    quick_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = [left_over(quick_folder, step) for step in (100, 200, 300)]
    StepDirectory(quick_folder, Sticky(left[1].name)).tidy()
    assert names(quick_folder) == {left[1].name}
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "200.none.r0.0badf00d.partial: Operation not permitted" in caplog.text


def test_what_another_process_takes_away_keeps_nothing_else(
    quick_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    left = [left_over(quick_folder, step) for step in (100, 200, 300)]
    StepDirectory(quick_folder, Sticky(left[0].name, errno.ENOENT)).tidy()
    assert names(quick_folder) == {left[0].name}
    assert not caplog.records


def test_a_step_that_cannot_be_removed_keeps_no_other(quick_folder: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpointer(quick_folder, keep=9).save(step, writer(RealFiles(), step, "first"))
    assert StepDirectory(quick_folder, Sticky(step_name(1))).retain(1) == [2, 3]
    assert StepDirectory(quick_folder).steps() == [1, 4]


class Unlocked(RealFiles):
    """No file is read while the names are locked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def opened(self, path: Path) -> BinaryIO:
        self.lock(self.folder, exclusive=True).release()
        return super().opened(path)


def test_which_steps_are_good_is_found_out_before_names_are_locked(quick_folder: Path) -> None:
    for step in (1, 2, 3):
        checkpointer(quick_folder, keep=9).save(step, writer(RealFiles(), step, "first"))
    assert StepDirectory(quick_folder, Unlocked(quick_folder)).retain(2) == [1]


class CountsLocks(RealFiles):
    def __init__(self, folder: Path) -> None:
        self.folder, self.locks = folder, 0

    def lock(self, folder: Path, *, exclusive: bool) -> Lock:
        self.locks += folder == self.folder
        return super().lock(folder, exclusive=exclusive)


def test_who_stops_with_the_names_locked_is_waited_for_once_and_not_for_each_step(quick_folder: Path) -> None:
    for step in (1, 2, 3, 4):
        checkpointer(quick_folder, keep=9).save(step, writer(RealFiles(), step, "first"))
    files = CountsLocks(quick_folder)
    assert StepDirectory(quick_folder, files).retain(1) == [1, 2, 3]
    assert files.locks == 1
    for step in (5, 6):
        left_over(quick_folder, step)
    StepDirectory(quick_folder, files).tidy()
    assert names(quick_folder) == {step_name(4), "latest"}
    assert files.locks == 2


@pytest.mark.parametrize("has_locked", [False, True])
def test_what_is_made_anew_under_the_name_of_what_was_left_over_is_not_removed(
    quick_folder: Path, has_locked: bool
) -> None:
    class MadeAnew(RealFiles):
        times = 0

        def lock(self, folder: Path, *, exclusive: bool) -> Lock:
            lock = super().lock(folder, exclusive=exclusive) if has_locked else None
            if folder == left:
                self.times += 1
                if self.times == 2:  # the first time is to look whether it was left over
                    shutil.rmtree(left)
                    left_over(quick_folder, 1)
            return lock or super().lock(folder, exclusive=exclusive)

    left = left_over(quick_folder, 1)
    os.utime(left, (1, 1))  # of long ago
    StepDirectory(quick_folder, MadeAnew()).tidy()
    assert names(quick_folder) == {left.name}


def test_a_good_step_that_another_process_removes_meanwhile_is_not_counted(quick_folder: Path) -> None:
    class RemovedMeanwhile(RealFiles):
        def lock(self, folder: Path, *, exclusive: bool) -> Lock:
            shutil.rmtree(folder / step_name(3), ignore_errors=True)
            return super().lock(folder, exclusive=exclusive)

    for step in (1, 2, 3):
        checkpointer(quick_folder, keep=9).save(step, writer(RealFiles(), step, "first"))
    assert StepDirectory(quick_folder, RemovedMeanwhile()).retain(1) == []
    assert StepDirectory(quick_folder).steps() == [1, 2]


class SeenByATidier(RealFiles):
    """Another process locks the new folder before the one that has made it: it looks whether it was left over."""

    def __init__(self, times: int) -> None:
        self.times = times

    def lock(self, folder: Path, *, exclusive: bool) -> Lock:
        if not exclusive and self.times > 0:
            self.times -= 1
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return super().lock(folder, exclusive=exclusive)


@pytest.mark.parametrize("part", [None, 0])
def test_who_tidies_at_that_moment_stops_no_save(part: int | None, quick_folder: Path) -> None:
    staging = Staging(StepDirectory(quick_folder, SeenByATidier(2)), 1, part=part)
    staging.publish([staging.write(lambda folder: (folder / "weights").write_bytes(b"1"))])
    assert StepDirectory(quick_folder).steps() == [1]


def test_who_holds_a_staging_folder_for_too_long_is_named(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "_LOCK_WAIT_S", 0.0)
    with pytest.raises(SaveFailed, match=r"step 1 was not saved: another process has held .*\.partial for"):
        Staging(StepDirectory(quick_folder, SeenByATidier(1000)), 1)


def test_a_clock_that_is_ahead_ends_nobodys_save(quick_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = left_over(quick_folder, 1)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 200_000)
    StepDirectory(quick_folder, NoLocks()).tidy()
    assert names(quick_folder) == {left.name}


def test_what_the_caller_is_about_to_open_is_left_to_the_ranks_that_are_there(quick_folder: Path) -> None:
    mine, other = (quick_folder / shared_name(step, "", 0, 1) for step in (7, 6))
    for path in (mine, other):
        (path / "rank-00001").mkdir(parents=True)
    StepDirectory(quick_folder).tidy(opening=mine.name)
    assert names(quick_folder) == {mine.name}


def test_rank_0_leaves_what_the_others_write_in_a_job_without_a_run_id(quick_folder: Path) -> None:
    part = quick_folder / shared_name(7, "", 0, 1) / "rank-00001"
    part.mkdir(parents=True)
    one = Checkpointer(quick_folder, sharded=True, rank=0, world_size=2, store=object())
    one._saves._tidy_shared(7, 1)
    one._saves._open_staging(7, 1).release()
    assert part.exists()
    ahead = quick_folder / shared_name(8, "", 0, 2) / "rank-00001"
    ahead.mkdir(parents=True)
    one._saves._open_staging(7, 1).abandon()
    assert ahead.exists(), "who gives its save up does not tidy once more"


@pytest.mark.parametrize("run_id", ["", "none"])
def test_jobs_without_a_run_id_do_not_take_each_others_for_their_own(run_id: str, quick_folder: Path) -> None:
    left = left_over(quick_folder, 1)
    StepDirectory(quick_folder, NoLocks()).tidy(run_id=run_id, round_number=1)
    assert names(quick_folder) == {left.name}


def test_nothing_is_deleted_before_the_folder_is_on_the_disk(
    quick_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class NoSync(RealFiles):
        def sync_folder(self, path: Path) -> None:
            raise OSError(errno.EIO, "Input/output error", str(path))

    save(quick_folder, 1)
    left = left_over(quick_folder, 2)
    StepDirectory(quick_folder, NoSync()).discard(left)
    (doomed,) = quick_folder.glob(".*.deleting")
    assert (doomed / "weights").exists()
    assert "is deleted another time" in caplog.text
    StepDirectory(quick_folder).tidy()
    assert names(quick_folder) == {step_name(1), "latest"}
