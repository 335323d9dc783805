"""torchelastic's metrics: groups, handlers, streams, decorators."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from phalanx import metrics
from phalanx.metrics import streams


class Kept(metrics.MetricHandler):
    def __init__(self) -> None:
        self.all: list[metrics.MetricData] = []

    def emit(self, metric_data: metrics.MetricData) -> None:
        self.all.append(metric_data)

    def named(self) -> dict[str, object]:
        return {one.name: one.value for one in self.all}


@pytest.fixture
def kept() -> Iterator[Kept]:
    """A handler of its own for the group ``mine``, and nothing left of it afterwards."""
    handler = Kept()
    metrics.configure(handler, "mine")
    yield handler
    streams._by_group.clear()
    metrics.configure(metrics.NullMetricHandler())


@pytest.mark.compat("name torch.distributed.elastic.metrics.put_metric", "same")
@pytest.mark.compat("name torch.distributed.elastic.metrics.configure", "same")
@pytest.mark.compat("name torch.distributed.elastic.metrics.getStream", "same")
@pytest.mark.compat("name torch.distributed.elastic.metrics.api.MetricStream", "same")
@pytest.mark.compat("name torch.distributed.elastic.metrics.MetricData", "same")
@pytest.mark.compat("name torch.distributed.elastic.metrics.MetricHandler", "same")
@pytest.mark.compat("extension MetricHandler", "same")
@pytest.mark.compat("extension metrics.configure", "same")
def test_a_number_goes_to_the_handler_of_its_group_else_to_the_default_one(kept: Kept) -> None:
    metrics.put_metric("a", 1, "mine")
    assert (kept.all[0].group_name, kept.all[0].name, kept.all[0].value) == ("mine", "a", 1)
    assert kept.all[0].timestamp > 1.7e9
    other = Kept()
    metrics.configure(other)
    metrics.put_metric("b", 2)
    metrics.getStream("elsewhere").add_value("c", 3)
    assert [(one.group_name, one.name, one.value) for one in other.all] == [
        ("torchelastic", "b", 2),
        ("elsewhere", "c", 3),
    ]
    assert len(kept.all) == 1


MEASURED = """
import asyncio, importlib, sys, warnings
metrics = importlib.import_module(sys.argv[1])

class Shown(metrics.MetricHandler):
    def emit(self, data):
        print(data.group_name, data.name, "" if data.name.endswith(".ms") else data.value)

metrics.configure(Shown())

@metrics.prof
def plain():
    pass

class Outer:
    class Inner:
        @metrics.prof
        def method(self):
            pass

def of_a_package():
    pass

of_a_package.__qualname__, of_a_package.__module__ = "of_a_package", "company.training.loop"

def raising(error):
    @metrics.prof(group="mine")
    def raises():
        raise error
    try:
        raises()
    except BaseException as raised:
        print(type(raised).__name__)

plain()
Outer.Inner().method()
metrics.prof(of_a_package)()
for error in (KeyError(), KeyboardInterrupt(), SystemExit(0), GeneratorExit(), asyncio.CancelledError()):
    raising(error)
warnings.simplefilter("ignore")
metrics.profile("mine")(of_a_package)()
"""


@pytest.mark.compat("name torch.distributed.elastic.metrics.prof", "same")
@pytest.mark.compat("name torch.distributed.elastic.metrics.profile", "same")
@pytest.mark.torch
def test_prof_gives_the_names_and_knows_the_failures_of_torch() -> None:
    ours, theirs = (
        subprocess.run(
            [sys.executable, "-c", MEASURED, module], capture_output=True, text=True, timeout=160, check=True
        ).stdout.splitlines()
        for module in ("phalanx.metrics", "torch.distributed.elastic.metrics")
    )
    assert ours == theirs
    assert "torchelastic __main__.plain.success 1" in ours
    assert [line for line in ours if ".failure" in line] == ["mine raising.<locals>.raises.failure 1"]


def test_prof_counts_good_and_bad_calls_and_their_duration(kept: Kept) -> None:
    @metrics.prof(group="mine")
    def good() -> int:
        """Say three."""
        return 3

    @metrics.prof(group="mine")
    def bad() -> None:
        raise KeyError("gone")

    assert good() == 3
    assert good.__doc__ == "Say three."
    with pytest.raises(KeyError):
        bad()
    name = good.__qualname__.rpartition(".")[0]
    found = kept.named()
    assert found[f"{name}.good.success"] == 1
    assert found[f"{name}.bad.failure"] == 1
    assert found[f"{name}.good.duration.ms"] >= 0  # type: ignore[operator]


@pytest.mark.compat("name torch.distributed.elastic.metrics.profile", "same")
@pytest.mark.compat("name torch.distributed.elastic.metrics.publish_metric", "same")
def test_the_deprecated_names_work_and_warn(kept: Kept) -> None:
    with pytest.warns(FutureWarning, match="prof"):

        @metrics.profile("mine")
        def step() -> None:
            pass

    step()
    with pytest.warns(FutureWarning, match="put_metric"):
        metrics.publish_metric("mine", "x", 5)
    assert kept.named().keys() == {"step.success", "step.duration.ms", "x"}


@pytest.mark.compat("name torch.distributed.elastic.metrics.ConsoleMetricHandler", "same")
@pytest.mark.compat("name torch.distributed.elastic.metrics.NullMetricHandler", "same")
def test_the_console_shows_time_group_name_and_value(capsys: pytest.CaptureFixture[str]) -> None:
    metrics.ConsoleMetricHandler().emit(metrics.MetricData(1.5, "g", "n", 3))
    metrics.NullMetricHandler().emit(metrics.MetricData(1.5, "g", "n", 3))
    assert capsys.readouterr().out == "[1.5][g]: n=3\n"


@pytest.mark.compat(
    "name torch.distributed.elastic.metrics.initialize_metrics",
    "better",
    'the parameter handler ("console", "null") is understood',
)
@pytest.mark.compat("name torch.distributed.elastic.metrics.MetricsConfig", "same")
@pytest.mark.compat(
    "extension metrics.static_init",
    "not offered",
    "it is a module that vendors put into torch's own package; metrics.configure takes any handler",
)
def test_a_configuration_names_the_handler(capsys: pytest.CaptureFixture[str], kept: Kept) -> None:
    metrics.initialize_metrics()
    metrics.initialize_metrics(metrics.MetricsConfig({"other": "thing"}))
    metrics.put_metric("quiet", 1)
    metrics.initialize_metrics(metrics.MetricsConfig({"handler": "console"}))
    metrics.put_metric("loud", 1)
    assert capsys.readouterr().out.endswith("[torchelastic]: loud=1\n")
    with pytest.raises(ValueError, match="console"):
        metrics.initialize_metrics(metrics.MetricsConfig({"handler": "cloud"}))


def test_numbers_of_many_threads_all_arrive(kept: Kept) -> None:
    def measure() -> None:
        for _ in range(500):
            metrics.put_metric("n", 1, "mine")

    threads = [threading.Thread(target=measure) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(kept.all) == 2000


@pytest.mark.compat("name torch.distributed.elastic.metrics.get_elapsed_time_ms", "same")
@pytest.mark.torch
def test_names_and_parameters_are_those_of_torch() -> None:
    import inspect

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torch.distributed.elastic import metrics as theirs
        from torch.distributed.elastic.metrics import api

    for name in metrics.__all__:
        their = getattr(theirs, name, None) or getattr(api, name)
        ours = getattr(metrics, name)
        if name in ("MetricHandler", "ConsoleMetricHandler", "NullMetricHandler"):
            their, ours = their.emit, ours.emit
        assert [(one.name, one.default) for one in inspect.signature(ours).parameters.values()] == [
            (one.name, one.default) for one in inspect.signature(their).parameters.values()
        ], name
