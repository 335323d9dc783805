"""``WorkerSpec``: what an agent of torchelastic's kind runs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.multiprocessing.numa import NumaOptions

__all__ = ["WorkerSpec"]


@dataclass
class WorkerSpec:
    """What this node runs for a role. Fields, order and defaults are torchelastic 2.13's; times in seconds.

    ``entrypoint`` is a function or a command (``fn`` is its older name). ``rdzv_handler`` is a live
    ``RendezvousHandler``. ``master_addr`` and ``master_port`` override what nodes agree on. ``monitor_interval``: how
    often to look whether nodes wait; the end of a worker is seen when it happens. Raises ``ValueError`` for what cannot
    be run; torchelastic's asserts say nothing.

    >>> WorkerSpec("trainer", local_world_size=2, rdzv_handler=None, entrypoint="/bin/true").get_entrypoint_name()
    '/bin/true'
    """

    role: str
    local_world_size: int
    rdzv_handler: Any
    fn: Callable[..., Any] | None = None
    entrypoint: Callable[..., Any] | str | None = None
    args: tuple[Any, ...] = ()
    max_restarts: int = 3
    monitor_interval: float = 0.1
    master_port: int | None = None
    master_addr: str | None = None
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: NumaOptions | None = None
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False

    def __post_init__(self) -> None:
        if self.local_world_size < 1:
            raise ValueError(f"local_world_size is {self.local_world_size}; a node runs one worker or more")
        if not self.monitor_interval > 0:
            raise ValueError(f"monitor_interval is {self.monitor_interval} s, and must be more than 0")
        if self.fn is not None:
            warnings.warn(
                "WorkerSpec.fn is deprecated: use WorkerSpec.entrypoint", DeprecationWarning, stacklevel=3
            )
            self.entrypoint = self.fn
        if not self.entrypoint:
            raise ValueError("entrypoint is missing: a function, or the name of a program")

    def get_entrypoint_name(self) -> str:
        """Return the function's name, or the command."""
        if isinstance(self.entrypoint, str):
            return self.entrypoint
        return str(getattr(self.entrypoint, "__name__", None) or self.entrypoint)
