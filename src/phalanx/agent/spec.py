"""What an agent is asked to run, and how that ended: two frozen records between the launcher and the agent.

No flag, environment variable or file is read here or further down. What workers are told is a function that the
launcher hands in, so that the names of environment variables stay in one module of the launcher.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol

from phalanx.agent.graces import Graces
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings

if TYPE_CHECKING:
    from phalanx.agent.verdict.verdict import Verdict
    from phalanx.agent.watchdog import Watchdog
    from phalanx.events.job import JobEvent
    from phalanx.multiprocessing.logs import LogsSpecs
    from phalanx.rendezvous.handler import RendezvousHandler
    from phalanx.store.port import Store

from phalanx.records import Struct

__all__ = ["Ended", "Host", "JobSpec"]


class Host(Protocol):
    """A program that started this agent for itself, and goes on beside it: asks, and is told."""

    is_gone: bool
    """It has ended, or lets go of the job; ``fileno()`` stays readable from then on."""

    def fileno(self) -> int:
        """A descriptor that is readable when ``asked`` has something to say, or ``is_gone`` has come true."""

    def asked(self) -> tuple[int, ...]:
        """Signals that it has sent since the last call, by another way than the kernel's.

        A negative one is no signal that anybody has sent to it, but what its own code asks for.
        """

    @property
    def observe(self) -> Callable[[JobEvent], object] | None:
        """What takes job events for it; None: it wants none."""

    def told(self, ended: Ended) -> None:
        """Tell it how the job ended. Never raises."""

    def witness(self) -> tuple[int, ...]:
        """Descriptors by whose end it learns that nobody is left who would end processes of the job."""


class JobSpec(Struct, kw_only=True):
    """A job as one agent sees it. Times in seconds."""

    name: str
    """What the report calls the job: the script or the function."""
    role: str
    entrypoint: str | Callable[..., object]
    arguments: Callable[[int], tuple[object, ...]]
    """Local rank → the arguments of that worker (``${local_rank}`` is already replaced)."""
    environment: Callable[[Round, int, str], dict[str, str]]
    """(round, local rank, path of the agent's channel) → what that worker has beyond our own environment."""
    log_line_prefix: Callable[[Round, int], str | None]
    logs: LogsSpecs
    prepare: Callable[[], None] | None = None
    """Loads what other people wrote, when the keeper has been forked and nothing else started. Raises ``ValueError``
    with a sentence for the user: then nothing starts."""
    why_ended: Callable[[int], str] | None = None
    """pid → why something beside the agent has ended this worker on our behalf; empty: nothing has."""
    watchdog: Watchdog | None = None
    """A server of timers beside the agent, which tells it whose time is over."""
    health_port: int | None = None
    """Where an orchestrator's probe is answered over HTTP; None: nowhere."""
    membership: MembershipSettings
    open_store: Callable[[], Awaitable[Store]]
    """Raises ``Refused`` when asking again cannot help, ``Unclear`` or ``OSError`` when it can."""
    make_handler: Callable[[], RendezvousHandler] | None = None
    """A rendezvous that somebody else has written takes the place of the store; called in a thread."""
    backend: str = "memory"
    """Its name, or the store's."""
    nproc: int
    job_token: str
    """Marks every process of the job on this node (``PHALANX_JOB``)."""
    master_port_range: range | None = None
    start_method: str = "spawn"
    affinity: Mapping[int, frozenset[int]] = MappingProxyType({})
    """Local rank → the CPUs that the worker is born with; whoever is not there has ours."""
    restarts: RestartPolicy = RestartPolicy()
    restart_scope: Literal["group", "worker"] = "group"
    """What is started again when a worker has failed: the workers of all nodes, or that one alone."""
    graces: Graces = Graces.alike(30.0)
    stop_all: bool = False
    """A stop signal to this agent ends the job everywhere."""
    stop_signals: tuple[int, ...] = ()
    pass_signals: tuple[int, ...] = ()
    duplicate_stdout_filters: tuple[str, ...] = ()
    duplicate_stderr_filters: tuple[str, ...] = ()
    adopts_orphans: bool = True
    """Every orphan that comes to this process is the job's; not so if it had children before the job (shells exec)."""
    tells_log_folder: bool = False
    """Say where the logs are when the workers start: they were asked for, and their folder was not."""
    host: Host | None = None
    """Whose agent this is; None: its own, as a command is."""
    debug_rank: int | None = None
    """The rank that has the launcher's terminal, and gets its Ctrl-C."""
    restore_terminal: Callable[[], None] | None = None
    """Called when that rank's worker has ended: what it made of the terminal is undone."""
    observe: Callable[[JobEvent], object] | None = None
    """Called on the agent's loop with each ``phalanx.events.job.JobEvent``; must not block. If it raises, it is not
    called again, and the job goes on."""
    error_file: str | None = None
    """Where the launcher leaves the first failure of the job, in torchelastic's format."""
    report_file: str | None = None
    """Where the launcher leaves its report as JSON, however the job ends."""
    prints_report: bool = True
    """Print the report of a failure; without it only the host is told."""


class Ended(Struct):
    """How the job ended on this node."""

    exit_code: int
    last_words: str
    """What is still to be said, perhaps nothing."""
    is_orderly: bool
    """Nothing of the job is left."""
    held_signals: tuple[int, ...]
    """Signals that are blocked since the loop took no more of them."""
    verdict: Verdict | None = None
    """The same, as data."""
    was_told_to_stop: bool = False
    """Somebody asked this agent to stop, and waits for its end."""
