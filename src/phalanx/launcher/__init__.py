"""From what a user asked for to a running agent."""

from phalanx.launcher.command import run_command

__all__ = ["run_command"]
