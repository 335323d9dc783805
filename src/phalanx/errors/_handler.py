"""The error handler: what is done with a worker's exception, and the two ways to put another one in its place.

A handler is chosen by ``set_error_handler``, else by ``PHALANX_ERROR_HANDLER=module:name`` (the agent resolves entry
points and sets it), else it is ``ErrorHandler``. Recording never raises: it ends a process that has a better reason.
"""

from __future__ import annotations

import os
import sys

from ._description import clean, clip, describe, label
from ._writing import encode, write_atomically

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

__all__ = ["ErrorHandler", "get_error_handler", "hand_over", "set_error_handler"]

_MAX_FILE = 1024 * 1024  # bytes; agents read it, and send a part of it to others
_ROOMS = (128 * 1024, 16 * 1024, 2 * 1024)  # characters of the traceback, from the first that fits
_MARK = "__phalanx_recorded__"  # on an exception: (pid, error file), so that nested recorders write it once
_HANDLER = "PHALANX_ERROR_HANDLER"


class ErrorHandler:
    """Writes uncaught exceptions to the file that ``TORCHELASTIC_ERROR_FILE`` names, in torchelastic's JSON format.

    Meant to be subclassed; the methods are torchelastic's. A subclass that only wants to hear of failures overrides
    ``record_exception`` and calls ``super()``. Without the variable nothing is written.

    >>> class Telling(ErrorHandler):
    ...     def record_exception(self, e):
    ...         print(f"{type(e).__name__} in this worker")
    ...         super().record_exception(e)
    >>> Telling().record_exception(ValueError("bad batch"))
    ValueError in this worker
    """

    def __init__(self) -> None:
        self.entrypoint: str | None = None
        self._pid: int | None = None

    def _get_error_file_path(self) -> str | None:
        """The path to write to, None or empty for no file. Override to write elsewhere."""
        return os.environ.get("TORCHELASTIC_ERROR_FILE")

    def initialize(self) -> None:
        """Called once before the code whose failures are recorded; native crashes are written to stderr from then on.

        From here on only this process is recorded: a forked child that comes along with the same handler is not the
        worker, and its exception is not the worker's.
        """
        self._pid = os.getpid()
        import faulthandler

        try:
            if not faulthandler.is_enabled():
                faulthandler.enable()
        except (OSError, RuntimeError, ValueError, AttributeError):
            pass  # no usable stderr

    def set_entrypoint_fn_name(self, name: str) -> None:
        """Told by ``record`` which function it wraps. The base keeps it as ``entrypoint``."""
        self.entrypoint = name

    def record_success(self) -> None:
        """Called by ``record`` when the function has come to a normal end. The base does nothing."""

    def record_exception(self, e: BaseException) -> None:
        """Write ``e`` to the error file and tell the agent at once. Never raises; the same exception is written once.

        The main thread's exception replaces a thread's, and names it as ``earlier``; a second thread's does not. An
        exit that follows from a recorded exception leaves that one standing.
        """
        if self._pid not in (None, os.getpid()):
            return
        path = self._get_error_file_path() or None
        if not _marked(e, path):
            _record(e, path)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Copy a child's error file to this process's own, with ``error_code`` put in. Never raises.

        ``error_code`` 0 leaves the data as it is: a child cannot know its own code when a signal ends it, so its
        parent tells it. Source: torchelastic's ``dump_error_file``.
        """
        from ._reading import read_error_file

        path = self._get_error_file_path()
        if not path:
            return
        record = read_error_file(rootcause_error_file)
        data = record.data
        if error_code and record.problem is None:
            self.override_error_code_in_rootcause_data(rootcause_error_file, data, error_code)
        try:
            import json

            write_atomically(path, json.dumps(data).encode("ascii"))
        except (OSError, ValueError, RecursionError) as problem:
            _complain(path, problem)

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Put ``error_code`` into the data of ``rootcause_error_file``; the short format has no place for it."""
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code

    def maybe_enrich_signal_failure_message(self, message: str, *, pid: int, exitcode: int) -> str:
        """The agent's sentence about a worker that a signal ended; a subclass may know more about why."""
        return message


_chosen: ErrorHandler | None = None
_default: ErrorHandler | None = None


def set_error_handler(handler: ErrorHandler | None) -> None:
    """Use ``handler`` from now on in this process; None goes back to the one that the environment names.

    >>> mine = ErrorHandler()
    >>> set_error_handler(mine)
    >>> get_error_handler() is mine
    True
    >>> set_error_handler(None)
    """
    global _chosen  # noqa: PLW0603 # there is one per process
    _chosen = handler


def get_error_handler() -> ErrorHandler:
    """The handler of this process, the same object each time. Never raises.

    A handler named by the environment that cannot be loaded is one line on stderr, and the default takes its place.

    >>> get_error_handler() is get_error_handler()
    True
    """
    global _default  # noqa: PLW0603 # there is one per process
    if _chosen is not None:
        return _chosen
    if _default is None:
        named = os.environ.get(_HANDLER)
        _default = (_load(named) if named else None) or ErrorHandler()
    return _default


def hand_over(failure: BaseException, handler: ErrorHandler) -> None:
    """Have ``handler`` record ``failure``, or pass up the file of the child whose failure it stands for.

    Never raises, whatever a subclass does. A child's failure is asked for by name: it may be torch's own class.
    """
    try:
        first = getattr(failure, "get_first_failure", None)
        if first is not None:
            child = first()[1]
            if os.path.isfile(child.error_file):
                handler.dump_error_file(child.error_file, child.exitcode)
                _marked(failure, handler._get_error_file_path() or None)
                return
        handler.record_exception(failure)
    except BaseException as problem:  # noqa: BLE001 # a border: a plug-in, or an exception that is one
        _say(f"the error handler failed: {label(problem, 500)}")


def _marked(failure: BaseException, path: str | None) -> bool:
    """Mark ``failure`` as recorded by this process in ``path``; whether it was marked so before."""
    mark = (os.getpid(), path)
    try:
        if getattr(failure, _MARK, None) == mark:
            return True
        failure.__dict__[_MARK] = mark
    except BaseException:  # noqa: BLE001 # user code
        pass  # an exception with a hostile __getattr__; at worst it is written twice
    return False


def _load(named: str) -> ErrorHandler | None:
    module, _, name = named.partition(":")
    try:
        from importlib import import_module

        target: Any = import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
        handler = target() if callable(target) else target
        if not callable(getattr(handler, "record_exception", None)):
            raise TypeError(f"it is a {type(handler).__name__} without record_exception()")
    except BaseException as problem:  # noqa: BLE001 # a border: plug-in load
        _say(f"cannot load the error handler {named!r}: {label(problem, 500)}; the default one is used")
        return None
    return handler  # type: ignore[no-any-return] # a plug-in: the duck was asked


def _record(failure: BaseException, path: str | None) -> None:
    try:
        thread = _thread_name()
        earlier = _written_by_this_process(path) if path else None
        if earlier is None or (thread is None and not _follows(failure, earlier)):
            data, problem = _write(failure, path, thread, earlier)
            _notify(data["message"], path if problem is None else None)
    except BaseException as problem:  # noqa: BLE001 # the last border: the process is dying of something better
        _complain(path or "", problem)


def _write(
    failure: BaseException, path: str | None, thread: str | None, earlier: Mapping[str, Any] | None
) -> tuple[dict[str, Any], Exception | None]:
    """Write the largest description that fits; returns it, and why it could not be written."""
    problem: Exception | None = None
    data: dict[str, Any] = {}
    for room in _ROOMS:
        data = describe(failure, thread=thread, room=room)
        if earlier is not None:
            data["message"]["extraInfo"]["earlier"] = _summary(earlier, room)
        content = encode(data).encode("ascii")
        if len(content) > _MAX_FILE:
            continue
        try:
            if path:
                write_atomically(path, content)
            return data, None
        except OSError as error:  # a full disk, or a limit, may still take the small one
            problem = error
    if problem is not None:
        _complain(path or "", problem)
    return data, problem


def _notify(message: Mapping[str, Any], path: str | None) -> None:
    if os.environ.get("PHALANX_AGENT"):
        from .channel import exception_recorded

        exception_recorded(message["extraInfo"], message["message"], path)


def _summary(earlier: Mapping[str, Any], room: int) -> dict[str, Any]:
    info = earlier["extraInfo"]
    return {
        "message": clip(str(earlier["message"]), room // 16),
        "thread": info.get("thread"),
        "py_callstack": clip(str(info.get("py_callstack")), room // 2),
        "wall_ns": info.get("wall_ns"),
        "monotonic_ns": info.get("monotonic_ns"),
    }


def _written_by_this_process(path: str) -> dict[str, Any] | None:
    """The ``message`` part of what this process wrote to ``path`` before, if it did."""
    if not os.path.isfile(path):
        return None
    try:
        import json

        with open(path, encoding="utf-8") as file:
            message: dict[str, Any] = json.load(file)["message"]
        info = message["extraInfo"]
        return message if info["pid"] == os.getpid() and info["host"] == clean(os.uname().nodename) else None
    except Exception:  # noqa: BLE001 # whatever is there, it is not ours
        return None


def _follows(failure: BaseException, earlier: Mapping[str, Any]) -> bool:
    """Whether ``failure`` is an exit in consequence of what was recorded ``earlier``."""
    if not isinstance(failure, SystemExit):
        return False
    if earlier["extraInfo"].get("thread") is not None:
        return True
    context = failure.__context__
    for _ in range(100):
        if context is None:
            return False
        if getattr(context, _MARK, None) is not None:
            return True
        context = context.__context__
    return False


def _thread_name() -> str | None:
    threading = sys.modules.get("threading")
    try:
        if threading is None or threading.get_ident() == threading.main_thread().ident:
            return None
        return clip(clean(str(threading.current_thread().name)), 200)
    except Exception:  # noqa: BLE001 # whatever is there, it is not ours
        return None


def _complain(path: str, problem: BaseException) -> None:
    reason = problem.strerror if isinstance(problem, OSError) and problem.strerror else label(problem, 500)
    _say(f"could not write the error file {path!r}: {reason}")


def _say(sentence: str) -> None:
    try:  # noqa: SIM105
        print(clean(f"phalanx: {sentence}"), file=sys.stderr)
    except BaseException:  # noqa: BLE001
        pass  # there is nobody left to tell
