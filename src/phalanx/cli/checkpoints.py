"""``phalanx checkpoints``: what is in a folder of checkpoints, and whether it is good. Changes nothing there."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.cli.mistakes import UsageError, nearest

if TYPE_CHECKING:
    from phalanx.checkpoint.directory import StepDirectory

__all__ = ["FLAGS", "main", "page", "table"]

FLAGS = ("--verify", "--json", "--help")
_HEADINGS = ("STEP", "SIZE", "SAVED", "WORLD SIZE", "STATE")


def main(words: Sequence[str]) -> int:
    """Run ``phalanx checkpoints`` with these words. Returns 1 if a verified step is bad, 3 if nobody can tell."""
    from phalanx.cli.showing import show

    end = words.index("--") if "--" in words else len(words)
    before = words[:end]  # after -- come folders alone, whatever they begin with
    if "-h" in before or "--help" in before:
        show(page())
        return 0
    flags = [word for word in before if word.startswith("-")]
    folders = [*(word for word in before if not word.startswith("-")), *words[end + 1 :]]
    for flag in flags:
        if flag not in FLAGS:
            raise UsageError(f"phalanx checkpoints has no flag {flag!r}{nearest(flag, FLAGS)}")
    if len(folders) != 1:
        raise UsageError(f"phalanx checkpoints takes one folder, not {len(folders)}")
    folder = folders[0]
    if not os.path.isdir(folder):
        raise UsageError(f"{folder!r} is no folder")

    from phalanx.checkpoint.directory import StepDirectory
    from phalanx.checkpoint.listing import asides

    directory = StepDirectory(folder)
    _refuse_step(directory, folder)
    try:
        steps, aside = directory.steps(), asides(directory.folder)
    except OSError as error:
        raise UsageError(f"{folder!r} cannot be read: {error.strerror}") from None
    rows = [row for step in steps if (row := _row(directory, step, verify="--verify" in flags)) is not None]
    if "--json" in flags:
        head = {"format": "phalanx-checkpoints", "version": 1, "folder": str(directory.folder)}
        show(json.dumps({**head, "steps": rows, "set_aside": aside}, indent=2) + "\n")
    else:
        show(table(rows, aside, time.time()))
    states = {row["state"] for row in rows} if "--verify" in flags else set()
    if "--verify" in flags and aside and not rows:
        return 1  # there were steps, and none can be loaded
    return 1 if "bad" in states else 3 if "unknown" in states else 0


def page() -> str:
    """Return the page of ``phalanx checkpoints --help``."""
    return """\
usage: phalanx checkpoints [--verify] [--json] [--] FOLDER

Lists the steps that phalanx.checkpoint has saved in FOLDER, with their size,
age and world size, and what is bad. Changes nothing. The state of a step is
"complete" (names and sizes are as they should be), "verified" (the content,
too), "bad", or "unknown": it cannot be checked here, and may well be good.

  --verify    read all files and compare their checksums; without it only names
              and sizes are looked at
  --json      print JSON for other programs
  -h, --help  print this page

Ends with 0; with 2 for a mistake on the command line; with --verify also with
1 if a step is bad, or if all were set aside, or else with 3 if one cannot be
checked here.
"""


def table(rows: Sequence[dict[str, Any]], aside: Sequence[str], now: float) -> str:
    """The steps as people read them; ``now`` is the time from which ages count, in seconds.

    >>> print(table([], [], 0.0), end="")
    no steps
    """
    lines = [_HEADINGS, *(_cells(row, now) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    text = []
    if rows:
        text += ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        text += [problem for row in rows for problem in row["problems"]]
    else:
        text.append("no steps but those that were set aside" if aside else "no steps")
    if aside:
        text.append(f"set aside, and not loaded: {', '.join(aside)}")
    return "\n".join(text) + "\n"


def _refuse_step(directory: StepDirectory, folder: str) -> None:
    """A step within a folder of checkpoints was given for the folder."""
    from phalanx.checkpoint.naming import MANIFEST, is_aside, is_own

    path = directory.folder
    if is_own(path.name) or is_aside(path.name) or os.path.isfile(path / MANIFEST):
        raise UsageError(f"{folder!r} is one step; give the folder that it is in: {str(path.parent)!r}")


def _row(directory: StepDirectory, step: int, *, verify: bool) -> dict[str, Any] | None:
    """What is said about a step; None: the training that uses the folder has removed it meanwhile."""
    from phalanx.checkpoint.directory import Gone
    from phalanx.checkpoint.exceptions import CannotCheck, CheckpointError

    row: dict[str, Any] = {"step": step, "size": None, "saved_at": None, "world_size": None, "parts": None}
    row |= {"meta": None, "state": "bad", "problems": []}
    try:
        manifest = directory.look(step)
        row |= {
            "size": sum(file.size for file in manifest.files.values()),
            "saved_at": manifest.saved_at,
            "world_size": manifest.world_size,
            "parts": len(manifest.parts) or 1,
            "meta": manifest.meta,
        }
        problems = directory.check(step) if verify else []
        row["problems"] = [str(problem) for problem in problems]
        is_bad = any(problem.is_damage for problem in problems)
        row["state"] = "bad" if is_bad else "unknown" if problems else "verified" if verify else "complete"
    except Gone:
        return None
    except CannotCheck as error:
        row["state"] = "unknown"
        row["problems"] = [str(error)]
    except CheckpointError as error:
        row["problems"] = [str(error)]
    return row


def _cells(row: dict[str, Any], now: float) -> tuple[str, ...]:
    known = row["size"] is not None
    return (
        str(row["step"]),
        _size(row["size"]) if known else "-",
        _age(now - row["saved_at"]) if known else "-",
        str(row["world_size"]) if known else "-",
        row["state"],
    )


def _size(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _age(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"
