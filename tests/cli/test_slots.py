from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.cli.slots import cpu_slots, gpu_slots, worker_slots


def _write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


@pytest.fixture(autouse=True)
def _no_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


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


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        ("", 0),
        ("0", 1),
        ("0,1,3", 3),
        ("0,-1,2", 1),
        ("-1", 0),
        ("NoDevFiles", 0),
        ("GPU-8f3b,MIG-12", 2),
        ("0, 1", 2),
    ],
)
def test_visible_gpus_are_those_of_the_variable_up_to_the_first_that_is_none(
    visible: str, gpus: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpu_slots(root=str(tmp_path)) == gpus


def test_without_the_variable_gpus_are_the_device_files(tmp_path: Path) -> None:
    root = _write(tmp_path, {f"dev/nvidia{name}": "" for name in ("0", "1", "ctl", "-uvm", "-modeset")})
    assert gpu_slots(root=root) == 2


def test_auto_takes_gpus_where_there_are_device_files_and_cpus_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    root = _write(tmp_path, {f"dev/nvidia{number}": "" for number in range(4)})
    assert worker_slots("auto", root=root) == 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    assert worker_slots("auto", root=root) == 1
    assert worker_slots("auto", root=str(tmp_path / "elsewhere")) == cpu_slots(root=str(tmp_path))


def test_words_for_the_number_of_workers_are_read_in_any_case(tmp_path: Path) -> None:
    assert worker_slots("CPU", root=str(tmp_path)) == cpu_slots(root=str(tmp_path))
    assert worker_slots(" 3 ", root=str(tmp_path)) == 3


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("0", "at least one worker"),
        ("-2", "at least one worker"),
        ("two", "'two' is no number of workers; write a number, auto, cpu or gpu"),
        ("gpu", "finds no GPU"),
        ("xpu", "not supported by this version"),
        ("", "is no number of workers"),
    ],
)
def test_what_is_no_number_of_workers_is_refused(tmp_path: Path, raw: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        worker_slots(raw, root=str(tmp_path))


def test_the_affinity_mask_is_asked_of_the_kernel(tmp_path: Path) -> None:
    assert cpu_slots(root=str(tmp_path)) == len(os.sched_getaffinity(0))
