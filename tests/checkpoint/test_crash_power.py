"""Whatever a power loss takes of what was not put on the disk, the step before or the new one is there, whole."""

from __future__ import annotations

import errno
import itertools
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.power import Disk, Recording, build
from tests.checkpoint.scenarios import SCENARIOS, assert_that_the_next_save_works, found_after

from phalanx.checkpoint import SaveFailed


def looker(name: str, root: Path) -> tuple[Callable[[dict[str, Any]], tuple[int, str] | None], set[Any]]:
    """What is loaded from a disk that holds this tree, and all that was."""
    found: dict[str, tuple[int, str] | None] = {}  # by what is on the disk
    seen: set[Any] = set()

    def after(tree: dict[str, Any]) -> tuple[int, str] | None:
        if (shape := repr(tree)) not in found:
            folder = root / "disk"
            build(tree, folder)
            found[shape] = found_after(name, folder / "checkpoints")
            seen.add(found[shape])
            if len(found) % 4 == 0:
                assert_that_the_next_save_works(name, folder / "checkpoints")
            shutil.rmtree(folder)
        return found[shape]

    return after, seen


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_power_loss_at_any_moment_leaves_the_step_before_or_the_new_one(
    name: str, quick_folder: Path
) -> None:
    scenario = SCENARIOS[name]
    start = quick_folder / "start"
    start.mkdir()
    scenario.prepare(start / "checkpoints")
    disk = Disk(start)
    recording = Recording(scenario.files(), start)
    scenario.act(start / "checkpoints", recording)
    assert len(recording.operations) >= 4

    after, found = looker(name, quick_folder)
    for number, (operation, args) in enumerate(recording.operations):
        for tree in disk.after_power_loss(f"{name} {number}"):
            after(tree)
        disk.play(operation, args)
    at_the_end = {after(tree) for tree in disk.after_power_loss(name)}
    assert at_the_end == {scenario.after}, "save has returned, and a power loss takes the step"
    assert {scenario.before, scenario.after} <= found


class FailsToSync:
    """The folder of steps is not put on the disk when it is to be for the time ``at``."""

    def __init__(self, files: Any, folder: Path, at: int) -> None:
        self._files, self._folder, self.left = files, folder, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def sync_folder(self, path: Path) -> None:
        if path == self._folder:
            self.left -= 1
            if self.left == 0:
                raise OSError(errno.EIO, "Input/output error", str(path))
        self._files.sync_folder(path)


@pytest.mark.parametrize(
    "name",
    ["retention", "replacing", "replacing without exchange", "tidying after an exchange", "going back"],
)
def test_a_power_loss_after_an_error_of_the_disk_leaves_the_step_before_or_the_new_one(
    name: str, quick_folder: Path
) -> None:
    scenario = SCENARIOS[name]
    for at in itertools.count(1):
        root = quick_folder / str(at)
        start = root / "start"
        start.mkdir(parents=True)
        scenario.prepare(start / "checkpoints")
        disk = Disk(start)
        failing = FailsToSync(scenario.files(), start / "checkpoints", at)
        recording = Recording(failing, start)
        with suppress(SaveFailed):
            scenario.act(start / "checkpoints", recording)
        if failing.left > 0:  # there are not so many
            break
        after, _ = looker(name, root)
        for number, (operation, args) in enumerate(recording.operations):
            for tree in disk.after_power_loss(f"{name} {at} {number}"):
                after(tree)
            disk.play(operation, args)
        for tree in disk.after_power_loss(f"{name} {at}"):
            after(tree)
        shutil.rmtree(root)
    assert at > 2
