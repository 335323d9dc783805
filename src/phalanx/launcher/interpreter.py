"""The Python that runs the workers: which one, whether it can, and whether it is the one that its user has in mind.

Paths are compared and nothing is run: this is part of each start.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

__all__ = ["PYTHON", "interpreter", "mix_up", "why_not"]

PYTHON = "PYTHON_EXEC"  # torchrun's name for the workers' interpreter


def interpreter(given: str | None, environ: Mapping[str, str]) -> str:
    """The workers' interpreter: the one that was given, else ``PYTHON_EXEC``, else the one that runs this."""
    return given or environ.get(PYTHON) or sys.executable


def why_not(python: str, environ: Mapping[str, str]) -> str | None:
    """Why that cannot be an interpreter, as the rest of a sentence; None if it can.

    ``environ`` is the workers': a name without a slash is looked for on its PATH.
    """
    if os.path.dirname(python):
        candidates = [python]
    else:
        candidates = [os.path.join(folder, python) for folder in os.get_exec_path(environ)]
    existing = [path for path in candidates if os.path.exists(path)]
    if not existing:
        where = "" if os.path.dirname(python) else " on PATH"
        return f"there is no {python!r}{where}; give the path of a Python interpreter"
    if not any(os.path.isfile(path) and os.access(path, os.X_OK) for path in existing):
        what = "a folder" if os.path.isdir(existing[0]) else "not executable"
        return f"{existing[0]!r} is {what}; give the path of a Python interpreter, such as /usr/bin/python3"
    return None


def mix_up(python: str, environ: Mapping[str, str]) -> str | None:
    """A warning, if the environment that is active has another interpreter than ``python``; else None.

    Conda's base is active in every shell of many users, and means nothing; and an environment without a Python has none
    to mix up.
    """
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if prefix := environ.get(variable):
            break
    else:
        return None
    if variable == "CONDA_PREFIX" and environ.get("CONDA_DEFAULT_ENV") == "base":
        return None
    its_own = os.path.join(prefix, "bin", "python")
    if not os.path.exists(its_own) or _prefix_of(python) == os.path.realpath(prefix):
        return None
    return (
        f"the active environment is {prefix} ({variable}), and workers will run {python}, which has packages "
        f"of its own; say --python {its_own}, or install phalanx there"
    )


def _prefix_of(python: str) -> str:
    # The file itself is not followed: in a virtual environment it is a link to the interpreter that made it.
    return os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(python))))
