"""From the options of a job to the plan of a binding: which device each worker has, and what happens without one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.multiprocessing.binding.sysfs import memory_beside_cpus, two_sockets_of_two_nodes

from phalanx.cli.run import run_options
from phalanx.launcher.hardware.binding import binding_of
from phalanx.launcher.options import RunOptions
from phalanx.multiprocessing.affinity import BindingError
from phalanx.records import changed

Options = Callable[..., RunOptions]


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Options:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(**fields: object) -> RunOptions:
        known = run_options(["--no-python", "true"])
        return changed(known, **{"numa_binding": "node", **fields})

    return make


@pytest.mark.parametrize(
    ("fields", "homes"),
    [
        ({"nproc": 3}, ["0-1 on node 1", "2 on node 3"]),
        ({"nproc": 2, "env": {"CUDA_VISIBLE_DEVICES": "2,0"}}, ["0 on node 3", "1 on node 1"]),
        ({"nproc": 2, "devices": ("2", "1")}, ["0 on node 3", "1 on node 1"]),
        ({"nproc": 2, "devices": ("GPU-22", "GPU-11")}, ["0 on node 3", "1 on node 1"]),
        (
            {"nproc": 2, "virtual_local_rank": True, "env": {"CUDA_VISIBLE_DEVICES": "2,0"}},
            ["0 on node 3", "1 on node 1"],
        ),
        ({"nproc": 3, "virtual_local_rank": True}, ["0-1 on node 1", "2 on node 3"]),
        ({"nproc": 2, "env": {"CUDA_VISIBLE_DEVICES": ""}}, ["0 on node 0", "1 on node 2"]),
    ],
)
def test_a_worker_is_bound_near_the_device_that_it_will_use(
    tmp_path: Path, options: Options, fields: dict[str, object], homes: list[str]
) -> None:
    two_sockets_of_two_nodes(tmp_path)
    plan = binding_of(options(**fields), root=str(tmp_path), allowed=range(32))
    assert re.findall(r"ranks? (\S+ on node \d+)", plan.sentence) == homes


def test_a_job_that_may_go_on_without_a_binding_is_told_why_it_has_none(
    tmp_path: Path, options: Options
) -> None:
    memory_beside_cpus(tmp_path)
    asked = options(numa_binding="exclusive", nproc=7)
    with pytest.raises(BindingError, match=r"^node 0 has 6 cores for 7 workers"):
        binding_of(asked, root=str(tmp_path), allowed=range(32))
    plan = binding_of(changed(asked, numa_may_fail=True), root=str(tmp_path), allowed=range(32))
    assert not plan.cpus
    assert plan.sentence.startswith(
        "warning: workers are not bound to CPUs: node 0 has 6 cores for 7 workers"
    )


def test_a_machine_that_tells_nothing_has_no_binding(tmp_path: Path, options: Options) -> None:
    with pytest.raises(BindingError, match="this machine does not tell which CPUs it has"):
        binding_of(options(nproc=1), root=str(tmp_path), allowed=range(32))
