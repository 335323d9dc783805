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
    """Put ``<name>.success`` or ``.failure`` (1), and ``<name>.duration.ms``, for each call of a function.

    With parentheses or without. The name is the qualified one; of a function of a module it is ``module.function``,
    without the packages around the module. What the function raises is raised on; it is a failure if it is an
    ``Exception``: who leaves by ``SystemExit`` or ``KeyboardInterrupt`` has neither failed nor succeeded.

    >>> @prof
    ... def step():
    ...     return 3
    >>> step()
    3
    """
    if fn is None:
        return functools.partial(prof, group=group)
    name = fn.__qualname__
    if "." not in name:
        name = f"{fn.__module__.rpartition('.')[2]}.{name}"
    return _measured(fn, name, group)


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
        try:
            result = fn(*args, **kwargs)
        except Exception:
            put_metric(f"{name}.failure", 1, group)
            raise
        else:
            put_metric(f"{name}.success", 1, group)
            return result
        finally:
            # Measured by the clock that nobody sets; torchelastic takes the one that NTP moves.
            put_metric(f"{name}.duration.ms", int((time.monotonic() - started_at) * 1000), group)

    return wrapper  # type: ignore[return-value]  # what wraps a function is called as it is
