"""The names of ``torch.distributed.run``, for programs that call a launcher instead of starting one.

Names, signatures and meaning are those of torch 2.13; ``phalanx.run`` is where they are imported from. Two things are
meant to differ. A job runs in an agent of its own, beside the calling program, which stays as it is; and what cannot
be used is a ``ValueError`` with one sentence before anything starts. ``main()`` in the file of a command, such as the
script ``torchrun``, is the command itself; ``python -m phalanx.run`` does not come through here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from phalanx.cli.mistakes import UsageError
from phalanx.cli.namespace import command_line_of, environ_of, use_env
from phalanx.cli.parser import get_args_parser
from phalanx.errors import record

if TYPE_CHECKING:
    from phalanx.cli.sources import Asked
    from phalanx.launcher import RunOptions
    from phalanx.launcher.elastic.launch_config import LaunchConfig

__all__ = [
    "config_from_args",
    "determine_local_world_size",
    "get_args_parser",
    "get_rdzv_endpoint",
    "get_use_env",
    "main",
    "options_from_args",
    "parse_args",
    "parse_min_max_nnodes",
    "run",
    "run_script_path",
]


def parse_args(args: Sequence[str] | None) -> Any:
    """Parse a command line, by default this process's, into a Namespace. A mistake ends the program with exit code 2.

    >>> parse_args(["--nnodes=2", "train.py", "--nnodes=9"]).nnodes
    '2'
    """
    return get_args_parser().parse_args(args)


def parse_min_max_nnodes(nnodes: str) -> tuple[int, int]:
    """Return the smallest and the largest number of nodes of ``N`` or ``MIN:MAX``. Raises ``ValueError``.

    >>> parse_min_max_nnodes("2:4")
    (2, 4)
    """
    from phalanx.cli.convert import node_range

    return node_range(nnodes)


def determine_local_world_size(nproc_per_node: str) -> int:
    """Return the number of workers on this node for a number, ``auto``, ``cpu``, ``gpu`` or ``xpu``.

    Raises ``ValueError`` for another word, and where there is no such device. ``cpu`` counts what this process may use.

    >>> determine_local_world_size("8")
    8
    """
    from phalanx.launcher.hardware.slots import worker_slots

    return worker_slots(nproc_per_node)


def get_rdzv_endpoint(args: Any) -> str:
    """Return where nodes meet: the endpoint; or, for ``static`` without one, master address and port.

    Without a port the address stands alone, and the backend's own port is meant (torch writes ``127.0.0.1:None``).

    >>> get_rdzv_endpoint(parse_args(["--master-addr=node0", "--master-port=29501", "train.py"]))
    'node0:29501'
    """
    endpoint: str = args.rdzv_endpoint
    if args.rdzv_backend == "static" and not endpoint:
        return args.master_addr if args.master_port is None else f"{args.master_addr}:{args.master_port}"
    return endpoint


def get_use_env(args: Any) -> bool:
    """Return whether workers learn their local rank from the environment alone, which is so without ``use_env``.

    >>> get_use_env(parse_args(["train.py"]))
    True
    """
    return use_env(args)


def config_from_args(args: Any) -> tuple[LaunchConfig, Callable[..., Any] | str, list[str]]:
    """Return what ``elastic_launch(config, command)(*arguments)`` needs for a job as the Namespace describes it.

    Raises ``ValueError`` for what cannot be used. The command is the program, Python, or ``run_script_path``; each
    ``${local_rank}`` in the arguments will be replaced. ``run`` does more: it captures what ends a script.

    >>> from phalanx.run import config_from_args, parse_args
    >>> config, command, arguments = config_from_args(parse_args(["--nproc-per-node=2", "--no-python", "sort", "-r"]))
    >>> config.nproc_per_node, command, arguments
    (2, 'sort', ['-r'])
    """
    from phalanx.launcher.elastic.launch_config import LaunchConfig
    from phalanx.multiprocessing.logs import DefaultLogsSpecs

    options = options_from_args(args)
    backend, endpoint = (
        ("c10d", "localhost:0") if options.standalone else (options.rdzv_backend, get_rdzv_endpoint(args))
    )
    rank = {"rank": options.node_rank or 0} if backend == "static" else {}
    config = LaunchConfig(
        min_nodes=options.min_nodes,
        max_nodes=options.max_nodes,
        nproc_per_node=options.nproc,
        run_id=options.run_id or "none",
        role=options.role,
        rdzv_endpoint=endpoint,
        rdzv_backend=backend,
        rdzv_configs={**options.rdzv_conf, **rank},
        max_restarts=options.restarts.max_restarts,
        monitor_interval=args.monitor_interval,
        start_method=options.start_method,
        log_line_prefix_template=options.log_line_prefix_template,
        local_addr=options.local_addr,
        event_log_handler=args.event_log_handler,
        numa_options=_numa_options(args),
        signals_to_handle=args.signals_to_handle,
        duplicate_stdout_filters=list(options.duplicate_stdout_filters),
        duplicate_stderr_filters=list(options.duplicate_stderr_filters),
        virtual_local_rank=args.virtual_local_rank,
        shutdown_timeout=args.shutdown_timeout,
        logs_specs=DefaultLogsSpecs(
            log_dir=options.log_dir,
            redirects=options.redirects,
            tee=options.tee,
            local_ranks_filter=options.local_ranks_filter,
        ),
    )
    command, arguments = _command(args, options)
    return config, command, arguments


def _numa_options(args: Any) -> Any:
    kind = getattr(args, "numa_binding", None)
    if kind is None:
        return None
    from types import SimpleNamespace

    return SimpleNamespace(affinity_mode=kind, should_fall_back_if_binding_fails=False)


def _command(args: Any, options: RunOptions) -> tuple[Callable[..., Any] | str, list[str]]:
    arguments = list(options.args)
    if getattr(args, "run_path", False):
        return run_script_path, [options.entrypoint, *arguments]
    if options.no_python:
        return options.entrypoint, arguments
    from phalanx.launcher.interpreter import interpreter

    return interpreter(options.python, os.environ), [
        "-u",
        *(["-m"] if options.module else []),
        options.entrypoint,
        *arguments,
    ]


def run_script_path(training_script: str, *training_script_args: str) -> None:
    """Run a script in this interpreter as ``__main__``, with these arguments in ``sys.argv``.

    >>> import pathlib
    >>> _ = pathlib.Path("hello.py").write_text("import sys; print(__name__, sys.argv)")
    >>> before = sys.argv
    >>> run_script_path("hello.py", "--lr=1")
    __main__ ['hello.py', '--lr=1']
    >>> sys.argv = before
    """
    import runpy

    sys.argv = [training_script, *training_script_args]
    runpy.run_path(training_script, run_name="__main__")


def options_from_args(args: Any) -> RunOptions:
    """Return the options of ``phalanx run`` that a Namespace stands for. Raises ``ValueError`` with one sentence.

    Names that the Namespace lacks come from their variables and defaults; names that are no options are passed over.
    """
    from phalanx.cli.values import fields_of
    from phalanx.launcher.options import RunOptions

    if not use_env(args) and getattr(args, "no_python", False):
        raise ValueError(
            "--no-python needs --use-env: only a Python script is told its local rank by an argument"
        )
    try:
        return RunOptions(**fields_of(_asked(args)))
    except (UsageError, TypeError) as mistake:
        raise ValueError(str(mistake)) from None


def _asked(args: Any) -> Asked:
    from phalanx.cli.sources import asked

    return asked(command_line_of(args), environ_of(args, os.environ))


def run(args: Any) -> None:
    """Run a job as the Namespace describes it, and return when it has succeeded.

    Raises ``ChildFailedError`` when workers failed, ``SignalException`` when a stop signal to this program (its main
    thread waits) has stopped them, ``RendezvousError`` when no round could be formed, and ``ValueError`` for what
    cannot be used. Signals are this program's own again afterwards.

    >>> run(parse_args(["--no-python", "true"]))
    """
    from phalanx.cli.run import LOOKING, OURS_ALONE

    if any(getattr(args, dest, False) for dest in LOOKING):
        return _look(args)
    from phalanx.launcher.hosting.foreground import failure_of, wait_in_foreground
    from phalanx.launcher.hosting.library import start_agent
    from phalanx.records import changed

    options = changed(options_from_args(args), prints_report=False)  # the exception has it
    env = {name: text for name, text in os.environ.items() if name not in OURS_ALONE}
    outcome = wait_in_foreground(start_agent(options, env=env), options)
    failure = failure_of(outcome, options.entrypoint)
    if failure is not None:
        raise failure
    return None


def _look(args: Any) -> None:
    """Print what ``--print-config`` and ``--dry-run`` print."""
    from phalanx.cli import preview

    try:
        preview.main(_asked(args))
    except (UsageError, TypeError) as mistake:
        raise ValueError(str(mistake)) from None


def main(args: Sequence[str] | None = None) -> None:
    """Parse a command line, by default this process's, and ``run`` it. A mistake ends the program with exit code 2.

    Without ``args``, at the top level of the file that was started, it is ``phalanx run``: a job that fails ends the
    program with the exit code of that command, and raises no exception but ``SystemExit``.

    >>> main(["--no-python", "true"])
    """
    from phalanx.cli import console_script

    if args is None and console_script.is_command(sys._getframe(1)):
        return console_script.be_command("run")
    return _main(args)


@record
def _main(args: Sequence[str] | None) -> None:
    parsed = parse_args(args)
    try:
        run(parsed)
    except ValueError as mistake:
        print(f"phalanx: error: {mistake}", file=sys.stderr)
        raise SystemExit(2) from None
