"""From torchelastic's ``LaunchConfig`` to ``RunOptions``: each field, and what cannot be used. Starts nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.agent.elastic.signals import read_signals
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.launcher.interpreter import PYTHON
from phalanx.launcher.options import BACKENDS, CHOICES, RunOptions
from phalanx.launcher.outside_checks import judge
from phalanx.multiprocessing.logs import DefaultLogsSpecs
from phalanx.multiprocessing.std import Std

if TYPE_CHECKING:
    from phalanx.launcher.elastic.launch_config import LaunchConfig

__all__ = ["arguments_of", "check_config", "options_of", "program_of"]


def options_of(config: LaunchConfig, *, entrypoint: str, args: tuple[str, ...] = ()) -> RunOptions:
    """The job that a configuration describes, as this node runs it.

    ``logs_specs`` counts if it is the built-in class, and ``rdzv_backend`` by its name alone: objects are the caller's
    to send. Raises ``ValueError`` and ``TypeError``, with a sentence.
    """
    check_config(config)
    numa_binding, numa_may_fail = _numa(config.numa_options)
    settings = dict(config.rdzv_configs)
    rank = settings.pop("rank", None) if config.rdzv_backend == "static" else None
    options = RunOptions(
        **program_of(entrypoint, args),
        nproc=config.nproc_per_node,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        run_id=config.run_id or None,
        role=config.role,
        restarts=RestartPolicy(max_restarts=config.max_restarts),
        start_method=config.start_method,  # type: ignore[arg-type] # it was checked
        **_logs(config.logs_specs),
        duplicate_stdout_filters=tuple(config.duplicate_stdout_filters or ()),
        duplicate_stderr_filters=tuple(config.duplicate_stderr_filters or ()),
        log_line_prefix_template=config.log_line_prefix_template,
        stop_signals=read_signals(config.signals_to_handle),
        pass_signals=(),
        grace_s=float(config.shutdown_timeout or 0),
        master_addr=None,
        master_port=None,
        local_addr=config.local_addr,
        rdzv_backend=config.rdzv_backend,
        rdzv_endpoint=config.rdzv_endpoint,
        rdzv_conf=_texts(settings),
        standalone=False,
        error_file=None,
        node_rank=None if rank is None else int(rank),
        virtual_local_rank=config.virtual_local_rank,
        numa_binding=numa_binding,
        numa_may_fail=numa_may_fail,
        prints_report=False,  # the exception has it
        event_log_handler="null",  # events are recorded in the program, with the program's handlers
    )
    usual = RunOptions.__struct_defaults__
    asked = {field for field in _MAYBE_IDLE if getattr(options, field) != usual.get(field, Std.NONE)}
    # Of a backend that is none of ours an object of the program may know the words.
    judge(options, asked=asked, called=_called, asks_outside=config.rdzv_backend in BACKENDS)
    return options


# ``start_method`` is not here: it has its effect where the agent stays in the program.
_MAYBE_IDLE = (
    "duplicate_stderr_filters",
    "duplicate_stdout_filters",
    "local_ranks_filter",
    "log_line_prefix_template",
    "node_rank",
    "redirects",
    "tee",
)
_WORDS = {
    "grace_s": "shutdown_timeout",
    "local_ranks_filter": "logs_specs: local_ranks_filter",
    "node_rank": "rdzv_configs: rank",
    "nproc": "nproc_per_node",
    "numa_binding": "numa_options",
    "rdzv_conf": "rdzv_configs",
    "redirects": "logs_specs: redirects",
    "restarts.max_restarts": "max_restarts",
    "stop_signals": "signals_to_handle",
    "tee": "logs_specs: tee",
}


def _called(field: str) -> str:
    return _WORDS.get(field, field)


_NUMBERS = (
    "nproc_per_node",
    "min_nodes",
    "max_nodes",
    "max_restarts",
    "monitor_interval",
    "shutdown_timeout",
)


def check_config(config: LaunchConfig) -> None:
    """Raise ``ValueError`` for what no job can have, ``TypeError`` for a limit that is no number."""
    for name in _NUMBERS:
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int | float | None):
            raise TypeError(f"{name} is to be a number, and is {value!r}, of type {type(value).__name__}")
    if not config.monitor_interval > 0:
        raise ValueError(f"monitor_interval is {config.monitor_interval} s, and must be more than 0")
    if config.start_method not in CHOICES["start_method"]:
        choices = ", ".join(CHOICES["start_method"])
        raise ValueError(f"start_method is {config.start_method!r}; it is one of {choices}")
    if config.signals_to_handle.strip() and not read_signals(config.signals_to_handle):
        raise ValueError(
            f"signals_to_handle is {config.signals_to_handle!r}, and this system has no such signal; write names "
            "with commas between them, such as SIGTERM,SIGINT"
        )
    if config.nproc_per_node < 1:
        raise ValueError(f"nproc_per_node is {config.nproc_per_node}; a node runs one worker or more")
    if not 1 <= config.min_nodes <= config.max_nodes:
        raise ValueError(
            f"min_nodes is {config.min_nodes} and max_nodes {config.max_nodes}; they are 1 or more, in this order"
        )
    if config.max_restarts < 0:
        raise ValueError(f"max_restarts is {config.max_restarts}; 0 is the smallest")
    if (config.shutdown_timeout or 0) < 0:
        raise ValueError(f"shutdown_timeout is {config.shutdown_timeout} s; 0 is the smallest")


def arguments_of(args: Sequence[Any]) -> tuple[str, ...]:
    """A command's arguments. Raises ``TypeError`` for one that is no text."""
    for one in args:
        if not isinstance(one, str):
            raise TypeError(f"the arguments of a command are texts; {one!r} is of type {type(one).__name__}")
    return tuple(args)


def _logs(specs: Any) -> dict[str, Any]:
    given = specs if type(specs) is DefaultLogsSpecs else DefaultLogsSpecs()
    settings = given.settings()
    ranks = settings["local_ranks_filter"]
    return {
        **settings,
        "redirects": _std(settings["redirects"]),
        "tee": _std(settings["tee"]),
        "local_ranks_filter": set(ranks) if ranks else None,
    }


def _std(value: Any) -> Std | dict[int, Std]:
    if isinstance(value, Mapping):
        return {int(rank): Std(int(one)) for rank, one in value.items()}
    return Std(int(value))


def program_of(entrypoint: str, args: tuple[str, ...]) -> dict[str, Any]:
    """A script for Python, as ``config_from_args`` of torchrun has it, is run as one: what ends it is captured."""
    if entrypoint in (sys.executable, os.environ.get(PYTHON)) and args[:1] == ("-u",):
        is_module = args[1:2] == ("-m",)
        script, *rest = args[2 if is_module else 1 :] or ("-",)
        if not script.startswith("-"):
            return {
                "entrypoint": script,
                "args": tuple(rest),
                "module": is_module,
                "no_python": False,
                "python": entrypoint,
            }
    return {"entrypoint": entrypoint, "args": args, "module": False, "no_python": True}


def _numa(options: Any) -> tuple[Any, bool]:
    if options is None:
        return None, False
    mode = getattr(options, "affinity_mode", None)
    kind = getattr(mode, "value", mode)
    if not isinstance(kind, str):
        raise TypeError(f"numa_options has an affinity_mode, as torch's NumaOptions; {options!r} has not")
    return kind, bool(getattr(options, "should_fall_back_if_binding_fails", False))


def _texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """``rdzv_configs`` as ``--rdzv-conf`` has them: a number or a truth is a text there, None is not there."""
    return {
        str(key): str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in settings.items()
        if value is not None
    }
