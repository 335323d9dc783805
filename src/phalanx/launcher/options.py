"""What a user asked for, resolved: one frozen record between any front end and the launcher.

The front ends are the command line with its variables and configuration file (``cli``), keyword arguments
(``launcher/functions``) and torchelastic's ``LaunchConfig`` (``launcher/elastic``). Each finds the values, has them
checked before anything starts, and fills this in. Nothing below it knows where a value came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from phalanx.multiprocessing.std import Std

from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.launcher.choices import BACKENDS, CHOICES, PASS_SIGNALS, STOP_SIGNALS
from phalanx.records import Struct

__all__ = ["BACKENDS", "CHOICES", "RunOptions"]


class RunOptions(Struct, kw_only=True):
    """A job as it was asked for. Times in seconds, sizes in bytes; names and meanings are torchrun's.

    >>> from phalanx.cli.run import run_options
    >>> options = run_options(["--nproc-per-node", "2", "--no-python", "true"])
    >>> options.nproc, options.entrypoint, options.grace_s
    (2, 'true', 30.0)
    """

    entrypoint: str
    """A script's path, a module's name, or a program, as ``module`` and ``no_python`` say."""
    args: tuple[str, ...] = ()
    module: bool = False
    no_python: bool = False
    nproc: int = 1
    min_nodes: int = 1
    max_nodes: int = 1
    run_id: str | None = None
    role: str = "default"
    restarts: RestartPolicy = RestartPolicy(backoff_s=1.0, backoff_max_s=60.0, tries_hopeless_once=True)
    start_method: Literal["spawn", "fork", "forkserver"] = "spawn"
    log_dir: str | None = None
    """None: a new temporary folder; ``/dev/null``: no log files at all."""
    redirects: Std | dict[int, Std]
    tee: Std | dict[int, Std]
    local_ranks_filter: set[int] | None = None
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    log_line_prefix_template: str | None = None
    stderr_tail: int = 64 * 1024
    log_max_size: int | None = None
    stop_signals: tuple[int, ...] = STOP_SIGNALS
    pass_signals: tuple[int, ...] = PASS_SIGNALS
    grace_s: float = 30.0
    master_addr: str | None = None
    master_port: int | None = None
    local_addr: str | None = None
    # How several machines meet; on one machine the answer is known.
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_conf: Mapping[str, str] = MappingProxyType({})
    standalone: bool = False
    error_file: str | None = None
    node_rank: int | None = None
    """The node's rank where ranks are fixed by hand (static; None is 0), else a hint for the order of nodes."""
    secret: bytes | None = None
    """What authenticates the agents of a job to each other; None: a key derived from run id and endpoint."""
    restart_scope: Literal["group", "worker"] = "group"
    """What is started again when a worker has failed: the workers of all nodes, or that one alone."""
    restart_grace_s: float | None = None
    """The grace of workers that are stopped for a failure; None: ``grace_s``."""
    resize_grace_s: float | None = None
    """The grace of workers that are stopped because nodes join, leave or were lost; None: ``grace_s``."""
    warn_signal: int | None = None
    """What workers get ahead of a stop that somebody asked for, or that was planned; None: nothing."""
    warn_before_s: float = 0.0
    """How long ahead."""
    stop_all: bool = False
    """A stop signal to any agent ends the job everywhere."""
    exclude_for_s: float = 600.0
    """How long a node is not used when it was excluded for the first time."""
    exit_barrier_s: float | None = None
    """How long a node whose workers have succeeded waits for the other nodes; None: as long as they run."""
    straggler_s: float | None = None
    """How long workers may go on when others have succeeded; None: as long as they like."""
    watchdog: bool = False
    """Run a server of timers (``phalanx.timer``), as ``TORCHELASTIC_ENABLE_FILE_TIMER=1`` does."""
    report_file: str | None = None
    """Where the report goes as JSON; ``error_file`` is for the first failure alone, in torchelastic's format."""
    prints_report: bool = True
    """Print the report of a failure; a program that hosts the agent has it in the ``Outcome``, too."""
    error_handler: str | None = None
    """``module:name`` of the error handler for workers, or the name of an entry point that has it."""
    name: str | None = None
    """What reports call the job; None: the entrypoint."""
    env: Mapping[str, str] = MappingProxyType({})
    """What every worker finds in its environment beside what it inherits; what a launcher tells workers is stronger."""
    python: str | None = None
    """The interpreter of workers that are Python programs; None: ``PYTHON_EXEC``, else the one that runs this."""
    omp_threads: int | None = None
    """``OMP_NUM_THREADS`` of each worker; 0: its share of the CPUs; None: as torchrun has it."""
    devices: tuple[str, ...] | None = None
    """The devices of this node that the job may use, by index or UUID; None: those that are visible."""
    virtual_local_rank: bool = False
    """Each worker sees one device alone, and its ``LOCAL_RANK`` is 0."""
    numa_binding: Literal["node", "socket", "exclusive", "core-complex"] | None = None
    """How workers are bound to CPUs: node, socket, exclusive or core-complex."""
    numa_may_fail: bool = False
    """Where there is no such binding, workers start without one, and a line says why; else that is a mistake."""
    debug_rank: int | None = None
    """The rank that has the terminal, and is never too late."""
    event_log_handler: str = "null"
    """Where torchelastic's events go: the name of a handler of ``phalanx.events``."""
    events_file: str | None = None
    """Where each job event of this node goes, as a line of JSON."""
    logs_specs: str | None = None
    """The name of a plug-in that lays out the logs."""
    sent_handler: str | None = None
    """Path of a file with the creator of rendezvous handlers that a program gives the agent that it hosts."""
    sent_logs: str | None = None
    """The same for the object that lays out the logs."""

    @property
    def is_alone(self) -> bool:
        """Whether this node is the whole job, for ever: there is nobody to meet, whatever the other words say.

        A plug-in meets also one node alone, as under torchrun: it may do more than meet.
        """
        return self.standalone or (self.max_nodes == 1 and self.rdzv_backend in BACKENDS)
