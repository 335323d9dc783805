"""Whose messages these are: in a program that has not set up logging, the name of the logger is not printed."""

from __future__ import annotations

import logging

__all__ = ["log"]

log = logging.getLogger("phalanx.checkpoint")


class _WithOrigin(logging.Filter):
    """Where no handler is, Python prints the bare text of warnings; a training's output has many such lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not log.hasHandlers():
            record.msg = f"phalanx: checkpoints: {record.msg}"
        return True


log.addFilter(_WithOrigin())
