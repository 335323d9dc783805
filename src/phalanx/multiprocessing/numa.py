"""Binding workers to CPUs at their birth: the plan for this machine, and the mask that a child inherits.

A process inherits the CPU mask of the *thread* that makes it. So that thread has the worker's mask for as long as
making it takes. Nothing has to run in the child (``preexec_fn`` would), no program must be installed (numactl), and
the first page that the worker touches is near its CPUs already.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from phalanx.multiprocessing.affinity import KINDS, BindingError, Plan, plan_binding
from phalanx.multiprocessing.topology import allowed_cpus, device_nodes, read_topology

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["NumaOptions", "affinity_of", "on_cpus", "plan_here"]


class _Mode(Protocol):
    @property
    def value(self) -> str: ...


class NumaOptions(Protocol):
    """What is read of torch's ``torch.numa.binding.NumaOptions``; anything with these two fields will do."""

    @property
    def affinity_mode(self) -> _Mode | str:
        """A text of ``KINDS``, or a member of an enumeration of them."""

    @property
    def should_fall_back_if_binding_fails(self) -> bool:
        """Start workers without a binding, with a warning, where there is none on this machine."""


def plan_here(
    kind: str,
    seen: Iterable[tuple[str | None, int]],
    *,
    root: str = "/",
    allowed: Collection[int] | None = None,
) -> Plan:
    """Plan for this machine and the CPUs of the calling thread; ``seen`` as for ``device_nodes``.

    ``root`` and ``allowed`` stand for another machine, for tests. Raises ``BindingError``.
    """
    if allowed is None:
        allowed = allowed_cpus()
    if not allowed:
        raise BindingError(
            "this system does not let a process choose its CPUs (there is no sched_setaffinity)"
        )
    return plan_binding(read_topology(allowed, root=root), kind, device_nodes(seen, root=root))


def affinity_of(
    options: NumaOptions | None, environments: Mapping[int, Mapping[str, str]]
) -> dict[int, frozenset[int]]:
    """The CPUs of each worker by torchelastic's ``numa_options``; empty for None: workers get those of their parent.

    A worker's device is the one of ``LOCAL_RANK`` in its environment (else of its local rank) among the
    ``CUDA_VISIBLE_DEVICES`` there (else here). Raises ``BindingError``, or warns and binds nothing when the options
    allow that; ``TypeError`` for what are no options.
    """
    if options is None:
        return {}
    mode = getattr(options, "affinity_mode", None)
    kind = getattr(mode, "value", mode)
    if kind not in KINDS:
        raise TypeError(f"numa_options has an affinity_mode, one of {', '.join(KINDS)}; {options!r} does not")
    seen = [
        (
            environment.get("CUDA_VISIBLE_DEVICES", os.environ.get("CUDA_VISIBLE_DEVICES")),
            _number(environment.get("LOCAL_RANK"), local_rank),
        )
        for local_rank, environment in sorted(environments.items())
    ]
    try:
        return dict(plan_here(kind, seen).cpus)
    except BindingError as reason:
        if not getattr(options, "should_fall_back_if_binding_fails", False):
            raise
        import warnings

        warnings.warn(f"workers are not bound to CPUs: {reason}", RuntimeWarning, stacklevel=3)
        return {}


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.isdecimal() else default


@contextlib.contextmanager
def on_cpus(cpus: Collection[int], *, server: int = 0) -> Iterator[None]:
    """Within the block, children of the calling thread (or of the main thread of process ``server``) get these CPUs.

    Other threads keep their masks. Raises ``OSError`` when none of ``cpus`` can be used any more.
    """
    before = os.sched_getaffinity(server)
    try:
        # Within: a signal handler may raise between any two instructions.
        os.sched_setaffinity(server, cpus)
        yield
    finally:
        # That fails only when all of them were taken away meanwhile, by a change of the cgroup: the kernel has then
        # given this thread what it may use, as it does to every other.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(server, before)
