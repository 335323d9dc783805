from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.launcher.hardware.accelerators import nvidia_gpus
from phalanx.launcher.hardware.cpus import cpu_slots
from phalanx.launcher.hardware.slots import gpu_slots, worker_slots, xpu_slots


def _write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


@pytest.fixture(autouse=True)
def _no_devices_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"):
        monkeypatch.delenv(name, raising=False)


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
        ("two", "'two' is no number of workers; write a number, auto, cpu, gpu or xpu"),
        ("gpu", "'gpu' finds no GPU here .*; write a number"),
        ("xpu", "'xpu' finds no XPU here .*; write a number"),
        ("npu", "devices of other kinds, which torch knows by a plug-in, are not counted"),
        ("", "is no number of workers"),
    ],
)
def test_what_is_no_number_of_workers_is_refused(tmp_path: Path, raw: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        worker_slots(raw, root=str(tmp_path))


def amd_machine(root: Path) -> str:
    nodes = {"0": "0", "1": "51234", "2": "7777"}  # the first is the CPUs
    files = {f"sys/class/kfd/kfd/topology/nodes/{node}/gpu_id": f"{gpu}\n" for node, gpu in nodes.items()}
    return _write(root, {"dev/kfd": "", **files})


def intel_machine(root: Path, *addresses: str) -> str:
    for number, address in enumerate(addresses, 128):
        device = root / "sys/devices" / address
        _write(root, {f"dev/dri/renderD{number}": "", f"dev/dri/card{number}": ""})
        _write(device, {"vendor": "0x8086\n"})
        (root / f"sys/class/drm/renderD{number}").mkdir(parents=True)
        (root / f"sys/class/drm/renderD{number}/device").symlink_to(device)
    return str(root)


def test_gpus_of_amd_are_those_of_the_driver_and_of_its_variables(tmp_path: Path) -> None:
    root = amd_machine(tmp_path)
    assert gpu_slots(environ={}, root=root) == 2
    assert gpu_slots(environ={"ROCR_VISIBLE_DEVICES": "1"}, root=root) == 1
    assert gpu_slots(environ={"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0,1"}, root=root) == 1
    assert worker_slots("auto", environ={}, root=root) == 2


def test_a_variable_of_amd_says_nothing_where_there_is_no_gpu_of_amd(tmp_path: Path) -> None:
    assert gpu_slots(environ={"HIP_VISIBLE_DEVICES": "0,1"}, root=str(tmp_path)) == 0


def test_gpus_of_intel_are_the_discrete_ones(tmp_path: Path) -> None:
    root = intel_machine(tmp_path, "0000:00:02.0", "0000:3a:00.0", "0000:9a:00.0")
    assert xpu_slots(environ={}, root=root) == 2
    assert worker_slots("xpu", environ={}, root=root) == 2
    assert worker_slots("auto", environ={}, root=root) == 2


def test_an_integrated_gpu_of_intel_counts_where_there_is_no_other_and_never_for_auto(tmp_path: Path) -> None:
    root = intel_machine(tmp_path, "0000:00:02.0")
    assert worker_slots("xpu", environ={}, root=root) == 1
    assert worker_slots("auto", environ={}, root=root) == cpu_slots(root=root)


def test_a_render_node_of_another_maker_is_no_gpu_of_intel(tmp_path: Path) -> None:
    root = intel_machine(tmp_path, "0000:3a:00.0")
    (tmp_path / "sys/devices/0000:3a:00.0/vendor").write_text("0x1002\n")
    assert xpu_slots(environ={}, root=root) == 0


@pytest.mark.parametrize(
    ("mask", "hierarchy", "xpus"),
    [
        ("0,1,3", "", 3),
        ("0.0,0.1", "", 2),
        ("0.0,0.1,1", "COMPOSITE", 2),
        ("1,1", "", 1),
        ("none", "", 0),
    ],
)
def test_the_affinity_mask_of_level_zero_is_counted(
    mask: str, hierarchy: str, xpus: int, tmp_path: Path
) -> None:
    environ = {"ZE_AFFINITY_MASK": mask, "ZE_FLAT_DEVICE_HIERARCHY": hierarchy}
    assert xpu_slots(environ=environ, root=str(tmp_path)) == xpus


def test_devices_that_the_job_was_given_are_what_is_counted(tmp_path: Path) -> None:
    for word in ("gpu", "xpu", "auto"):
        assert worker_slots(word, devices=("0", "2", "5"), root=str(tmp_path)) == 3
    assert worker_slots("2", devices=("0", "2", "5"), root=str(tmp_path)) == 2
    assert worker_slots("cpu", devices=("0",), root=str(tmp_path)) == cpu_slots(root=str(tmp_path))


@pytest.mark.compat(
    "flag --nproc-per-node",
    "better",
    "cpu counts what affinity and cgroup quota allow; gpu and xpu need no torch; mistakes are one sentence",
)
def test_on_this_machine_a_driver_that_is_not_there_leaves_the_device_files() -> None:
    """Really: with nvidia-ml-py installed and, on most machines that run this, no driver."""
    pynvml = pytest.importorskip("pynvml")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        files = [one for one in Path("/dev").iterdir() if one.name.removeprefix("nvidia").isdecimal()]
        assert nvidia_gpus() == len(files)
    else:
        assert nvidia_gpus() == pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
