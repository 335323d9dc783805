"""``phalanx run``: from the words of a command line to a call of the launcher.

Words become texts with their origin (``sources``), texts become values that were checked (``values``), and those are
the launcher's options; whether the job then succeeds is the launcher's business.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import HELP, VERSION
from phalanx.cli.sources import asked
from phalanx.cli.values import SECRET, fields_of
from phalanx.cli.words import CommandLine, read_words

if TYPE_CHECKING:
    from phalanx.launcher import RunOptions

__all__ = ["LOOKING", "OURS_ALONE", "launch_values", "main", "run_line", "run_options"]

EX_TEMPFAIL = 75  # sysexits.h
# The agents' own, and files that a launcher inside of a worker must not write in our place.
OURS_ALONE = (
    SECRET,
    "PHALANX_REPORT_FILE",
    "PET_REPORT_FILE",
    "PET_ERROR_FILE",
    "PET_EVENTS_FILE",
    "PHALANX_CONFIG",
    "PET_CONFIG",
)
LOOKING = frozenset({"print_config", "dry_run"})  # switches with which nothing is started


def main(words: Sequence[str]) -> int:
    """Run a job and return the launcher's exit code. Raises ``UsageError``."""
    return run_line(read_words(words))


def run_line(line: CommandLine) -> int:
    """Do what a command line that was read asks for, as ``main``."""
    if line.wants in (HELP, VERSION):
        from phalanx.cli import manual
        from phalanx.cli.showing import show

        show(manual.run_page() if line.wants is HELP else manual.version())
        return 0
    found = asked(line, os.environ)
    if line.given.keys() & LOOKING:
        from phalanx.cli import preview

        return preview.main(found)
    values = fields_of(found)
    for name in OURS_ALONE:  # workers inherit what is left here
        os.environ.pop(name, None)

    # All of the agent is imported here: a mistake above costs none of it.
    from phalanx.launcher import RunOptions, run_command
    from phalanx.multiprocessing.logs import LogDirError

    try:
        return run_command(RunOptions(**values))
    except BlockingIOError:  # fork's EAGAIN
        print("phalanx: error: no more processes can be started here; see ulimit -u", file=sys.stderr)
        return EX_TEMPFAIL
    except LogDirError as reason:  # the folder was fine a moment ago
        raise UsageError(str(reason)) from None


def run_options(words: Sequence[str]) -> RunOptions:
    """What ``phalanx run`` would do with these words, for a program that starts an agent itself.

    Raises ``UsageError``; warns on stderr, as the command does.
    """
    from phalanx.launcher import RunOptions

    line = read_words(words)
    if looking := line.given.keys() & LOOKING:
        raise UsageError(f"--{min(looking).replace('_', '-')} starts nothing, and options are to start a job")
    return RunOptions(**launch_values(line, os.environ))


def launch_values(line: CommandLine, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of ``phalanx.launcher.RunOptions``. Raises ``UsageError``; warns on stderr."""
    return fields_of(asked(line, environ))
