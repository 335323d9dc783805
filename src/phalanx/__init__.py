"""Phalanx: an elastic launcher and supervisor for distributed jobs.

For training scripts, all of it optional (a script needs no change to be launched): ``record``, ``progress``,
``should_stop``, ``exclude_node``. For programs that launch: ``launch``, ``start``. Importing this package imports
nothing else; each name is loaded when it is used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx import compat as compat
    from phalanx.agent.restarts.policy import RestartPolicy
    from phalanx.errors import record
    from phalanx.errors.channel import NoAgent, checkpoint_done, exclude_node, progress, should_stop, values
    from phalanx.launcher.elastic.launch_config import LaunchConfig
    from phalanx.launcher.elastic.launching import elastic_launch, launch_agent
    from phalanx.launcher.functions.failure import JobStopped, WorkerFailed
    from phalanx.launcher.functions.function_job import RemoteError, UnreadableValue
    from phalanx.launcher.functions.job import Job
    from phalanx.launcher.functions.keywords import LaunchOptions
    from phalanx.launcher.functions.launch import launch, start
    from phalanx.launcher.functions.result import LaunchResult, NotSent

__all__ = [
    "Job",
    "JobStopped",
    "LaunchConfig",
    "LaunchOptions",
    "LaunchResult",
    "NoAgent",
    "NotSent",
    "RemoteError",
    "RestartPolicy",
    "UnreadableValue",
    "WorkerFailed",
    "checkpoint_done",
    "elastic_launch",
    "exclude_node",
    "launch",
    "launch_agent",
    "progress",
    "record",
    "should_stop",
    "start",
    "values",
]

_HOME = {
    "Job": "launcher.functions.job",
    "JobStopped": "launcher.functions.failure",
    "LaunchConfig": "launcher.elastic.launch_config",
    "LaunchOptions": "launcher.functions.keywords",
    "LaunchResult": "launcher.functions.result",
    "NoAgent": "errors.channel",
    "NotSent": "launcher.functions.result",
    "RemoteError": "launcher.functions.function_job",
    "RestartPolicy": "agent.restarts.policy",
    "UnreadableValue": "launcher.functions.function_job",
    "WorkerFailed": "launcher.functions.failure",
    "checkpoint_done": "errors.channel",
    "elastic_launch": "launcher.elastic.launching",
    "exclude_node": "errors.channel",
    "launch": "launcher.functions.launch",
    "launch_agent": "launcher.elastic.launching",
    "progress": "errors.channel",
    "record": "errors",
    "should_stop": "errors.channel",
    "start": "launcher.functions.launch",
    "values": "errors.channel",
}


_MODULES = ("compat",)  # what is called by the module's name: phalanx.compat.install()


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None and name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    if home is None:
        return import_module(f"{__name__}.{name}")
    found: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
