"""What takes numbers that are measured: torchelastic's handlers, and the record of one number."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

__all__ = ["ConsoleMetricHandler", "MetricData", "MetricHandler", "MetricsConfig", "NullMetricHandler"]


class MetricData(NamedTuple):
    """One number. ``timestamp`` is in seconds since the epoch.

    >>> MetricData(timestamp=1.5, group_name="train", name="step.ms", value=80).value
    80
    """

    timestamp: Any
    group_name: Any
    name: Any
    value: Any


class MetricHandler(ABC):
    """Takes numbers; subclass it to send them elsewhere. ``emit`` is called in the thread that measures.

    >>> class Kept(MetricHandler):
    ...     def __init__(self):
    ...         self.all = []
    ...
    ...     def emit(self, metric_data):
    ...         self.all.append(metric_data.name)
    >>> kept = Kept()
    >>> kept.emit(MetricData(1.5, "train", "step.ms", 80))
    >>> kept.all
    ['step.ms']
    """

    @abstractmethod
    def emit(self, metric_data: MetricData) -> None:
        """Take one number. What this raises reaches the code that measures."""


class ConsoleMetricHandler(MetricHandler):
    """Prints each number as ``[<timestamp>][<group>]: <name>=<value>``.

    >>> ConsoleMetricHandler().emit(MetricData(1.5, "train", "step.ms", 80))
    [1.5][train]: step.ms=80
    """

    def emit(self, metric_data: MetricData) -> None:
        """Print it, in one write: lines of several threads do not mix."""
        time_s, group, name, value = metric_data
        print(f"[{time_s}][{group}]: {name}={value}\n", end="", flush=True)


class NullMetricHandler(MetricHandler):
    """Forgets everything; the handler of all groups until ``configure`` names another.

    >>> NullMetricHandler().emit(MetricData(1.5, "train", "step.ms", 80))
    """

    def emit(self, metric_data: MetricData) -> None:
        """Do nothing."""


class MetricsConfig:
    """Settings of ``initialize_metrics``, as texts.

    >>> MetricsConfig({"handler": "console"}).params
    {'handler': 'console'}
    """

    __slots__ = ("params",)

    def __init__(self, params: dict[str, str] | None = None) -> None:
        self.params: dict[str, str] = params or {}
