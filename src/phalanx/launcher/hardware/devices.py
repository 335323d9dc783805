"""Which devices each worker sees, told by the variables that the vendors' runtimes read before anything else.

``CUDA_VISIBLE_DEVICES`` is told always, as torchrun does it; ``HIP_VISIBLE_DEVICES`` and ``ZE_AFFINITY_MASK`` where
they count: somebody has set them, or the machine has such devices. The entries of a list are kept as they were
written, be they indices, UUIDs or parts of a divided GPU; nothing asks a driver.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from phalanx.agent.devices import CUDA, HIP, ZE, DeviceError, DeviceMask, virtual_mask, visible_by
from phalanx.launcher.hardware.accelerators import amd_gpus, intel_gpus, nvidia_gpus

__all__ = ["DeviceError", "mask_of", "read_devices"]

# An index; one with a part of the device, as Level Zero writes it; or an id of NVIDIA's or AMD's, or its beginning.
_ENTRY = re.compile(r"\d{1,4}(\.\d{1,4})?|(GPU|MIG)-[0-9A-Za-z/-]+")


def read_devices(listed: Sequence[str]) -> tuple[str, ...]:
    """Check the devices that a job was given, each a text. Raises ``ValueError`` with the rest of a sentence.

    >>> read_devices(["0", " 2", "GPU-8f3b"])
    ('0', '2', 'GPU-8f3b')
    """
    found = tuple(one.strip() for one in listed)
    if not any(found):
        raise ValueError("no device is named; leave it out for all that are visible")
    for one in found:
        if not _ENTRY.fullmatch(one):
            raise ValueError(
                f"{one[:60]!r} is no device; write indices or ids with commas between them, such as 0,2 or GPU-8f3b…"
            )
    # 0 and 00 are one index. Ids are compared in any case, as their makers do.
    same = [one.lower().lstrip("0") or "0" if one.isdecimal() else one.lower() for one in found]
    twice = next((one for place, one in enumerate(found) if same[place] in same[:place]), None)
    if twice is not None:
        raise ValueError(f"{twice!r} is named twice; each device once")
    return tuple(str(int(one)) if one.isdecimal() else one for one in found)


def mask_of(
    devices: Sequence[str] | None,
    *,
    is_virtual: bool,
    nproc: int,
    inherited: Mapping[str, str],
    root: str = "/",
) -> DeviceMask | None:
    """What workers are told; None: nothing, they see what this process sees.

    ``devices`` are names as the inherited variable has them, not places in it. Raises ``DeviceError``.
    """
    if devices is None and not is_virtual:
        return None
    names = _variables(inherited, root, of_devices=devices is not None)
    visible = visible_by(names, inherited)
    if devices is not None:
        asked = _about("devices", read_devices, devices)
        visible = {name: _narrowed(asked, name, visible[name], root) for name in names}
    return virtual_mask(visible, nproc) if is_virtual else DeviceMask(visible, False)


def _variables(inherited: Mapping[str, str], root: str, *, of_devices: bool) -> list[str]:
    is_intel = ZE in inherited or bool(intel_gpus(root, discrete_only=True))
    is_amd = HIP in inherited or bool(amd_gpus(root))
    # The names that a user gives are of one vendor: where nothing else speaks of CUDA, they are Intel's.
    is_intel_alone = is_intel and CUDA not in inherited and not is_amd and not nvidia_gpus(root)
    if of_devices:
        return [ZE] if is_intel_alone else [CUDA, *([HIP] if is_amd else [])]
    return [CUDA, *([HIP] if is_amd else []), *([ZE] if is_intel else [])]


def _narrowed(
    asked: tuple[str, ...], name: str, inherited: tuple[str, ...] | None, root: str
) -> tuple[str, ...]:
    if inherited is None:
        count = nvidia_gpus(root) if name == CUDA else 0
        beyond = [one for one in asked if count and one.isdecimal() and int(one) >= count]
        if beyond:
            raise DeviceError("devices", f"there is no device {beyond[0]} here; the last one is {count - 1}")
        return asked
    return tuple(_among(one, name, inherited) for one in asked)


def _among(one: str, name: str, inherited: tuple[str, ...]) -> str:
    """The inherited entry that is meant; ids may be cut short on either side, as the vendors allow."""
    if one.isdecimal():
        matching = [entry for entry in inherited if entry.isdecimal() and int(entry) == int(one)]
    else:
        wanted = one.lower()
        matching = [
            entry
            for entry in inherited
            if not entry.isdecimal()
            and (entry.lower().startswith(wanted) or wanted.startswith(entry.lower()))
        ]
    shown = f"{name}={','.join(inherited)}"
    if not matching:
        raise DeviceError(
            "devices", f"{one!r} is not in {shown}, and there is no other device for this process"
        )
    if len(matching) > 1:
        raise DeviceError(
            "devices", f"{one!r} can be {matching[0]} or {matching[1]} in {shown}; write more of it"
        )
    return matching[0]


def _about(
    field: str, check: Callable[[Sequence[str]], tuple[str, ...]], value: Sequence[str]
) -> tuple[str, ...]:
    try:
        return check(value)
    except ValueError as reason:
        raise DeviceError(field, str(reason)) from None
