"""torch's own names for programs that import them: ``torch.distributed.elastic`` and its kin resolve to Phalanx.

Three ways: ``install()`` in the program; ``PHALANX_COMPAT=1`` in the environment of a program that cannot be edited;
``python -m phalanx.compat script.py args…``. torch itself is imported by none of them, and need not be installed;
everything of torch but these modules stays torch's. The page ``docs/torch-names.md`` says what holds when.
"""

from __future__ import annotations

import os
import sys

__all__ = ["install", "is_asked_for", "is_installed", "uninstall"]

VARIABLE = "PHALANX_COMPAT"


def install() -> None:
    """Let ``torch.distributed.elastic``, ``.launcher``, ``.run``, ``.launch`` and ``.argparse_util`` be Phalanx's.

    From here on, in this process and in those that it starts: it sets ``PHALANX_COMPAT=1``. What was imported from
    torch's modules before stays torch's where it is bound already. A second call does nothing. Raises nothing.

    >>> import phalanx.compat
    >>> phalanx.compat.install()
    >>> from torch.distributed.elastic.multiprocessing.errors import record
    >>> record.__module__
    'phalanx.errors._record'
    >>> phalanx.compat.uninstall()
    """
    os.environ[VARIABLE] = "1"
    if not is_installed():
        from phalanx.compat.finders import enter

        enter()


def uninstall() -> None:
    """Undo ``install()`` in this process and for those that it starts from now on; meant for tests.

    >>> import phalanx.compat
    >>> phalanx.compat.install()
    >>> phalanx.compat.uninstall()
    >>> phalanx.compat.is_installed()
    False
    """
    os.environ.pop(VARIABLE, None)
    if is_installed():
        from phalanx.compat.finders import leave

        leave()


def is_installed() -> bool:
    """Whether torch's names resolve to Phalanx in this process.

    >>> import phalanx.compat
    >>> phalanx.compat.install()
    >>> phalanx.compat.is_installed()
    True
    >>> phalanx.compat.uninstall()
    """
    finders = sys.modules.get("phalanx.compat.finders")
    return finders is not None and finders.is_entered()


def is_asked_for() -> bool:
    """Whether the environment asks for it: ``PHALANX_COMPAT`` is set, and neither empty nor ``0``.

    >>> import os
    >>> import phalanx.compat
    >>> os.environ["PHALANX_COMPAT"] = "0"
    >>> phalanx.compat.is_asked_for()
    False
    >>> del os.environ["PHALANX_COMPAT"]
    """
    return os.environ.get(VARIABLE, "0") not in ("", "0")
