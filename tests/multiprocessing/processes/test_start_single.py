"""One worker of a context started anew while the others run: its streams, its files, its tree, its descriptors."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from phalanx.multiprocessing import DefaultLogsSpecs, MultiprocessContext, Std, SubprocessContext
from phalanx.multiprocessing.context import PContext
from phalanx.multiprocessing.pidfd import has_ended
from phalanx.multiprocessing.spawning import SpawnError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="trees are read from /proc")

Soon = Callable[..., None]
Sleepers = Callable[[], list[int]]
MARK = "WORKER_OF_THIS_TEST"


class Group:
    """A context whose workers run a shell script that finds its orders in its environment."""

    def __init__(self, folder: Path, *scripts: str, **options: object) -> None:
        self.logs = DefaultLogsSpecs(log_dir=str(folder / "logs"), **options)  # type: ignore[arg-type]
        self.context = SubprocessContext(
            "g",
            "sh",
            {one: ("-c", text) for one, text in enumerate(scripts)},
            {one: {MARK: str(one), "TRY": "0"} for one in range(len(scripts))},
            self.logs,
        )
        self.context.start()

    def await_exit(self, local_rank: int) -> int:
        while True:
            assert has_ended(self.context.fileno(), 30.0)
            codes = self.context.reap()
            if local_rank in codes:
                return codes[local_rank]

    def again(self, local_rank: int, number: int) -> None:
        env = {MARK: str(local_rank), "TRY": str(number)}
        self.context.start_single(local_rank, env, self.logs.reify_single(local_rank, env))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[..., Group]]:
    made: list[PContext] = []

    def make(*scripts: str, **options: object) -> Group:
        found = Group(tmp_path, *scripts, **options)
        made.append(found.context)
        return found

    yield make
    for context in made:
        context.close(signal.SIGKILL, timeout=5)


def test_a_successor_has_files_of_its_own_and_the_failure_of_its_predecessor_is_forgotten(
    group: Callable[..., Group],
) -> None:
    one = group("echo try $TRY; echo bad $TRY >&2; exit 3", "sleep 1000", redirects=Std.ALL)
    other = one.context.pids()[1]
    for number in range(3):
        assert one.await_exit(0) == 3
        assert one.context.drain(30)
        assert one.context.stderr_tail(0) == b"bad %d\n" % number
        assert one.context.failure(0).exitcode == 3
        out = Path(one.context.stdouts[0])
        assert out.read_text() == f"try {number}\n"
        assert out.parent.name == ("0" if number == 0 else f"0.{number}")
        assert one.context.error_files[0] == str(out.parent / "error.json")
        if number < 2:
            one.again(0, number + 1)
    assert one.context.pids()[1] == other
    assert one.context.collect() == {1}


def test_teed_lines_of_all_lives_are_shown_once_with_one_prefix(
    group: Callable[..., Group], capfd: pytest.CaptureFixture[str]
) -> None:
    one = group("printf 'try %s\\nlast of %s' $TRY $TRY", "sleep 1000", tee=Std.OUT)
    for number in range(1, 6):
        assert one.await_exit(0) == 0
        one.again(0, number)
    assert one.await_exit(0) == 0
    assert one.context.drain(30)
    shown = capfd.readouterr().out.splitlines()
    assert shown == [line for n in range(6) for line in (f"[g0]:try {n}", f"[g0]:last of {n}")]


@pytest.mark.parametrize(
    "options", [{"tee": Std.ALL}, {"redirects": Std.ALL, "max_bytes": 1000}, {}], ids=str
)
def test_many_lives_use_no_more_descriptors_than_one(
    group: Callable[..., Group], options: dict[str, object], soon: Soon
) -> None:
    one = group("exit 1", "sleep 1000", **options)
    one.await_exit(0)
    one.again(0, 1)
    one.await_exit(0)
    assert one.context.drain(30)
    before = len(os.listdir("/proc/self/fd"))
    for number in range(2, 30):
        one.again(0, number)
        one.await_exit(0)
    assert one.context.drain(30)
    soon(lambda: len(os.listdir("/proc/self/fd")) <= before + 4, "giving back what lives have used")


def test_a_branch_is_all_that_one_worker_started_and_nothing_of_the_others(
    group: Callable[..., Group], nap: str, sleepers: Sleepers, soon: Soon
) -> None:
    text = f"sleep {nap} & setsid sleep {nap} & setsid sh -c 'sleep {nap} & wait' & echo up; "
    one = group(text + "exit 3", text + "sleep 1000", redirects=Std.ALL)
    one.await_exit(0)
    soon(lambda: len(sleepers()) == 6)
    own = {pid for pid in sleepers() if f"{MARK}=0".encode() in _environment(pid)}
    assert len(own) == 3

    branch = one.context.tree.branch(one.context.pids()[0], "0", MARK)
    branch.send(signal.SIGKILL)
    is_unsure = branch.is_unsure

    def is_over() -> bool:
        nonlocal is_unsure
        # One waited in the kernel while those to be killed were looked for, and its mark could not be read.
        if is_unsure:
            branch.send(signal.SIGKILL)
            is_unsure = branch.is_unsure
        return not branch.members() and not own & set(sleepers())

    soon(is_over, "the end of the branch")
    branch.close()

    assert len(sleepers()) == 3
    assert not own & set(sleepers())


def test_a_successor_that_cannot_be_started_leaves_the_others_alone(
    group: Callable[..., Group],
) -> None:
    one = group("exit 3", "sleep 1000", redirects=Std.ALL)
    one.await_exit(0)
    one.context.entrypoint = "no such program"
    with pytest.raises(SpawnError, match="not found"):
        one.again(0, 1)
    assert one.context.collect() == {1}
    one.context.entrypoint = "sh"
    one.again(0, 2)
    assert one.await_exit(0) == 3


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_functions_come_back_with_their_results(method: str, tmp_path: Path) -> None:
    logs = DefaultLogsSpecs(log_dir=str(tmp_path), redirects=Std.ALL)
    context = MultiprocessContext("f", os.getenv, {0: ("ANSWER",)}, {0: {"ANSWER": "one"}}, method, logs)
    context.start()
    try:
        for answer in ("two", "three"):
            while 0 not in context.reap():
                assert has_ended(context.fileno(), 30.0)
            env = {"ANSWER": answer}
            context.start_single(0, env, logs.reify_single(0, env))
        while 0 not in context.reap():
            assert has_ended(context.fileno(), 30.0)
        assert context.return_values == {0: "three"}
    finally:
        context.close(signal.SIGKILL, timeout=5)


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
