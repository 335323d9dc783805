"""The option table of ``phalanx run``: one row for each option, and nothing about an option anywhere else.

Flags (in both spellings), ``PET_*`` variables, conversion, defaults and ``--help`` all follow from a row. Rows with
``torchrun=False`` are ours: torchrun 2.13 does not have them, and they yield where an abbreviation would be ambiguous.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.cli import convert, slots
from phalanx.records import Struct

__all__ = ["GROUPS", "HELP", "OPTIONS", "VERSION", "Option"]


class Option(Struct, kw_only=True):
    """One option. ``read`` turns text into a value; an option without ``metavar`` is a switch and takes no text.

    ``default`` is text as a user would write it, or ``None`` where "not given" means something else than any value.
    ``also`` names further variables that are asked after ``PET_<DEST>``. ``later`` is set for an option of torchrun
    that this version cannot honour: it is the sentence that refuses it.
    """

    name: str
    group: str
    help: str
    read: Callable[[str], object] = convert.text
    metavar: str | None = None
    short: str | None = None
    default: str | None = None
    also: tuple[str, ...] = ()
    has_variable: bool = True
    torchrun: bool = True
    later: str | None = None

    @property
    def flag(self) -> str:
        """The spelling that messages use, such as ``--nproc-per-node``."""
        return f"--{self.name}"

    @property
    def spellings(self) -> tuple[str, ...]:
        """Both long spellings, the one with ``-`` first; one if the name has a single word."""
        return tuple(dict.fromkeys((self.flag, "--" + self.dest)))

    @property
    def dest(self) -> str:
        """The name as a Python identifier."""
        return self.name.replace("-", "_")

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that give a value when no flag does, the strongest first."""
        return (f"PET_{self.dest.upper()}", *self.also) if self.has_variable else ()

    @property
    def is_switch(self) -> bool:
        """Whether the flag stands alone."""
        return self.metavar is None


_SIZE = "size of the job"
_PROGRAM = "the program"
_FAILURE = "failures and stopping"
_LOGS = "output and logs"
_MEETING = "rendezvous"
_ENVIRONMENT = "what workers are told"

GROUPS = (_SIZE, _PROGRAM, _FAILURE, _LOGS, _MEETING, _ENVIRONMENT)


def _switch(
    name: str, group: str, help_text: str, *, short: str | None = None, later: str | None = None
) -> Option:
    return Option(
        name=name, group=group, help=help_text, read=convert.switch, default="0", short=short, later=later
    )


OPTIONS: tuple[Option, ...] = (
    Option(
        name="nnodes",
        metavar="N|MIN:MAX",
        read=convert.node_range,
        default="1:1",
        group=_SIZE,
        help="number of nodes, or the range in which the job may run",
    ),
    Option(
        name="nproc-per-node",
        metavar="N|auto|cpu|gpu",
        read=slots.worker_slots,
        default="1",
        group=_SIZE,
        help="workers on this node; cpu: one for each CPU that this process may use, gpu: one for each visible GPU, "
        "auto: gpu if there is one, else cpu",
    ),
    _switch("standalone", _SIZE, "one node that meets nobody: no endpoint, no id, no open port"),
    Option(
        name="node-rank",
        metavar="N",
        read=convert.count,
        group=_SIZE,
        help="rank of this node where ranks are fixed by hand (static; without it 0); elsewhere a hint for the order "
        "of nodes",
    ),
    _switch("module", _PROGRAM, "run the program as a module, like python -m", short="m"),
    _switch("no-python", _PROGRAM, "the program is a command of its own, not a Python script"),
    _switch("run-path", _PROGRAM, "run the script by its path as __main__; here every script is run so"),
    Option(
        name="start-method",
        metavar="METHOD",
        read=convert.choice("spawn", "fork", "forkserver"),
        default="spawn",
        group=_PROGRAM,
        help="how worker functions are started: spawn, fork or forkserver; of no effect on scripts and commands",
    ),
    Option(
        name="max-restarts",
        metavar="N",
        read=convert.count,
        default="0",
        group=_FAILURE,
        help="restarts of the workers after a failure before the job fails",
    ),
    Option(
        name="shutdown-timeout",
        metavar="SECONDS",
        read=convert.seconds,
        default="30",
        also=("TORCH_ELASTIC_SHUTDOWN_TIMEOUT",),
        group=_FAILURE,
        help="grace between asking workers to stop and killing them, on every path",
    ),
    Option(
        name="signals-to-handle",
        metavar="SIGNALS",
        read=convert.signals,
        default="SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        group=_FAILURE,
        help="signals that stop the job; SIGUSR1 and SIGUSR2 in the list are passed on instead",
    ),
    Option(
        name="pass-signals",
        metavar="SIGNALS",
        read=convert.signals,
        torchrun=False,
        group=_FAILURE,
        help="further signals to pass on to the workers; SIGUSR1 and SIGUSR2 always are",
    ),
    Option(
        name="straggler-timeout",
        metavar="SECONDS",
        read=convert.seconds,
        torchrun=False,
        group=_FAILURE,
        help="how long workers may go on when others have succeeded; then the job has failed",
    ),
    Option(
        name="exit-barrier-timeout",
        metavar="SECONDS",
        read=convert.seconds,
        torchrun=False,
        group=_FAILURE,
        help="how long a node that has succeeded waits for the other nodes; without it as long as they run",
    ),
    Option(
        name="monitor-interval",
        metavar="SECONDS",
        read=convert.seconds,
        default="0.1",
        group=_FAILURE,
        help="accepted and not needed: an exit is an event here, nothing is polled",
    ),
    Option(
        name="error-file",
        metavar="FILE",
        also=("TORCHELASTIC_ERROR_FILE",),
        torchrun=False,
        group=_FAILURE,
        help="where to leave the first failure of the job as JSON",
    ),
    Option(
        name="error-handler",
        metavar="NAME",
        read=convert.error_handler,
        also=("PHALANX_ERROR_HANDLER",),
        torchrun=False,
        group=_FAILURE,
        help="what records exceptions in workers: module:name, or an entry point of phalanx.error_handlers",
    ),
    Option(
        name="log-dir",
        metavar="DIR",
        group=_LOGS,
        help="parent folder of the logs; without it a temporary one",
    ),
    Option(
        name="redirects",
        short="r",
        metavar="STREAMS",
        read=convert.streams,
        default="0",
        group=_LOGS,
        help="write streams to files: 0 none, 1 stdout, 2 stderr, 3 both, or for each local rank: 0:3,1:1",
    ),
    Option(
        name="tee",
        short="t",
        metavar="STREAMS",
        read=convert.streams,
        default="0",
        group=_LOGS,
        help="write streams to files and, with a prefix, to the console; values as for --redirects",
    ),
    Option(
        name="local-ranks-filter",
        metavar="RANKS",
        read=convert.rank_set,
        group=_LOGS,
        help="show these local ranks only on the console, such as 0,1",
    ),
    Option(
        name="duplicate-stdout-filters",
        metavar="TEXTS",
        read=convert.comma_list,
        default="",
        group=_LOGS,
        help="also collect teed stdout lines of all ranks with one of these texts in one file; ,, is a literal comma",
    ),
    Option(
        name="duplicate-stderr-filters",
        metavar="TEXTS",
        read=convert.comma_list,
        default="",
        group=_LOGS,
        help="the same for stderr",
    ),
    Option(
        name="log-line-prefix-template",
        metavar="TEMPLATE",
        also=("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",),
        torchrun=False,
        group=_LOGS,
        help="prefix of a teed line, with ${role_name} ${rank} ${local_rank} ${host} ${round} ${time}",
    ),
    Option(
        name="log-max-size",
        metavar="SIZE",
        read=convert.size,
        torchrun=False,
        group=_LOGS,
        help="cap of each log file; its head and its tail are kept",
    ),
    Option(
        name="stderr-tail",
        metavar="BYTES",
        read=convert.tail_size,
        default="64K",
        torchrun=False,
        group=_LOGS,
        help="how much of each worker's last stderr to keep for the failure report; 0 leaves stderr alone",
    ),
    Option(
        name="logs-specs",
        metavar="NAME",
        group=_LOGS,
        has_variable=False,
        help="not in this version",
        later="log plug-ins are not supported by this version; leave it out for the usual layout",
    ),
    Option(
        name="event-log-handler",
        metavar="NAME",
        default="null",
        group=_LOGS,
        help="where events go: null; others are accepted and of no effect in this version",
    ),
    Option(
        name="rdzv-backend",
        metavar="NAME",
        read=convert.backend,
        default="static",
        group=_MEETING,
        help="how nodes meet: static, c10d, etcd, file, or the name of a plug-in; one node needs none",
    ),
    Option(
        name="rdzv-endpoint",
        metavar="HOST[:PORT],...",
        default="",
        group=_MEETING,
        help="where nodes meet; the same on each of them",
    ),
    Option(
        name="rdzv-id",
        metavar="ID",
        group=_MEETING,
        help="id of the job; without it one is made, but for etcd and file",
    ),
    Option(
        name="rdzv-conf",
        metavar="KEY=VALUE,...",
        read=convert.pairs,
        default="",
        group=_MEETING,
        help="further settings of the rendezvous; see the table of keys",
    ),
    Option(
        name="secret-file",
        metavar="FILE",
        also=("PHALANX_SECRET_FILE",),
        read=convert.secret,
        torchrun=False,
        group=_MEETING,
        help="file with the secret that the job's agents prove to each other; or the secret itself in PHALANX_SECRET",
    ),
    Option(
        name="local-addr",
        metavar="ADDRESS",
        group=_MEETING,
        help="address of this node that the others can reach",
    ),
    Option(
        name="role",
        metavar="NAME",
        default="default",
        group=_ENVIRONMENT,
        help="role of the workers, shown in front of their lines",
    ),
    Option(
        name="master-addr",
        metavar="ADDRESS",
        group=_ENVIRONMENT,
        help="MASTER_ADDR of the workers, instead of one that is found",
    ),
    Option(
        name="master-port",
        metavar="PORT",
        read=convert.port,
        group=_ENVIRONMENT,
        help="MASTER_PORT of the workers, instead of one that is free",
    ),
    _switch(
        "virtual-local-rank",
        _ENVIRONMENT,
        "not in this version",
        later="virtual local ranks are not supported by this version; workers read LOCAL_RANK",
    ),
    Option(
        name="numa-binding",
        metavar="KIND",
        group=_ENVIRONMENT,
        has_variable=False,
        help="not in this version",
        later="binding to NUMA nodes is not supported by this version; start workers under numactl with --no-python",
    ),
)

HELP = Option(name="help", short="h", group="", help="show this page")
VERSION = Option(name="version", torchrun=False, group="", help="show the version")
