"""From a job's description to its exit code, in the order that start-up demands.

The keeper is forked first: before the event loop, its threads and its imports exist, so that it is small and safe to
fork without exec. Only then is asyncio, by far the largest import, paid for.
"""

from __future__ import annotations

import errno
import signal
import time
from typing import TYPE_CHECKING

from phalanx.agent.processes.keeper import Keeper
from phalanx.agent.spec import Ended, JobSpec
from phalanx.agent.verdict.verdict import EX_UNAVAILABLE, EX_USAGE
from phalanx.early import STOPPING, remember_stop_signals
from phalanx.multiprocessing.descriptors import hold_back, how_to_get_more, make_room
from phalanx.multiprocessing.trees import become_subreaper
from phalanx.records import changed

if TYPE_CHECKING:
    from phalanx.agent.processes.console import Console

__all__ = ["run_job"]

# Whoever told us to stop waits for our end; a pager that somebody has left open would hold it up for ever.
READER_S = 2.0
# The keeper, the loop, the channel, the logs, a store that other nodes reach, and a few to import and to read with.
DESCRIPTORS = 32


def run_job(spec: JobSpec) -> int:
    """Run the job on this node and return the exit code of the table in ``docs/exit-codes.md``.

    This process, which is to be the job's alone, becomes a child subreaper: orphans of workers are adopted, and ended.
    Raises ``OSError`` when not even the keeper can be started; nothing was started then.
    """
    # Until the loop passes them on: a warning must not end what is about to start.
    for number in spec.pass_signals:
        signal.signal(number, signal.SIG_IGN)
    remember_stop_signals(spec.stop_signals)
    become_subreaper()
    host = spec.host
    if lack := _lack_of_descriptors(spec.nproc):
        return _not_begun(spec, lack, EX_UNAVAILABLE)
    keeper = Keeper.start(spec.job_token, keep=() if host is None else host.witness())
    if spec.prepare is not None:
        try:
            spec.prepare()
        except ValueError as reason:
            keeper.done()
            return _not_begun(spec, str(reason), EX_USAGE)
    from phalanx.agent.processes.console import Console

    console = Console()
    ended = _drive(spec, keeper, console)
    if ended.is_orderly:
        # Whatever was raised above, or left running, leaves the keeper to end what is left of the job.
        keeper.done()
    if host is not None:
        host.told(ended)
    if not spec.prints_report:
        ended = changed(ended, last_words="")
    _say_last(console, ended, hurry=None if host is None else host.fileno())
    return ended.exit_code


def _lack_of_descriptors(nproc: int) -> str:
    """Why this process cannot open what an agent needs, as long as that can be said; nothing if it can."""
    try:
        with hold_back(DESCRIPTORS):
            return ""
    except OSError:
        make_room(nproc)
    try:
        with hold_back(DESCRIPTORS):
            return ""
    except OSError as error:
        advice = f"; {how_to_get_more(nproc)}" if error.errno == errno.EMFILE else ""
        return f"this launcher needs {DESCRIPTORS} descriptors: {error.strerror}{advice}"


def _not_begun(spec: JobSpec, reason: str, exit_code: int) -> int:
    from phalanx.agent.processes.console import Console
    from phalanx.agent.report.files import last_words
    from phalanx.agent.report.flight import FlightRecord
    from phalanx.agent.verdict.verdict import Ending, Verdict

    verdict = Verdict(ending=Ending.FAILED, exit_code=exit_code, reason=reason)
    words = last_words(
        verdict,
        name=spec.name,
        settled=None,
        log_dir=None,
        flight=FlightRecord(),
        error_file=spec.error_file,
        report_file=spec.report_file,
    )
    ended = Ended(verdict.exit_code, words, True, (), verdict)
    if spec.host is not None:
        spec.host.told(ended)
    if not spec.prints_report:
        ended = changed(ended, last_words="")
    _say_last(Console(), ended, hurry=None if spec.host is None else spec.host.fileno())
    return ended.exit_code


def _say_last(console: Console, ended: Ended, *, hurry: int | None) -> None:
    """Print the report, as long as its reader takes; a stop signal leaves him, and changes no exit code.

    So does a word from the host, or its end: ``hurry`` is readable then. One that came before gives him some time.
    """
    has_words = bool(ended.last_words) or console.has_kept
    for number in ended.held_signals:
        signal.signal(number, _leave if number in STOPPING and has_words else signal.SIG_IGN)
    try:
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ended.held_signals)
            patience_s = READER_S if ended.was_told_to_stop else None
            console.finish(ended.last_words, hurry=hurry, patience_s=patience_s)
        finally:
            signal.pthread_sigmask(signal.SIG_BLOCK, ended.held_signals)
    except _Left:
        pass
    finally:
        for number in ended.held_signals:
            signal.signal(number, signal.SIG_IGN)


class _Left(Exception):
    """A stop signal came while the report was being written."""


def _leave(_number: int, _frame: object) -> None:
    raise _Left


def _now() -> int:
    return int(time.time())


def _drive(spec: JobSpec, keeper: Keeper, console: Console) -> Ended:
    import asyncio

    from phalanx.agent.node import Node

    # asyncio's runner would turn SIGINT into a cancelled task. Ours is a stop signal, or the user wants none of
    # it; until the driver has taken it over, a keyboard interrupt has nothing to stop.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    async def drive() -> Ended:
        node = Node(spec, keeper, console)
        if spec.health_port is None:
            return await node.run()
        from phalanx.agent.health import HealthEndpoint

        alive = _now if spec.watchdog is None else spec.watchdog.last_progress
        async with HealthEndpoint(spec.health_port, alive, console.say):
            return await node.run()

    return asyncio.run(drive())
