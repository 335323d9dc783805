"""How many workers this machine has room for, without importing torch.

CPUs are those this process may use, see ``phalanx.launcher.hardware.cpus``. GPUs are those that are visible to it: what
the vendor's variable names, else what the driver or the device files know.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

WORKERS_MAX = 32768  # the kernel's usual number of processes; far more than anybody's memory takes
_WORDS = ("auto", "cpu", "gpu", "xpu")

__all__ = ["count_slots", "gpu_slots", "read_slots", "worker_slots", "xpu_slots"]


def read_slots(raw: str) -> int | str:
    """Read ``--nproc-per-node``: a number, or a word for ``count_slots``. Raises ``ValueError``."""
    word = raw.strip().lower()
    if word in _WORDS:
        return word
    try:
        number = int(word)
    except ValueError:
        raise ValueError(
            f"{raw[:40]!r} is no number of workers; write a number, auto, cpu, gpu or xpu (devices of other kinds, "
            "which torch knows by a plug-in, are not counted here)"
        ) from None
    if number < 1:
        raise ValueError(f"{raw!r} is too few; at least one worker is needed")
    if number > WORKERS_MAX:
        raise ValueError(f"{raw!r} is too many; one machine takes {WORKERS_MAX} workers at most")
    return number


def count_slots(
    asked: int | str,
    *,
    devices: Collection[str] | None = None,
    environ: Mapping[str, str] | None = None,
    root: str = "/",
) -> int:
    """Return the number of workers for what ``read_slots`` has read. Raises ``ValueError`` with the rest of a sentence.

    ``devices``: those that the job may use, if it was given some. ``root`` is where ``proc``, ``sys`` and ``dev`` are,
    for tests.
    """
    known = os.environ if environ is None else environ
    if isinstance(asked, int):
        return asked
    if asked == "cpu":
        return _cpus(root)
    if devices is not None:
        return len(devices)
    if asked == "auto":
        return _present(known, root) or _cpus(root)
    found = gpu_slots(environ=known, root=root) if asked == "gpu" else xpu_slots(environ=known, root=root)
    if not found:
        looked = (
            "CUDA_VISIBLE_DEVICES, the driver and /dev/nvidia* name none"
            if asked == "gpu"
            else "ZE_AFFINITY_MASK and /dev/dri name none"
        )
        raise ValueError(f"{asked!r} finds no {asked.upper()} here ({looked}); write a number")
    return found


def worker_slots(
    raw: str,
    *,
    devices: Collection[str] | None = None,
    environ: Mapping[str, str] | None = None,
    root: str = "/",
) -> int:
    """Return the number of workers that ``--nproc-per-node`` asks for: ``read_slots`` and ``count_slots``."""
    return count_slots(read_slots(raw), devices=devices, environ=environ, root=root)


def _cpus(root: str) -> int:
    from phalanx.launcher.hardware.cpus import cpu_slots

    return cpu_slots(root=root)


def _present(environ: Mapping[str, str], root: str) -> int:
    """Devices that can be seen and are there, for ``auto``.

    A variable alone is no proof: CUDA_VISIBLE_DEVICES=0 is in many shell profiles of machines without a GPU. Nor is
    a GPU inside of the processor, which few have torch for.
    """
    from phalanx.launcher.hardware.accelerators import amd_gpus, intel_gpus, nvidia_gpus

    if nvidia_gpus(root) or amd_gpus(root):
        return gpu_slots(environ=environ, root=root)
    return xpu_slots(environ=environ, root=root) if intel_gpus(root, discrete_only=True) else 0


def gpu_slots(*, environ: Mapping[str, str] | None = None, root: str = "/") -> int:
    """Return the number of visible GPUs of NVIDIA or AMD: those that the variables name, else those of the machine."""
    from phalanx.launcher.hardware.accelerators import amd_gpus, nvidia_gpus

    known = os.environ if environ is None else environ
    for variable in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        # HIP reads CUDA's variable too, and its own first; ROCR's is for all of ROCm, below them.
        if variable in known and (variable == "CUDA_VISIBLE_DEVICES" or amd_gpus(root)):
            return _visible_devices(known[variable])
    return nvidia_gpus(root) or amd_gpus(root)


def _visible_devices(listed: str) -> int:
    """Count devices up to the first invalid one, as CUDA reads the list: ``-1`` or an empty item ends it."""
    number = 0
    for item in listed.split(","):
        name = item.strip()
        if not (name.isdecimal() or name.startswith(("GPU-", "MIG-"))):
            break
        number += 1
    return number


def xpu_slots(*, environ: Mapping[str, str] | None = None, root: str = "/") -> int:
    """Return the number of Intel's GPUs: those of ``ZE_AFFINITY_MASK``, else the render nodes of ``/dev/dri``.

    Where a device shows as one (``ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE``), its parts in the mask (``0.0,0.1``) are one.
    """
    from phalanx.launcher.hardware.accelerators import intel_gpus

    known = os.environ if environ is None else environ
    mask = known.get("ZE_AFFINITY_MASK")
    if not mask:
        return intel_gpus(root)
    entries = [item.strip() for item in mask.split(",")]
    if known.get("ZE_FLAT_DEVICE_HIERARCHY", "").upper() == "COMPOSITE":
        entries = [item.partition(".")[0] for item in entries]
    return len({item for item in entries if item.partition(".")[0].isdecimal()})
