"""From what a user asked for to a running agent.

The names load when they are used: what only checks a command line needs no agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.launcher.command import run_command
    from phalanx.launcher.library import AgentProcess, Outcome, start
    from phalanx.launcher.options import RunOptions

__all__ = ["AgentProcess", "Outcome", "RunOptions", "run_command", "start"]


def __getattr__(name: str) -> object:
    if name == "RunOptions":
        from phalanx.launcher.options import RunOptions

        return RunOptions
    if name == "run_command":
        from phalanx.launcher.command import run_command

        return run_command
    if name in ("AgentProcess", "Outcome", "start"):
        from phalanx.launcher import library

        return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
