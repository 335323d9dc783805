"""From which step a training goes on, and what becomes of those that are newer."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from tests.checkpoint.thread_ranks import Shared, together

from phalanx.checkpoint import CannotCheck, Checkpointer, SaveFailed
from phalanx.checkpoint.files import RealFiles
from phalanx.checkpoint.locks import Mark
from phalanx.checkpoint.naming import MANIFEST, step_name


def weights(folder: Path) -> None:
    (folder / "weights").write_bytes(b"1234")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def gone_back(folder: Path, *, to: int = 100) -> Checkpointer:
    """A training that goes on from step 100, where 200 is there."""
    first = Checkpointer(folder, keep=9)
    first.save(100, weights)
    first.save(200, weights)
    back = Checkpointer(folder, keep=9)
    back.load(to, lambda saved: None)
    return back


def test_what_was_in_the_way_once_is_not_in_the_way_of_later_saves(
    quick_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    back = gone_back(quick_folder)
    back.save(150, weights)
    (quick_folder / "step-000000200.superseded").rename(
        quick_folder / step_name(200)
    )  # somebody wants it back
    caplog.clear()
    back.save(300, weights)
    assert back.steps() == [100, 150, 200, 300]
    assert not caplog.records


def test_a_step_that_is_made_later_is_not_in_the_way_though_it_has_the_number_of_one_that_was(
    quick_folder: Path,
) -> None:
    back = gone_back(quick_folder)
    # The same folder: file systems give the number of what was removed last to what is made next.
    os.utime(quick_folder / step_name(200) / MANIFEST)
    back.save(150, weights)
    assert back.steps() == [100, 150, 200]


@pytest.mark.parametrize("lacks", ["manifest", "nothing"])
def test_a_step_without_a_manifest_is_in_the_way_too(quick_folder: Path, lacks: str) -> None:
    gone_back(quick_folder)
    if lacks == "manifest":
        (quick_folder / step_name(200) / MANIFEST).unlink()
    back = Checkpointer(quick_folder, keep=9)
    back.load(100, lambda saved: None)
    back.save(150, weights)
    assert back.steps() == [100, 150]


def test_a_step_that_is_gone_is_in_nobodys_way(quick_folder: Path) -> None:
    back = gone_back(quick_folder)
    shutil.rmtree(quick_folder / step_name(200))
    back.save(150, weights)
    assert back.steps() == [100, 150]


def test_all_ranks_know_that_what_was_in_the_way_is_not_any_more(tmp_path: Path) -> None:
    gone_back(tmp_path)
    store = Shared()
    two = [
        Checkpointer(tmp_path, keep=9, sharded=True, rank=rank, world_size=2, store=store) for rank in (0, 1)
    ]
    for one in two:
        one._saves._rank_group()._name = "c"
    together(two, lambda rank: rank.load(100, lambda saved: None))
    assert all(rank._saves._lineage.superseded for rank in two)
    together(two, lambda rank: rank.save(150, {"mine": 1}))
    assert two[0].steps() == [100, 150]
    assert not any(rank._saves._lineage.superseded for rank in two)


class Refuses(RealFiles):
    """The staged step does not get its name."""

    def rename(self, old: Path, new: Path) -> None:
        if new.name == step_name(150):
            raise OSError(errno.ENOSPC, "No space left on device", str(old))
        super().rename(old, new)


class FailsToSync(RealFiles):
    """``at``: which sync of the folder of steps fails."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.left = folder, at

    def sync_folder(self, path: Path) -> None:
        if path == self.folder:
            self.left -= 1
            if not self.left:
                raise OSError(errno.EIO, "Input/output error", str(path))
        super().sync_folder(path)


@pytest.mark.parametrize("how", ["no space", "no sync of what was set aside", "no sync of the new step"])
def test_a_save_that_fails_leaves_the_newer_steps_where_they_are(how: str, quick_folder: Path) -> None:
    back = gone_back(quick_folder)
    before = names(quick_folder)
    directory = back._settings.directory
    directory.ensure()
    at = 1 if how == "no sync of what was set aside" else 2
    directory.files = Refuses() if how == "no space" else FailsToSync(directory.folder, at)
    with pytest.raises(SaveFailed, match="step 150 was not saved"):
        back.save(150, weights)
    assert names(quick_folder) == before
    assert (quick_folder / "latest").readlink() == Path(step_name(200))
    directory.files = RealFiles()
    back.save(150, weights)
    assert back.steps() == [100, 150], "it is in the way still"


def test_a_newer_step_that_cannot_be_told_is_not_forgotten(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stale(step: Path) -> Mark:
        raise OSError(errno.ESTALE, "Stale file handle", str(step))

    back = gone_back(quick_folder, to=200)
    monkeypatch.setattr("phalanx.checkpoint.lineage.mark_of", stale)
    with pytest.raises(CannotCheck, match=r"step 200 cannot be checked: .*Stale file handle"):
        back.load(100, lambda saved: None)


def test_no_file_is_held_for_what_is_in_the_way(quick_folder: Path) -> None:
    def held() -> list[str]:
        found = []
        for number in os.listdir("/proc/self/fd"):
            try:
                found.append(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                continue  # of the listing itself
        return [path for path in found if path.startswith(str(quick_folder))]

    back = gone_back(quick_folder)
    assert back._saves._lineage.superseded
    assert held() == []
