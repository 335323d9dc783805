"""``phalanx.launch`` and ``phalanx.start``: a function in n workers, on one machine or many."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Unpack, overload

from phalanx.launcher.functions.function_job import FunctionJob
from phalanx.launcher.functions.job import Job
from phalanx.launcher.functions.keywords import LaunchOptions, options_of
from phalanx.launcher.functions.order import name_of
from phalanx.launcher.functions.output import Output
from phalanx.launcher.functions.result import LaunchResult
from phalanx.launcher.hosting import library
from phalanx.launcher.options import RunOptions
from phalanx.records import changed

__all__ = ["launch", "start"]

R = TypeVar("R")
Script = str | os.PathLike[str]


@overload
def launch(
    function: Callable[..., R],
    *args: Any,
    kwargs: Mapping[str, Any] | None = ...,
    **options: Unpack[LaunchOptions],
) -> LaunchResult[R]: ...
@overload
def launch(
    function: Script, *args: Any, kwargs: None = ..., **options: Unpack[LaunchOptions]
) -> LaunchResult[Any]: ...
def launch(
    function: Callable[..., Any] | Script,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[LaunchOptions],
) -> LaunchResult[Any]:
    """Call ``function(*args, **kwargs)`` in each of ``nproc`` workers, and return what all of them returned.

    Function, arguments and values travel by pickle, once for all workers of this machine; with cloudpickle (extra
    ``func``) also lambdas, closures, and what a notebook or ``__main__`` defines. A script's path or, with
    ``module=True``, a module's name may stand in the place of the function; its arguments are texts.

    With ``nnodes`` the same call is made on each machine, with the same ``rdzv_endpoint``; each of them returns the
    values of all ranks, see ``LaunchResult``. Workers find torchrun's variables (``RANK``, ``WORLD_SIZE``, …), and
    what they print comes out here, with the rank in front. ``LaunchOptions`` names all options; times are in seconds.

    Raises the original exception of the worker that failed first, with its traceback and, as ``worker_failed``, what
    else is known; ``WorkerFailed`` for a worker that left none; ``TypeError`` and ``ValueError`` for what cannot be
    used. Ctrl-C stops the workers with their grace, and is raised then.

    >>> import phalanx
    >>> phalanx.launch(lambda x: x * 2, 21, nproc=2)
    <LaunchResult of 2 ranks: [42, 42]>
    """
    job: Job[Any] = start(function, *args, kwargs=kwargs, **options)  # type: ignore[arg-type]
    with job:
        outcome = job.agent.wait()
    assert outcome is not None, "there was no limit"
    found = job._concluded(outcome)
    if isinstance(found, LaunchResult):
        return found
    raise found  # here, so that the worker's frames come right below this one


@overload
def start(
    function: Callable[..., R],
    *args: Any,
    kwargs: Mapping[str, Any] | None = ...,
    **options: Unpack[LaunchOptions],
) -> Job[R]: ...
@overload
def start(function: Script, *args: Any, kwargs: None = ..., **options: Unpack[LaunchOptions]) -> Job[Any]: ...
def start(
    function: Callable[..., Any] | Script,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    **options: Unpack[LaunchOptions],
) -> Job[Any]:
    """Start what ``launch`` would run, and return at once: a ``Job`` to watch, to signal, to stop and to wait for.

    >>> import phalanx
    >>> with phalanx.start(sum, [1, 2, 3], nproc=2) as job:
    ...     list(job.result())
    [6, 6]
    """
    _check_folder(options.get("cwd"))
    is_function = callable(function)
    name = name_of(function) if callable(function) else os.path.basename(os.fspath(_script(function)))
    made = options_of(
        options,
        entrypoint="" if callable(function) else _program(function, options),
        args=() if is_function else _texts(args),
    )
    if kwargs is not None and not (is_function and isinstance(kwargs, Mapping)):
        raise TypeError("kwargs is to be a dictionary with the keyword arguments of a function")
    made = changed(made, name=made.name or name)
    made, temporary = _with_logs(made)
    output = Output()
    outer: dict[str, Any] = {"cwd": options.get("cwd"), "stdout": output.stdout, "stderr": output.stderr}
    job: FunctionJob | None = None
    try:
        if callable(function):
            job = FunctionJob.start(function, args, kwargs or {}, made, **outer)
            agent = job.agent
        else:
            agent = library.start_agent(made, **outer)
    except BaseException:
        output.ended()
        if temporary is not None:
            os.rmdir(temporary)
        raise
    output.started()
    return Job(made.name or name, agent, job, output, temporary, made.pass_signals)


def _script(script: Any) -> Script:
    if not isinstance(script, str | os.PathLike):
        raise TypeError(
            f"a function or the path of a script is to be launched, not {script!r}, of type {type(script).__name__}"
        )
    return script


def _program(script: Script, options: LaunchOptions) -> str:
    """The script as the launcher takes it; one that is not there is said here, before anything starts."""
    path = os.fspath(script)
    if not (options.get("module") or options.get("no_python")):
        where = os.path.join(options.get("cwd") or os.curdir, path)
        if not os.path.exists(where):
            raise FileNotFoundError(
                f"there is no script {path!r}; module=True runs a module, no_python=True any other program"
            )
    return path


def _check_folder(cwd: str | os.PathLike[str] | None) -> None:
    if cwd is not None and not os.path.isdir(cwd):
        raise NotADirectoryError(f"cwd: there is no folder {os.fspath(cwd)!r}")


def _texts(args: tuple[Any, ...]) -> tuple[str, ...]:
    for one in args:
        if isinstance(one, bool) or not isinstance(one, str | int | float | os.PathLike):
            raise TypeError(
                f"the arguments of a script are texts, and {one!r} is of type {type(one).__name__}"
            )
    return tuple(os.fspath(one) if isinstance(one, os.PathLike) else str(one) for one in args)


def _with_logs(options: RunOptions) -> tuple[RunOptions, str | None]:
    """A prefix needs logs; where the user asked for none, they go to a folder that is removed after a success."""
    if options.log_dir is not None or options.logs_specs is not None:
        return options, None
    temporary = tempfile.mkdtemp(prefix="phalanx_")
    return changed(options, log_dir=temporary), temporary
