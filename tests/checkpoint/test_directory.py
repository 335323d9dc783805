"""What is in a folder of checkpoints, and what becomes of it."""

from __future__ import annotations

import errno
import io
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from tests.checkpoint.scenarios import flip_a_bit, save

from phalanx.checkpoint import CannotCheck, NoGoodStep, Problem
from phalanx.checkpoint.directory import StepDirectory, refused
from phalanx.checkpoint.files import RealFiles
from phalanx.checkpoint.locks import Hold, Lock, changing
from phalanx.checkpoint.mounts import is_local, kind_of
from phalanx.checkpoint.naming import step_name


@pytest.fixture
def folder(quick_folder: Path) -> Path:
    for step in (1, 2, 3):
        StepDirectory(quick_folder)
        save(quick_folder, step)
        (quick_folder / "kept").mkdir(exist_ok=True)
    return quick_folder


def names(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()}


def copies(folder: Path, *steps: int) -> None:
    """Good steps: of step 3 with another number in name and manifest."""
    for step in steps:
        save(folder / "elsewhere", step)
        shutil.move(folder / "elsewhere" / step_name(step), folder / step_name(step))
    shutil.rmtree(folder / "elsewhere", ignore_errors=True)


def seen(directory: StepDirectory, step: int) -> Hold:
    hold = directory.checked(step).hold
    assert hold is not None
    return hold


def test_a_folder_that_is_not_there_has_no_steps(tmp_path: Path) -> None:
    assert StepDirectory(tmp_path / "nowhere").steps() == []
    assert StepDirectory(tmp_path / "nowhere").retain(1) == []
    StepDirectory(tmp_path / "nowhere").tidy()
    assert names(tmp_path) == set()


def test_only_folders_that_are_named_like_steps_are_listed(folder: Path) -> None:
    (folder / "step-000000007").symlink_to(step_name(3))
    (folder / "step-000000008").write_text("a file")
    (folder / "checkpoint-9").mkdir()
    (folder / ".step-000000010.job.r0.partial").mkdir()
    (folder / "step-000000011.bad").mkdir()
    (folder / f"step-{2**63}").mkdir()
    assert StepDirectory(folder).steps() == [2, 3]


def test_a_folder_of_another_program_is_no_step_because_it_has_a_manifest(folder: Path) -> None:
    (folder / "web-9").mkdir()
    (folder / "web-9/manifest.json").write_text('{"name": "app"}')
    assert StepDirectory(folder).steps() == [2, 3]


def test_retention_keeps_the_newest_good_steps(folder: Path) -> None:
    copies(folder, 4, 5)
    assert StepDirectory(folder).retain(2) == [2, 3]
    assert StepDirectory(folder).steps() == [4, 5]
    assert names(folder) == {"kept", "latest", step_name(4), step_name(5)}


def test_retention_does_not_count_damaged_steps_and_never_removes_the_last_good_one(folder: Path) -> None:
    copies(folder, 4, 5)
    (folder / step_name(5) / "weights").unlink()
    (folder / step_name(4) / "manifest.json").write_text("{}")
    assert StepDirectory(folder).retain(1) == [2]
    assert StepDirectory(folder).steps() == [3, 4, 5], "the newest good one is 3"
    shutil.rmtree(folder / step_name(3))
    assert StepDirectory(folder).retain(1) == []


def test_retention_keeps_what_was_just_saved_though_newer_steps_are_there(folder: Path) -> None:
    copies(folder, 1, 4)
    assert StepDirectory(folder).retain(2, just=1) == [2]
    assert StepDirectory(folder).steps() == [1, 3, 4]


def test_folders_of_other_programs_are_never_removed(folder: Path) -> None:
    shutil.copytree(folder / step_name(2), folder / "checkpoint-1")
    (folder / "checkpoint-1/manifest.json").unlink()
    (folder / "checkpoint-1/weights.md5").write_text("0" * 32)
    assert StepDirectory(folder).steps() == [1, 2, 3]
    assert StepDirectory(folder).retain(1) == [2]
    assert "checkpoint-1" in names(folder)


def test_a_staging_folder_in_use_is_left_alone_and_one_that_nobody_holds_is_removed(folder: Path) -> None:
    used, left = folder / ".step-000000009.a.r0.1.partial", folder / ".step-000000009.b.r0.1.partial"
    for path in (used, left):
        path.mkdir()
        (path / "weights").write_bytes(b"1")
    lock = RealFiles().lock(used, exclusive=False)
    StepDirectory(folder).tidy()
    assert used.name in names(folder)
    assert left.name not in names(folder)
    lock.release()
    StepDirectory(folder).tidy()
    assert used.name not in names(folder)


@pytest.mark.parametrize("holds", [[], ["rank-00001"], ["part-00000.json"]])
def test_what_ranks_of_this_round_write_together_is_left_alone_though_no_lock_is_seen(
    holds: list[str], folder: Path
) -> None:
    together = folder / ".step-000000009.job.r2.1.partial"
    together.mkdir()
    for name in holds:
        (together / name).mkdir()
    StepDirectory(folder).tidy(run_id="job", round_number=2)
    assert together.name in names(folder), "rank 0 runs on the machine whose disk the others see"
    StepDirectory(folder).tidy(run_id="job", round_number=3)
    assert together.name not in names(folder)


def test_what_this_round_has_left_of_a_whole_step_is_removed(folder: Path) -> None:
    left = folder / ".step-000000009.job.r2.0badf00d.partial"
    left.mkdir()
    (left / "weights").write_bytes(b"1")
    StepDirectory(folder).tidy(run_id="job", round_number=2)
    assert left.name not in names(folder)


def test_folders_of_runs_beside_the_steps_are_not_walked_through(folder: Path) -> None:
    run = folder / "runs/seed-42"
    (folder / "seed-42/deep").mkdir(parents=True)
    run.mkdir(parents=True)
    for path in (folder / "seed-42/deep", folder / "runs"):
        (path / "data").write_bytes(b"1")
        (path / "data.md5").write_text("0" * 32)
    (folder / "run-2026").mkdir()
    (folder / "run-2026/other.md5").write_text("0" * 32)
    assert StepDirectory(folder).steps() == [2, 3]


class NoLocks(RealFiles):
    def lock(self, folder: Path, *, exclusive: bool) -> Lock:
        return Lock(os.open(folder, os.O_RDONLY), held=False)


def test_without_locks_a_staging_folder_is_left_alone_for_a_day_unless_it_is_of_an_earlier_round(
    folder: Path,
) -> None:
    young, old, earlier = (
        folder / f".step-000000009.{token}.partial" for token in ("a.r0.1", "b.r0.1", "job.r2.1")
    )
    for path in (young, old, earlier):
        path.mkdir()
        (path / "weights").write_bytes(b"1")
    day_ago = time.time() - 90_000
    os.utime(old / "weights", (day_ago, day_ago))
    os.utime(old, (day_ago, day_ago))
    StepDirectory(folder, NoLocks()).tidy(run_id="job", round_number=3)
    assert {name for name in names(folder) if name.startswith(".")} == {young.name}


def test_what_is_removed_is_not_followed_out_of_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("1")
    left = folder / ".step-000000009.b.r0.1.partial"
    left.mkdir()
    (left / "link").symlink_to(tmp_path)
    (folder / ".step-000000008.b.r0.1.partial").symlink_to(tmp_path)
    (folder / ".step-000000008.0.deleting").symlink_to(tmp_path)
    StepDirectory(folder).tidy()
    assert left.name not in names(folder)
    assert names(tmp_path) >= {"precious"}


def test_a_damaged_step_that_was_set_aside_makes_way_for_another(folder: Path) -> None:
    directory = StepDirectory(folder)
    assert directory.set_aside(3, "why", seen(directory, 3)) == folder / "step-000000003.bad"
    assert (folder / "latest").readlink() == Path(step_name(2))
    copies(folder, 3)
    assert directory.set_aside(3, "why", seen(directory, 3)) == folder / "step-000000003.bad-2"
    assert directory.steps() == [2]


def test_what_another_process_has_replaced_is_not_set_aside(folder: Path) -> None:
    directory = StepDirectory(folder)
    before = seen(directory, 3)
    save(folder, 3, "second")
    assert directory.set_aside(3, "why", before) is None
    assert directory.steps() == [2, 3]


def damage(folder: Path, how: str) -> None:
    weights, manifest = folder / "weights", folder / "manifest.json"
    match how:
        case "a flipped bit":
            flip_a_bit(weights)
        case "a cut file":
            os.truncate(weights, 3)
        case "a missing file":
            weights.unlink()
        case "a link":
            weights.rename(folder / "other")
            weights.symlink_to("other")
        case "a fifo":
            weights.unlink()
            os.mkfifo(weights)
        case "a linked folder":
            (folder / "optimizer").rename(folder / "other")
            (folder / "optimizer").symlink_to("other")
        case "no manifest":
            manifest.unlink()
        case "a linked manifest":
            manifest.rename(folder / "other")
            manifest.symlink_to("other")
        case "a manifest of another step":
            shutil.copy(folder.parent / step_name(2) / "manifest.json", manifest)
        case "a flipped bit in the manifest":
            flip_a_bit(manifest)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("a flipped bit", "weights is damaged: its xxh3_128 is not"),
        ("a cut file", "weights has 3 bytes instead of"),
        ("a missing file", "weights is missing"),
        ("a link", "weights is no regular file"),
        ("a fifo", "weights is no regular file"),
        ("a linked folder", "is missing"),
        ("no manifest", "manifest.json is missing"),
        ("a linked manifest", "manifest.json is no regular file"),
        ("a manifest of another step", "manifest.json is that of another step, 2"),
        ("a flipped bit in the manifest", "manifest.json "),
    ],
)
def test_damage_is_found_and_named(how: str, says: str, folder: Path) -> None:
    damage(folder / step_name(3), how)
    directory = StepDirectory(folder)
    problems = directory.check(3)
    assert says in str(problems[0])
    assert directory.check(2) == []
    if how != "a flipped bit":
        with pytest.raises(NoGoodStep, match=f"step 3 cannot be loaded: .*{says}"):
            directory.look(3)


def test_readers_that_share_the_checking_find_what_one_would(folder: Path) -> None:
    for name in ("weights", "optimizer/state"):
        flip_a_bit(folder / step_name(3) / name)
    shares = [StepDirectory(folder).check(3, share=(index, 3)) for index in range(3)]
    assert sorted(str(problem) for share in shares for problem in share) == sorted(
        map(str, StepDirectory(folder).check(3))
    )
    assert max(map(len, shares)) == 1


def test_a_step_of_a_newer_phalanx_is_not_taken_for_damaged(folder: Path) -> None:
    import json

    from phalanx.checkpoint.manifest import _checksum

    path = folder / step_name(3) / "manifest.json"
    value = json.loads(path.read_text()) | {"version": 2}
    del value["checksum"]
    path.write_text(json.dumps(value | {"checksum": _checksum(value)}))
    with pytest.raises(CannotCheck, match="was saved by a newer phalanx"):
        StepDirectory(folder).check(3)


def test_md5_files_stand_in_for_a_manifest(tmp_path: Path) -> None:
    import hashlib

    for name in ("global_step20", "step_30"):
        (tmp_path / name / "sub").mkdir(parents=True)
        for file in ("a", "c", "sub/b"):
            (tmp_path / name / file).write_bytes(b"1234")
            digest = hashlib.md5(b"1234").hexdigest()
            (tmp_path / name / (file + ".md5")).write_text(f"{digest}  {file}\n")
    directory = StepDirectory(tmp_path)
    assert directory.steps() == [20, 30]
    assert directory.check(20) == []
    assert set(directory.look(20).files) == {"a", "c", "sub/b"}
    (tmp_path / "step_30/sub/b").write_bytes(b"1235")
    assert [str(problem) for problem in directory.check(30)] == [
        "step 30: sub/b is damaged: its md5 is not the one that was saved"
    ]
    (tmp_path / "global_step20/a.md5").unlink()
    assert [str(problem) for problem in directory.check(20)] == [
        "step 20: a has neither a manifest nor a .md5 beside it"
    ]
    assert directory.set_aside(30, "why", seen(directory, 30)) is None, "it is not ours to rename"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "ext4"), ("/data/x", "nfs4"), ("/database", "ext4"), ("/data/local/x", "tmpfs"), ("/a b", "xfs")],
)
def test_the_file_system_of_a_folder_is_that_of_the_innermost_mount(path: str, kind: str) -> None:
    lines = [
        r"1 0 8:1 / / rw - ext4 /dev/sda rw",
        r"2 1 0:3 / /data rw shared:1 - nfs4 server:/ rw",
        r"3 2 0:4 / /data/local rw - tmpfs tmpfs rw",
        r"4 1 0:5 / /a\040b rw - xfs /dev/sdb rw",
    ]
    assert kind_of(path, "\n".join(lines)) == kind


def test_memory_is_a_file_system_of_this_machine() -> None:
    assert is_local(Path("/dev/shm"))
    assert not is_local(Path("/proc/self"))


def test_a_folder_behind_symbolic_links_is_that_folder(quick_folder: Path) -> None:
    (quick_folder / "disk/runs").mkdir(parents=True)
    (quick_folder / "scratch").symlink_to("disk")
    (quick_folder / "link").symlink_to("scratch/runs")
    for number, folder in enumerate(("scratch/new", "scratch/runs", "link")):
        save(quick_folder / folder, number)
        assert number in StepDirectory(quick_folder / folder).steps()
    assert StepDirectory(quick_folder / "disk/runs").steps() == [1, 2]


class MayNotList(RealFiles):
    """As where parents may be entered, but not listed."""

    def __init__(self, parent: Path) -> None:
        self.parent = parent

    def sync_folder(self, path: Path) -> None:
        if path == self.parent:
            raise PermissionError(13, "Permission denied", str(path))
        super().sync_folder(path)


def test_a_parent_that_may_not_be_listed_is_no_obstacle(
    quick_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (quick_folder / "mine").mkdir()
    save(quick_folder / "mine", 1, files=MayNotList(quick_folder))
    assert not caplog.records
    save(quick_folder / "new", 1, files=MayNotList(quick_folder))
    assert "may be gone after a power loss" in caplog.text


def test_a_manifest_is_read_in_small_pieces(folder: Path) -> None:
    class Few(io.FileIO):
        def read(self, size: int | None = -1, /) -> bytes:
            assert size is not None
            assert 0 < size < 1 << 20, "no more is allocated than is there"
            return super().read(min(size, 100))

    class FewBytes(RealFiles):
        def opened(self, path: Path) -> BinaryIO:
            return cast("BinaryIO", Few(path))

    assert StepDirectory(folder, FewBytes()).look(3).step == 3


def test_a_handler_that_interrupts_who_holds_the_lock_does_not_wait_for_it(folder: Path) -> None:
    class Interrupted(RealFiles):
        waits = 0

        def lock(self, path: Path, *, exclusive: bool) -> Lock:
            try:
                return super().lock(path, exclusive=exclusive)
            except BlockingIOError:
                self.waits += 1
                raise OSError(errno.EDEADLK, "it would wait for itself") from None

    files = Interrupted()
    directory = StepDirectory(folder, files)
    with changing(directory.folder, files):
        save(folder, 9, files=files)
    assert files.waits == 0
    assert 9 in directory.steps()
    with changing(directory.folder, files), pytest.raises(BlockingIOError):
        RealFiles().lock(directory.folder, exclusive=True)


class Meanwhile(RealFiles):
    """Calls something when a file of this name is opened, ``times`` times."""

    def __init__(self, name: str, do: Callable[[], object], times: int = 1) -> None:
        self.name, self.do, self.times = name, do, times

    def opened(self, path: Path) -> BinaryIO:
        if path.name == self.name and self.times > 0:
            self.times -= 1
            self.do()
        return super().opened(path)


def test_a_step_that_is_replaced_while_it_is_checked_is_not_damaged(folder: Path) -> None:
    def replace() -> None:
        save(folder, 3, "a longer version")

    directory = StepDirectory(folder, Meanwhile("weights", replace))
    assert directory.check(3) == []
    assert directory.look(3).meta == {"version": "a longer version"}
    directory.files = Meanwhile("manifest.json", lambda: save(folder, 3, "x"))
    assert directory.look(3).step == 3
    directory.files = Meanwhile("weights", replace, times=1000)
    with pytest.raises(CannotCheck, match="replaced all the time"):
        directory.check(3)


def test_a_step_that_is_removed_while_it_is_checked_is_gone_and_not_damaged(folder: Path) -> None:
    directory = StepDirectory(folder, Meanwhile("weights", lambda: shutil.rmtree(folder / step_name(3))))
    with pytest.raises(NoGoodStep, match="is not in"):
        directory.check(3)


def test_names_of_files_do_nothing_to_a_terminal(folder: Path) -> None:
    problem = Problem(7, "a\x1b[2J\nstep 7: fine", "is missing")
    assert str(problem) == "step 7: a\\x1b[2J\\nstep 7: fine is missing"
    assert str(refused(folder, [problem])).isprintable()


def test_warnings_have_an_origin_where_no_logging_is_set_up() -> None:
    script = "import logging; from phalanx.checkpoint.origin import log; {}; log.warning('step %d', 7)"
    said = [
        subprocess.run(
            [sys.executable, "-c", script.format(setup)], capture_output=True, text=True, check=True
        ).stderr
        for setup in ("pass", "logging.basicConfig()")
    ]
    assert said == ["phalanx: checkpoints: step 7\n", "WARNING:phalanx.checkpoint:step 7\n"]
