"""Numbers that a program measures, and where they go: torchelastic's names.

Nothing goes anywhere until ``configure`` names a handler. What a job's agent measures is in docs/elastic-api.md.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from phalanx.metrics.handlers import (
        ConsoleMetricHandler,
        MetricData,
        MetricHandler,
        MetricsConfig,
        NullMetricHandler,
    )
    from phalanx.metrics.profiling import get_elapsed_time_ms, prof, profile
    from phalanx.metrics.streams import MetricStream, configure, getStream, publish_metric, put_metric

__all__ = [
    "ConsoleMetricHandler",
    "MetricData",
    "MetricHandler",
    "MetricStream",
    "MetricsConfig",
    "NullMetricHandler",
    "configure",
    "getStream",
    "get_elapsed_time_ms",
    "initialize_metrics",
    "prof",
    "profile",
    "publish_metric",
    "put_metric",
]

_STREAMS = ("MetricStream", "configure", "getStream", "publish_metric", "put_metric")
_PROFILING = ("get_elapsed_time_ms", "prof", "profile")


def initialize_metrics(cfg: MetricsConfig | None = None) -> None:
    """Configure the handler that ``cfg.params["handler"]`` names: ``console`` or ``null``; without one do nothing.

    torchelastic's does nothing at all: it is a place for vendors. Raises ``ValueError`` for another name.

    >>> from phalanx.metrics import MetricsConfig
    >>> initialize_metrics(MetricsConfig({"handler": "null"}))
    """
    name = None if cfg is None else cfg.params.get("handler")
    if name is None:
        return
    from phalanx.metrics.handlers import ConsoleMetricHandler, NullMetricHandler
    from phalanx.metrics.streams import configure

    handlers = {"console": ConsoleMetricHandler, "null": NullMetricHandler}
    if name not in handlers:
        raise ValueError(f"no metric handler is called {name!r}; there are console and null")
    configure(handlers[name]())


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = "streams" if name in _STREAMS else "profiling" if name in _PROFILING else "handlers"
    found: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
