"""Phalanx: an elastic launcher and supervisor for distributed jobs.

For training scripts, all of it optional (a script needs no change to be launched): ``record``, ``progress``,
``should_stop``, ``exclude_node``. Importing this package imports nothing else; each name is loaded when it is used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.errors import record
    from phalanx.errors.channel import NoAgent, checkpoint_done, exclude_node, progress, should_stop, values

__all__ = ["NoAgent", "checkpoint_done", "exclude_node", "progress", "record", "should_stop", "values"]

_CHANNEL = ("NoAgent", "checkpoint_done", "exclude_node", "progress", "should_stop", "values")


def __getattr__(name: str) -> object:
    if name == "record":
        from phalanx.errors import record as found
    elif name in _CHANNEL:
        from phalanx.errors import channel

        found = getattr(channel, name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
