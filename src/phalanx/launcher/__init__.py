"""From what a user asked for to a running agent.

The names load when they are used: what only checks a command line needs no agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.launcher.command import run_command
    from phalanx.launcher.elastic.launch_config import LaunchConfig
    from phalanx.launcher.elastic.launching import elastic_launch, launch_agent
    from phalanx.launcher.hosting.library import AgentProcess, Outcome, start
    from phalanx.launcher.options import RunOptions

__all__ = [
    "AgentProcess",
    "LaunchConfig",
    "Outcome",
    "RunOptions",
    "elastic_launch",
    "launch_agent",
    "run_command",
    "start",
]

_HOMES = {
    "LaunchConfig": "elastic.launch_config",
    "RunOptions": "options",
    "elastic_launch": "elastic.launching",
    "launch_agent": "elastic.launching",
    "run_command": "command",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'hosting.library')}"), name)
    globals()[name] = found
    return found
