"""A disk that is full, for real and at every point, or that fails at any operation, loses no step."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.checkpoint.scenarios import (
    MAY_LIST_DAMAGED,
    OPERATIONS,
    SCENARIOS,
    assert_that_the_next_save_works,
    checkpointer,
    found_after,
    save,
    writer,
)

from phalanx.checkpoint import SaveFailed
from phalanx.checkpoint.files import RealFiles

READING = ("opened", "hold")


class Failing:
    """Files whose operation ``at``, or each from there on, fails with ``number``, with or without its effect."""

    def __init__(self, real: RealFiles, at: int, number: int, *, from_there_on: bool, after: bool) -> None:
        self._real = real
        self._at = at
        self._number = number
        self._from_there_on = from_there_on
        self._after = after
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._real, name)
        if name not in (*OPERATIONS, *READING):
            return operation

        def failing(*args: Any) -> Any:
            fails = self.count == self._at or (self._from_there_on and self.count > self._at)
            self.count += 1
            if fails and not (self._after and name not in READING):
                raise OSError(self._number, os.strerror(self._number), str(args[0]))
            result = operation(*args)
            if fails:  # as network file systems do: it is done, and its answer is lost
                raise OSError(self._number, os.strerror(self._number), str(args[0]))
            return result

        return failing


@pytest.mark.parametrize(
    ("number", "from_there_on", "after"),
    [
        (errno.EIO, False, False),
        (errno.EIO, False, True),
        (errno.EDQUOT, True, False),
    ],
)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name not in MAY_LIST_DAMAGED])
def test_an_operation_that_fails_loses_no_step(
    name: str, number: int, from_there_on: bool, after: bool, quick_folder: Path
) -> None:
    scenario = SCENARIOS[name]
    start = quick_folder / "start"
    start.mkdir()
    scenario.prepare(start / "checkpoints")
    at = 0
    while True:
        root = quick_folder / str(at)
        shutil.copytree(start, root, symlinks=True)
        folder = root / "checkpoints"
        files = Failing(scenario.files(), at, number, from_there_on=from_there_on, after=after)
        failure = ""
        try:
            scenario.act(folder, files)
        except SaveFailed as error:
            failure = str(error)
        except OSError:
            if not name.startswith("parts"):  # there the test itself uses the parts of a save
                raise
        found = found_after(name, folder) if folder.exists() else None
        if failure:
            steps = {
                each[0] for each in (scenario.between, scenario.after) if each
            }  # an act may be of two saves
            assert failure.startswith(tuple(f"step {step} was not saved: " for step in steps))
        elif not name.startswith("parts"):
            assert found == scenario.after
        assert_that_the_next_save_works(name, folder)
        shutil.rmtree(root)
        if files.count <= at:  # it was not reached any more
            break
        at += 1
    assert at > 5


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.getuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1M,nr_inodes=200", "tmpfs", folder],
        capture_output=True,
        text=True,
    )
    if mounted.returncode:
        pytest.skip(f"nothing can be mounted here: {mounted.stderr}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def _by_numpy(folder: Path) -> None:
    np.save(folder / "large.npy", np.zeros(2 << 20, dtype=np.uint8))


@pytest.mark.parametrize("state", ["array", "columns", "bytes", "callable"])
def test_a_full_disk_is_called_that_with_whatever_was_saved(state: str, small_disk: Path) -> None:
    array = np.zeros((2048, 1024), dtype=np.uint8)
    folder = small_disk / "checkpoints"
    states = {
        "array": {"w": array},
        "columns": {"w": array.T},
        "bytes": {"w": array.tobytes()},
        "callable": _by_numpy,  # numpy's own words, which say nothing of the system's
    }
    with pytest.raises(SaveFailed) as failed:
        checkpointer(folder).save(1, states[state])
    assert f"{folder}, " in str(failed.value)
    assert "free some" in str(failed.value)
    assert "keep fewer steps" in str(failed.value)
    assert ("No space left on device; " in str(failed.value)) == (state != "callable")


def free(folder: Path) -> tuple[int, int]:
    status = os.statvfs(folder)
    return status.f_bavail, status.f_favail


@pytest.mark.parametrize("full_of", ["blocks", "inodes"])
@pytest.mark.parametrize("step", [2, 3], ids=["replacing", "a new step"])
def test_a_full_disk_loses_no_step_whatever_it_was_too_small_for(
    step: int, full_of: str, small_disk: Path
) -> None:
    folder = small_disk / "checkpoints"
    save(folder, 1)
    save(folder, 2)
    failures = []
    successes = 0
    for left in range(40):
        ballast = small_disk / "ballast"
        ballast.mkdir()
        blocks, inodes = free(small_disk)
        if full_of == "blocks":
            (ballast / "large").write_bytes(bytes(4096 * max(blocks - left, 0)))
        else:
            for number in range(max(inodes - left, 0)):
                (ballast / str(number)).touch()
        try:
            checkpointer(folder, keep=5).save(
                step, writer(RealFiles(), step, "second"), {"version": "second"}
            )
        except SaveFailed as error:
            failures.append(str(error))
            expected = (2, "first")
        else:
            successes += 1
            expected = (step, "second")
        assert found_after("replacing" if step == 2 else "retention", folder) == expected
        shutil.rmtree(ballast)
        if successes:
            break
    assert len(failures) > 3, "the disk was never full"
    assert all("No space left on device; free some space for" in failure for failure in failures)
    assert successes, "it was never large enough"
    assert_that_the_next_save_works("a full disk", folder)
