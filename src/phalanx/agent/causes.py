"""What kind of failure it was, as far as that decides whether another try makes sense. Pure."""

from __future__ import annotations

import re
from zlib import crc32

from phalanx.agent.verdict import Failure

__all__ = ["signature_of", "what_cannot_heal"]

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError"})
_SYNTAX_ERRORS = frozenset({"SyntaxError", "IndentationError", "TabError"})
# Who refuses a script's arguments: files and packages in whose code the interpreter was told to exit with 2.
_PARSERS = frozenset(
    {"argparse.py", "optparse.py", "click", "typer", "fire", "docopt", "tyro", "jsonargparse"}
)
_USAGE = 2
_CANNOT_EXECUTE, _NOT_FOUND = 126, 127  # a shell's
_NUMBERS = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")


def what_cannot_heal(
    exception_type: str, raised_in: str, exit_code: int | None, *, is_silent: bool = False
) -> str:
    """Half a sentence about a failure that the same program on the same machine will meet again; else nothing.

    ``raised_in`` is the file of the innermost frame, ``exit_code`` the one that counts, ``is_silent`` says that no
    exception was recorded.
    """
    kind = exception_type.rpartition(".")[2]
    if kind in _IMPORT_ERRORS:
        return "a module that cannot be imported"
    if kind in _SYNTAX_ERRORS:
        return "a syntax error"
    if kind == "SystemExit" and exit_code == _USAGE and not _PARSERS.isdisjoint(raised_in.split("/")[-3:]):
        return "arguments that the script refuses"
    if is_silent and exit_code in (_CANNOT_EXECUTE, _NOT_FOUND):
        return "a command that cannot be executed"
    return ""


def signature_of(failure: Failure) -> int:
    """Equal for failures that look the same: same exception in the same place, numbers in its message left aside.

    Ranks, addresses, ports and process ids differ between two runs of one fault; 32 bits tell apart the few that one
    job sees.
    """
    what = failure.why_not_started or failure.summary
    message, at, place = what.rpartition(" at ")
    if not at:
        message, place = what, ""
    return crc32(f"{failure.exit_code} {_NUMBERS.sub('#', message)} {place}".encode(errors="replace"))
