"""Whatever a power loss takes of what was not put on the disk, the step before or the new one is there, whole."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.power import Disk, Recording, build
from tests.checkpoint.scenarios import SCENARIOS, assert_that_the_next_save_works, found_after


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

    found: dict[str, tuple[int, str] | None] = {}  # by what is on the disk

    def after(tree: dict[str, Any]) -> tuple[int, str] | None:
        if (shape := repr(tree)) not in found:
            folder = quick_folder / "disk"
            build(tree, folder)
            found[shape] = found_after(name, folder / "checkpoints")
            if len(found) % 4 == 0:
                assert_that_the_next_save_works(name, folder / "checkpoints")
            shutil.rmtree(folder)
        return found[shape]

    for number, (operation, args) in enumerate(recording.operations):
        for tree in disk.after_power_loss(f"{name} {number}"):
            after(tree)
        disk.play(operation, args)
    at_the_end = {after(tree) for tree in disk.after_power_loss(name)}
    assert at_the_end == {scenario.after}, "save has returned, and a power loss takes the step"
    assert {scenario.before, scenario.after} <= set(found.values())
    assert len(found) >= 4
