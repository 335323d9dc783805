"""What a training script sees of its checkpoints, in a job of one process."""

from __future__ import annotations

import errno
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.scenarios import content, flip_a_bit, save, writer

from phalanx.checkpoint import CannotCheck, Checkpointer, CheckpointError, NoGoodStep, SaveFailed
from phalanx.checkpoint.directory import StepDirectory
from phalanx.checkpoint.files import RealFiles
from phalanx.checkpoint.locks import Hold
from phalanx.checkpoint.naming import step_name
from phalanx.checkpoint.reading import read as read_checked


def weights(folder: Path) -> None:
    (folder / "weights").write_bytes(b"1234")


def read(saved: Any) -> bytes:
    data: bytes = (saved.folder / "weights").read_bytes()
    return data


@pytest.mark.parametrize("checksum", [None, "sha256", "xxh3_128"])
def test_what_was_saved_is_loaded(checksum: str | None, quick_folder: Path) -> None:
    checkpointer = Checkpointer(quick_folder / "a/b", checksum=checksum)
    assert checkpointer.load_latest() is None
    checkpointer.save(100, weights, {"epoch": 3})
    loaded = checkpointer.load_latest(read)
    assert loaded is not None
    assert (loaded.step, loaded.meta, loaded.value) == (100, {"epoch": 3}, b"1234")
    assert loaded.saved.parts == (quick_folder / "a/b/step-000000100",)
    assert checkpointer.verify() == []
    assert f'"algorithm": "{checksum or "xxh3_128"}"' in (loaded.saved.folder / "manifest.json").read_text()


def test_the_newest_good_step_is_loaded_and_the_damaged_ones_are_named_once(
    quick_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(quick_folder)
    for step in (1, 2, 3):
        checkpointer.save(step, weights)
    flip_a_bit(quick_folder / step_name(3) / "weights")
    (quick_folder / step_name(2) / "weights").unlink()
    for _ in range(2):
        loaded = checkpointer.load_latest(read)
        assert loaded is not None
        assert loaded.step == 1
    said = [record.getMessage() for record in caplog.records if record.name == "phalanx.checkpoint"]
    assert len(said) == 2
    assert said[0].startswith("step 3 is not used: ")
    assert "weights is damaged: " in said[0]
    assert "is now step-000000003.bad" in said[0]
    assert said[1].startswith("step 2 is not used: ")
    assert "weights is missing; " in said[1]
    assert checkpointer.steps() == [1]


def test_training_never_begins_anew_by_itself_where_there_were_steps(quick_folder: Path) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer.save(1, weights)
    flip_a_bit(quick_folder / step_name(1) / "weights")
    for _ in range(2):  # set aside by the first
        with pytest.raises(NoGoodStep, match="To begin anew, remove the folder, or give another one"):
            checkpointer.load_latest(read)
    assert (quick_folder / "step-000000001.bad/weights").exists()


def test_a_folder_that_can_only_be_read_is_loaded_from(quick_folder: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("mounting needs root")
    checkpointer = Checkpointer(quick_folder)
    checkpointer.save(1, weights)
    checkpointer.save(2, weights)
    flip_a_bit(quick_folder / step_name(2) / "weights")
    for words in (
        ["mount", "--bind", str(quick_folder), str(quick_folder)],
        ["mount", "-o", "remount,ro,bind", str(quick_folder)],
    ):
        if subprocess.run(words, capture_output=True).returncode:
            pytest.skip("nothing can be mounted here")
    try:
        loaded = checkpointer.load_latest(read)
        assert loaded is not None
        assert loaded.step == 1
        assert checkpointer.steps() == [1, 2]
        with pytest.raises(SaveFailed, match=r"step 3 was not saved: .*Read-only file system"):
            checkpointer.save(3, weights)
    finally:
        checkpointer.close()
        subprocess.run(["umount", quick_folder], check=True)


def test_a_step_that_is_asked_for_is_refused_if_it_is_damaged_or_missing(quick_folder: Path) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer.save(1, weights)
    checkpointer.save(2, weights)
    flip_a_bit(quick_folder / step_name(2) / "weights")
    with pytest.raises(NoGoodStep, match="step 2 cannot be loaded: weights is damaged"):
        checkpointer.load(2, read)
    with pytest.raises(NoGoodStep, match="step 7 cannot be loaded: it is not in"):
        checkpointer.load(7, read)
    assert checkpointer.load(1, read).value == b"1234"
    assert [problem.step for problem in checkpointer.verify()] == [2]
    assert checkpointer.steps() == [1, 2], "nothing was changed"


def test_a_missing_package_is_not_taken_for_damage(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer.save(1, weights)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(CannotCheck, match="pip install xxhash"):
        checkpointer.load_latest(read)
    assert checkpointer.steps() == [1]
    checkpointer.save(2, weights)
    assert '"algorithm": "sha256"' in (quick_folder / step_name(2) / "manifest.json").read_text()
    assert checkpointer.load(2, read).value == b"1234"


class CannotOpen(RealFiles):
    """One folder cannot be opened, for a reason that says nothing about it, or for one of the disk's."""

    def __init__(self, step: int, number: int) -> None:
        self.name, self.number = step_name(step), number

    def hold(self, folder: Path) -> Hold:
        if folder.name == self.name:
            raise OSError(self.number, os.strerror(self.number), str(folder))
        return super().hold(folder)


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.ENOMEM, errno.EACCES])
def test_no_older_step_is_taken_where_the_newest_cannot_be_opened_just_now(
    number: int, quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer.save(100, weights)
    checkpointer.save(200, weights)
    monkeypatch.setattr(checkpointer._settings.directory, "files", CannotOpen(200, number))
    for look in (
        lambda: checkpointer.load_latest(read),
        lambda: checkpointer.load(200, read),
        checkpointer.verify,
    ):
        with pytest.raises(CannotCheck, match=f"step 200 cannot be checked: .*{os.strerror(number)}"):
            look()
    assert checkpointer.steps() == [100, 200]


def test_a_step_whose_folder_the_disk_cannot_read_is_passed_over_and_stays(quick_folder: Path) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer.save(100, weights)
    checkpointer.save(200, weights)
    checkpointer._settings.directory.files = CannotOpen(200, errno.EIO)
    assert [str(problem) for problem in checkpointer.verify()] == [
        "step 200: cannot be read here: Input/output error"
    ]
    with pytest.raises(NoGoodStep, match="step 200 cannot be loaded: cannot be read here"):
        checkpointer.load(200, read)
    loaded = checkpointer.load_latest(read)
    assert loaded is not None
    assert loaded.step == 100
    assert checkpointer.steps() == [100, 200]


def test_what_the_training_removes_meanwhile_is_not_bad(
    quick_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer.save(2, weights)
    (quick_folder / step_name(2) / "weights").unlink()
    monkeypatch.setattr(checkpointer._settings.directory, "steps", lambda: [1, 2])
    assert [str(problem) for problem in checkpointer.verify()] == ["step 2: weights is missing"]
    with pytest.raises(NoGoodStep, match="step 1 cannot be loaded: it is not in"):
        checkpointer.verify(1)


def _link(folder: Path) -> None:
    weights(folder)
    (folder / "link").symlink_to("weights")


def _fifo(folder: Path) -> None:
    weights(folder)
    os.mkfifo(folder / "fifo")


def _socket(folder: Path) -> None:
    weights(folder)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(folder / "s"))


def _no_text(folder: Path) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).write_bytes(b"1")


def _fails(folder: Path) -> None:
    weights(folder)
    raise RuntimeError("the GPU is gone")


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda folder: None, "the writer wrote no file"),
        (lambda folder: (folder / "empty").mkdir(), "the writer wrote no file"),
        (_link, "the writer made a symbolic link that cannot be kept, 'link'"),
        (_fifo, "the writer made a FIFO that cannot be kept, 'fifo'"),
        (_socket, "the writer made a special file that cannot be kept, 's'"),
        (_no_text, "its name is not UTF-8"),
        (lambda folder: (folder / "manifest.json").write_text("{}"), "its name has the manifest's name"),
        (_fails, "its writer failed with RuntimeError: the GPU is gone"),
        (lambda folder: (folder / "a/b").write_text(""), "No such file or directory"),
    ],
)
def test_what_cannot_be_kept_is_refused_and_leaves_nothing(write: Any, says: str, quick_folder: Path) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer.save(1, weights)
    before = sorted(path.name for path in quick_folder.iterdir())
    with pytest.raises(SaveFailed) as caught:
        checkpointer.save(2, write)
    assert str(caught.value).startswith("step 2 was not saved: ")
    assert says in str(caught.value)
    assert sorted(path.name for path in quick_folder.iterdir()) == before


class StillWriting(RealFiles):
    """While a file is put on the disk, a thread of the writer goes on with one that was before it."""

    def sync_file(self, path: Path) -> None:
        super().sync_file(path)
        if path.name == "weights":
            with (path.parent / "early").open("ab") as file:
                file.write(b"5")


class TellsLate(RealFiles):
    """A network file system that tells the time of a file's last change when the file is flushed."""

    def sync_file(self, path: Path) -> None:
        super().sync_file(path)
        os.utime(path)


def test_a_file_that_changes_after_the_writer_returned_is_refused(quick_folder: Path) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer._settings.directory.files = StillWriting()

    def write(folder: Path) -> None:
        weights(folder)
        (folder / "early").write_bytes(b"1")

    with pytest.raises(SaveFailed, match="'early' changed after the writer had returned"):
        checkpointer.save(1, write)


def test_a_time_that_is_told_with_the_flush_is_no_change(quick_folder: Path) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer._settings.directory.files = TellsLate()
    checkpointer.save(1, weights)
    assert checkpointer.verify() == []


@pytest.mark.parametrize(
    ("step", "error"),
    [(-1, ValueError), (True, TypeError), (2**63, ValueError), ("1", TypeError), (1.0, TypeError)],
)
def test_a_step_is_a_number_that_a_name_can_hold(step: Any, error: type[Exception], tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    with pytest.raises(error, match="a step is"):
        checkpointer.save(step, weights)
    with pytest.raises(error, match="a step is"):
        checkpointer.load(step)


def test_very_large_steps_are_kept(quick_folder: Path) -> None:
    checkpointer = Checkpointer(quick_folder)
    for step in (0, 10**9, 2**63 - 1):
        checkpointer.save(step, weights)
    assert checkpointer.steps() == [0, 10**9, 2**63 - 1]
    assert checkpointer.verify() == []


def test_meta_and_state_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path / "folder")
    with pytest.raises(ValueError, match=r"meta\['loss'\] is nan"):
        checkpointer.save(1, weights, {"loss": float("nan")})
    with pytest.raises((TypeError, CheckpointError), match="a state to save is a mapping, a callable"):
        checkpointer.save(1, 17)
    assert not (tmp_path / "folder").exists() or not checkpointer.steps()


def test_what_cannot_be_saved_is_a_mistake_on_all_ranks(tmp_path: Path) -> None:
    for rank in (0, 1):
        checkpointer = Checkpointer(tmp_path / "folder", rank=rank, world_size=2)
        with pytest.raises(TypeError, match="a state to save is a mapping, a callable"):
            checkpointer.save(1, 17)
        with pytest.raises(TypeError, match="shape is a tuple"):
            checkpointer.save(1, {"shape": (1, 2)})
    assert not (tmp_path / "folder").exists()


def test_a_step_that_is_no_mapping_is_not_loaded_as_an_empty_one(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path)
    checkpointer.save(1, weights)
    with pytest.raises(CheckpointError, match="weights: give load a reader"):
        checkpointer.load_latest()


@pytest.mark.parametrize(("timeout_s", "waited"), [(float("inf"), None), (1e15, None), (60, 60)])
def test_a_wait_may_be_as_long_as_anybody_likes(
    timeout_s: float, waited: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpointer = Checkpointer(tmp_path, background=True)
    seen: list[float | None] = []
    monkeypatch.setattr(checkpointer._saves._background, "wait", seen.append)
    checkpointer.wait(timeout_s)
    assert seen == [waited], "no thread can wait for longer than some 292 years: OverflowError"


def test_a_closed_checkpointer_takes_no_more_saves(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, background=True) as checkpointer:
        checkpointer.save(1, {"a": 1})
    with pytest.raises(SaveFailed, match="step 2 was not saved: its checkpointer is closed"):
        checkpointer.save(2, {"a": 1})
    checkpointer.close()
    assert checkpointer.steps() == [1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sharded": True, "per_node": True}, "choose one of them"),
        ({"keep": "3"}, "keep is the number of steps to keep, at least 1, not '3'"),
        ({"keep": 0}, "at least 1, not 0"),
        ({"keep": True}, "at least 1, not True"),
        ({"background": -1}, "not -1"),
        ({"background": 1.5}, "not 1.5"),
        ({"checksum": "md5"}, "checksum is 'xxh3_128' or 'sha256', not 'md5'"),
        ({"rank": 5, "world_size": 2}, "rank 5 is none of 2"),
        ({"rank": 1}, "rank 1 is none of 1"),
        ({"rank": -1, "world_size": 2}, "rank -1 is none of 2"),
        ({"rank": 1, "world_size": 2, "local_rank": 2}, "local_rank is from 0 to rank, 1, not 2"),
        ({"rank": 1, "world_size": 2, "per_node": True}, "LOCAL_RANK is not set: give local_rank="),
        ({"timeout_s": 0}, "above 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Checkpointer(tmp_path, **options)


def test_a_checksum_that_cannot_be_computed_is_refused_when_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ValueError, match="pip install xxhash"):
        Checkpointer(tmp_path, checksum="xxh3_128")


def test_a_virtual_local_rank_is_not_taken_for_the_true_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "PHALANX_LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    assert Checkpointer(tmp_path)._settings.share == (1, 2)
    node = Checkpointer(tmp_path / "x", per_node=True)
    assert (node._settings.place, node._settings.writes) == (0, False)
    alone = Checkpointer(tmp_path / "x", world_size=1)
    alone.save(1, weights)
    assert alone.steps() == [1], "a worker that is alone by its own wish writes"


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({}, (3, 4)),
        ({"rank": 3, "world_size": 8, "local_rank": 3}, (3, 4)),
        ({"rank": 1, "world_size": 2}, None),
        ({"rank": 3, "world_size": 4}, None),
        ({"rank": 1, "world_size": 2, "local_rank": 1}, None),
        ({"rank": 3, "world_size": 8, "local_rank": 0}, None),
    ],
)
def test_ranks_that_are_a_part_of_the_job_do_not_leave_files_to_the_others(
    given: dict[str, int], share: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"RANK": 3, "WORLD_SIZE": 8, "LOCAL_RANK": 3, "LOCAL_WORLD_SIZE": 4}.items():
        monkeypatch.setenv(name, str(value))
    assert Checkpointer(tmp_path, **given)._settings.share == share  # type: ignore[arg-type] # none is a bool


def test_the_reader_is_told_which_rank_it_is(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(1, weights)
    saved = Checkpointer(tmp_path).load(1, lambda saved: saved).value
    assert (saved.world_size, saved.rank, saved.world_size_now) == (1, 0, 1)


def test_ranks_that_do_not_write_return_at_once(tmp_path: Path) -> None:
    Checkpointer(tmp_path / "x", rank=1, world_size=2).save(1, weights)
    Checkpointer(tmp_path / "x", per_node=True, rank=3, local_rank=1, world_size=4).save(1, weights)
    assert not (tmp_path / "x").exists()


SAVES = """
import sys
from tests.checkpoint.scenarios import checkpointer, writer
from phalanx.checkpoint.files import RealFiles
from pathlib import Path
folder, version = Path(sys.argv[1]), sys.argv[2]
made = checkpointer(folder, keep=3)
made._saves.has_loaded(None)  # whatever the other job does
for step in range(20):
    made.save(step % 7, writer(RealFiles(), step % 7, version), {"version": version})
"""


def test_two_jobs_that_save_into_one_folder_lose_no_step_and_mix_none(quick_folder: Path) -> None:
    root = Path(__file__).parents[2]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", SAVES, quick_folder, version],
            cwd=root,
            env={**os.environ, "PYTHONPATH": f"{root / 'src'}:{root}"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for version in ("one", "two")
    ]
    ended = threading.Event()
    reading = Checkpointer(quick_folder)
    newest = -1

    def wait() -> None:
        for job in jobs:
            job.wait()
        ended.set()

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not ended.is_set():
        steps = reading.steps()
        assert not steps or max(steps) >= newest, "the newest step was lost"
        newest = max(steps, default=newest)
    waiting.join()
    assert [(job.returncode, job.stderr.read() if job.stderr else "") for job in jobs] == [(0, ""), (0, "")]
    for job in jobs:
        if job.stderr:
            job.stderr.close()
    assert reading.verify() == []
    for step in reading.steps():
        saved = reading.load(step, lambda saved: saved).saved
        assert (saved.folder / "weights").read_bytes() == content(step, saved.meta["version"], "weights")
    assert not [path for path in quick_folder.iterdir() if path.name.startswith(".")]


def test_a_step_may_be_saved_again_after_going_back(quick_folder: Path) -> None:
    for step in (1, 2, 3):
        Checkpointer(quick_folder).save(step, weights)
    again = Checkpointer(quick_folder, keep=2)
    again.load(1, lambda saved: None)
    again.save(1, writer(RealFiles(), 1, "again"), {"version": "again"})
    assert Checkpointer(quick_folder).load(1, lambda saved: saved.meta).value == {"version": "again"}


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "phalanx.checkpoint"]


def test_what_is_newer_than_the_step_that_was_loaded_makes_way_for_the_next_save(
    quick_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (100, 200, 300, 400):
        Checkpointer(quick_folder, keep=9).save(step, weights)
    back = Checkpointer(quick_folder)
    back.load(200, read)
    Checkpointer(quick_folder, keep=9).save(500, weights)  # of somebody else, after the load
    back.save(210, weights)
    assert back.steps() == [200, 210, 500]
    back.save(220, weights)
    assert (quick_folder / "step-000000300.superseded/weights").exists()
    said = warnings_in(caplog)
    assert len(said) == 1
    assert "steps 300, 400 in " in said[0]
    assert "are now called step-….superseded" in said[0]


def test_training_that_goes_back_resumes_from_its_own_steps(quick_folder: Path) -> None:
    for step in (100, 200, 300, 400):
        Checkpointer(quick_folder, keep=9).save(step, weights)
    with Checkpointer(quick_folder, background=2) as back:
        back.load(200, read)
        for step in (210, 220, 230):
            back.save(step, {"step": step})
    again = Checkpointer(quick_folder)
    loaded = again.load_latest()
    assert loaded is not None
    assert (loaded.step, loaded.value) == (230, {"step": 230})
    assert again.steps() == [210, 220, 230]


def test_the_same_step_after_going_back_is_a_new_one(quick_folder: Path) -> None:
    for step in (1, 2, 3):
        save(quick_folder, step)
    back = Checkpointer(quick_folder)
    back.load(2, lambda saved: None)
    back.save(3, weights)
    back.save(3, weights)
    assert (quick_folder / "step-000000003.superseded/optimizer").exists()
    assert not (quick_folder / "step-000000003.superseded-2").exists()
    assert back.load(3, read).value == b"1234"


def test_a_step_below_those_of_another_training_is_refused(quick_folder: Path) -> None:
    save(quick_folder, 3000)
    begins = Checkpointer(quick_folder)
    with pytest.raises(
        SaveFailed, match=r"step 10 was not saved: .* holds step 3000; load it first, or use another"
    ):
        begins.save(10, weights)
    assert begins.steps() == [3000]
    begins.save(3000, weights)
    begins.save(3001, weights)
    Checkpointer(quick_folder, rank=1, world_size=2).save(10, weights)  # it writes nothing, and says nothing


def test_a_file_named_latest_of_another_program_stays(quick_folder: Path) -> None:
    (quick_folder / "latest").write_text("global_step100")
    Checkpointer(quick_folder).save(1, weights)
    assert (quick_folder / "latest").read_text() == "global_step100"


def test_large_files_are_read_by_threads_with_the_same_checksums(quick_folder: Path) -> None:
    from phalanx.checkpoint.checksums import THREADS_FROM_BYTES, checksum_of, checksums_of

    paths = [quick_folder / str(number) for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * 100_000)
    missing = quick_folder / "missing"
    kinds = dict.fromkeys([*paths, missing], "xxh3_128")
    found = checksums_of(kinds, THREADS_FROM_BYTES, RealFiles())
    assert [found[path] for path in paths] == [checksum_of(path, "xxh3_128", RealFiles()) for path in paths]
    assert isinstance(found[missing], FileNotFoundError)


def test_a_reader_never_sees_two_saves_of_a_step(quick_folder: Path) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer.save(7, {"one": 1, "two": 1})
    versions = iter((2, 3))

    def read_slowly(saved: Any) -> set[str]:
        first = (saved.folder / "one.json").read_text()
        if version := next(versions, None):
            Checkpointer(quick_folder).save(7, {"one": version, "two": version})
        return {first, (saved.folder / "two.json").read_text()}

    loaded = checkpointer.load_latest(read_slowly)
    assert loaded is not None
    assert len(loaded.value) == 1
    assert "3" in loaded.value.pop()


def test_a_step_that_is_removed_while_it_is_loaded_is_looked_for_again(quick_folder: Path) -> None:
    trainer = Checkpointer(quick_folder, keep=1)
    trainer.save(1, weights)
    steps = iter((2, 3))

    def read_slowly(saved: Any) -> bytes:
        if step := next(steps, None):
            trainer.save(step, weights)
        return read(saved)

    loaded = Checkpointer(quick_folder).load_latest(read_slowly)
    assert loaded is not None
    assert (loaded.step, loaded.value) == (3, b"1234")


def test_one_of_several_ranks_does_not_read_another_save_than_the_others(quick_folder: Path) -> None:
    directory = StepDirectory(quick_folder)
    Checkpointer(quick_folder).save(7, weights)
    hold = directory.good(7)
    Checkpointer(quick_folder).save(7, weights)
    with pytest.raises(CheckpointError, match="while rank 1 loaded it"):
        read_checked(directory, 7, hold, read, 1, 2)


def test_a_child_that_the_writer_forked_removes_nothing(quick_folder: Path) -> None:
    def forks(folder: Path) -> None:
        weights(folder)
        if not (child := os.fork()):
            raise InterruptedError("the child leaves")
        os.waitpid(child, 0)
        if child_pid[0] != os.getpid():
            return
        with pytest.raises(BlockingIOError):
            RealFiles().lock(folder, exclusive=True)  # the child did not let go of it

    child_pid = [os.getpid()]
    try:
        Checkpointer(quick_folder).save(1, forks)
    except SaveFailed:
        if child_pid[0] == os.getpid():
            raise
    finally:
        if child_pid[0] != os.getpid():
            os._exit(0)
    assert Checkpointer(quick_folder).load(1, read).value == b"1234"
