"""``elastic_launch`` and ``launch_agent``: torchelastic's way to run a function or a command from Python.

The agent is a hosted one: it runs beside this program, in a child process, as ``phalanx.start`` has it. What only this
program has goes along: backends that were registered here, log layouts of its own. If such an object cannot be sent
(it holds a lock, a socket), the agent runs here instead, as a ``LocalElasticAgent``. Events and metrics are recorded
in this program in both cases, with its handlers.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from phalanx.agent.verdict.verdict import EX_UNAVAILABLE, EX_USAGE
from phalanx.launcher.elastic.config_options import arguments_of, check_config, options_of, program_of
from phalanx.launcher.elastic.launch_config import LaunchConfig
from phalanx.launcher.hosting.sent_objects import NotSent, send
from phalanx.launcher.plugins import BACKENDS, is_rendezvous_handler
from phalanx.logger import get_logger
from phalanx.multiprocessing.logs import DefaultLogsSpecs
from phalanx.multiprocessing.macros import arguments_for, has_macro
from phalanx.records import changed

if TYPE_CHECKING:
    from phalanx.agent.elastic import HealthCheckServer
    from phalanx.events.job import JobEvent
    from phalanx.launcher.hosting.outcome import Outcome
    from phalanx.launcher.options import RunOptions

__all__ = ["elastic_launch", "launch_agent"]

_RUNS_HERE = (
    "%s cannot be sent to an agent beside this program (%s), so the agent runs in this program: no keeper ends its "
    "workers if it is killed, no fence ends them when this node has lost the others, and they have no worker channel "
    "(progress, values)"
)


class elastic_launch:  # noqa: N801 # torchelastic's name
    """A job that is started by calling it: ``elastic_launch(config, function)(*args)``.

    Returns ``{global rank: what the function returned}`` of the ranks of this node, when the job has ended; of a
    command the values are None. Raises what ``launch_agent`` raises.

    >>> config = LaunchConfig(1, 1, nproc_per_node=2, rdzv_backend="c10d", max_restarts=0, run_id="example")
    >>> elastic_launch(config, "/bin/true")()
    {0: None, 1: None}
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: HealthCheckServer | None = None,
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Run the job to its end."""
        return launch_agent(self._config, self._entrypoint, list(args), self._health_check_server)


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: HealthCheckServer | None = None,
) -> dict[int, Any]:
    """Run a job to its end and return ``{global rank: value}`` of this node's ranks.

    ``entrypoint`` is a function, or a command that is executed as it is; in arguments that are texts
    ``${local_rank}`` becomes the worker's, and nothing else changes. Without ``run_id`` one is made, and a warning
    logged. In the main thread the signals of ``signals_to_handle`` stop the job. ``health_check_server`` is the
    caller's to start, and is stopped at the end; without one, ``TORCHELASTIC_HEALTH_CHECK_PORT`` starts ours.

    Raises ``ChildFailedError`` with the failed workers by global rank, whose error files are there while it is
    handled; ``SignalException`` when a signal stopped the job; ``RendezvousTimeoutError``, ``RendezvousClosedError``
    or ``RendezvousConnectionError`` when nodes did not meet; ``ValueError`` and ``TypeError`` for what cannot be
    used (``KeyError``: an unknown ``event_log_handler``); ``RuntimeError`` when the agent was killed. Source:
    torchelastic 2.13.

    >>> config = LaunchConfig(1, 1, nproc_per_node=1, rdzv_backend="c10d", run_id="example")
    >>> launch_agent(config, "/bin/test", ["${local_rank}", "=", "0"])
    {0: None}
    """
    if not entrypoint or not (callable(entrypoint) or isinstance(entrypoint, str)):
        raise ValueError(f"entrypoint is a function or the name of a program, not {entrypoint!r}")
    check_config(config)
    from phalanx.events import get_logging_handler
    from phalanx.metrics import MetricsConfig, initialize_metrics

    get_logging_handler(config.event_log_handler)  # an unknown name is told before anything starts
    initialize_metrics(MetricsConfig(config.metrics_cfg))
    if not config.run_id:
        config.run_id = str(uuid.uuid4().int)
        get_logger(__name__).warning("config has no run_id, generated a random run_id: %s", config.run_id)
    specs = config.logs_specs
    if isinstance(specs, DefaultLogsSpecs):
        _ = specs.root_log_dir  # a temporary one is made here, where who reads the logs asks for it
    with contextlib.ExitStack() as files, _health_checked(health_check_server):
        options = _with_objects(config, files)
        if options is None:
            from phalanx.launcher.elastic.local_launch import launch_here

            return launch_here(config, entrypoint, args)
        try:
            return _launch(config, options, entrypoint, args)
        finally:
            if type(specs) is DefaultLogsSpecs:
                specs.discard_if_empty()


def _with_objects(config: LaunchConfig, files: contextlib.ExitStack) -> RunOptions | None:
    """The options, with what goes along in files; None: something cannot be sent."""
    options = options_of(config, entrypoint="")
    objects: dict[str, tuple[str, object, bool]] = {}
    if config.rdzv_backend not in BACKENDS:
        creator = _registered_here(config.rdzv_backend)
        # The settings of a plug-in, too: they may be other things than texts.
        name = f"what makes the rendezvous handler of {config.rdzv_backend!r}, with its rdzv_configs,"
        objects["sent_handler"] = (name, (creator, config.rdzv_configs), creator is not None)
    if config.logs_specs is not None and type(config.logs_specs) is not DefaultLogsSpecs:
        name = f"logs_specs, of type {type(config.logs_specs).__qualname__},"
        objects["sent_logs"] = (name, config.logs_specs, True)
    changes: dict[str, str] = {}
    for field, (name, value, by_value) in objects.items():
        try:
            file = send(value, by_value=by_value)
        except NotSent as reason:
            get_logger(__name__).warning(_RUNS_HERE, name, reason)
            return None
        files.callback(file.close)
        changes[field] = file.path
    return changed(options, **changes)


def _registered_here(backend: str) -> Any:
    """The creator of a backend that this program has registered; None for that of a plug-in.

    Raises ``ValueError`` for a backend that nobody knows.
    """
    from phalanx.rendezvous.registry import rendezvous_handler_registry

    creator = rendezvous_handler_registry.registered(backend)
    if creator is None and not is_rendezvous_handler(backend):
        rendezvous_handler_registry.find_creator(backend)
    return creator


def _launch(
    config: LaunchConfig, options: RunOptions, entrypoint: Callable[..., Any] | str, args: list[Any]
) -> dict[int, Any]:
    from phalanx.launcher.hosting.foreground import wait_in_foreground

    if isinstance(entrypoint, str):
        from phalanx.launcher.hosting.library import start_agent

        options = changed(options, **program_of(entrypoint, arguments_of(args)))
        record = _Recorder(config, entrypoint)
        outcome = wait_in_foreground(start_agent(options), options, on_event=record)
        _raise_failure(outcome, options.entrypoint)
        return dict.fromkeys(record.ranks)
    from phalanx.launcher.functions.function_job import FunctionJob
    from phalanx.launcher.functions.order import name_of

    name = name_of(entrypoint)
    record = _Recorder(config, name)
    job = FunctionJob.start(
        entrypoint,
        tuple(args),
        {},
        changed(options, name=name, no_python=False),
        args_by_local_rank=_own_arguments(args, options.nproc),
    )
    with contextlib.closing(job):
        outcome = wait_in_foreground(job.agent, options, on_event=record)
        cause = None if outcome.verdict is None else outcome.verdict.cause
        _raise_failure(outcome, name, caused_by=None if cause is None else job.raised(cause.rank))
        return {rank: value for rank, value in sorted(job.returned().items()) if rank in record.ranks}


def _own_arguments(args: list[Any], nproc: int) -> dict[int, tuple[Any, ...]] | None:
    """Arguments by local rank, where a macro may make them differ."""
    return {rank: arguments_for(rank, args) for rank in range(nproc)} if has_macro(args) else None


class _Recorder:
    """Takes job events: records torchelastic's events and metrics of them, and remembers this node's ranks."""

    def __init__(self, config: LaunchConfig, entrypoint: str) -> None:
        from phalanx.events import EventMaker
        from phalanx.launcher.elastic.job_metrics import JobMetrics

        self.ranks: tuple[int, ...] = ()
        self._has_failed = False
        self._destination = config.event_log_handler
        self._events = EventMaker(entry_point=entrypoint, rdzv_backend=config.rdzv_backend)
        self._metrics = JobMetrics(config.role, max_restarts=config.max_restarts)

    def __call__(self, job_event: JobEvent) -> None:
        from phalanx.events import record
        from phalanx.events.job import RoundSettled
        from phalanx.metrics import put_metric

        if isinstance(job_event, RoundSettled):
            self.ranks = job_event.ranks
        for name, value in self._metrics.of(job_event):
            self._handed(put_metric, name, value)
        for event in self._events.from_job_event(job_event):
            self._handed(record, event, self._destination)

    def _handed(self, hand: Callable[..., None], *what: Any) -> None:
        """To a handler of the program's, whose faults are not the job's: the first one is logged."""
        try:
            hand(*what)
        except Exception as fault:  # noqa: BLE001 # the caller's code
            if not self._has_failed:
                get_logger(__name__).warning(
                    "a handler of metrics or events raises %s: %s; the job goes on, and further faults are not told",
                    type(fault).__name__,
                    fault,
                    exc_info=True,
                )
            self._has_failed = True


def _raise_failure(outcome: Outcome, name: str, caused_by: BaseException | None = None) -> None:
    from phalanx.launcher.hosting.foreground import failure_of

    failure = failure_of(outcome, name)
    if failure is not None:
        raise _of_rendezvous(outcome, failure) from caused_by


def _of_rendezvous(outcome: Outcome, failure: Exception) -> Exception:
    """The same in torchelastic's words, which say why nodes did not meet."""
    verdict = outcome.verdict
    if verdict is None or verdict.cause is not None or outcome.exit_code not in (EX_UNAVAILABLE, EX_USAGE):
        return failure
    from phalanx.rendezvous import errors

    reason = verdict.reason
    kind: type[errors.RendezvousError] = errors.RendezvousConnectionError
    if "join_timeout" in reason or "RendezvousTimeoutError" in reason:
        kind = errors.RendezvousTimeoutError
    elif "the rendezvous is closed" in reason or "RendezvousClosedError" in reason:
        kind = errors.RendezvousClosedError
    found = kind(reason or str(failure))
    for note in getattr(failure, "__notes__", ()):
        found.add_note(note)
    return found


@contextlib.contextmanager
def _health_checked(given: HealthCheckServer | None) -> Iterator[None]:
    """A server of health checks for as long as this program waits for its job, if there is to be one."""
    server = given
    if server is None:
        from phalanx.agent.elastic.health_check import server_from_environment

        server = server_from_environment(_now)  # the agent is alive as long as it is waited for
    try:
        yield
    finally:
        if server is not None:
            server.stop()


def _now() -> int:
    return int(time.time())
