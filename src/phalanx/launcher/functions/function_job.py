"""A job whose workers call a Python function: an agent that this program hosts, and what the workers answer.

The call is pickled once into a file without a name, and each local rank has another one for its answer; workers open
both through ``/proc``, since they are descriptors of this program. The agent runs an ordinary command and unpickles
nothing. What other nodes' ranks returned comes as plain data, through the job's store.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import IO, Any, Self

from phalanx.functions import worker_file
from phalanx.functions.answers import (
    RAISED,
    RETURNED,
    STARTED,
    Answer,
    exception_in,
    others_in,
    read_answer,
    value_in,
)
from phalanx.functions.exceptions import unpacked
from phalanx.functions.exchange import read_others
from phalanx.launcher.functions.order import name_of, write_order
from phalanx.launcher.hosting import library
from phalanx.launcher.hosting.library import AgentProcess
from phalanx.launcher.hosting.outcome import Outcome
from phalanx.launcher.options import RunOptions
from phalanx.multiprocessing.macros import LOCAL_RANK
from phalanx.multiprocessing.nameless import NamelessFile
from phalanx.records import changed

__all__ = ["FunctionJob", "RemoteError", "UnreadableValue"]


class RemoteError(Exception):
    """Stands for a worker's exception that cannot be made here: one of another node, or one that no pickle takes.

    ``type_name`` is the name of its type, with the module if it is not a built-in; ``text`` its text.

    >>> raise RemoteError("training.Diverged", "loss is nan")
    Traceback (most recent call last):
        ...
    phalanx.launcher.functions.function_job.RemoteError: training.Diverged: loss is nan
    """

    def __init__(self, type_name: str, text: str) -> None:
        super().__init__(type_name, text)
        self.type_name = type_name
        self.text = text

    def __str__(self) -> str:
        return f"{self.type_name}: {self.text}" if self.text else self.type_name


class UnreadableValue(RuntimeError):
    """A rank returned something that cannot be unpickled here; the text says why, and the cause is the exception.

    >>> import phalanx
    >>> class Closed:
    ...     def __reduce__(self):
    ...         return int, ("no number",)
    >>> try:
    ...     phalanx.launch(Closed)
    ... except UnreadableValue as reason:
    ...     print(str(reason).partition(" (")[0])
    rank 0 returned something that cannot be read here
    """


class FunctionJob:
    """A running job of ``function(*args, **kwargs)`` in each worker. Methods may be called from any thread.

    ``agent`` is the hosted agent: watch, signal and stop the job through it. When it has ended, ``returned`` and
    ``raised`` have the answers of this node's ranks, by global rank. Only answers of the last round count. Keep this
    object as long as the job runs: ``close``, which also comes with its end as an object, takes the files away.
    """

    def __init__(self, agent: AgentProcess, order: NamelessFile, answers: list[NamelessFile]) -> None:
        self.agent = agent
        self._order = order
        self._files = answers
        self._values: dict[int, Any] | None = None

    @classmethod
    def start(
        cls,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: RunOptions,
        *,
        args_by_local_rank: Mapping[int, tuple[Any, ...]] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> Self:
        """Start the job and return at once.

        ``options`` says everything but the program: its ``args``, ``module`` and ``no_python`` are replaced, its
        ``entrypoint`` is the name in reports if it has no ``name``; an empty one is replaced by the function's name.
        ``args_by_local_rank`` gives local ranks positional arguments of their own in place of ``args``. The rest is
        ``library.start_agent``'s.

        Raises ``TypeError`` for what cannot be sent to a worker, and what ``library.start_agent`` raises.
        """
        if not callable(function):
            raise TypeError(f"a function is needed, not {function!r} of type {type(function).__name__}")
        files: list[NamelessFile] = []
        try:
            order = _new_file(files, "phalanx-order")
            answers = [
                _new_file(files, f"phalanx-answer-{local_rank}") for local_rank in range(options.nproc)
            ]
            offset = write_order(
                order.fd,
                function,
                args,
                kwargs,
                args_by_local_rank=args_by_local_rank or {},
                answers=[one.path for one in answers],
                exchange=_exchange(options),
            )
            agent = library.start_agent(
                changed(
                    options,
                    entrypoint=worker_file(),
                    args=(order.path, str(offset), LOCAL_RANK),
                    module=False,
                    no_python=False,
                    name=options.name or options.entrypoint or name_of(function),
                    # The interpreter that pickled: PYTHON_EXEC is about scripts.
                    python=options.python or sys.executable,
                ),
                env=env,
                cwd=cwd,
                stdout=stdout,
                stderr=stderr,
            )
        except BaseException:
            for file in files:
                file.close()
            raise
        return cls(agent, order, answers)

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait for the end of the job; None when ``timeout_s`` was not enough, and the job goes on."""
        return self.agent.wait(timeout_s)

    @property
    def world_size(self) -> int:
        """Of the last round, 0 if no worker has come as far as to say so."""
        return self.agent.status().world_size or max(
            (one.world_size for _, one in self._answers()), default=0
        )

    def returned(self) -> dict[int, Any]:
        """What this node's ranks returned; None for one that ended its process itself, with exit code 0.

        For after the end of a job that succeeded: of one that failed it has whoever returned before. Raises
        ``UnreadableValue``, each time, when one of the values cannot be unpickled, or is not there.
        """
        if self._values is None:
            values: dict[int, Any] = {}
            found = {answer.rank: (file, answer) for file, answer in self._answers()}
            for rank in self._ended_well() | found.keys():
                if rank not in found:
                    raise UnreadableValue(
                        f"rank {rank} has ended with exit code 0 and left no answer: its interpreter ended before it "
                        "called the function, or something has written over what it left"
                    )
                file, answer = found[rank]
                if answer.kind == STARTED:
                    values[rank] = None
                elif answer.kind == RETURNED:
                    values[rank] = _value(file, answer)
                elif rank in self._ended_well():
                    raise UnreadableValue(
                        f"rank {rank} left an exception, and then its process ended with exit code 0 all the same"
                    )
            self._values = values
        return dict(self._values)

    def others(self) -> tuple[dict[int, Any], dict[int, str]]:
        """What ranks of other nodes returned, and of those whose value was not sent the reason."""
        values: dict[int, Any] = {}
        unsent: dict[int, str] = {}
        for file, answer in self._answers():
            some, not_sent = read_others(others_in(file.fd, answer))
            values.update(some)
            unsent.update(not_sent)
        return values, unsent

    def raised(self, rank: int) -> BaseException | None:
        """The exception that ended this rank, with its traceback; None if none did, or it is on another node."""
        for file, answer in self._answers():
            if answer.rank == rank and answer.kind == RAISED:
                try:
                    return unpacked(exception_in(file.fd, answer), RemoteError)
                except Exception:  # noqa: BLE001 # nothing that we wrote: the report has what the agent knows
                    return None
        return None

    def close(self) -> None:
        """Let go of the files; idempotent. Of a job that still runs, workers that start later fail."""
        for file in (self._order, *self._files):
            file.close()

    def __del__(self) -> None:
        self.close()

    def _answers(self) -> list[tuple[NamelessFile, Answer]]:
        """The answers of the last round; a rank that did not come up in it may have left one of an earlier round.

        Any program of this user can write into such a file: what is not as the agent has told of it is no answer.
        """
        found = [
            (local_rank, file, answer)
            for local_rank, file in enumerate(self._files)
            if file.fd >= 0 and (answer := read_answer(file.fd))
        ]
        status = self.agent.status()
        if not status.workers:  # the agent could not tell
            last = max((answer.round for _, _, answer in found), default=0)
            return [(file, answer) for _, file, answer in found if answer.round == last]
        ranks = {one.local_rank: one.rank for one in status.workers}
        return [
            (file, answer)
            for local_rank, file, answer in found
            if (answer.round, answer.rank, answer.world_size)
            == (status.round, ranks.get(local_rank), status.world_size)
        ]

    def _ended_well(self) -> set[int]:
        """This node's ranks that have succeeded, as the agent tells."""
        return {one.rank for one in self.agent.status().workers if one.state == "succeeded"}


def _value(file: NamelessFile, answer: Answer) -> Any:
    try:
        return value_in(file.fd)
    except Exception as reason:
        raise UnreadableValue(
            f"rank {answer.rank} returned something that cannot be read here ({type(reason).__name__}: {reason}); "
            "what it needs must be importable in the launching program too"
        ) from reason


def _new_file(files: list[NamelessFile], name: str) -> NamelessFile:
    file = NamelessFile(name)
    files.append(file)
    if not file.path:
        raise OSError("functions need /proc, through which workers find what they are to call")
    return file


def _exchange(options: RunOptions) -> dict[str, Any] | None:
    """How workers wait for other nodes' values; None on one node, which needs none."""
    if options.max_nodes == 1 or options.standalone:
        return None
    return {"straggler_s": options.straggler_s, "exit_barrier_s": options.exit_barrier_s}
