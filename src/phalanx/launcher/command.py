"""``phalanx run``, after the command line is understood: resolved values in, exit code out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from signal import Signals
from typing import TYPE_CHECKING, Any

from phalanx.agent.environment import ENABLE_FILE_TIMER, HEALTH_CHECK_PORT, worker_environment
from phalanx.agent.graces import Graces
from phalanx.agent.run import run_job
from phalanx.agent.spec import Host, JobSpec
from phalanx.errors import boot_file
from phalanx.launcher.environment import check_env, leaves_omp_to_us
from phalanx.launcher.options import RunOptions
from phalanx.launcher.plugins import resolve_error_handler
from phalanx.launcher.rendezvous.meeting import Meeting, is_alone, meeting_of
from phalanx.launcher.scope import check_scope
from phalanx.multiprocessing.macros import arguments_for
from phalanx.multiprocessing.procfs import own_children
from phalanx.records import changed
from phalanx.rendezvous.round import Round

if TYPE_CHECKING:
    from phalanx.agent.devices import DeviceMask
    from phalanx.agent.watchdog import Watchdog
    from phalanx.multiprocessing.logs import LogsSpecs
    from phalanx.multiprocessing.std import Std

__all__ = ["run_command"]

# Codes of a launcher that was told to stop, lost its store or found a bug: the job may go on without this node.
_MAY_COME_BACK = (70, 75, 129, 130, 131, 143)


def run_command(options: RunOptions, *, host: Host | None = None) -> int:
    """Run a command as this node's part of a job and return the launcher's exit code.

    Raises ``LogDirError`` when the log folder cannot be written and ``ValueError``, with a sentence, for a value that
    cannot be used; both before any worker has started.

    >>> program = '''
    ... from phalanx.cli.run import run_options
    ... from phalanx.launcher import run_command
    ... raise SystemExit(run_command(run_options(["--no-python", "false"])))
    ... '''
    >>> import subprocess, sys  # it is the agent then: not for a program that has other things to do
    >>> subprocess.run([sys.executable, "-c", program], stderr=subprocess.DEVNULL).returncode
    1
    """
    if options.debug_rank is not None:
        options = for_debugging(options)
    logs = logs_of(options)
    meeting = meeting_of(options)
    spec = job_of(options, logs, meeting, host=host)
    for notice in (*meeting.notices, *([] if host is not None else _notices(options))):
        print(f"phalanx: {notice}", file=sys.stderr)
    if options.numa_binding is not None:
        from phalanx.launcher.hardware.binding import binding_of

        plan = binding_of(options)
        print(f"phalanx: {plan.sentence}", file=sys.stderr)
        spec = changed(spec, affinity=plan.cpus)
    watchdog = _watchdog_of(options, spec)
    if watchdog is not None:
        spec = watchdog.beside(spec)
    sinks = None
    if options.event_log_handler != "null" or options.events_file is not None:
        from phalanx.launcher.event_sinks import event_sinks_of, together

        sinks = event_sinks_of(options)
        spec = changed(spec, observe=together(spec.observe, sinks.observe))
    terminal = None
    if options.debug_rank is not None:
        from phalanx.agent.processes.terminal import Terminal

        terminal = Terminal.kept()
        if terminal is not None:
            spec = changed(spec, restore_terminal=terminal.restore)
    try:
        code = run_job(spec)
    finally:
        if terminal is not None:
            terminal.restore()
        logs.discard_if_empty()
        if watchdog is not None:
            watchdog.finish()
        if sinks is not None:
            sinks.finish()
    if meeting.forget is not None and code not in _MAY_COME_BACK:
        meeting.forget()
    return code


def _health_port() -> int | None:
    """Where health is told. As torchelastic has it, a job does not fail for a word that is no port."""
    text = os.environ.get(HEALTH_CHECK_PORT)
    if not text:
        return None
    # At most so many digits: more than 4300 are no number to Python. Port 0 would be one that nobody knows.
    if text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536:
        return int(text)
    print(
        f"phalanx: {HEALTH_CHECK_PORT} is {text!r}, which is no port: no health checks are answered",
        file=sys.stderr,
    )
    return None


def _watchdog_of(options: RunOptions, spec: JobSpec) -> Watchdog | None:
    """The server of file timers, where it is asked for: by either, and neither says no to the other.

    The variable is often set for a whole cluster, the option for this job; with both there is still one server.
    """
    if not options.watchdog and os.environ.get(ENABLE_FILE_TIMER) != "1":
        return None
    from phalanx.agent.watchdog import Watchdog

    is_paused = options.debug_rank is not None
    return Watchdog.of(os.environ, run_id=options.run_id or spec.name, is_paused=is_paused)


def logs_of(options: RunOptions) -> LogsSpecs:
    """Where streams go: the built-in layout, or a plug-in that is not loaded yet. Raises ``ValueError``."""
    asked = (options.log_dir, options.redirects, options.tee, options.local_ranks_filter)
    if options.sent_logs is not None:
        from phalanx.launcher.hosting.sent_objects import sent_logs

        return sent_logs(options.sent_logs)
    if options.logs_specs is not None:
        from phalanx.launcher.log_plugins import PluggedLogs, find_log_plugin

        if (entry := find_log_plugin(options.logs_specs)) is not None:
            return PluggedLogs(entry, *asked, stderr_tail=options.stderr_tail, max_bytes=options.log_max_size)
    from phalanx.multiprocessing.logs import DefaultLogsSpecs

    return DefaultLogsSpecs(*asked, stderr_tail=options.stderr_tail, max_bytes=options.log_max_size)


def _loading_of(logs: LogsSpecs, options: RunOptions) -> Callable[[], None] | None:
    load = getattr(logs, "load", None)
    return None if load is None else partial(load, one_by_one=options.restart_scope == "worker")


def job_of(options: RunOptions, logs: LogsSpecs, meeting: Meeting, *, host: Host | None = None) -> JobSpec:
    """The agent's view of what was asked for. Raises ``ValueError``."""
    check_env(options.env)
    command, arguments = command_line(options)
    token = os.urandom(16).hex()
    handler = None if options.error_handler is None else resolve_error_handler(options.error_handler)
    spec = JobSpec(
        name=options.name or options.entrypoint,
        role=options.role,
        entrypoint=command,
        arguments=partial(arguments_for, args=arguments),
        environment=partial(
            _environment,
            meeting,
            os.environ,
            role=options.role,
            max_restarts=options.restarts.max_restarts,
            stop_signals=",".join(Signals(number).name for number in options.stop_signals),
            job_token=token,
            error_handler=handler,
            env=options.env,
            omp_threads=_omp_threads(options),
            devices=_devices(options),
        ),
        log_line_prefix=partial(log_line_prefix, options.log_line_prefix_template, options.role),
        logs=logs,
        prepare=_loading_of(logs, options),
        adopts_orphans=adopts_orphans(meeting),
        tells_log_folder=options.log_dir is None
        and options.logs_specs is None
        and is_logging(options.redirects, options.tee),
        membership=meeting.membership,
        open_store=meeting.open_store,
        make_handler=meeting.make_handler,
        backend="memory" if is_alone(options) else options.rdzv_backend,
        master_port_range=meeting.master_port_range,
        nproc=options.nproc,
        job_token=token,
        start_method=options.start_method,
        restarts=options.restarts,
        restart_scope=options.restart_scope,
        graces=graces_of(options),
        stop_all=options.stop_all,
        stop_signals=options.stop_signals,
        pass_signals=options.pass_signals,
        duplicate_stdout_filters=options.duplicate_stdout_filters,
        duplicate_stderr_filters=options.duplicate_stderr_filters,
        host=host,
        observe=None if host is None else host.observe,
        debug_rank=options.debug_rank,
        health_port=_health_port(),
        error_file=options.error_file,
        report_file=options.report_file,
        prints_report=options.prints_report or host is None,
    )
    return check_scope(spec)


def for_debugging(options: RunOptions) -> RunOptions:
    """The same job with one rank at the terminal: nobody is late, and nobody else writes where a debugger does.

    What the others print goes to files, and to the terminal as well if that was asked for by ``tee``.
    """
    from phalanx.multiprocessing.std import Std

    others_exist = options.nproc > 1 or options.max_nodes > 1
    return changed(options, straggler_s=None, redirects=Std.ALL if others_exist else options.redirects)


def _notices(options: RunOptions) -> list[str]:
    """What a command says of itself before it starts; torchrun has a banner of four lines for it."""
    if options.omp_threads is not None or not leaves_omp_to_us({**os.environ, **options.env}, options.nproc):
        return []
    told = (
        "OMP_NUM_THREADS is 1 in each worker, as torchrun has it; set it, or say --omp-threads auto for each "
        "worker's share of the CPUs"
    )
    return [told]


def _omp_threads(options: RunOptions) -> int | None:
    if options.omp_threads is None:
        return 1 if leaves_omp_to_us({**os.environ, **options.env}, options.nproc) else None
    if options.omp_threads != 0:
        return options.omp_threads
    from phalanx.launcher.hardware.cpus import threads_per_worker

    return threads_per_worker(options.nproc)


def _devices(options: RunOptions) -> DeviceMask | None:
    if options.devices is None and not options.virtual_local_rank:
        return None
    from phalanx.launcher.hardware.devices import mask_of

    return mask_of(
        options.devices,
        is_virtual=options.virtual_local_rank,
        nproc=options.nproc,
        inherited={**os.environ, **options.env},
    )


def adopts_orphans(meeting: Meeting) -> bool:
    """Whether every orphan that comes to this process will be the job's.

    Not so if it had children before the job (shells exec), serves a member of a cluster, or is the first process of
    a container, to which everybody's orphans come: those of the job are known by their session and environment there.
    """
    return not own_children() and meeting.forget is None and os.getpid() != 1


def graces_of(options: RunOptions) -> Graces:
    """How long workers have, by what stops them."""
    restart_s, resize_s = options.restart_grace_s, options.resize_grace_s
    return Graces(
        options.grace_s,
        options.grace_s if restart_s is None else restart_s,
        options.grace_s if resize_s is None else resize_s,
        options.warn_before_s,
        options.warn_signal,
    )


def _environment(
    meeting: Meeting,
    inherited: Mapping[str, str],
    settled: Round,
    local_rank: int,
    agent_socket: str,
    **known: Any,
) -> dict[str, str]:
    """A worker's environment. The job's id is asked for late: without ``--rdzv-id`` the store's host makes it."""
    return worker_environment(
        inherited, settled, local_rank, agent_socket=agent_socket, run_id=meeting.run_id(), **known
    )


def is_logging(*choices: Std | Mapping[int, Std]) -> bool:
    """Whether some stream of some worker goes to a file."""
    return any(any(one.values()) if isinstance(one, Mapping) else bool(one) for one in choices)


def log_line_prefix(template: str | None, role: str, settled: Round, local_rank: int) -> str | None:
    """One worker's prefix by the user's template; None leaves torchelastic's to the log code."""
    if template is None:
        return None
    from socket import gethostname

    from phalanx.multiprocessing.prefix import prefix_for

    return prefix_for(
        template,
        role=role,
        rank=settled.rank(local_rank),
        local_rank=local_rank,
        host=gethostname(),
        round=settled.number,
    )


def command_line(options: RunOptions) -> tuple[str, tuple[str, ...]]:
    """The program to execute and its arguments.

    A Python script or module goes through the boot file, which captures errors and then gets out of the way; any
    other program is executed as it is. Raises ``ValueError`` when the interpreter cannot be used.
    """
    if options.no_python:
        return options.entrypoint, options.args
    from phalanx.launcher.interpreter import PYTHON, interpreter, why_not

    known = {**os.environ, **options.env}
    python = interpreter(options.python, known)
    if (options.python or known.get(PYTHON)) and (reason := why_not(python, known)):
        raise ValueError(f"{'python' if options.python else PYTHON}: {reason}")
    program = ("-m", options.entrypoint) if options.module else (options.entrypoint,)
    return python, ("-u", boot_file(), *program, *options.args)
