"""``start_processes``: torchelastic's one call that makes the right context and starts it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from phalanx.multiprocessing.commands import SubprocessContext

if TYPE_CHECKING:
    from phalanx.multiprocessing.context import PContext
    from phalanx.multiprocessing.logs import LogsSpecs
    from phalanx.multiprocessing.numa import NumaOptions
    from phalanx.multiprocessing.trees import ProcessTree

__all__ = ["start_processes"]


def start_processes(
    name: str,
    entrypoint: Callable[..., Any] | str,
    args: dict[int, tuple[Any, ...]],
    envs: dict[int, dict[str, str]],
    logs_specs: LogsSpecs,
    log_line_prefixes: dict[int, str] | None = None,
    start_method: str = "spawn",
    numa_options: NumaOptions | None = None,
    duplicate_stdout_filters: list[str] | None = None,
    duplicate_stderr_filters: list[str] | None = None,
    *,
    tree: ProcessTree | None = None,
) -> PContext:
    """Start ``len(envs)`` copies of a command (``entrypoint`` is text) or a function, and return their context.

    The caller owns the context and ends it with ``close()``, or has ``wait()`` do so. ``start_method`` (spawn, fork,
    forkserver) is for functions. Raises ``SpawnError``, with no worker left, and ``RuntimeError`` when ``args`` and
    ``envs`` do not cover the same local ranks ``0…n-1``. ``numa_options`` is torch's ``NumaOptions``, or anything like
    it: workers are bound to CPUs from their birth; ``BindingError`` says why that is not possible here. Semantics of
    torchelastic 2.13.

    >>> from phalanx.multiprocessing import DefaultLogsSpecs
    >>> context = start_processes("max", max, {0: (1, 2), 1: (5, 4)}, {0: {}, 1: {}}, DefaultLogsSpecs())
    >>> sorted(context.wait().return_values.items())
    [(0, 2), (1, 5)]
    """
    context: PContext
    if isinstance(entrypoint, str):
        context = SubprocessContext(
            name,
            entrypoint,
            args,
            envs,
            logs_specs,
            log_line_prefixes,
            numa_options,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
            tree=tree,
        )
    else:
        from phalanx.multiprocessing.functions import MultiprocessContext

        context = MultiprocessContext(
            name,
            entrypoint,
            args,
            envs,
            start_method,
            logs_specs,
            log_line_prefixes,
            numa_options,
            duplicate_stdout_filters,
            duplicate_stderr_filters,
            tree=tree,
        )
    context.start()
    return context
