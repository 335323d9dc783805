"""Which name of ours stands behind which name of torchelastic's: one table, data only.

Each row is (torch's module below ``torch.distributed``, our module, names); ``theirs=ours`` where the two differ.
Several rows for one module add up. A name with an underscore is no part of the public interface: torch itself, or
many programs, import it all the same.
"""

from __future__ import annotations

__all__ = ["MAINS", "NOT_OFFERED", "PATCHED", "ROOTS", "homes", "is_package"]

_PREFIX = "torch.distributed."
ROOTS = tuple(_PREFIX + name for name in ("argparse_util", "elastic", "launch", "launcher", "run"))

_AGENT = "ElasticAgent RunResult SimpleElasticAgent Worker WorkerGroup WorkerSpec WorkerState"
_AGENT_VARIABLES = (
    "TORCHELASTIC_ENABLE_FILE_TIMER TORCHELASTIC_HEALTH_CHECK_PORT TORCHELASTIC_TIMER_FILE"
    " TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT"
)
_EVENTS = "Event EventSource NodeState RdzvEvent"
_LAUNCHER = "LaunchConfig elastic_launch launch_agent"
_METRICS = (
    "ConsoleMetricHandler MetricData MetricHandler MetricsConfig NullMetricHandler configure getStream"
    " get_elapsed_time_ms prof profile publish_metric put_metric"
)
_CONTEXTS = (
    "DefaultLogsSpecs LogsDest LogsSpecs MultiprocessContext PContext RunProcsResult SignalException Std"
    " SubprocessContext to_map"
)
_RENDEZVOUS = (
    "RendezvousClosedError RendezvousConnectionError RendezvousError RendezvousGracefulExitError RendezvousHandler"
    " RendezvousHandlerCreator RendezvousHandlerRegistry RendezvousInfo RendezvousParameters RendezvousStateError"
    " RendezvousStoreInfo RendezvousTimeoutError rendezvous_handler_registry"
)
_BACKEND_ERRORS = "RendezvousConnectionError RendezvousParameters RendezvousStateError"
_RUN = (
    "config_from_args determine_local_world_size get_args_parser get_rdzv_endpoint get_use_env main parse_args"
    " parse_min_max_nnodes run run_script_path"
)
_TIMER = "TimerClient TimerRequest TimerServer configure expires"
_FILE_TIMER = "FileTimerClient FileTimerRequest FileTimerServer"

_ROWS = (
    ("argparse_util", "phalanx.cli.argparse_actions", "check_env env"),
    ("elastic", "", ""),
    ("elastic.agent", "", ""),
    ("elastic.agent.server", "phalanx.agent.elastic", _AGENT),
    ("elastic.agent.server.api", "phalanx.agent.elastic", _AGENT),
    ("elastic.agent.server.api", "phalanx.compat.host", "_get_fq_hostname=fully_qualified_name"),
    (
        "elastic.agent.server.health_check_server",
        "phalanx.agent.elastic",
        "HealthCheckServer create_healthcheck_server",
    ),
    (
        "elastic.agent.server.local_elastic_agent",
        "phalanx.agent.elastic",
        f"LocalElasticAgent {_AGENT_VARIABLES}",
    ),
    ("elastic.control_plane", "phalanx.control_plane", "worker_main"),
    (
        "elastic.events",
        "phalanx.events",
        f"{_EVENTS} construct_and_record_rdzv_event get_logging_handler record record_rdzv_event",
    ),
    ("elastic.events.api", "phalanx.events", _EVENTS),
    ("elastic.events.handlers", "phalanx.events", "get_logging_handler"),
    ("elastic.events.handlers", "phalanx.events.handlers", "_log_handlers=handlers"),
    ("elastic.metrics", "phalanx.metrics", f"{_METRICS} initialize_metrics"),
    ("elastic.metrics.api", "phalanx.metrics", f"{_METRICS} MetricStream"),
    ("elastic.multiprocessing", "phalanx.multiprocessing", f"{_CONTEXTS} start_processes"),
    ("elastic.multiprocessing", "phalanx.errors", "ProcessFailure"),
    ("elastic.multiprocessing.api", "phalanx.multiprocessing", _CONTEXTS),
    ("elastic.multiprocessing.api", "phalanx.compat.processes", "get_std_cm"),
    (
        "elastic.multiprocessing.errors",
        "phalanx.errors",
        "ChildFailedError ErrorHandler ProcessFailure get_error_handler record",
    ),
    ("elastic.multiprocessing.errors.error_handler", "phalanx.errors", "ErrorHandler"),
    ("elastic.multiprocessing.errors.handlers", "phalanx.errors", "get_error_handler"),
    (
        "elastic.multiprocessing.redirects",
        "phalanx.multiprocessing.redirects",
        "get_libc redirect redirect_stderr redirect_stdout",
    ),
    (
        "elastic.multiprocessing.subprocess_handler",
        "phalanx.compat.processes",
        "SubprocessHandler get_subprocess_handler",
    ),
    (
        "elastic.multiprocessing.subprocess_handler.handlers",
        "phalanx.compat.processes",
        "get_subprocess_handler",
    ),
    (
        "elastic.multiprocessing.subprocess_handler.subprocess_handler",
        "phalanx.compat.processes",
        "SubprocessHandler",
    ),
    ("elastic.multiprocessing.tail_log", "phalanx.multiprocessing.tail", "TailLog tail_logfile"),
    ("elastic.rendezvous", "phalanx.rendezvous", _RENDEZVOUS),
    ("elastic.rendezvous._etcd_stub", "", ""),
    ("elastic.rendezvous.api", "phalanx.rendezvous", _RENDEZVOUS),
    (
        "elastic.rendezvous.c10d_rendezvous_backend",
        "phalanx.rendezvous.c10d_backend",
        "C10dRendezvousBackend create_backend",
    ),
    (
        "elastic.rendezvous.c10d_rendezvous_backend",
        "phalanx.rendezvous",
        f"{_BACKEND_ERRORS} RendezvousError",
    ),
    ("elastic.rendezvous.c10d_rendezvous_backend", "phalanx.rendezvous.backend", "RendezvousBackend"),
    (
        "elastic.rendezvous.c10d_rendezvous_backend",
        "phalanx.rendezvous.endpoint",
        "parse_rendezvous_endpoint",
    ),
    (
        "elastic.rendezvous.c10d_rendezvous_backend",
        "phalanx.events",
        "NodeState construct_and_record_rdzv_event",
    ),
    (
        "elastic.rendezvous.dynamic_rendezvous",
        "phalanx.rendezvous.dynamic",
        "DynamicRendezvousHandler create_handler",
    ),
    ("elastic.rendezvous.dynamic_rendezvous", "phalanx.rendezvous.backend", "RendezvousBackend"),
    (
        "elastic.rendezvous.dynamic_rendezvous",
        "phalanx.rendezvous.limits",
        "RendezvousSettings RendezvousTimeout",
    ),
    (
        "elastic.rendezvous.etcd_rendezvous",
        "phalanx.compat.old_etcd",
        "EtcdRendezvousRetryImmediately EtcdRendezvousRetryableFailure create_rdzv_handler",
    ),
    (
        "elastic.rendezvous.etcd_rendezvous_backend",
        "phalanx.rendezvous.etcd_backend",
        "EtcdRendezvousBackend create_backend",
    ),
    ("elastic.rendezvous.etcd_rendezvous_backend", "phalanx.rendezvous.etcd_store", "EtcdStore"),
    ("elastic.rendezvous.etcd_rendezvous_backend", "phalanx.rendezvous", _BACKEND_ERRORS),
    ("elastic.rendezvous.etcd_rendezvous_backend", "phalanx.rendezvous.backend", "RendezvousBackend"),
    (
        "elastic.rendezvous.etcd_rendezvous_backend",
        "phalanx.rendezvous.endpoint",
        "parse_rendezvous_endpoint",
    ),
    (
        "elastic.rendezvous.etcd_server",
        "phalanx.rendezvous.etcd_server",
        "EtcdServer find_free_port stop_etcd",
    ),
    ("elastic.rendezvous.etcd_store", "phalanx.rendezvous.etcd_store", "EtcdStore"),
    ("elastic.rendezvous.etcd_store", "phalanx.compat.old_etcd", "cas_delay"),
    ("elastic.rendezvous.registry", "phalanx.rendezvous.registry", "get_rendezvous_handler"),
    ("elastic.rendezvous.registry", "phalanx.rendezvous", "rendezvous_handler_registry"),
    (
        "elastic.rendezvous.static_tcp_rendezvous",
        "phalanx.rendezvous.static",
        "StaticTCPRendezvous create_rdzv_handler",
    ),
    ("elastic.rendezvous.utils", "phalanx.rendezvous.endpoint", "parse_rendezvous_endpoint"),
    ("elastic.timer", "phalanx.timer", f"{_TIMER} {_FILE_TIMER} LocalTimerClient LocalTimerServer"),
    ("elastic.timer.api", "phalanx.timer", f"{_TIMER} RequestQueue"),
    ("elastic.timer.debug_info_logging", "phalanx.timer", "log_debug_info_for_expired_timers"),
    ("elastic.timer.file_based_local_timer", "phalanx.timer", _FILE_TIMER),
    (
        "elastic.timer.local_timer",
        "phalanx.timer",
        "LocalTimerClient LocalTimerServer MultiprocessingRequestQueue",
    ),
    ("elastic.utils", "phalanx.launcher.variables", "get_env_variable_or_raise"),
    ("elastic.utils", "phalanx.store.tcp", "get_socket_with_port"),
    ("elastic.utils", "phalanx.launcher.macros", "macros"),
    ("elastic.utils.api", "phalanx.launcher.variables", "get_env_variable_or_raise"),
    ("elastic.utils.api", "phalanx.store.tcp", "get_socket_with_port"),
    ("elastic.utils.api", "phalanx.launcher.macros", "macros"),
    ("elastic.utils.data", "phalanx.data", "CyclingIterator"),
    ("elastic.utils.data", "phalanx.data.torch_sampler", "ElasticDistributedSampler"),
    ("elastic.utils.data.cycling_iterator", "phalanx.data", "CyclingIterator"),
    (
        "elastic.utils.data.elastic_distributed_sampler",
        "phalanx.data.torch_sampler",
        "ElasticDistributedSampler",
    ),
    (
        "elastic.utils.distributed",
        "phalanx.store.tcp",
        "create_c10d_store get_free_port get_socket_with_port",
    ),
    ("elastic.utils.log_level", "phalanx.logger", "get_log_level"),
    ("elastic.utils.logging", "phalanx.logger", "get_log_level get_logger"),
    (
        "elastic.utils.process_state",
        "phalanx.multiprocessing.process_state",
        "is_uninterruptible_state read_proc_state",
    ),
    ("elastic.utils.store", "phalanx.store.collectives", "barrier get_all store_timeout synchronize"),
    ("launch", "phalanx.cli.legacy", "launch main parse_args"),
    ("launch", "phalanx.run", "get_args_parser run"),
    ("launcher", "phalanx.launcher", _LAUNCHER),
    ("launcher.api", "phalanx.launcher", _LAUNCHER),
    (
        "run",
        "phalanx.run",
        _RUN,
    ),
    ("run", "phalanx.cli.argparse_actions", "check_env env"),
    ("run", "phalanx.launcher", "LaunchConfig elastic_launch"),
    ("run", "phalanx.launcher.macros", "macros"),
    ("run", "phalanx.multiprocessing", "DefaultLogsSpecs LogsSpecs Std"),
    ("run", "phalanx.errors", "record"),
    ("run", "phalanx.logger", "get_logger"),
)

_NO_PYTHON_ETCD = (
    "a stand-in of torch's own for where the package python-etcd is missing; etcd's v3 needs none"
)
_NO_V2 = "it speaks etcd's v2 protocol, which etcd no longer has; create_rdzv_handler makes a handler on v3"

# What a program gets an AttributeError for, and why.
NOT_OFFERED = {
    **{
        f"{_PREFIX}elastic.rendezvous._etcd_stub.{name}": _NO_PYTHON_ETCD
        for name in (
            "Client",
            "EtcdAlreadyExist",
            "EtcdCompareFailed",
            "EtcdEventIndexCleared",
            "EtcdException",
            "EtcdKeyNotFound",
            "EtcdResult",
            "EtcdStubError",
            "EtcdWatchTimedOut",
        )
    },
    f"{_PREFIX}elastic.rendezvous.etcd_rendezvous.EtcdRendezvous": _NO_V2,
    f"{_PREFIX}elastic.rendezvous.etcd_rendezvous.EtcdRendezvousHandler": _NO_V2,
}

# ``python -m`` of these modules is a launcher: the first word of the command that it is.
MAINS = {
    f"{_PREFIX}run": "run",
    f"{_PREFIX}launch": "torch.distributed.launch",
}

# Where our code looks up, at the moment of the call, what others are used to replace in torch's modules.
PATCHED = {
    "get_error_handler": ("phalanx.errors", "phalanx.errors._record"),
}


def homes() -> dict[str, dict[str, str]]:
    """Each module's path → the names in it → ``our.module:name``."""
    table: dict[str, dict[str, str]] = {}
    for module, home, names in _ROWS:
        found = table.setdefault(_PREFIX + module, {})
        for word in names.split():
            theirs, _, ours = word.partition("=")
            found[theirs] = f"{home}:{ours or theirs}"
    return table


def is_package(module: str) -> bool:
    """Whether the module has others below it."""
    return any((_PREFIX + row[0]).startswith(module + ".") for row in _ROWS)
