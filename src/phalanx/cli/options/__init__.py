"""The option table of ``phalanx run``: one row for each option.

Flags (in both spellings), ``PET_*`` variables, conversion, defaults and ``--help`` all follow from a row; what it does
follows from a field of ``launcher.options.RunOptions``, and CONTRIBUTING.md names the few further places. Rows with
``torchrun=False`` are ours: torchrun 2.13 does not have them, and they yield where an abbreviation would be ambiguous.
"""

from __future__ import annotations

from phalanx.cli.options import asking, failures, logs, nodes, program
from phalanx.cli.options.option import Option

__all__ = ["GROUPS", "HELP", "OPTIONS", "SECTIONS", "VERSION", "Option", "section_of"]

GROUPS = (
    program.SIZE,
    program.PROGRAM,
    asking.ASKING,
    failures.RESTART,
    failures.FAILURE,
    logs.LOGS,
    nodes.RENDEZVOUS,
    program.ENVIRONMENT,
)
OPTIONS: tuple[Option, ...] = (*program.ROWS, *failures.ROWS, *logs.ROWS, *nodes.ROWS, *asking.ROWS)

# The section of a configuration file that has the options of a group, where a row names none of its own.
SECTIONS = {
    program.SIZE: "elastic",
    program.PROGRAM: "script",
    failures.RESTART: "restart",
    failures.FAILURE: "job",
    logs.LOGS: "logs",
    nodes.RENDEZVOUS: "store",
    program.ENVIRONMENT: "job",
}


def section_of(option: Option) -> str:
    """Return the section of a configuration file in which the option is a key; empty: it is none."""
    return SECTIONS.get(option.group, "") if option.section is None else option.section


HELP = Option(name="help", short="h", group="", help="show this page")
VERSION = Option(name="version", torchrun=False, group="", help="show the version")
