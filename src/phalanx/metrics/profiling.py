"""Decorators that count the calls of a function and measure how long they took."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable
from typing import Any, TypeVar, overload

from phalanx.metrics.streams import DEFAULT_GROUP, put_metric

__all__ = ["get_elapsed_time_ms", "prof", "profile"]

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


@overload
def prof(fn: AnyFunction, group: str = ...) -> AnyFunction: ...


@overload
def prof(fn: None = ..., group: str = ...) -> Callable[[AnyFunction], AnyFunction]: ...


def prof(fn: Any = None, group: str = DEFAULT_GROUP) -> Any:
    """Put ``<qualified name>.success`` or ``.failure`` (1), and ``.duration.ms``, for each call of a function.

    With parentheses or without. What the function raises is raised on.

    >>> @prof
    ... def step():
    ...     return 3
    >>> step()
    3
    """
    if fn is None:
        return functools.partial(prof, group=group)
    return _measured(fn, fn.__qualname__, group)


def profile(group: Any = None) -> Callable[[AnyFunction], AnyFunction]:
    """Do as ``prof``, with the function's plain name. Deprecated, as in torchelastic.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     profile("train")(abs)(-3)
    3
    """
    warnings.warn("profile is deprecated: use prof", FutureWarning, stacklevel=2)
    return lambda fn: _measured(fn, fn.__name__, group)


def get_elapsed_time_ms(start_time_in_seconds: float) -> int:
    """Return the whole milliseconds since a time of ``time.time()``.

    >>> import time
    >>> get_elapsed_time_ms(time.time() - 2) >= 1999
    True
    """
    return int((time.time() - start_time_in_seconds) * 1000)


def _measured(fn: AnyFunction, name: str, group: Any) -> AnyFunction:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started_at = time.monotonic()
        end = "failure"
        try:
            result = fn(*args, **kwargs)
            end = "success"
        finally:
            # Measured by the clock that nobody sets; torchelastic takes the one that NTP moves.
            took_ms = int((time.monotonic() - started_at) * 1000)
            put_metric(f"{name}.{end}", 1, group)
            put_metric(f"{name}.duration.ms", took_ms, group)
        return result

    return wrapper  # type: ignore[return-value]  # what wraps a function is called as it is
