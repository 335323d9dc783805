"""Loggers whose level is the environment variable ``LOGLEVEL``: torchelastic's two functions."""

from __future__ import annotations

import logging
import os
import sys

__all__ = ["get_log_level", "get_logger"]


def get_log_level() -> str:
    """Return the level of loggers that do not read ``LOGLEVEL``, torchelastic's default.

    >>> get_log_level()
    'WARNING'
    """
    return "WARNING"


def get_logger(name: str | None = None) -> logging.Logger:
    """Return the logger of a name, by default of the calling module, with the level of ``LOGLEVEL`` or ``WARNING``.

    The logger gets no handler: where records go is the program's choice. Raises ``ValueError`` for a level that
    ``logging`` does not know.

    >>> get_logger("train").name
    'train'
    """
    if name is None:
        name = str(sys._getframe(1).f_globals.get("__name__", "__main__"))
    logger = logging.getLogger(name)
    logger.setLevel(os.environ.get("LOGLEVEL", get_log_level()).upper())
    return logger
