"""Where torchelastic's events go: names, and the logging handlers behind them.

A program adds its own with ``add_handler``, or takes the place of one; torchelastic's name for ``handlers`` is
``_log_handlers``. A name that is not in it may be an entry point of ``phalanx.event_handlers``, so that an installed
package can offer one to the command line.
"""

from __future__ import annotations

import logging

__all__ = [
    "ENTRY_POINTS",
    "UnknownDestination",
    "add_handler",
    "get_logging_handler",
    "handlers",
    "known_destinations",
]

ENTRY_POINTS = "phalanx.event_handlers"

handlers: dict[str, logging.Handler] = {
    "console": logging.StreamHandler(),
    "dynamic_rendezvous": logging.NullHandler(),
    "null": logging.NullHandler(),
}
"""By name; a change is heard at once. ``add_handler`` looks at what is put into it."""


class UnknownDestination(KeyError):
    """No handler has this name; the text says which there are. A ``KeyError``, as torchelastic raises.

    >>> print(UnknownDestination("no handler of events is called 'nowhere'"))
    no handler of events is called 'nowhere'
    """

    def __str__(self) -> str:
        return str(self.args[0])


def add_handler(name: str, handler: logging.Handler) -> None:
    """Send what is recorded for ``name`` to this handler from now on; one that had the name is replaced, not closed.

    For ``record``, for ``launch_agent`` and for ``event_log_handler`` of a job in this program. Raises ``TypeError``
    for what is no ``logging.Handler``.

    >>> import io, logging
    >>> from phalanx import events
    >>> text = io.StringIO()
    >>> events.add_handler("text", logging.StreamHandler(text))
    >>> events.record(events.Event("data.ready", events.EventSource.AGENT), "text")
    >>> text.getvalue()[:24]
    '{"name": "data.ready", "'
    """
    if not isinstance(handler, logging.Handler):
        raise TypeError(f"the handler of events {name!r} is to be a logging.Handler, not {handler!r}")
    handlers[name] = handler


def get_logging_handler(destination: str = "null") -> logging.Handler:
    """The handler with this name; an entry point is called for it once. Raises ``UnknownDestination``.

    >>> get_logging_handler("null").level
    0
    """
    if destination in handlers:
        return handlers[destination]
    from importlib.metadata import entry_points

    for one in entry_points(group=ENTRY_POINTS, name=destination):
        handler = one.load()()
        if not isinstance(handler, logging.Handler):
            raise UnknownDestination(
                f"{one.value}, the handler of events {destination!r}, makes a {type(handler).__name__} and no "
                "logging.Handler"
            )
        return handlers.setdefault(destination, handler)
    raise UnknownDestination(
        f"no handler of events is called {destination!r}; there are {', '.join(known_destinations())} "
        f"(a package can add one by an entry point of {ENTRY_POINTS}, a program by phalanx.events.add_handler)"
    )


def known_destinations() -> list[str]:
    """The names that ``get_logging_handler`` knows.

    >>> known_destinations()[0]
    'console'
    """
    from importlib.metadata import entry_points

    return sorted({*handlers, *(one.name for one in entry_points(group=ENTRY_POINTS))})
