"""What kind of failure it was, as far as that decides whether another try makes sense. Pure."""

from __future__ import annotations

import re
from binascii import crc32
from itertools import pairwise

from phalanx.agent.verdict.verdict import Failure

__all__ = ["signature_of", "what_cannot_heal"]

_IMPORT_ERRORS = frozenset({"ImportError", "ModuleNotFoundError"})
_SYNTAX_ERRORS = frozenset({"SyntaxError", "IndentationError", "TabError"})
# Who refuses a script's arguments: modules and packages in whose code the interpreter was told to exit with 2.
_STANDARD_PARSERS = frozenset({"argparse.py", "optparse.py"})
_INSTALLED_PARSERS = frozenset({"click", "typer", "fire", "docopt", "tyro", "jsonargparse"})
_INSTALLED_IN = frozenset({"site-packages", "dist-packages"})  # a project may be called "fire", too
_RUNPY = "<frozen runpy>"  # what runs a module leaves by itself only where there is none of that name
_USAGE = 2
_CANNOT_EXECUTE, _NOT_FOUND = 126, 127  # a shell's
# A number, an address, a time, a temporary name: a word with a digit in it, and what hangs on to it.
# From the word's beginning only: a long word without one would else be searched from each of its letters on.
_NUMBERS = r"(?<![-+.:\w])[-+.:\w]*\d[-+.:\w]*"  # compiled when a job has failed
_PLACE = r" at (\S+:\d+)$"


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
    if kind == "SystemExit" and exit_code and raised_in == _RUNPY:
        return "a module that cannot be imported"
    if exit_code == _USAGE and _is_parser(raised_in):
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
    at = re.search(_PLACE, what)
    message, place = (what, failure.place) if at is None else (what[: at.start()], at[1])
    return crc32(
        f"{failure.blamed_exit_code} {re.sub(_NUMBERS, '#', message)} {place}".encode(errors="replace")
    )


def _is_parser(path: str) -> bool:
    """Whether it is the code of a parser of arguments: of the standard library, or an installed package."""
    parts = path.split("/")
    if parts[-1] in _STANDARD_PARSERS:
        return True
    return any(
        above in _INSTALLED_IN and below.removesuffix(".py") in _INSTALLED_PARSERS
        for above, below in pairwise(parts)
    )
