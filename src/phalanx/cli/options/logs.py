"""Rows about output and logs."""

from __future__ import annotations

from phalanx.cli import convert
from phalanx.cli.options.option import Option

__all__ = ["LOGS", "ROWS"]

LOGS = "output and logs"

ROWS: tuple[Option, ...] = (
    Option(
        name="log-dir",
        metavar="DIR",
        group=LOGS,
        help="parent folder of the logs; without it a temporary one",
    ),
    Option(
        name="redirects",
        short="r",
        metavar="STREAMS",
        read=convert.streams,
        default="0",
        group=LOGS,
        help="write streams to files: 0 none, 1 stdout, 2 stderr, 3 both, or for each local rank: 0:3,1:1",
    ),
    Option(
        name="tee",
        short="t",
        metavar="STREAMS",
        read=convert.streams,
        default="0",
        group=LOGS,
        help="write streams to files and, with a prefix, to the console; values as for --redirects",
    ),
    Option(
        name="local-ranks-filter",
        metavar="RANKS",
        read=convert.rank_set,
        group=LOGS,
        help="show these local ranks only on the console, such as 0,1",
    ),
    Option(
        name="duplicate-stdout-filters",
        metavar="TEXTS",
        read=convert.comma_list,
        default="",
        group=LOGS,
        help="also collect teed stdout lines of all ranks with one of these texts in one file; ,, is a literal comma",
    ),
    Option(
        name="duplicate-stderr-filters",
        metavar="TEXTS",
        read=convert.comma_list,
        default="",
        group=LOGS,
        help="the same for stderr",
    ),
    Option(
        name="log-line-prefix-template",
        metavar="TEMPLATE",
        also=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
        torchrun=False,
        group=LOGS,
        help="prefix of a teed line, with ${role_name} ${rank} ${local_rank} ${host} ${round} ${time}",
    ),
    Option(
        name="log-max-size",
        metavar="SIZE",
        read=convert.size,
        torchrun=False,
        group=LOGS,
        help="cap of each log file; its head and its tail are kept",
    ),
    Option(
        name="stderr-tail",
        metavar="BYTES",
        read=convert.tail_size,
        default="64K",
        torchrun=False,
        group=LOGS,
        help="how much of each worker's last stderr to keep for the failure report; 0 leaves stderr alone",
    ),
    Option(
        name="logs-specs",
        metavar="NAME",
        group=LOGS,
        has_variable=False,
        read=convert.log_plugin,
        help="where logs go: default, or the name of a plug-in (an entry point of torchrun.logs_specs or "
        "phalanx.logs_specs)",
    ),
    Option(
        name="event-log-handler",
        metavar="NAME",
        default="null",
        group=LOGS,
        read=convert.event_handler,
        help="where torchelastic's events go: null, console, or the name of a handler that is installed",
    ),
    Option(
        name="events-file",
        metavar="FILE",
        torchrun=False,
        group=LOGS,
        read=convert.appended,
        help="append what happens on this node, one JSON object a line",
    ),
)
