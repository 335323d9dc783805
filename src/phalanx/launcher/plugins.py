"""Names of plug-ins, and how they become code. Entry points are read only when a name was given.

``phalanx.error_handlers``: name → an ``ErrorHandler`` subclass, or a callable without arguments that makes one. It is
the *agent* that reads entry points: workers get ``module:name``, because reading them costs tens of milliseconds in
each of hundreds of processes.

``phalanx.event_handlers``: name → a ``logging.Handler`` subclass, or a callable without arguments that makes one.
"""

from __future__ import annotations

import sys

from phalanx.launcher.choices import BACKENDS, EVENT_HANDLERS

__all__ = [
    "BACKENDS",
    "ERROR_HANDLERS",
    "EVENT_HANDLERS",
    "check_backend",
    "check_event_handler",
    "is_rendezvous_handler",
    "resolve_error_handler",
]

ERROR_HANDLERS = "phalanx.error_handlers"
EVENT_HANDLERS_GROUP = "phalanx.event_handlers"


def resolve_error_handler(name: str) -> str:
    """``module:name`` for workers, from the same or from the name of an entry point. Raises ``ValueError``."""
    if ":" in name:
        return name
    from importlib.metadata import entry_points

    found = entry_points(group=ERROR_HANDLERS)
    for one in found:
        if one.name == name:
            return one.value
    known = ", ".join(sorted({one.name for one in found})) or "none is installed"
    raise ValueError(f"no error handler is called {name!r} (entry points of {ERROR_HANDLERS}: {known})")


def check_event_handler(name: str) -> None:
    """Whether there is a handler of events with this name. Its code is not loaded. Raises ``ValueError``."""
    if name in EVENT_HANDLERS:
        return
    from importlib.metadata import entry_points

    installed = {one.name for one in entry_points(group=EVENT_HANDLERS_GROUP)}
    handlers = sys.modules.get("phalanx.events.handlers")  # where a program has added its own
    added = set() if handlers is None else set(handlers.handlers)
    if name not in installed | added:
        known = ", ".join(sorted({*EVENT_HANDLERS, *installed, *added}))
        raise ValueError(
            f"no handler of events is called {name!r} (there are: {known}); install a package with an entry point of "
            f"{EVENT_HANDLERS_GROUP}"
        )


def check_backend(name: str) -> None:
    """Whether nodes can meet by this name: one of ours, or of an installed plug-in. Raises ``ValueError``."""
    if name not in BACKENDS and not is_rendezvous_handler(name):
        raise ValueError(f"{name!r} is not one of {', '.join(BACKENDS)}, nor a plug-in")


def is_rendezvous_handler(name: str) -> bool:
    """Whether an installed distribution offers a rendezvous backend of this name. Its code is not loaded.

    That waits until the keeper has been forked, which is to stay small: plug-ins of torchrun import torch.
    """
    from importlib.metadata import entry_points

    from phalanx.rendezvous.registry import OUR_GROUP, TORCHRUN_GROUP

    return any(entry_points(group=group, name=name) for group in (OUR_GROUP, TORCHRUN_GROUP))
