"""The ``record`` decorator: for functions whose failure is to be recorded where no boot file does it.

A script that Phalanx started needs it no more; in one that has it, nothing is written twice.
"""

from __future__ import annotations

from functools import wraps

from ._handler import ErrorHandler, get_error_handler, hand_over

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, ParamSpec, TypeVar, overload

    P = ParamSpec("P")
    R = TypeVar("R")
else:

    def overload(function):
        """Stand in for typing's at run time."""
        return function


__all__ = ["record"]


@overload
def record(fn: Callable[P, R], error_handler: ErrorHandler | None = None) -> Callable[P, R | None]: ...
@overload
def record(  # noqa: F811
    fn: None = None, error_handler: ErrorHandler | None = None
) -> Callable[[Callable[P, R]], Callable[P, R | None]]: ...
def record(  # noqa: F811 # overloads, with a stand-in for typing's decorator
    fn: Callable[..., Any] | None = None, error_handler: ErrorHandler | None = None
) -> Any:
    """Decorate the main function of a worker: its uncaught exception is written to the worker's error file.

    Bare (``@record``) or with a handler (``@record(error_handler=mine)``); the default is the handler of this process
    at the time of the call. Exceptions are re-raised unchanged. ``SystemExit`` with 0 or None is a normal end: the call
    returns None. A ``ChildFailedError`` passes the error file of the first failed child up instead of its own
    traceback. Semantics: torchelastic's ``record``, which records neither ``SystemExit`` nor ``KeyboardInterrupt``.

    >>> @record
    ... def main() -> int:
    ...     return 3
    >>> main()
    3
    """
    if fn is None:
        return lambda function: record(function, error_handler)

    @wraps(fn)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        handler = error_handler or get_error_handler()
        handler.initialize()
        handler.set_entrypoint_fn_name(getattr(fn, "__qualname__", repr(fn)))
        try:
            result = fn(*args, **kwargs)
        except SystemExit as leaving:
            if leaving.code is not None and leaving.code != 0:
                hand_over(leaving, handler)
                raise
            result = None
        except BaseException as failure:
            hand_over(failure, handler)
            raise
        handler.record_success()
        return result

    return recorded
