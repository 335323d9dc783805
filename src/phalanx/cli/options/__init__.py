"""The option table of ``phalanx run``: one row for each option, and nothing about an option anywhere else.

Flags (in both spellings), ``PET_*`` variables, conversion, defaults and ``--help`` all follow from a row. Rows with
``torchrun=False`` are ours: torchrun 2.13 does not have them, and they yield where an abbreviation would be ambiguous.
"""

from __future__ import annotations

from phalanx.cli.options import failures, logs, nodes, program
from phalanx.cli.options.option import Option

__all__ = ["GROUPS", "HELP", "OPTIONS", "VERSION", "Option"]

GROUPS = (
    program.SIZE,
    program.PROGRAM,
    failures.RESTART,
    failures.FAILURE,
    logs.LOGS,
    nodes.RENDEZVOUS,
    program.ENVIRONMENT,
)
OPTIONS: tuple[Option, ...] = (*program.ROWS, *failures.ROWS, *logs.ROWS, *nodes.ROWS)

HELP = Option(name="help", short="h", group="", help="show this page")
VERSION = Option(name="version", torchrun=False, group="", help="show the version")
