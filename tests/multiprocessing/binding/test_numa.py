"""Real workers have the CPUs that they were born with, and whoever starts them keeps its own."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from phalanx.multiprocessing import (
    DefaultLogsSpecs,
    MultiprocessContext,
    SpawnError,
    SubprocessContext,
    start_processes,
)
from phalanx.multiprocessing.affinity import BindingError, read_cpus
from phalanx.multiprocessing.context import PContext
from phalanx.multiprocessing.numa import affinity_of, on_cpus, plan_here
from phalanx.multiprocessing.pidfd import has_ended

pytestmark = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 2, reason="a mask that is a part of another needs two CPUs"
)

CPUS = sorted(os.sched_getaffinity(0))
TELL = "grep Cpus_allowed_list: /proc/self/status > $OUT.$LOCAL_RANK"


def options(mode: str, *, may_fail: bool = False) -> SimpleNamespace:
    """As torch's NumaOptions, which a user may have."""
    return SimpleNamespace(
        affinity_mode=SimpleNamespace(value=mode), should_fall_back_if_binding_fails=may_fail
    )


def environments(tmp_path: Path, nproc: int) -> dict[int, dict[str, str]]:
    return {i: {"LOCAL_RANK": str(i), "OUT": str(tmp_path / "told")} for i in range(nproc)}


def shells(tmp_path: Path, nproc: int, **more: object) -> SubprocessContext:
    args: dict[int, tuple[object, ...]] = dict.fromkeys(range(nproc), ("-c", TELL))
    return SubprocessContext(
        "test",
        "sh",
        args,
        environments(tmp_path, nproc),
        DefaultLogsSpecs(),
        **more,  # type: ignore[arg-type]
    )


def told(tmp_path: Path, nproc: int) -> list[frozenset[int]]:
    return [read_cpus((tmp_path / f"told.{i}").read_text().split(":")[1]) for i in range(nproc)]


def finish(context: PContext) -> None:
    result = context.wait(60)
    assert result is not None
    assert not result.is_failed(), result.failures


def test_commands_are_born_with_their_cpus_and_the_starter_keeps_its_own(tmp_path: Path) -> None:
    context = shells(tmp_path, 2, numa_options=options("exclusive"))
    context.start()
    assert sorted(os.sched_getaffinity(0)) == CPUS
    finish(context)

    first, second = told(tmp_path, 2)
    assert first | second == frozenset(CPUS)
    assert not first & second


def test_a_worker_that_is_named_no_cpus_has_all(tmp_path: Path) -> None:
    context = shells(tmp_path, 2, affinity={1: CPUS[:1]})
    context.start()
    finish(context)
    assert told(tmp_path, 2) == [frozenset(CPUS), frozenset(CPUS[:1])]


def test_a_single_restart_has_the_cpus_of_the_first_life(tmp_path: Path) -> None:
    logs = DefaultLogsSpecs()
    envs = {i: {**one, "LOCAL_RANK": str(i)} for i, one in environments(tmp_path, 2).items()}
    context = SubprocessContext(
        "test",
        "sh",
        {0: ("-c", "exec sleep 1000"), 1: ("-c", TELL)},
        envs,
        logs,
        affinity={1: CPUS[1:2]},
    )
    context.start()
    while not context.reap():
        assert has_ended(context.fileno(), 60)
    (tmp_path / "told.1").unlink()
    context.start_single(1, envs[1], logs.reify_single(1, envs[1]))
    while not context.reap():
        assert has_ended(context.fileno(), 60)
    context.close()
    assert read_cpus((tmp_path / "told.1").read_text().split(":")[1]) == {CPUS[1]}
    assert sorted(os.sched_getaffinity(0)) == CPUS


def cpus_of_this_worker() -> list[int]:
    return sorted(os.sched_getaffinity(0))


AT_IMPORT = sorted(os.sched_getaffinity(0))


def cpus_at_import() -> list[int]:
    return AT_IMPORT


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_functions_are_born_with_their_cpus_by_every_start_method(method: str) -> None:
    context = start_processes(
        "test",
        cpus_of_this_worker,
        {0: (), 1: ()},
        {0: {}, 1: {}},
        DefaultLogsSpecs(),
        start_method=method,
        numa_options=options("exclusive"),
    )
    assert sorted(os.sched_getaffinity(0)) == CPUS
    result = context.wait(60)
    assert result is not None
    first, second = result.return_values[0], result.return_values[1]
    assert sorted(first + second) == CPUS
    assert first
    assert second
    # Nobody else's processes inherit a worker's mask from those that serve the whole program.
    assert unbound(multiprocessing.get_context("forkserver")) == CPUS


def unbound(how: multiprocessing.context.ForkServerContext) -> list[int]:
    receiver, sender = how.Pipe(duplex=False)
    process = how.Process(target=send_cpus, args=(sender,))
    process.start()
    found = receiver.recv()
    process.join()
    return list(found)


def send_cpus(sender: object) -> None:
    sender.send(sorted(os.sched_getaffinity(0)))  # type: ignore[attr-defined]


def test_what_a_function_s_module_does_at_import_has_the_worker_s_cpus_already() -> None:
    context = start_processes(
        "test", cpus_at_import, {0: ()}, {0: {}}, DefaultLogsSpecs(), numa_options=options("node")
    )
    context.close()
    bound = MultiprocessContext(
        "test", cpus_at_import, {0: ()}, {0: {}}, "spawn", DefaultLogsSpecs(), affinity={0: CPUS[:1]}
    )
    bound.start()
    result = bound.wait(60)
    assert result is not None
    assert result.return_values == {0: CPUS[:1]}


def test_a_command_that_is_not_there_leaves_the_mask_as_it_was() -> None:
    context = SubprocessContext(
        "test", "no-such-command", {0: ()}, {0: {}}, DefaultLogsSpecs(), affinity={0: CPUS[:1]}
    )
    with pytest.raises(SpawnError, match="not found"):
        context.start()
    assert sorted(os.sched_getaffinity(0)) == CPUS


def test_cpus_that_are_gone_are_told_in_one_sentence(tmp_path: Path) -> None:
    context = shells(tmp_path, 1, affinity={0: [1000]})
    with pytest.raises(SpawnError, match=r"\(local rank 0\): its CPUs cannot be used any more .*offline"):
        context.start()
    assert sorted(os.sched_getaffinity(0)) == CPUS


def test_other_threads_keep_their_cpus() -> None:
    seen: list[list[int]] = []
    entered, left = threading.Event(), threading.Event()

    def look() -> None:
        entered.wait(60)
        seen.append(sorted(os.sched_getaffinity(0)))
        left.set()

    # A thread inherits as a process does, so the witness is one that exists before.
    witness = threading.Thread(target=look)
    witness.start()
    with on_cpus(CPUS[:1]):
        assert sorted(os.sched_getaffinity(0)) == CPUS[:1]
        entered.set()
        assert left.wait(60)
    witness.join()
    assert seen == [CPUS]


def test_an_exception_within_restores_the_mask() -> None:
    with pytest.raises(KeyError), on_cpus(CPUS[:1]):
        raise KeyError
    assert sorted(os.sched_getaffinity(0)) == CPUS


# torch's options


def test_without_options_nobody_is_bound() -> None:
    assert affinity_of(None, {0: {}}) == {}


def test_options_of_another_kind_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="numa_options has an affinity_mode, one of node, socket, exclusive"):
        affinity_of(object(), {0: {}})  # type: ignore[arg-type]


def test_a_plain_text_is_a_mode_too() -> None:
    mode = SimpleNamespace(affinity_mode="node", should_fall_back_if_binding_fails=False)
    assert set(affinity_of(mode, {0: {}, 1: {}})) == {0, 1}


def test_options_that_cannot_be_honoured_raise_or_warn_as_they_say() -> None:
    too_many = {i: {} for i in range(len(CPUS) + 1)}  # type: dict[int, dict[str, str]]
    with pytest.raises(BindingError, match="no worker can have one for itself"):
        affinity_of(options("exclusive"), too_many)
    with pytest.warns(RuntimeWarning, match="workers are not bound to CPUs: node"):
        assert affinity_of(options("exclusive", may_fail=True), too_many) == {}


def test_a_machine_without_sysfs_is_told_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BindingError, match="this machine does not tell which CPUs it has"):
        plan_here("node", [(None, 0)], root=str(tmp_path))
