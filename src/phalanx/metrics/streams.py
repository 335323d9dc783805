"""Which handler takes the numbers of which group. Numbers may be put from any thread."""

from __future__ import annotations

import time
import warnings

from phalanx.metrics.handlers import MetricData, MetricHandler, NullMetricHandler

__all__ = ["DEFAULT_GROUP", "MetricStream", "configure", "getStream", "publish_metric", "put_metric"]

DEFAULT_GROUP = "torchelastic"

_default: MetricHandler = NullMetricHandler()
_by_group: dict[str, MetricHandler] = {}


class MetricStream:
    """The numbers of one group, on their way to its handler.

    >>> from phalanx.metrics import ConsoleMetricHandler
    >>> MetricStream("train", ConsoleMetricHandler()).add_value("step.ms", 80)  # doctest: +ELLIPSIS
    [...][train]: step.ms=80
    """

    def __init__(self, group_name: str, handler: MetricHandler) -> None:
        self.group_name = group_name
        self.handler = handler

    def add_value(self, metric_name: str, metric_value: int) -> None:
        """Give the handler a number, with the time of now. Raises what the handler raises."""
        self.handler.emit(MetricData(time.time(), self.group_name, metric_name, metric_value))


def configure(handler: MetricHandler, group: str | None = None) -> None:
    """Let a handler take the numbers of a group, or (None) those of all groups that have none of their own.

    >>> from phalanx.metrics import NullMetricHandler
    >>> configure(NullMetricHandler(), "train")
    """
    global _default  # noqa: PLW0603 # one registry for the process, as torchelastic has
    if group is None:
        _default = handler
    else:
        _by_group[group] = handler


def getStream(group: str) -> MetricStream:  # noqa: N802 # torchelastic's name
    """Return the stream of a group, with the handler that it has at this moment.

    >>> getStream("train").group_name
    'train'
    """
    return MetricStream(group, _by_group.get(group, _default))


def put_metric(metric_name: str, metric_value: int, metric_group: str = DEFAULT_GROUP) -> None:
    """Give the handler of a group a number. Raises what the handler raises.

    >>> put_metric("step.ms", 80, "train")
    """
    getStream(metric_group).add_value(metric_name, metric_value)


def publish_metric(metric_group: str, metric_name: str, metric_value: int) -> None:
    """Do as ``put_metric``, with the group first. Deprecated, as in torchelastic.

    >>> import warnings
    >>> with warnings.catch_warnings():
    ...     warnings.simplefilter("ignore")
    ...     publish_metric("train", "step.ms", 80)
    """
    warnings.warn("publish_metric is deprecated: use put_metric", FutureWarning, stacklevel=2)
    put_metric(metric_name, metric_value, metric_group)
