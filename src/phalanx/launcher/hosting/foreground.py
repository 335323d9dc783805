"""A program that waits for the job it hosts, as torchelastic's function API does: its signals are the job's until then.

``wait_in_foreground`` waits; ``failure_of`` says what a job that did not succeed raises in the program.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from phalanx.agent.verdict.verdict import EX_UNAVAILABLE, EX_USAGE, Ending, Failure, others_told
from phalanx.multiprocessing.masks import all_signals_blocked

if TYPE_CHECKING:
    from phalanx.errors import ProcessFailure
    from phalanx.events.job import JobEvent
    from phalanx.launcher.hosting.library import AgentProcess
    from phalanx.launcher.hosting.outcome import Outcome
    from phalanx.launcher.options import RunOptions

__all__ = ["failure_of", "wait_in_foreground"]


def wait_in_foreground(
    agent: AgentProcess,
    options: RunOptions,
    *,
    on_event: Callable[[JobEvent], object] | None = None,
) -> Outcome:
    """Wait for the end of agent and job. Stop signals to this program stop the job, those that are passed on reach it.

    That needs the main thread; from another one signals are left as they are. The program's handlers are back when this
    returns. A signal that the program ignores stays ignored, and one that only warns goes to the program's own handler
    if it has one. ``on_event`` is as of ``AgentProcess.wait``. Whatever raises here, the job is stopped before.
    """
    with agent, _forwarded(agent, options.stop_signals, options.pass_signals):
        outcome = agent.wait(on_event=on_event)
    assert outcome is not None, "there was no limit"
    return outcome


@contextmanager
def _forwarded(agent: AgentProcess, stopping: Iterable[int], warning: Iterable[int]) -> Iterator[None]:
    """Hand signals on while the block runs.

    By a thread: a handler runs between any two instructions of the wait, which may hold the agent's lock there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # its put may be called from a signal handler
    before: dict[int, Any] = {}
    sender = threading.Thread(target=_hand_on, args=(agent, caught), name="phalanx-signals", daemon=True)
    try:
        # Handlers run in the main thread alone, and a signal that another thread takes does not wake that one.
        with all_signals_blocked():
            sender.start()
        for signum in (*stopping, *warning):
            there = signal.getsignal(signum)
            is_free = there is signal.SIG_DFL or (signum in stopping and there is not signal.SIG_IGN)
            if there is not None and is_free:  # None: of a library, and could not be put back
                before[signum] = there
                signal.signal(signum, lambda number, _frame: caught.put(number))
        yield
    finally:
        for signum, there in before.items():
            signal.signal(signum, there)
        caught.put(None)
        if sender.ident is not None:  # else a handler of the program has raised before it began
            sender.join()


def _hand_on(agent: AgentProcess, caught: queue.SimpleQueue[int | None]) -> None:
    while (signum := caught.get()) is not None:
        agent.send_signal(signum)


def failure_of(outcome: Outcome, name: str) -> Exception | None:
    """What the end of a job raises in the program that hosts it; None when it succeeded. The types are torchelastic's.

    ``ChildFailedError``: workers failed, on whichever node. ``SignalException``: a signal stopped it.
    ``RendezvousError``: nodes did not meet. ``ValueError``: an option cannot be used. ``RuntimeError``: its agent was
    killed, or has a bug. What the report says beyond the exception's text, its last line and where the logs are, is a
    note of it, so that whoever lets it out sees each line once.
    """
    failure = _failure_of(outcome, name)
    if failure is not None and (note := _beyond(str(failure), outcome.report)):
        failure.add_note(note)
    return failure


def _beyond(text: str, report: str) -> str:
    """The launcher's own lines of a report that do not stand in an exception's text; the block of failures does."""
    told = set(text.splitlines())
    return "\n".join(
        line for line in report.splitlines() if line.startswith("phalanx: ") and line not in told
    )


def _failure_of(outcome: Outcome, name: str) -> Exception | None:
    if outcome.ending is Ending.SUCCEEDED:
        return None
    verdict = outcome.verdict
    if outcome.ending is Ending.STOPPED:
        from phalanx.multiprocessing.stopping import SignalException

        number = signal.Signals(outcome.exit_code - 128)  # exit-codes.md
        return SignalException(f"Process {os.getpid()} got signal: {int(number)}", sigval=number)
    if verdict is not None and verdict.cause is not None:
        from phalanx.errors import ChildFailedError

        told = [verdict.cause, *others_told(verdict)]
        failures = {one.rank: _process_failure(one) for one in sorted(told, key=lambda one: one.rank)}
        return ChildFailedError(name, failures, first_rank=verdict.cause.rank)
    report = outcome.report.strip() or (verdict.reason if verdict else "") or f"{name} failed"
    if outcome.exit_code == EX_UNAVAILABLE:
        from phalanx.rendezvous.errors import RendezvousError

        return RendezvousError(report)
    if outcome.exit_code == EX_USAGE:
        return ValueError(report.removeprefix("phalanx: error: "))  # the command line's words
    return RuntimeError(report)


def _process_failure(one: Failure) -> ProcessFailure:
    """As torchelastic has it. Of another node's worker there is no error file here, but what was told of it."""
    from phalanx.errors import ErrorRecord, ProcessFailure

    found = ProcessFailure(
        one.local_rank, one.pid, one.exit_code, one.error_file, crash=one.crash, stderr_tail=one.stderr
    )
    message = one.message or one.why_not_started or one.summary
    if found.record.problem is None or not message:
        return found
    found.timestamp = int(one.wall_at) or found.timestamp
    found.record = ErrorRecord(
        data={},
        message=message,
        timestamp=found.timestamp,
        exception_type=one.exception,
        traceback=one.traceback,
    )
    if one.exception or one.traceback:
        info = {"py_callstack": one.traceback, "timestamp": str(found.timestamp)}
        found.message = {"message": message, "extraInfo": info}
        found.error_file_data = {"message": found.message}
    else:
        found.message = message
    return found
