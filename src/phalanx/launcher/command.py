"""``phalanx run``, after the command line is understood: resolved values in, exit code out."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from phalanx.agent.run import run_job
from phalanx.agent.spec import JobSpec
from phalanx.launcher.environment import ERROR_FILE, LOG_LINE_PREFIX_TEMPLATE, PYTHON, worker_environment
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.solo import SoloRendezvous

if TYPE_CHECKING:
    from phalanx.multiprocessing.std import Std

__all__ = ["run_command"]

LOCAL_RANK_MACRO = "${local_rank}"


def run_command(
    *,
    nproc: int,
    min_nodes: int,
    max_nodes: int,
    entrypoint: str,
    args: tuple[str, ...],
    module: bool,
    no_python: bool,
    run_id: str | None,
    role: str,
    max_restarts: int,
    start_method: str,
    log_dir: str | None,
    redirects: Std | dict[int, Std],
    tee: Std | dict[int, Std],
    local_ranks_filter: set[int] | None,
    duplicate_stdout_filters: tuple[str, ...],
    duplicate_stderr_filters: tuple[str, ...],
    log_line_prefix_template: str | None,
    stderr_tail: int,
    log_max_size: int | None,
    stop_signals: tuple[int, ...],
    pass_signals: tuple[int, ...],
    grace_s: float,
    master_addr: str | None,
    master_port: int | None,
    local_addr: str | None,
    rdzv_backend: str,
    rdzv_endpoint: str,
    rdzv_conf: Mapping[str, str],
    standalone: bool,
    error_file: str | None,
    error_handler: str | None = None,
) -> int:
    """Run a command as a job on this machine and return the launcher's exit code.

    Raises ``LogDirError`` when the log folder cannot be written, and ``PortError`` never: a round that cannot be
    formed is exit code 75 with a sentence.
    """
    from signal import Signals

    from phalanx.multiprocessing.logs import DefaultLogsSpecs

    logs = DefaultLogsSpecs(
        log_dir, redirects, tee, local_ranks_filter, stderr_tail=stderr_tail, max_bytes=log_max_size
    )
    command, arguments = command_line(entrypoint, args, module=module, no_python=no_python)
    token = os.urandom(16).hex()
    job_id = run_id or token[:12]
    template = log_line_prefix_template or os.environ.get(LOG_LINE_PREFIX_TEMPLATE)
    signal_names = ",".join(Signals(number).name for number in stop_signals)

    def environment(settled: Round, local_rank: int, agent_socket: str) -> dict[str, str]:
        return worker_environment(
            os.environ,
            settled,
            local_rank,
            role=role,
            run_id=job_id,
            max_restarts=max_restarts,
            stop_signals=signal_names,
            job_token=token,
            agent_socket=agent_socket,
            error_handler=error_handler,
        )

    def log_line_prefix(settled: Round, local_rank: int) -> str | None:
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

    spec = JobSpec(
        name=entrypoint,
        run_id=job_id,
        role=role,
        entrypoint=command,
        arguments=lambda local_rank: tuple(one.replace(LOCAL_RANK_MACRO, str(local_rank)) for one in arguments),
        environment=environment,
        log_line_prefix=log_line_prefix,
        logs=logs,
        rendezvous=SoloRendezvous(
            nproc,
            master_addr=master_addr or local_addr,
            master_port=master_port,
            port_range=port_range(rdzv_conf.get("master_port_range")),
        ),
        nproc=nproc,
        job_token=token,
        start_method=start_method,
        max_restarts=max_restarts,
        grace_s=grace_s,
        stop_signals=stop_signals,
        pass_signals=pass_signals,
        duplicate_stdout_filters=duplicate_stdout_filters,
        duplicate_stderr_filters=duplicate_stderr_filters,
        error_file=error_file or os.environ.get(ERROR_FILE) or None,
    )
    try:
        return run_job(spec)
    finally:
        logs.discard_if_empty()


def command_line(
    entrypoint: str, args: tuple[str, ...], *, module: bool, no_python: bool
) -> tuple[str, tuple[str, ...]]:
    """The program to execute and its arguments.

    A Python script or module goes through the boot file, which captures errors and then gets out of the way; any
    other program is executed as it is.
    """
    if no_python:
        return entrypoint, args
    from phalanx.errors.boot import boot_file

    python = os.environ.get(PYTHON) or sys.executable
    what = ("-m", entrypoint) if module else (entrypoint,)
    return python, ("-u", boot_file(), *what, *args)


def port_range(text: str | None) -> range | None:
    """``a-b`` of ``--rdzv-conf master_port_range=a-b``, both ends included. Raises ``ValueError`` with a sentence."""
    if text is None:
        return None
    low, _, high = text.partition("-")
    if not (low.isdecimal() and high.isdecimal() and 0 < int(low) <= int(high) < 65536):
        raise ValueError(f"master_port_range must be two ports as in 29500-29600, not {text!r}")
    return range(int(low), int(high) + 1)
