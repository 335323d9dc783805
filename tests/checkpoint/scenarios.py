"""What can be interrupted: saves and loads of every kind, each with a folder to start from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.checkpoint import Checkpointer
from phalanx.checkpoint.directory import StepDirectory
from phalanx.checkpoint.files import Files, RealFiles
from phalanx.checkpoint.naming import step_name
from phalanx.checkpoint.staging import Staging

OPERATIONS = (
    "make_folder",
    "write",
    "sync_file",
    "sync_folder",
    "rename",
    "exchange",
    "symlink",
    "unlink",
    "remove_folder",
)
NAMES = ("weights", "optimizer/state", "optimizer/deep/er")


class NoExchange(RealFiles):
    """A file system whose kernel cannot exchange names."""

    def exchange(self, one: Path, other: Path) -> None:
        import errno

        raise OSError(errno.EINVAL, "no such thing here")


def content(step: int, version: str, name: str) -> bytes:
    return f"{name} of step {step}, {version}: ".encode() * 40


def writer(files: Files, step: int, version: str) -> Callable[[Path], None]:
    """Writes through ``files``, so that it is cut off at each of its own operations, too."""

    def write(folder: Path) -> None:
        files.make_folder(folder / "optimizer")
        files.make_folder(folder / "optimizer/deep")
        for name in NAMES:
            files.write(folder / name, content(step, version, name))

    return write


def checkpointer(folder: Path, files: Files | None = None, keep: int = 2) -> Checkpointer:
    made = Checkpointer(folder, keep)
    if files is not None:
        made._settings.directory.files = files
    return made


def save(folder: Path, step: int, version: str = "first", files: Files | None = None) -> None:
    used = files or RealFiles()
    checkpointer(folder, used).save(step, writer(used, step, version), {"version": version})


def save_sharded(folder: Path, step: int, version: str = "first", files: Files | None = None) -> None:
    """Two ranks in one process, one after the other."""
    used = files or RealFiles()
    directory = StepDirectory(folder, used)
    directory.tidy(run_id="job", round_number=2)
    stagings: list[Staging] = []
    try:
        for part in (0, 1):
            staging = Staging(
                directory, step, part=part, world_size=2, layout="sharded", run_id="job", round_number=2
            )
            stagings.append(staging)
        records = [staging.write(writer(used, step, version)) for staging in stagings]
        stagings[1].release()
        stagings[0].publish(records, {"version": version})
    except BaseException:
        for staging in reversed(stagings):
            staging.abandon()
        raise
    directory.retain(2, just=step)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def two_steps(folder: Path) -> None:
    save(folder, 1)
    save(folder, 2)


def leftovers(folder: Path) -> None:
    """What a process that was killed at three different points has left."""
    save(folder, 1)
    save(folder, 2)
    shutil.copytree(folder / step_name(2), folder / ".step-000000003.none.r0.0badf00d.partial")
    shutil.copytree(folder / step_name(1), folder / ".step-000000000.0badf00d.deleting")
    (folder / ".step-000000000.0badf00d.deleting/manifest.json").unlink()
    (folder / step_name(2)).rename(folder / ".step-000000002.replaced")
    (folder / ".latest.partial").symlink_to("nowhere")


def damaged(folder: Path) -> None:
    save(folder, 1)
    save(folder, 2)
    flip_a_bit(folder / step_name(2) / "weights")


def strange(folder: Path) -> None:
    """A file and a link of somebody else have the names of steps."""
    save(folder, 1)
    (folder / step_name(2)).write_text("a note")
    (folder / step_name(5)).symlink_to(step_name(1))


class Scenario(NamedTuple):
    """``prepare`` and ``act`` take the folder; ``allowed`` are the (step, version) to which a load may come after."""

    prepare: Callable[[Path], None]
    act: Callable[[Path, Files], None]
    before: tuple[int, str] | None
    after: tuple[int, str] | None
    files: type[RealFiles] = RealFiles
    between: tuple[int, str] | None = None  # of an act of two saves


def _saves(step: int, version: str = "second") -> Callable[[Path, Files], None]:
    return lambda folder, files: save(folder, step, version, files)


class _Stopped(BaseException):
    pass


class _StoppedAfterExchange:
    def __init__(self, files: Files) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def exchange(self, one: Path, other: Path) -> None:
        self._files.exchange(one, other)
        raise _Stopped


def _stops_after_an_exchange_and_saves(folder: Path, files: Files) -> None:
    """The old step has the name of a staging folder, and that is not on the disk yet: who tidies must know."""
    with suppress(_Stopped):
        save(folder, 2, "second", _StoppedAfterExchange(files))
    save(folder, 3, "second", files)


def _loads(folder: Path, files: Files) -> None:
    checkpointer(folder, files).load_latest(lambda saved: None)


def _goes_back(folder: Path, files: Files) -> None:
    made = checkpointer(folder)
    made.load(1, lambda saved: None)  # nothing fails before it is known from where to go on
    made._settings.directory.files = files
    made.save(2, writer(files, 2, "second"), {"version": "second"})


SCENARIOS = {
    "the first save": Scenario(lambda folder: None, _saves(1), None, (1, "second")),
    "a second step": Scenario(lambda folder: save(folder, 1), _saves(2), (1, "first"), (2, "second")),
    "retention": Scenario(two_steps, _saves(3), (2, "first"), (3, "second")),
    "replacing": Scenario(two_steps, _saves(2), (2, "first"), (2, "second")),
    "replacing without exchange": Scenario(two_steps, _saves(2), (2, "first"), (2, "second"), NoExchange),
    "tidying after an exchange": Scenario(
        two_steps, _stops_after_an_exchange_and_saves, (2, "first"), (3, "second"), between=(2, "second")
    ),
    "tidying": Scenario(leftovers, _saves(3), (2, "first"), (3, "second")),
    "tidying without exchange": Scenario(leftovers, _saves(2), (2, "first"), (2, "second"), NoExchange),
    "setting aside": Scenario(damaged, _loads, (1, "first"), (1, "first")),
    "replacing a damaged step": Scenario(damaged, _saves(2), (1, "first"), (2, "second")),
    "going back": Scenario(two_steps, _goes_back, (2, "first"), (2, "second"), between=(1, "first")),
    "strange things in the way": Scenario(strange, _saves(2), (1, "first"), (2, "second")),
    "parts of two ranks": Scenario(
        two_steps,
        lambda folder, files: save_sharded(folder, 3, "second", files),
        (2, "first"),
        (3, "second"),
    ),
    "parts of two ranks that are replaced": Scenario(
        lambda folder: save_sharded(folder, 2),
        lambda folder, files: save_sharded(folder, 2, "second", files),
        (2, "first"),
        (2, "second"),
    ),
}
# A damaged step is listed until it is set aside; nothing else that is not whole ever is.
MAY_LIST_DAMAGED = {"setting aside": 2, "replacing a damaged step": 2}


def found_after(name: str, folder: Path) -> tuple[int, str] | None:
    """What a load finds, having checked that all that is listed is whole: structure, checksums, and meaning."""
    scenario = SCENARIOS[name]
    reading = checkpointer(folder)
    whole = []
    for step in reading.steps():
        problems = reading.verify(step)
        if problems and step == MAY_LIST_DAMAGED.get(name):
            continue
        assert not problems, (name, problems)
        saved = reading.load(step, lambda saved: saved).saved
        for part in saved.parts:
            for file in NAMES:
                assert (part / file).read_bytes() == content(step, saved.meta["version"], file)
        whole.append((step, saved.meta["version"]))
    loaded = reading.load_latest(lambda saved: saved.meta["version"])
    found = None if loaded is None else (loaded.step, loaded.value)
    assert found == (whole[-1] if whole else None)
    assert found in (scenario.before, scenario.between, scenario.after), (name, found)
    return found


def assert_that_the_next_save_works(name: str, folder: Path) -> None:
    """And that it leaves nothing of what was interrupted."""
    save(folder, 9, "third")
    loaded = checkpointer(folder).load_latest(lambda saved: saved.meta["version"])
    assert loaded is not None
    assert (loaded.step, loaded.value) == (9, "third")
    entries = {entry.name for entry in folder.iterdir()}
    assert not [entry for entry in entries if entry.startswith(".")], (name, entries)
    assert (folder / "latest").readlink() == Path(step_name(9))
    assert len(checkpointer(folder).steps()) <= 2
