"""``LaunchConfig``: a job as torchelastic's Python API describes it. What is done with it is in ``launching``."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.multiprocessing.logs import LogsSpecs

__all__ = ["SHUTDOWN_TIMEOUT", "LaunchConfig"]

SHUTDOWN_TIMEOUT = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
SHUTDOWN_TIMEOUT_S = 30  # torchelastic's
RDZV_TIMEOUT_S = 900  # torchelastic's launcher waits so long for the other nodes


@dataclass
class LaunchConfig:
    """A job on this node, for ``elastic_launch``. Fields, order and defaults are torchelastic 2.13's; times in seconds.

    ``rdzv_configs["timeout"]`` becomes ``rdzv_timeout``, or 900 when neither is given. ``logs_specs`` None: no stream
    is redirected. ``shutdown_timeout`` None: ``TORCH_ELASTIC_SHUTDOWN_TIMEOUT``, or 30. ``monitor_interval`` bounds
    nothing here: the end of a worker is seen when it happens. ``metrics_cfg`` is not read, as in torchelastic: see
    ``phalanx.metrics.configure``. Raises ``ValueError`` when the variable is no whole number.

    >>> config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", max_restarts=0)
    >>> config.rdzv_configs, config.role
    ({'timeout': 900}, 'default_role')
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None

    def __post_init__(self) -> None:
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        else:
            self.rdzv_configs.setdefault("timeout", RDZV_TIMEOUT_S)
        if self.shutdown_timeout is None:
            self.shutdown_timeout = _shutdown_timeout()
        if self.logs_specs is None:
            from phalanx.multiprocessing.logs import DefaultLogsSpecs

            self.logs_specs = DefaultLogsSpecs()


def _shutdown_timeout() -> int:
    text = os.environ.get(SHUTDOWN_TIMEOUT)
    if text is None:
        return SHUTDOWN_TIMEOUT_S
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{SHUTDOWN_TIMEOUT} is {text!r}, and must be a whole number of seconds") from None
