"""What a launch that did not succeed raises: the worker's own exception where there is one, and what belongs to it.

The first failure of the job is raised, as its verdict has it. If that is an exception, it is the original one: its
type, attributes and traceback; ``worker_failed`` on it has the rest, and its notes say where it comes from. Of another
node no object comes: exceptions of built-in types are made again from their text, others are a ``RemoteError``.
"""

from __future__ import annotations

import builtins
import contextlib
import re
from ast import literal_eval
from collections.abc import Callable
from typing import Any

from phalanx.agent.report.text import failure_line
from phalanx.agent.verdict.verdict import Ending, Failure, Verdict, others_told
from phalanx.errors import ChildFailedError
from phalanx.launcher.functions.function_job import RemoteError
from phalanx.launcher.hosting.foreground import failure_of
from phalanx.launcher.hosting.outcome import Outcome

__all__ = ["JobStopped", "WorkerFailed", "raised_by", "worker_failed"]

_OTHERS_SHOWN = 3
_OS_ERROR = re.compile(r"\[Errno (\d+)\] (.*?)(?:: ('[^']*'|\"[^\"]*\"))?", re.DOTALL)

Find = Callable[[int], BaseException | None]


class WorkerFailed(ChildFailedError):
    """A worker failed, and left no exception: a signal killed it, or it ended with an exit code of its own.

    Also what an exception that came back carries as ``worker_failed``. ``rank``, ``exit_code`` (as of ``phalanx run``:
    128 + N for signal N) and ``host`` are of the first failure; ``others`` is an exception group of those that failed
    beside it, None if none did; ``outcome`` has the whole verdict. torchelastic's ``ChildFailedError``, which this is,
    has the failures as torchelastic tells them.

    >>> import phalanx
    >>> try:
    ...     phalanx.launch(exit, 7)
    ... except phalanx.WorkerFailed as failed:
    ...     failed.rank, failed.exit_code
    (0, 7)
    """

    rank: int
    exit_code: int
    host: str
    others: BaseExceptionGroup[BaseException] | None
    outcome: Outcome

    def __init__(self, name: str, failures: dict[int, Any], *, first_rank: int | None = None) -> None:
        super().__init__(name, failures, first_rank=first_rank)
        self.rank = self.first_rank
        self.exit_code = abs(failures[self.first_rank].exitcode)
        self.host = ""
        self.others = None
        self.sentence = ""

    def __str__(self) -> str:
        return self.sentence or super().__str__()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.sentence!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (*super().__reduce__(), vars(self))


class JobStopped(RuntimeError):
    """A job was stopped before its workers had returned: by ``Job.stop``, or a signal to its agent.

    ``outcome`` is its end.

    >>> import phalanx, time
    >>> with phalanx.start(time.sleep, 1000) as job:
    ...     pass
    >>> job.result()
    Traceback (most recent call last):
        ...
    phalanx.launcher.functions.failure.JobStopped: sleep was stopped by SIGTERM
    """

    def __init__(self, text: str, outcome: Outcome) -> None:
        super().__init__(text)
        self.outcome = outcome

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.args[0], self.outcome)


def worker_failed(error: BaseException) -> WorkerFailed | None:
    """What is known of the failure that ``launch`` has raised this exception for; type checkers know what it is.

    It is ``error.worker_failed``, or ``error`` itself. None for an exception that no worker has raised, and for one of
    a class that takes no attributes.

    >>> import phalanx
    >>> try:
    ...     phalanx.launch(int, "five")
    ... except ValueError as error:
    ...     failed = phalanx.worker_failed(error)
    >>> failed.rank, failed.exit_code
    (0, 1)
    """
    found = error if isinstance(error, WorkerFailed) else getattr(error, "worker_failed", None)
    return found if isinstance(found, WorkerFailed) else None


def raised_by(outcome: Outcome, name: str, find: Find) -> BaseException:
    """What the end of this job raises. ``find`` gives the exception of a rank of this node."""
    verdict = outcome.verdict
    if outcome.ending is Ending.STOPPED:
        return JobStopped(f"{name} was stopped by {_signal_name(outcome.exit_code - 128)}", outcome)
    told = failure_of(outcome, name)
    if verdict is None or verdict.cause is None or not isinstance(told, ChildFailedError):
        return type(told)(_bare(str(told))) if told is not None else RuntimeError(f"{name} failed")
    failed = WorkerFailed(told.name, told.failures, first_rank=told.first_rank)
    failed.outcome = outcome
    failed.exit_code = outcome.exit_code
    failed.host = verdict.cause.host
    failed.sentence = failure_line(verdict, verdict.cause, name)
    # By rank: what came from the agent as data is equal to the cause, and not it.
    others = [_of_other(one, find) for one in others_told(verdict) if one.rank != verdict.cause.rank]
    if others:
        failed.others = BaseExceptionGroup("ranks that failed beside the first", others)
    original = _exception_of(verdict.cause, find)
    if original is None:
        _add_notes(failed, verdict, verdict.cause, others)
        return failed
    _add_notes(original, verdict, verdict.cause, others)
    _attach(original, failed)
    return original


def _exception_of(failure: Failure, find: Find) -> BaseException | None:
    """The exception that ended a rank; None if none did, or one that means an end and no error."""
    own = find(failure.rank)
    if own is not None:
        return None if isinstance(own, KeyboardInterrupt | SystemExit | GeneratorExit) else own
    if failure.exception in ("", "SystemExit", "KeyboardInterrupt", "GeneratorExit") or failure.is_straggler:
        return None
    made = _remade(failure)
    if failure.traceback:
        with contextlib.suppress(Exception):
            made.add_note(f"The traceback on {failure.host or 'its host'}:\n{failure.traceback.rstrip()}")
    return made


def _remade(failure: Failure) -> BaseException:
    """An exception of which only the text is here. A built-in type is that type again if its text is the same."""
    name = failure.exception
    text = failure.message.removeprefix(f"{name.rpartition('.')[2]}:").removeprefix(" ")
    kind = getattr(builtins, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        for args in _arguments(kind, text):
            with contextlib.suppress(Exception):
                made = kind(*args)
                if type(made) is kind and str(made) == text:
                    return made
    return RemoteError(name, text)


def _arguments(kind: type[Exception], text: str) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = [(text,)] if text else [()]
    if issubclass(kind, KeyError):
        with contextlib.suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            found.insert(0, (literal_eval(text),))
    if issubclass(kind, OSError) and (match := _OS_ERROR.fullmatch(text)):
        number, reason, path = match.groups()
        found.insert(0, (int(number), reason, *([literal_eval(path)] if path else [])))
    return found


def _of_other(failure: Failure, find: Find) -> BaseException:
    one = _exception_of(failure, find) or RemoteError(
        _signal_name(-failure.exit_code) if failure.exit_code < 0 else f"exit code {failure.exit_code}",
        failure.summary,
    )
    with contextlib.suppress(Exception):
        one.add_note(_whence(failure))
    return one


def _add_notes(to: BaseException, verdict: Verdict, cause: Failure, others: list[BaseException]) -> None:
    notes = [_whence(cause)]
    if verdict.restart_count:
        restarts = f"{verdict.restart_count} restart{'s' if verdict.restart_count > 1 else ''}"
        notes[0] += f", in round {cause.round}, after {restarts}"
    if cause.explanation and not cause.exception:  # why a signal killed it, as far as its node could see
        notes += cause.explanation.splitlines()
    if verdict.reason:
        notes.append(f"not tried again: {verdict.reason}")
    if cause.log_dir:
        notes.append(f"logs: {cause.log_dir}" + (f" on {cause.host}" if cause.group_world_size > 1 else ""))
    if others:
        shown = "; ".join(_shown(one) for one in others[:_OTHERS_SHOWN])
        more = f"; and {len(others) - _OTHERS_SHOWN} more" if len(others) > _OTHERS_SHOWN else ""
        ranks = "1 other rank" if len(others) == 1 else f"{len(others)} other ranks"
        notes.append(f"{ranks} failed beside it (worker_failed.others): {shown}{more}")
    for note in notes:
        with contextlib.suppress(Exception):  # a __notes__ of the user's class
            to.add_note(note)


def _whence(failure: Failure) -> str:
    return f"rank {failure.rank} (local rank {failure.local_rank}, pid {failure.pid}) on {failure.host}"


def _shown(one: BaseException) -> str:
    try:
        text = str(one).partition("\n")[0]
    except Exception:  # noqa: BLE001 # the user's code
        text = "<exception str() failed>"
    said = text if isinstance(one, RemoteError) else f"{type(one).__name__}: {text}"
    return said if len(said) <= 200 else f"{said[:200]}…"


def _attach(original: BaseException, failed: WorkerFailed) -> None:
    with contextlib.suppress(Exception):  # a class with __slots__, or a hostile __setattr__
        original.worker_failed = failed  # type: ignore[attr-defined]


def _bare(text: str) -> str:
    """The sentence of a report that is one."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("phalanx: error: ")]
    return errors[-1].removeprefix("phalanx: error: ") if errors else text.strip().removeprefix("phalanx: ")


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
