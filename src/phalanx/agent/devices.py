"""Which devices a worker sees: the variables that the vendors' runtimes read before anything else. Pure.

The entries of a list are kept as they were written, be they indices, UUIDs or parts of a divided GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from phalanx.records import Struct

__all__ = ["CUDA", "HIP", "ZE", "DeviceError", "DeviceMask", "entries_of", "virtual_mask", "visible_by"]

CUDA = "CUDA_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
ZE = "ZE_AFFINITY_MASK"


class DeviceError(ValueError):
    """What was asked cannot be had; ``about`` is the field of ``RunOptions`` that asked."""

    def __init__(self, about: str, sentence: str) -> None:
        super().__init__(sentence)
        self.about = about


class DeviceMask(Struct):
    """What workers are told of devices: variable → its entries, None where all devices are visible by index."""

    visible: Mapping[str, tuple[str, ...] | None]
    is_virtual: bool
    """Each worker sees the entry of its local rank alone."""

    def environment(self, local_rank: int) -> dict[str, str]:
        """The variables of one worker."""
        return {
            name: self._own(entries, local_rank) if self.is_virtual else ",".join(entries or ())
            for name, entries in self.visible.items()
        }

    @staticmethod
    def _own(entries: tuple[str, ...] | None, local_rank: int) -> str:
        return str(local_rank) if entries is None else entries[local_rank]


def entries_of(listed: str) -> tuple[str, ...]:
    """The entries of such a variable, as its readers take them: an empty one or ``-1`` ends the list."""
    entries: list[str] = []
    for item in listed.split(","):
        if item.strip() in ("", "-1"):
            break
        entries.append(item.strip())
    return tuple(entries)


def visible_by(names: Iterable[str], inherited: Mapping[str, str]) -> dict[str, tuple[str, ...] | None]:
    """What each variable shows to this process: its entries, or None where it shows all."""
    return {name: entries_of(inherited[name]) if name in inherited else None for name in names}


def virtual_mask(visible: Mapping[str, tuple[str, ...] | None], nproc: int) -> DeviceMask:
    """Each worker sees one device, as number 0. Raises ``DeviceError`` when there are fewer devices than workers.

    >>> virtual_mask({CUDA: ("3", "GPU-8f3b")}, 2).environment(1)
    {'CUDA_VISIBLE_DEVICES': 'GPU-8f3b'}
    """
    for name, entries in visible.items():
        if entries is not None and nproc > len(entries):
            raise DeviceError("virtual_local_rank", _too_few(nproc, name, entries))
        if entries is not None and (twice := _twice(entries[:nproc])) is not None:
            raise DeviceError(
                "virtual_local_rank",
                f"each worker gets a device of its own, and {name}={','.join(entries)} names {twice} twice; each "
                "device once",
            )
    return DeviceMask(visible, True)


def _twice(entries: tuple[str, ...]) -> str | None:
    # 0 and 00 are one index. Ids are compared in any case, as their makers do.
    same = [str(int(one)) if one.isdecimal() else one.lower() for one in entries]
    return next((one for place, one in enumerate(entries) if same[place] in same[:place]), None)


def _too_few(nproc: int, name: str, entries: tuple[str, ...]) -> str:
    have = f"{len(entries)} device{'' if len(entries) == 1 else 's'} for {nproc} workers"
    return f"each worker gets a device of its own, and {name}={','.join(entries)} has {have}; start fewer workers"
