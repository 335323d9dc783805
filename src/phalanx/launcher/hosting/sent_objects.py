"""Objects that a program gives the agent that it hosts: pickled into a file without a name, which the agent opens.

The agent is a child of the program and runs the same code, so nothing here comes from elsewhere. It reads them when
its keeper has been forked, which is to stay small.
"""

from __future__ import annotations

import io
import pickle
import sys
from typing import TYPE_CHECKING, Any, cast

from phalanx.multiprocessing.nameless import NamelessFile

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from phalanx.multiprocessing.logs import LogsSpecs

__all__ = ["NotSent", "register_sent", "send", "sent_logs"]


class NotSent(Exception):  # no error of the user's: the agent runs elsewhere then
    """An object cannot be given to the agent; the text says why."""


def send(value: object, *, by_value: bool = True) -> NamelessFile:
    """A file with the object, the caller's to keep while the agent runs. Raises ``NotSent``.

    That is so without cloudpickle, too: what ``__main__`` defines has no name that the agent could import. Without
    ``by_value`` it is not needed: for plain data.
    """
    from phalanx.functions.pickling import dump

    buffer = io.BytesIO()
    try:
        dump([str(one) for one in sys.path], buffer, by_value=False)
        dump(value, buffer, by_value=by_value)
    except ModuleNotFoundError as missing:
        raise NotSent(f"{missing.name} is not installed") from None
    except Exception as reason:  # the user's classes; a lock or a socket in them is no mistake
        raise NotSent(f"{type(reason).__name__}: {reason}") from reason
    file = NamelessFile("phalanx-object")
    try:
        file.write(buffer.getvalue())
    except BaseException:
        file.close()
        raise
    if file.path:
        return file
    file.close()
    raise NotSent("this system has no files without a name")


def receive(path: str) -> Any:
    """The object of a file. What it imports is found where the program finds it. Raises what unpickling raises."""
    with open(path, "rb") as file:
        for folder in pickle.load(file):
            if folder not in sys.path:
                sys.path.append(folder)
        return pickle.load(file)


def register_sent(path: str, backend: str) -> dict[str, Any]:
    """Register a creator of rendezvous handlers here, as the program has it; return the settings that it gets.

    Without a creator the backend is a plug-in's, which is found here as it would be there.
    """
    from phalanx.rendezvous.registry import rendezvous_handler_registry

    creator, settings = receive(path)
    if creator is not None:
        rendezvous_handler_registry.register(backend, creator)
    return dict(settings)


def sent_logs(path: str) -> LogsSpecs:
    """What stands for the object that lays out the logs, in the way of a log plug-in that is not loaded yet."""
    from phalanx.launcher.log_plugins import PluggedLogs
    from phalanx.multiprocessing.std import Std

    return PluggedLogs(cast("EntryPoint", _SentEntry(path)), None, Std.NONE, Std.NONE, None)


class _SentEntry:
    """An entry point whose class makes the object that was sent."""

    name = "logs_specs"
    value = "given by the program"

    def __init__(self, path: str) -> None:
        self._path = path

    def load(self) -> Any:
        """Read the object; what is returned takes a plug-in's arguments, and has no use for them."""
        specs = receive(self._path)
        return lambda **_settings: specs
