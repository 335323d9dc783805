"""Phalanx: an elastic launcher and supervisor for distributed jobs.

For training scripts, all of it optional (a script needs no change to be launched): ``record``, ``progress``,
``should_stop``, ``should_checkpoint``, ``exclude_node``. For programs that launch: ``launch``, ``start``. Importing
this package imports nothing else; each name is loaded when it is used.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx import compat as compat
    from phalanx.agent.restarts.policy import RestartPolicy as RestartPolicy
    from phalanx.errors import record as record
    from phalanx.errors.channel import NoAgent as NoAgent
    from phalanx.errors.channel import checkpoint_done as checkpoint_done
    from phalanx.errors.channel import exclude_node as exclude_node
    from phalanx.errors.channel import progress as progress
    from phalanx.errors.channel import should_checkpoint as should_checkpoint
    from phalanx.errors.channel import should_stop as should_stop
    from phalanx.errors.channel import values as values
    from phalanx.launcher.elastic.launch_config import LaunchConfig as LaunchConfig
    from phalanx.launcher.elastic.launching import elastic_launch as elastic_launch
    from phalanx.launcher.elastic.launching import launch_agent as launch_agent
    from phalanx.launcher.functions.failure import JobStopped as JobStopped
    from phalanx.launcher.functions.failure import WorkerFailed as WorkerFailed
    from phalanx.launcher.functions.failure import worker_failed as worker_failed
    from phalanx.launcher.functions.function_job import RemoteError as RemoteError
    from phalanx.launcher.functions.function_job import UnreadableValue as UnreadableValue
    from phalanx.launcher.functions.job import Job as Job
    from phalanx.launcher.functions.keywords import LaunchOptions as LaunchOptions
    from phalanx.launcher.functions.launch import launch as launch
    from phalanx.launcher.functions.launch import start as start
    from phalanx.launcher.functions.result import LaunchResult as LaunchResult
    from phalanx.launcher.functions.result import NotSent as NotSent

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.agent.restarts.policy": "RestartPolicy",
        "phalanx.errors": "record",
        "phalanx.errors.channel": "NoAgent checkpoint_done exclude_node progress should_checkpoint should_stop values",
        "phalanx.launcher.elastic.launch_config": "LaunchConfig",
        "phalanx.launcher.elastic.launching": "elastic_launch launch_agent",
        "phalanx.launcher.functions.failure": "JobStopped WorkerFailed worker_failed",
        "phalanx.launcher.functions.function_job": "RemoteError UnreadableValue",
        "phalanx.launcher.functions.job": "Job",
        "phalanx.launcher.functions.keywords": "LaunchOptions",
        "phalanx.launcher.functions.launch": "launch start",
        "phalanx.launcher.functions.result": "LaunchResult NotSent",
    },
    modules="compat",  # what is called by the module's name: phalanx.compat.install()
)
