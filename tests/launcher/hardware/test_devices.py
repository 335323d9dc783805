"""Which devices each worker sees."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from phalanx.agent.devices import DeviceError, entries_of
from phalanx.launcher.hardware.devices import mask_of, read_devices


def told(
    devices: Sequence[str] | None,
    inherited: Mapping[str, str],
    root: Path,
    *,
    is_virtual: bool = False,
    nproc: int = 2,
) -> list[dict[str, str]]:
    """What each of the workers finds."""
    mask = mask_of(devices, is_virtual=is_virtual, nproc=nproc, inherited=inherited, root=str(root))
    assert mask is not None
    return [mask.environment(one) for one in range(nproc)]


def write(root: Path, *names: str, text: str = "") -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def an_amd_machine(root: Path) -> None:
    write(root, "dev/kfd")
    write(root, "sys/class/kfd/kfd/topology/nodes/1/gpu_id", text="51234\n")


def an_intel_machine(root: Path) -> None:
    write(root, "dev/dri/renderD128")
    write(root, "sys/devices/0000:3a:00.0/vendor", text="0x8086\n")
    (root / "sys/class/drm/renderD128").mkdir(parents=True)
    (root / "sys/class/drm/renderD128/device").symlink_to(root / "sys/devices/0000:3a:00.0")


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        (["x"], "'x' is no device"),
        (["0", ""], "'' is no device"),
        ([""], "no device is named"),
        ([], "no device is named"),
        (["0", "1", "00"], "'00' is named twice"),
        (["GPU-AB", "gpu-ab"], "'gpu-ab' is no device"),
        (["GPU-AB", "GPU-ab"], "'GPU-ab' is named twice"),
        (["-1"], "'-1' is no device"),
        (["0-3"], "'0-3' is no device"),
        (["12345"], "'12345' is no device"),
        (["cuda:0"], "'cuda:0' is no device"),
    ],
)
def test_a_list_of_devices_with_a_mistake_is_refused(listed: list[str], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_devices(listed)


def test_indices_ids_and_parts_of_devices_are_devices() -> None:
    listed = ["0", " 02", "GPU-8f3b-aa", "MIG-GPU-8f3b/1/0", "MIG-c7c8", "1.0"]
    assert read_devices(listed) == ("0", "2", "GPU-8f3b-aa", "MIG-GPU-8f3b/1/0", "MIG-c7c8", "1.0")


def test_a_list_ends_where_its_readers_end_it() -> None:
    assert entries_of(" 3, GPU-a ,-1,5") == ("3", "GPU-a")
    assert entries_of("") == ()


def test_devices_are_what_each_worker_sees(tmp_path: Path) -> None:
    assert told(["0", "2"], {}, tmp_path) == [{"CUDA_VISIBLE_DEVICES": "0,2"}] * 2


def test_devices_are_names_in_the_inherited_list_and_not_places(tmp_path: Path) -> None:
    inherited = {"CUDA_VISIBLE_DEVICES": "3,5,7"}
    assert told(["7", "3"], inherited, tmp_path, nproc=1) == [{"CUDA_VISIBLE_DEVICES": "7,3"}]
    with pytest.raises(DeviceError, match="'0' is not in CUDA_VISIBLE_DEVICES=3,5,7") as found:
        told(["0"], inherited, tmp_path)
    assert found.value.about == "devices"


def test_an_id_may_be_cut_short_on_either_side(tmp_path: Path) -> None:
    inherited = {"CUDA_VISIBLE_DEVICES": "GPU-aa11,GPU-aa22,GPU-b"}
    assert told(["GPU-AA1", "GPU-b777"], inherited, tmp_path)[0] == {"CUDA_VISIBLE_DEVICES": "GPU-aa11,GPU-b"}
    with pytest.raises(DeviceError, match="'GPU-aa' can be GPU-aa11 or GPU-aa22"):
        told(["GPU-aa"], inherited, tmp_path)


def test_an_index_beyond_the_last_device_is_refused_where_devices_can_be_counted(tmp_path: Path) -> None:
    write(tmp_path, "dev/nvidia0", "dev/nvidia1")
    with pytest.raises(DeviceError, match="there is no device 2 here; the last one is 1"):
        told(["0", "2"], {}, tmp_path)


def test_without_a_word_about_devices_workers_are_told_nothing(tmp_path: Path) -> None:
    for inherited in ({}, {"CUDA_VISIBLE_DEVICES": "0"}):
        assert mask_of(None, is_virtual=False, nproc=2, inherited=inherited, root=str(tmp_path)) is None


def test_a_virtual_rank_sees_its_own_entry_by_index_or_by_id(tmp_path: Path) -> None:
    for listed, own in (("3,5", ["3", "5"]), (" GPU-a , MIG-b,9", ["GPU-a", "MIG-b"])):
        found = told(None, {"CUDA_VISIBLE_DEVICES": listed}, tmp_path, is_virtual=True)
        assert found == [{"CUDA_VISIBLE_DEVICES": one} for one in own]


def test_a_virtual_rank_sees_the_device_of_its_number_where_all_are_visible(tmp_path: Path) -> None:
    found = told(None, {}, tmp_path, is_virtual=True)
    assert found == [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]


def test_virtual_ranks_share_out_the_devices_that_the_job_was_given(tmp_path: Path) -> None:
    found = told(["7", "3"], {"CUDA_VISIBLE_DEVICES": "3,5,7"}, tmp_path, is_virtual=True)
    assert found == [{"CUDA_VISIBLE_DEVICES": "7"}, {"CUDA_VISIBLE_DEVICES": "3"}]


@pytest.mark.parametrize("listed", ["3", "", "3,-1"])
def test_more_virtual_ranks_than_devices_are_refused(listed: str, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="for 2 workers; start fewer") as found:
        told(None, {"CUDA_VISIBLE_DEVICES": listed}, tmp_path, is_virtual=True)
    assert found.value.about == "virtual_local_rank"


def test_gpus_of_amd_are_told_by_both_variables_that_hip_reads(tmp_path: Path) -> None:
    an_amd_machine(tmp_path)
    both = {"CUDA_VISIBLE_DEVICES": "0,2", "HIP_VISIBLE_DEVICES": "0,2"}
    assert told(["0", "2"], {"ROCR_VISIBLE_DEVICES": "4,5,6"}, tmp_path, nproc=1) == [both]
    assert told(["2"], {"HIP_VISIBLE_DEVICES": "1,2"}, tmp_path, nproc=1)[0]["HIP_VISIBLE_DEVICES"] == "2"


def test_gpus_of_intel_are_told_by_level_zeros_mask_where_they_are_all_there_is(tmp_path: Path) -> None:
    an_intel_machine(tmp_path)
    assert told(["1"], {}, tmp_path, nproc=1) == [{"ZE_AFFINITY_MASK": "1"}]
    assert told(["1"], {"ZE_AFFINITY_MASK": "0.0,1"}, tmp_path, nproc=1) == [{"ZE_AFFINITY_MASK": "1"}]
    write(tmp_path, "dev/nvidia0", "dev/nvidia1")
    assert told(["1"], {}, tmp_path, nproc=1) == [{"CUDA_VISIBLE_DEVICES": "1"}]


def test_a_virtual_rank_sees_its_own_device_of_intel(tmp_path: Path) -> None:
    found = told(None, {"ZE_AFFINITY_MASK": "2,3"}, tmp_path, is_virtual=True)
    assert [one["ZE_AFFINITY_MASK"] for one in found] == ["2", "3"]


@pytest.mark.parametrize(
    ("listed", "twice"), [("0,0", "0"), ("1,01", "01"), ("GPU-a1,gpu-A1", "gpu-A1"), ("2,2,3", "2")]
)
def test_virtual_ranks_share_no_device(listed: str, twice: str, tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=f"names {twice} twice; each device once") as found:
        told(None, {"CUDA_VISIBLE_DEVICES": listed}, tmp_path, is_virtual=True)
    assert found.value.about == "virtual_local_rank"


def test_a_device_that_no_virtual_rank_gets_may_be_there_twice(tmp_path: Path) -> None:
    assert len(told(None, {"CUDA_VISIBLE_DEVICES": "3,4,4"}, tmp_path, is_virtual=True)) == 2
