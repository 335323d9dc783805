"""What the table has to list: the checklist of the specification, parts 2.1 to 2.4 and appendix A.

Flags and ``PET_`` variables are torch's own parser's, names those of torch's modules (``torch_names.json`` is what
``python -m tests.compat.describe`` printed for torch 2.13.0, so that much of it runs without torch).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TORCH_NAMES: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("torch_names.json").read_text())

# Read by the launcher and its agent, and by code in the worker (2.2); PET_* are the parser's.
READ = (
    "LOGLEVEL",
    "PYTHON_EXEC",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
    "TORCHELASTIC_SIGNALS_TO_HANDLE",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
    "TORCHELASTIC_ENABLE_FILE_TIMER",
    "TORCHELASTIC_TIMER_FILE",
    "TORCHELASTIC_HEALTH_CHECK_PORT",
    "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_ETCD_BINARY_PATH",
    "TORCH_ELASTIC_WORKER_IDENTICAL",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE",
    "USE_LIBUV",
    "TORCH_WORKER_SERVER_SOCKET",
)

# Set in each worker (2.2).
SET = (
    "LOCAL_RANK",
    "RANK",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_NAME",
    "LOCAL_WORLD_SIZE",
    "WORLD_SIZE",
    "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)

# Where others hook in (2.4).
EXTENSIONS = (
    "console script torchrun",
    "console script torchfrtrace",
    "entry points torchrun.logs_specs",
    "entry points torchrun.handlers",
    "rendezvous_handler_registry.register",
    "events.handlers._log_handlers",
    "metrics.configure",
    "metrics.static_init",
    "get_error_handler",
    "get_subprocess_handler",
    "create_healthcheck_server",
    "log_debug_info_for_expired_timers",
    "macros.substitute",
    "LogsSpecs",
    "PContext",
    "ElasticAgent",
    "SimpleElasticAgent",
    "RendezvousBackend",
    "TimerClient",
    "TimerServer",
    "RequestQueue",
    "MetricHandler",
)

# What is the same by its signature alone: errors of etcd's v2, which nothing raises here, and a part of redirect().
SMALL = ("EtcdRendezvousRetryImmediately", "EtcdRendezvousRetryableFailure", "get_libc")


def names() -> list[str]:
    """Each public name with its module's path."""
    return [f"{module}.{name}" for module, found in TORCH_NAMES.items() for name in found]


def required(flags: list[str], variables: list[str]) -> set[str]:
    """All items that the table has to have; ``flags`` and ``variables`` as torch's parser has them."""
    return {
        *(f"flag {flag}" for flag in flags),
        *(f"variable {variable}" for variable in (*variables, *READ, *SET)),
        *(f"name {name}" for name in names()),
        *(f"extension {point}" for point in EXTENSIONS),
    }
