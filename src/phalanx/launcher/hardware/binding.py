"""From ``--numa-binding`` to the CPUs of each worker of this node. Loaded only when a binding was asked for."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import TYPE_CHECKING

from phalanx.agent.devices import CUDA
from phalanx.launcher.hardware.devices import mask_of
from phalanx.multiprocessing.affinity import BindingError, Plan
from phalanx.multiprocessing.numa import plan_here

if TYPE_CHECKING:
    from phalanx.launcher.options import RunOptions

__all__ = ["binding_of"]


def binding_of(options: RunOptions, *, root: str = "/", allowed: Collection[int] | None = None) -> Plan:
    """Plan the CPUs of this node's workers; empty, with the reason as its sentence, where none may be instead.

    Each worker's device is the one of its local rank among those that it sees. Raises ``BindingError``.
    """
    assert options.numa_binding is not None
    known = {**os.environ, **options.env}
    mask = mask_of(
        options.devices, is_virtual=options.virtual_local_rank, nproc=options.nproc, inherited=known
    )
    seen: list[tuple[str | None, int]] = []
    for local_rank in range(options.nproc):
        visible = known.get(CUDA) if mask is None else mask.environment(local_rank).get(CUDA, known.get(CUDA))
        seen.append((visible, 0 if options.virtual_local_rank else local_rank))
    try:
        return plan_here(options.numa_binding, seen, root=root, allowed=allowed)
    except BindingError as reason:
        if not options.numa_may_fail:
            raise
        return Plan({}, f"warning: workers are not bound to CPUs: {reason}")
