"""``phalanx run --print-config`` and ``--dry-run``: what was asked for and what would start. Nothing is started.

Loads only when it was asked for. What could be a secret is not printed: neither ``PHALANX_SECRET`` nor a variable for
the workers whose name says so.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import OPTIONS, Option, section_of
from phalanx.cli.showing import show
from phalanx.cli.sources import Asked, Text
from phalanx.cli.values import SECRET, Values, fields_of

if TYPE_CHECKING:
    from phalanx.launcher.dry_run import PlannedNode, PlannedWorker

__all__ = ["config_rows", "main"]

HIDDEN = "***"
_SECRET_NAME = re.compile(
    r"secret|token|passw|credential|(^|_)(api|access|private|auth)_?key|_key$", re.IGNORECASE
)
_NOT_SHOWN = ("config", "print_config", "dry_run", "print_format")  # they are about the looking itself
_VALUE_WIDTH_MAX = 44  # a longer value moves its own line alone


def main(asked: Asked) -> int:
    """Print what was asked to see, and return the exit code. Raises ``UsageError``."""
    as_json = asked.texts["print_format"].text == "json"
    Values(asked).mistakes.raise_if_any()  # whatever cannot be read is a mistake in both
    parts: dict[str, Any] = {}
    if asked.texts["print_config"].text == "1":
        parts["config"] = config_rows(asked)
    if asked.texts["dry_run"].text == "1":
        parts["plan"] = _plan(asked)
    if as_json:
        shown = {name: part if name == "config" else _as_data(part) for name, part in parts.items()}
        show(json.dumps(shown, indent=2, ensure_ascii=False) + "\n")
    else:
        texts = [_table(part) if name == "config" else _told(part) for name, part in parts.items()]
        show("\n\n".join(texts) + "\n")
    return 0


def config_rows(asked: Asked) -> list[dict[str, Any]]:
    """Return a row for each option, each variable for the workers, and the program."""
    values = Values(asked)
    rows = [
        _row(one, asked.texts[one.dest], values[one.dest])
        for one in OPTIONS
        if one.dest not in _NOT_SHOWN and one.later is None
    ]
    _count_workers(next(row for row in rows if row["name"] == "nproc_per_node"), values)
    if asked.environ.get(SECRET):
        rows.append(_plain("secret", "", HIDDEN, "variable", SECRET))
    for name, found in asked.env.items():
        rows.append(_plain(name, f"env.{name}", _shown(name, found.text or ""), found.kind, found.origin))
    program = asked.program
    if program is not None:
        kind, origin = ("file", program.origin) if program.origin else ("command line", "command line")
        rows.append(_plain("program", "script", program.name, kind, origin))
        rows.append(_plain("arguments", "script.args", list(program.arguments), kind, origin))
    return rows


def _count_workers(row: dict[str, Any], values: Values) -> None:
    """Put beside ``gpu``, ``cpu`` or ``auto`` what it means on this machine, or why it means nothing here."""
    if not isinstance(values["nproc_per_node"], str):
        return
    from phalanx.cli.worker_values import worker_count

    try:
        row["means"] = worker_count(values)
    except UsageError as reason:  # a machine to look at a job is not always one to run it
        row["problem"] = str(reason).removeprefix(f"{values.origins['nproc_per_node']}: ")


def _shown(name: str, text: str) -> str:
    """Return a variable's text, or stars if its name says that nobody is to read it."""
    return HIDDEN if text and _SECRET_NAME.search(name) else text


def _row(option: Option, found: Text, value: Any) -> dict[str, Any]:
    section = section_of(option)
    key = f"{section}.{option.dest}" if section else ""
    origin = "default" if found.kind == "default" else found.origin
    row = _plain(option.dest, key, bool(value) if option.is_switch else found.text, found.kind, origin)
    if isinstance(value, int | float) and not option.is_switch and f"{value:g}" != found.text:
        row["means"] = value  # 64K is 65536, 1h is 3600 seconds
    return row


def _plain(name: str, key: str, value: Any, kind: str, origin: str) -> dict[str, Any]:
    return {"name": name, "key": key, "value": value, "from": kind, "origin": origin}


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [(row["name"], _cell(row), _place(row)) for row in rows]
    name_width = max(len(name) for name, _, _ in cells)
    value_width = min(_VALUE_WIDTH_MAX, max(len(value) for _, value, _ in cells))
    return "\n".join(
        f"{name:<{name_width}}  {value:<{value_width}}  {origin}" for name, value, origin in cells
    )


def _place(row: dict[str, Any]) -> str:
    return f"{row['origin']} (not here: {row['problem']})" if "problem" in row else str(row["origin"])


def _cell(row: dict[str, Any]) -> str:
    value = row["value"]
    if value is None or value == [] or (value == "" and row["from"] == "default"):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return _line(shlex.join(value))
    text = _line(value) if value else "''"
    return f"{text} = {row['means']:g}" if "means" in row else text


def _line(text: str) -> str:
    """Return the text on one line, whatever is in it: a terminal shall not obey it."""
    return text if text.isprintable() else repr(text)


def _plan(asked: Asked) -> PlannedNode:
    try:
        fields = fields_of(asked, makes_folder=False)
    except UsageError as mistakes:
        if _is_uncounted(asked):
            raise UsageError(f"{mistakes}\nto look at the job here, add --nproc-per-node N") from None
        raise

    from phalanx.launcher import RunOptions
    from phalanx.launcher.dry_run import planned

    try:
        return planned(RunOptions(**fields))
    except ValueError as reason:
        raise UsageError(str(reason)) from None


def _is_uncounted(asked: Asked) -> bool:
    """Whether the machine has none of the devices that are to be counted."""
    from phalanx.cli.worker_values import worker_count

    try:
        worker_count(Values(asked))
    except UsageError:
        return True
    return False


def _as_data(plan: PlannedNode) -> dict[str, Any]:
    return {**_fields(plan), "workers": [_worker_data(one) for one in plan.workers]}


def _worker_data(worker: PlannedWorker) -> dict[str, Any]:
    environment = {name: _shown(name, text) for name, text in worker.environment.items()}
    return {**_fields(worker), "environment": environment}


def _fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def _told(plan: PlannedNode) -> str:
    most, least = plan.max_nodes, plan.min_nodes
    nodes = "one node" if most == 1 else f"{most if least == most else f'{least} to {most}'} nodes"
    meeting = "" if most == 1 else f", which meet by {plan.backend}"
    count = len(plan.workers)
    workers = "one worker" if count == 1 else f"{count} workers"
    lines = [
        f"job:      {nodes}{meeting}; {workers} on this one; nothing is started",
        f"folder:   {_line(plan.folder)}",
        f"logs:     {_line(plan.log_dir)}",
    ]
    for worker in plan.workers:
        lines += ["", *_told_worker(worker)]
    return "\n".join(lines)


def _told_worker(worker: PlannedWorker) -> Iterator[str]:
    from phalanx.launcher.dry_run import SETTLED_LATER

    rank = SETTLED_LATER if worker.rank is None else worker.rank
    yield f"rank {rank}, local rank {worker.local_rank}"
    yield f"  command:  {_line(shlex.join(worker.command))}"
    yield f"  stdout:   {_line(worker.stdout)}"
    yield f"  stderr:   {_line(worker.stderr)}"
    if worker.cpus:
        yield f"  CPUs:     {','.join(map(str, worker.cpus))}"
    yield "  environment, beyond that of the launcher:"
    for name, text in sorted(worker.environment.items()):
        yield f"    {name}={_line(_shown(name, text))}"
