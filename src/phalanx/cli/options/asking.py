"""Rows about where options come from, and about looking before anything starts."""

from __future__ import annotations

from phalanx.cli import convert
from phalanx.cli.options.option import Option

__all__ = ["ASKING", "ROWS"]

ASKING = "configuration file, and looking first"

ROWS: tuple[Option, ...] = (
    Option(
        name="config",
        metavar="FILE",
        also=("PHALANX_CONFIG",),
        torchrun=False,
        section="",
        group=ASKING,
        help="YAML file with options, the script and its arguments; flags and variables are stronger",
    ),
    Option(
        name="print-config",
        read=convert.switch,
        default="0",
        has_variable=False,
        torchrun=False,
        section="",
        group=ASKING,
        help="show each option's value and where it comes from, and start nothing",
    ),
    Option(
        name="dry-run",
        read=convert.switch,
        default="0",
        has_variable=False,
        torchrun=False,
        section="",
        group=ASKING,
        help="show what would start on this node: each worker's command and environment, and start nothing",
    ),
    Option(
        name="print-format",
        metavar="FORMAT",
        read=convert.Choice("text", "json"),
        default="text",
        has_variable=False,
        torchrun=False,
        section="",
        group=ASKING,
        help="how --print-config and --dry-run show it: text or json",
    ),
)
