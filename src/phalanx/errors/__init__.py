"""Errors of workers: recording them where they happen, and reading them where they are reported.

On the worker's side ``record``, ``ErrorHandler``, ``get_error_handler`` and ``set_error_handler`` write torchelastic's
error file; on the agent's side ``read_error_file``, ``ProcessFailure`` and ``ChildFailedError`` read and report it.
``boot_file`` names the program through which scripts are captured unchanged. Importing this package imports nothing
else: each name is loaded when it is first used.

Exceptions: ``ChildFailedError`` (some workers of a group failed). Reading an error file raises nothing.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from ._failure import ChildFailedError, ProcessFailure
    from ._handler import ErrorHandler, get_error_handler, set_error_handler
    from ._reading import ErrorRecord, read_error_file
    from ._record import record

__all__ = [
    "ChildFailedError",
    "ErrorHandler",
    "ErrorRecord",
    "ProcessFailure",
    "boot_file",
    "get_error_handler",
    "read_error_file",
    "record",
    "set_error_handler",
]

_HOME = {
    "ChildFailedError": "_failure",
    "ErrorHandler": "_handler",
    "ErrorRecord": "_reading",
    "ProcessFailure": "_failure",
    "get_error_handler": "_handler",
    "read_error_file": "_reading",
    "record": "_record",
    "set_error_handler": "_handler",
}


def boot_file() -> str:
    """The path of the program to start a Python worker with: ``python -u <boot_file()> script.py args…``.

    >>> boot_file().endswith("/phalanx/errors/boot.py")
    True
    """
    return __file__.rpartition("/")[0] + "/boot.py"


def __getattr__(name: str) -> object:
    try:
        home = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    from importlib import import_module

    value = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
