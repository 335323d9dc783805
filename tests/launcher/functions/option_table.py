"""The table of keyword arguments in docs/python.md: ``python -m tests.launcher.functions.option_table`` writes it."""

from __future__ import annotations

from pathlib import Path
from signal import Signals
from typing import Any

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.cli.options import OPTIONS
from phalanx.launcher.functions.keywords import LaunchOptions, options_of
from phalanx.multiprocessing.std import Std

PAGE = Path(__file__).parents[3] / "docs" / "python.md"
BEGIN, END = "<!-- options: begin -->\n", "<!-- options: end -->\n"

FIELDS = {"grace": "grace_s", "max_restarts": "restarts.max_restarts"}  # where the keyword has another name
NO_FLAG = {
    "restarts": "`RestartPolicy`: [restarts](restarts.md)",
    "name": "what reports call the job; the function's name",
    "env": "what every worker finds in its environment, beside what it inherits",
    "cwd": "the folder of agent and workers; this program's",
    "numa_may_fail": "where there is no such binding, start without one",
    "prints_report": "print the report that the exception has, too",
    "nnodes": "`--nnodes`",
    "nproc": "`--nproc-per-node`",
    "secret": "as a text or bytes; the command line reads it from `--secret-file`",
}


def table() -> str:
    """The table as it should stand in the page."""
    lines = ["| keyword | type | default | as |\n", "|---|---|---|---|\n"]
    usual = options_of({}, entrypoint="", args=())
    for name, kind in LaunchOptions.__annotations__.items():
        text = getattr(kind, "__forward_arg__", str(kind)).replace(" | ", ", ").replace("|", "\\|")
        lines.append(f"| `{name}` | `{text}` | {_default(name, usual)} | {_as(name)} |\n")
    return "".join(lines)


def written() -> str:
    """The page with the table as it should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def _as(name: str) -> str:
    field = FIELDS.get(name, name)
    option = next((one for one in OPTIONS if (one.field or one.dest) == field), None)
    if name in NO_FLAG or option is None:
        return NO_FLAG[name]
    return f"`{option.flag}`"


def _default(name: str, usual: Any) -> str:
    if name in ("cwd", "nnodes"):
        return {"cwd": "`None`", "nnodes": "`1`"}[name]
    value = usual
    for part in FIELDS.get(name, name).split("."):
        value = getattr(value, part)
    if isinstance(value, RestartPolicy):
        return "no restart"
    if name in ("stop_signals", "pass_signals"):
        value = [Signals(one).name for one in value]
    elif isinstance(value, Std):
        return f"`Std.{value.name}`"
    elif name in ("env", "rdzv_conf"):
        value = dict(value)
    return f"`{value!r}`"


if __name__ == "__main__":
    PAGE.write_text(written())
