"""What a training script sees of its checkpoints, in a job of one process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.scenarios import content, flip_a_bit, save, writer

from phalanx.checkpoint import CannotCheck, Checkpointer, CheckpointError, NoGoodStep, SaveFailed
from phalanx.checkpoint.files import RealFiles
from phalanx.checkpoint.naming import step_name


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
    assert said[0].startswith("step 3: weights is damaged: ")
    assert "is now step-000000003.bad" in said[0]
    assert said[1].startswith("step 2: weights is missing; ")
    assert checkpointer.steps() == [1]


def test_when_no_step_is_good_it_is_said_that_training_begins_anew(
    quick_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer.save(1, weights)
    flip_a_bit(quick_folder / step_name(1) / "weights")
    assert checkpointer.load_latest(read) is None
    assert "training starts at its beginning" in caplog.text
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
    checkpointer._settings.shelf.files = StillWriting()

    def write(folder: Path) -> None:
        weights(folder)
        (folder / "early").write_bytes(b"1")

    with pytest.raises(SaveFailed, match="'early' changed after the writer had returned"):
        checkpointer.save(1, write)


def test_a_time_that_is_told_with_the_flush_is_no_change(quick_folder: Path) -> None:
    checkpointer = Checkpointer(quick_folder)
    checkpointer._settings.shelf.files = TellsLate()
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
for step in range(20):
    checkpointer(folder, keep=3).save(step % 7, writer(RealFiles(), step % 7, version), {"version": version})
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
        save(quick_folder, step)
    Checkpointer(quick_folder, keep=2).save(1, writer(RealFiles(), 1, "again"), {"version": "again"})
    assert Checkpointer(quick_folder).load(1, lambda saved: saved.meta).value == {"version": "again"}


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
