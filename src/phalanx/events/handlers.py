"""Where torchelastic's events go: names, and the logging handlers behind them.

``_log_handlers`` is torchelastic's: a program adds its own to it, or takes the place of one. A name that is not in it
may be an entry point of ``phalanx.event_handlers``, so that an installed package can offer one to the command line.
"""

from __future__ import annotations

import logging

__all__ = ["ENTRY_POINTS", "UnknownDestination", "get_logging_handler", "known_destinations"]

ENTRY_POINTS = "phalanx.event_handlers"

_log_handlers: dict[str, logging.Handler] = {
    "console": logging.StreamHandler(),
    "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler(),
}


class UnknownDestination(KeyError):
    """No handler has this name; the text says which there are. A ``KeyError``, as torchelastic raises.

    >>> print(UnknownDestination("no handler of events is called 'nowhere'"))
    no handler of events is called 'nowhere'
    """

    def __str__(self) -> str:
        return str(self.args[0])


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """The handler with this name; an entry point is called for it once. Raises ``UnknownDestination``.

    >>> get_logging_handler("null").level
    0
    """
    if destination in _log_handlers:
        return _log_handlers[destination]
    from importlib.metadata import entry_points

    for one in entry_points(group=ENTRY_POINTS, name=destination):
        handler = one.load()()
        if not isinstance(handler, logging.Handler):
            raise UnknownDestination(
                f"{one.value}, the handler of events {destination!r}, makes a {type(handler).__name__} and no "
                "logging.Handler"
            )
        return _log_handlers.setdefault(destination, handler)
    raise UnknownDestination(
        f"no handler of events is called {destination!r}; there are {', '.join(known_destinations())} "
        f"(a package can add one by an entry point of {ENTRY_POINTS}, a program to phalanx.events.handlers)"
    )


def known_destinations() -> list[str]:
    """The names that ``get_logging_handler`` knows.

    >>> known_destinations()[0]
    'console'
    """
    from importlib.metadata import entry_points

    return sorted({*_log_handlers, *(one.name for one in entry_points(group=ENTRY_POINTS))})
