"""What holds for every test: a clean environment, marks by folder, and no process left behind."""

from __future__ import annotations

import codecs
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.compat.marks import COLLECTED, marks_of

# A shared, slow machine makes any single example late; the timeout of each test is the bound.
settings.register_profile("shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared-machine")

_HERE = Path(__file__).parent
_MARKS_OF_FOLDERS = {"system": ("system",), "side_by_side": ("system", "torch")}
_KEPT_FOR_THE_NEXT_USE = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_OURS = ("PET_", "PHALANX_", "TORCHELASTIC_", "TORCH_ELASTIC_")
_OF_A_WORKER = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)

# Python remembers for good that a codec was not found, and each name that is looked up needs this one: an import that
# fails once, within some test that is hard on its process, must not fail every later test that opens a connection.
codecs.lookup("idna")

# The suite may itself run inside a worker of some launcher; no test is to see that job's variables.
for _name in [name for name in os.environ if name.startswith(_OURS) or name in _OF_A_WORKER]:
    if _name != "PHALANX_BIN":  # the setting of the system tests
        del os.environ[_name]

# Nor whether it runs under nohup, or in the background of a shell: what is ignored here, launchers would ignore, too.
for _number, _usual in (
    (signal.SIGHUP, signal.SIG_DFL),
    (signal.SIGQUIT, signal.SIG_DFL),
    (signal.SIGINT, signal.default_int_handler),
):
    if signal.getsignal(_number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(_number, _usual)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    config.stash[COLLECTED] = ({item.path for item in items}, list(marks_of(items)))
    for item in items:
        folder = item.path.relative_to(_HERE).parts[0]
        for mark in _MARKS_OF_FOLDERS.get(folder, ()):
            item.add_marker(mark)


@pytest.fixture(autouse=True)
def _no_child_is_left_behind() -> Iterator[None]:
    before = _children()
    yield
    patience_ends = time.monotonic() + 30
    while (left := _children() - before) and time.monotonic() < patience_ends:
        time.sleep(0.02)
    assert not left, f"the test left child processes: {[_command(pid) for pid in left]}"


def _children() -> set[int]:
    """Return the children of this process, without those that the standard library keeps for the next use."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").iterdir():
        try:
            found.update(map(int, (thread / "children").read_text().split()))
        except OSError:  # the thread has just ended, or this kernel does not list children
            continue
    return {pid for pid in found if not any(kept in _command(pid) for kept in _KEPT_FOR_THE_NEXT_USE)}


def _command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            or f"pid {pid}"
        )
    except OSError:
        return f"pid {pid}"
