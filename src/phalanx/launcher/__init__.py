"""From what a user asked for to a running agent."""

from phalanx.launcher.command import run_command
from phalanx.launcher.options import RunOptions

__all__ = ["RunOptions", "run_command"]
