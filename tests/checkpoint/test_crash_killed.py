"""A save that is killed, for real and at every operation, leaves the step before it or the new one, whole."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoint.scenarios import (
    OPERATIONS,
    SCENARIOS,
    assert_that_the_next_save_works,
    found_after,
)

from phalanx.checkpoint.files import RealFiles


class Counting:
    """Files whose every operation is announced to ``seen(number, name, args)``, before and after it is done."""

    def __init__(self, real: RealFiles, seen: Callable[[str, int, str, tuple[Any, ...]], None]) -> None:
        self.real = real
        self.count = 0
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.real, name)
        if name not in OPERATIONS:
            return operation

        def counted(*args: Any) -> None:
            number = self.count
            self.count += 1
            self._seen("before", number, name, args)
            try:
                operation(*args)
            finally:  # also when it fails, as a rename to a name that is taken does
                self._seen("after", number, name, args)

        return counted


def killer(at: int, moment: str) -> Callable[[str, int, str, tuple[Any, ...]], None]:
    def seen(now: str, number: int, name: str, args: tuple[Any, ...]) -> None:
        if number != at:
            return
        if moment == "middle" and now == "before" and name == "write":
            path, data = args
            RealFiles().write(path, data[: len(data) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        if moment == now:
            os.kill(os.getpid(), signal.SIGKILL)

    return seen


def in_a_process_of_its_own(act: Callable[[], None]) -> int:
    """Run it in a forked child; returns the signal that ended it, 0 if it came to its end."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:  # noqa: BLE001 # the parent sees the code
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status)
    assert os.WEXITSTATUS(status) == 0, "the save itself failed"
    return 0


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_kill_at_any_operation_leaves_the_step_before_or_the_new_one(name: str, quick_folder: Path) -> None:
    scenario = SCENARIOS[name]
    start = quick_folder / "start"
    start.mkdir()
    scenario.prepare(start / "runs/checkpoints")

    def fresh(number: object) -> Path:
        shutil.copytree(start, quick_folder / str(number), symlinks=True)
        return quick_folder / str(number) / "runs/checkpoints"

    operations: list[str] = []
    counting = Counting(
        scenario.files(), lambda now, number, done, args: operations.append(done) if now == "before" else None
    )
    folder = fresh("whole")
    scenario.act(folder, counting)
    assert found_after(name, folder) == scenario.after
    assert len(operations) >= 5
    # After one operation is before the next one: nothing else touches the disk between them.
    points = [(0, "before"), *((at, "after") for at in range(len(operations)))]
    points += [(at, "middle") for at, done in enumerate(operations) if done == "write"]
    seen = set()
    for at, moment in points:
        folder = fresh(f"{at}-{moment}")
        files = Counting(scenario.files(), killer(at, moment))
        ended_by = in_a_process_of_its_own(partial(scenario.act, folder, files))
        assert ended_by == signal.SIGKILL, (name, at, moment)
        seen.add(found_after(name, folder))
        assert_that_the_next_save_works(name, folder)
        shutil.rmtree(quick_folder / f"{at}-{moment}")
    assert {scenario.before, scenario.after} <= seen, "both are seen, or the kills came at the wrong time"
