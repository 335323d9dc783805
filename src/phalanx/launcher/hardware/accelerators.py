"""Which accelerators this machine has, without torch: by the driver's library, device files and ``/sys``.

NVIDIA's NVML is asked through nvidia-ml-py (extra ``gpu``) if that is installed; it sees what a container was given,
and WSL's GPUs, which have no device files. ``root`` is where ``dev`` and ``sys`` are, for tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["amd_gpus", "intel_gpus", "nvidia_gpus"]

_INTEL = "0x8086"  # the PCI vendor


def nvidia_gpus(root: str = "/") -> int:
    """Return the number of NVIDIA GPUs; one that is divided (MIG) counts once."""
    told = _told_by_driver() if root == "/" else None
    return _nvidia_files(root) if told is None else told


def _told_by_driver() -> int | None:
    """What NVML says; None if nobody can be asked: no package, no driver, or one that does not answer."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return None


def _nvidia_files(root: str) -> int:
    return sum(1 for name in _names(root, "dev") if name.removeprefix("nvidia").isdecimal())


def amd_gpus(root: str = "/") -> int:
    """Return the number of AMD GPUs that ROCm's driver knows; its CPUs have 0 for an id."""
    if "kfd" not in _names(root, "dev"):
        return 0
    nodes = "sys/class/kfd/kfd/topology/nodes"
    return sum(1 for node in _names(root, nodes) if _word(root, nodes, node, "gpu_id") not in ("", "0"))


def intel_gpus(root: str = "/", *, discrete_only: bool = False) -> int:
    """Return the number of Intel's discrete GPUs; where there are none, of integrated ones.

    So does the runtime of torch's ``xpu``. An integrated GPU is on PCI bus 0, which is the processor's own.
    """
    found = [
        os.path.basename(os.path.realpath(os.path.join(root, "sys/class/drm", name, "device")))
        for name in _names(root, "dev/dri")
        if name.startswith("renderD") and _word(root, "sys/class/drm", name, "device/vendor") == _INTEL
    ]
    discrete = sum(1 for address in found if address.split(":")[1:2] != ["00"])
    return discrete or (0 if discrete_only else len(found))


def _names(*folder: str) -> Iterator[str]:
    try:
        return iter(os.listdir(os.path.join(*folder)))
    except OSError:
        return iter(())


def _word(*path: str) -> str:
    try:
        with open(os.path.join(*path), encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""
