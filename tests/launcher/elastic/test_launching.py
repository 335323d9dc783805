"""What the program of an ``elastic_launch`` has made itself: handlers that raise, configurations that say nonsense."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from phalanx.launcher import LaunchConfig, elastic_launch
from phalanx.metrics import MetricData, MetricHandler, NullMetricHandler, configure


def a_config(**changes: Any) -> LaunchConfig:
    settings: dict[str, Any] = {"run_id": "job", "rdzv_backend": "c10d", "max_restarts": 0}
    return LaunchConfig(1, 1, 2, **{**settings, **changes})


class Raises(MetricHandler):
    def emit(self, metric_data: MetricData) -> None:
        raise RuntimeError("the handler's own fault")


class RaisesToo(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError("the handler's own fault")


@pytest.mark.system
@pytest.mark.parametrize("which", ["metrics", "events"])
def test_a_handler_that_raises_costs_one_warning_and_no_result(
    which: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from phalanx.events import handlers

    monkeypatch.setitem(handlers.handlers, "raises", RaisesToo())
    configure(Raises() if which == "metrics" else NullMetricHandler())
    try:
        handler = "raises" if which == "events" else "null"
        assert elastic_launch(a_config(event_log_handler=handler), "/bin/true")() == {0: None, 1: None}
    finally:
        configure(NullMetricHandler())
    told = [one.getMessage() for one in caplog.records if "a handler of" in one.getMessage()]
    (warning,) = told
    assert warning.startswith(
        "a handler of metrics or events raises RuntimeError: the handler's own fault; the job goes"
    )


@pytest.mark.parametrize(
    ("nonsense", "sentence"),
    [
        (
            {"signals_to_handle": "FOO,BAR"},
            "signals_to_handle is 'FOO,BAR', and this system has no such signal",
        ),
        ({"start_method": "foo"}, "start_method is 'foo'; it is one of spawn, fork, forkserver"),
        ({"monitor_interval": -1}, "monitor_interval is -1 s, and must be more than 0"),
        ({"monitor_interval": float("nan")}, "monitor_interval is nan s"),
        ({"max_restarts": "3"}, "max_restarts is to be a number, and is '3', of type str"),
        ({"max_restarts": True}, "max_restarts is to be a number, and is True"),
    ],
)
def test_nonsense_in_a_configuration_is_told_before_anything_starts(
    nonsense: dict[str, Any], sentence: str
) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        elastic_launch(a_config(**nonsense), "/bin/true")()
    assert str(raised.value).startswith(sentence)


@pytest.mark.system
def test_what_the_agent_refuses_is_told_without_the_command_lines_words() -> None:
    with pytest.raises(ValueError, match="timeout") as raised:
        elastic_launch(a_config(rdzv_configs={"timeout": "x"}), "/bin/true")()
    assert not str(raised.value).startswith("phalanx")
