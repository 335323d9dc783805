"""Errors of workers: recording them where they happen, and reading them where they are reported.

On the worker's side ``record``, ``ErrorHandler``, ``get_error_handler`` and ``set_error_handler`` write torchelastic's
error file; on the agent's side ``read_error_file``, ``ProcessFailure`` and ``ChildFailedError`` read and report it.
``boot_file`` names the program through which scripts are captured unchanged. Importing this package imports nothing
else: each name is loaded when it is first used.

Exceptions: ``ChildFailedError`` (some workers of a group failed). Reading an error file raises nothing.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.errors._failure import ChildFailedError as ChildFailedError
    from phalanx.errors._failure import ProcessFailure as ProcessFailure
    from phalanx.errors._handler import ErrorHandler as ErrorHandler
    from phalanx.errors._handler import get_error_handler as get_error_handler
    from phalanx.errors._handler import set_error_handler as set_error_handler
    from phalanx.errors._reading import ErrorRecord as ErrorRecord
    from phalanx.errors._reading import read_error_file as read_error_file
    from phalanx.errors._record import record as record

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.errors._failure": "ChildFailedError ProcessFailure",
        "phalanx.errors._handler": "ErrorHandler get_error_handler set_error_handler",
        "phalanx.errors._reading": "ErrorRecord read_error_file",
        "phalanx.errors._record": "record",
    },
    own="boot_file",
)


def boot_file() -> str:
    """The path of the program to start a Python worker with: ``python -u <boot_file()> script.py args…``.

    >>> boot_file().endswith("/phalanx/errors/boot.py")
    True
    """
    return __file__.rpartition("/")[0] + "/boot.py"
