"""How many CPUs a process may use, and each of several workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.launcher.hardware.cpus import cpu_slots, threads_per_worker


def _write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


def test_without_a_quota_there_is_room_for_each_cpu_of_the_affinity_mask(tmp_path: Path) -> None:
    assert cpu_slots(root=str(tmp_path), allowed=8) == 8


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("1600000 100000", 8),
    ],
)
def test_a_quota_of_cgroup_v2_cuts_it(tmp_path: Path, quota: str, cpus: int) -> None:
    root = _write(tmp_path, {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": quota + "\n"})
    assert cpu_slots(root=root, allowed=8) == cpus


def test_the_tightest_quota_of_the_groups_above_counts(tmp_path: Path) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/container\n",
            "sys/fs/cgroup/cpu.max": "max 100000\n",
            "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
            "sys/fs/cgroup/pod/container/cpu.max": "400000 100000\n",
        },
    )
    assert cpu_slots(root=root, allowed=8) == 3


@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "cpus"), [("-1", 8), ("300000", 3)])
def test_a_quota_of_cgroup_v1_cuts_it(tmp_path: Path, mount: str, quota: str, cpus: int) -> None:
    root = _write(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/job\n4:cpu,cpuacct:/job\n0::/\n",
            f"sys/fs/cgroup/{mount}/job/cpu.cfs_quota_us": quota + "\n",
            f"sys/fs/cgroup/{mount}/job/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cpu_slots(root=root, allowed=8) == cpus


def test_a_container_that_sees_the_hosts_path_of_its_group_reads_the_root_of_its_mount(
    tmp_path: Path,
) -> None:
    root = _write(
        tmp_path, {"proc/self/cgroup": "0::/kubepods/pod1\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}
    )
    assert cpu_slots(root=root, allowed=8) == 2


def test_the_affinity_mask_is_asked_of_the_kernel(tmp_path: Path) -> None:
    assert cpu_slots(root=str(tmp_path)) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(("allowed", "workers", "threads"), [(8, 2, 4), (8, 3, 2), (2, 4, 1), (64, 1, 64)])
def test_each_worker_gets_its_share_of_the_cpus_and_at_least_one(
    tmp_path: Path, allowed: int, workers: int, threads: int
) -> None:
    assert threads_per_worker(workers, root=str(tmp_path), allowed=allowed) == threads


def test_a_quota_cuts_the_share(tmp_path: Path) -> None:
    root = _write(tmp_path, {"proc/self/cgroup": "0::/job\n", "sys/fs/cgroup/job/cpu.max": "400000 100000\n"})
    assert threads_per_worker(2, root=root, allowed=64) == 2
