"""What would start on this node, without starting it: each worker's command, output and environment.

It asks the same functions as a launch: ``job_of`` makes the job, which makes commands and environments, and the logs'
layout is made in a temporary folder. What other nodes decide is not known before they have met. To find it, the
environment is made for two rounds that differ in all that a meeting settles; where the two differ, it is not known.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from phalanx.early import held_back
from phalanx.launcher.command import for_debugging, job_of, logs_of
from phalanx.launcher.options import RunOptions
from phalanx.launcher.rendezvous.meeting import Meeting, is_alone, meeting_of
from phalanx.records import Struct, changed
from phalanx.rendezvous.round import Round

if TYPE_CHECKING:
    from phalanx.agent.spec import JobSpec
    from phalanx.multiprocessing.logs import LogsDest

__all__ = ["MADE_AT_START", "SETTLED_LATER", "PlannedNode", "PlannedWorker", "planned"]

SETTLED_LATER = "(settled at rendezvous)"
MADE_AT_START = "(made at start)"


class PlannedWorker(Struct, kw_only=True):
    """One worker. What is not known yet is ``SETTLED_LATER`` or ``MADE_AT_START`` in its environment."""

    local_rank: int
    rank: int | None
    """None: settled at rendezvous."""
    command: tuple[str, ...]
    environment: dict[str, str]
    """What it has beyond the environment of this process, or instead of it."""
    stdout: str
    """``console``, a path, both with `` and `` between them, or ``/dev/null``."""
    stderr: str
    cpus: tuple[int, ...]
    """The CPUs it is bound to; empty: those of this process."""


class PlannedNode(Struct, kw_only=True):
    """This node's part of the job."""

    folder: str
    """The working folder."""
    log_dir: str
    min_nodes: int
    max_nodes: int
    backend: str
    workers: tuple[PlannedWorker, ...]


def planned(options: RunOptions) -> PlannedNode:
    """Return what ``run_command`` would start with these options. Raises ``ValueError`` as it does."""
    if options.debug_rank is not None:
        options = for_debugging(options)
    meeting = meeting_of(options)
    if options.run_id is None:  # it is random, or the store's host makes it
        meeting = changed(meeting, run_id=lambda: MADE_AT_START)
    log_dir = options.log_dir or "(a new temporary folder)"
    with held_back(), TemporaryDirectory(prefix="phalanx-dry-run-") as scratch:
        root = os.devnull if options.log_dir == os.devnull else scratch
        # A plug-in is code of somebody else's, and lays out when it is asked: a dry run does not ask.
        logs = logs_of(changed(options, log_dir=root, logs_specs=None))
        spec = job_of(options, logs, meeting)
        environments = {one: _environment(spec, meeting, options, one) for one in range(options.nproc)}
        dest = logs.reify(environments)
        cpus = _cpus(options)
        made = f"{logs.run_log_dir or scratch}/"
        shown = f"{os.path.join(log_dir, MADE_AT_START)}/"
        workers = tuple(
            _worker(spec, one, environments[one], dest, (made, shown), cpus.get(one, ()))
            for one in range(options.nproc)
        )
    return PlannedNode(
        folder=os.getcwd(),
        log_dir=log_dir,
        min_nodes=1 if is_alone(options) else options.min_nodes,
        max_nodes=1 if is_alone(options) else options.max_nodes,
        backend=spec.backend,
        workers=workers,
    )


def _worker(
    spec: JobSpec,
    local_rank: int,
    environment: Mapping[str, str],
    dest: LogsDest,
    folder: tuple[str, str],
    cpus: Iterable[int],
) -> PlannedWorker:
    rank = environment["RANK"]
    teed_stdout, teed_stderr = local_rank in dest.tee_stdouts, local_rank in dest.tee_stderrs
    arguments = [str(one) for one in spec.arguments(local_rank)]
    return PlannedWorker(
        local_rank=local_rank,
        rank=int(rank) if rank.isdecimal() else None,
        command=(str(spec.entrypoint), *arguments),
        environment={name: text.replace(*folder) for name, text in environment.items()},
        stdout=_stream(dest.stdouts.get(local_rank, ""), teed_stdout, folder),
        stderr=_stream(dest.stderrs.get(local_rank, ""), teed_stderr, folder),
        cpus=tuple(sorted(cpus)),
    )


def _cpus(options: RunOptions) -> Mapping[int, Iterable[int]]:
    """The CPUs of each worker that is bound to some."""
    if options.numa_binding is None:
        return {}
    from phalanx.launcher.hardware.binding import binding_of

    return binding_of(options).cpus


def _stream(path: str, is_teed: bool, folder: tuple[str, str]) -> str:
    if not path:
        return "console"
    return path.replace(*folder) + (" and console" if is_teed else "")


def _environment(spec: JobSpec, meeting: Meeting, options: RunOptions, local_rank: int) -> dict[str, str]:
    """One worker's environment, with words where a value is not known yet."""
    one, other = (
        spec.environment(settled, local_rank, MADE_AT_START) for settled in _rounds(meeting, options)
    )
    environment = {name: text if other.get(name) == text else SETTLED_LATER for name, text in one.items()}
    for name, text in environment.items():
        if spec.job_token in text or (text == SETTLED_LATER and is_alone(options)):
            environment[name] = MADE_AT_START
    return environment


def _rounds(meeting: Meeting, options: RunOptions) -> tuple[Round, Round]:
    """Two first rounds of this node that differ in what is not known yet, and in nothing else."""
    member, nproc = meeting.membership, options.nproc
    alone = is_alone(options)
    least = 1 if alone else options.min_nodes
    most = 1 if alone else options.max_nodes
    port = member.master_port
    first = Round(
        number=1,
        restart_count=0,
        reason="",
        group_rank=0,
        group_world_size=least,
        first_rank=0,
        local_world_size=nproc,
        world_size=nproc * least,
        master_addr=member.master_addr or "",
        master_port=1 if port is None else port,
    )
    if alone:
        return first, first if port is not None else changed(first, master_port=2)
    second = changed(
        first,
        group_rank=most,
        group_world_size=most,
        first_rank=nproc * most,
        world_size=first.world_size + nproc * most + 1,
        master_addr=member.master_addr or "unknown",
        master_port=2 if port is None else port,
        role_first_rank=nproc * most,
        role_world_size=first.world_size + nproc * most + 1,
    )
    if member.is_static:  # the node's rank is fixed by hand; how many workers those before it have is not
        place = member.order_hint or 0
        first, second = (changed(one, group_rank=place, group_world_size=most) for one in (first, second))
        if place == 0:
            second = changed(second, first_rank=0, role_first_rank=0)
    return first, second
