"""Numbers that a program measures, and where they go: torchelastic's names.

Nothing goes anywhere until ``configure`` names a handler. What a job's agent measures is in docs/elastic-api.md.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.metrics.handlers import ConsoleMetricHandler as ConsoleMetricHandler
    from phalanx.metrics.handlers import MetricData as MetricData
    from phalanx.metrics.handlers import MetricHandler as MetricHandler
    from phalanx.metrics.handlers import MetricsConfig as MetricsConfig
    from phalanx.metrics.handlers import NullMetricHandler as NullMetricHandler
    from phalanx.metrics.profiling import get_elapsed_time_ms as get_elapsed_time_ms
    from phalanx.metrics.profiling import prof as prof
    from phalanx.metrics.profiling import profile as profile
    from phalanx.metrics.streams import MetricStream as MetricStream
    from phalanx.metrics.streams import configure as configure
    from phalanx.metrics.streams import getStream as getStream
    from phalanx.metrics.streams import publish_metric as publish_metric
    from phalanx.metrics.streams import put_metric as put_metric

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.metrics.handlers": (
            "ConsoleMetricHandler MetricData MetricHandler MetricsConfig NullMetricHandler"
        ),
        "phalanx.metrics.profiling": "get_elapsed_time_ms prof profile",
        "phalanx.metrics.streams": "MetricStream configure getStream publish_metric put_metric",
    },
    own="initialize_metrics",
)


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
