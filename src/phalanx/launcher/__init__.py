"""From what a user asked for to a running agent.

The names load when they are used: what only checks a command line needs no agent.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.launcher.command import run_command as run_command
    from phalanx.launcher.elastic.launch_config import LaunchConfig as LaunchConfig
    from phalanx.launcher.elastic.launching import elastic_launch as elastic_launch
    from phalanx.launcher.elastic.launching import launch_agent as launch_agent
    from phalanx.launcher.hosting.library import AgentProcess as AgentProcess
    from phalanx.launcher.hosting.library import Outcome as Outcome
    from phalanx.launcher.hosting.library import start_agent as start_agent
    from phalanx.launcher.options import RunOptions as RunOptions

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.launcher.command": "run_command",
        "phalanx.launcher.elastic.launch_config": "LaunchConfig",
        "phalanx.launcher.elastic.launching": "elastic_launch launch_agent",
        "phalanx.launcher.hosting.library": "AgentProcess Outcome start_agent",
        "phalanx.launcher.options": "RunOptions",
    },
)
