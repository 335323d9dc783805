"""From a job's description to its exit code, in the order that start-up demands.

The keeper is forked first: before the event loop, its threads and its imports exist, so that it is small and safe to
fork without exec. Only then is asyncio, by far the largest import, paid for.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from phalanx.agent.keeper import Keeper
from phalanx.agent.spec import JobSpec
from phalanx.multiprocessing.trees import become_subreaper

if TYPE_CHECKING:
    from phalanx.agent.console import Console
    from phalanx.agent.driver import Ended

__all__ = ["run_job"]


def run_job(spec: JobSpec) -> int:
    """Run the job on this node and return the exit code of the table in ``docs/exit-codes.md``.

    This process, which is to be the job's alone, becomes a child subreaper: orphans of workers are adopted, and ended.
    """
    become_subreaper()
    keeper = Keeper.start(spec.job_token)
    from phalanx.agent.console import Console

    console = Console()
    ended = _drive(spec, keeper, console)
    if ended.is_orderly:
        # Whatever was raised above, or left running, leaves the keeper to end what is left of the job.
        keeper.done()
    # Last, and with the signals' own actions back: a reader who takes his time can be left by Ctrl-C.
    console.finish(ended.last_words)
    return ended.exit_code


def _drive(spec: JobSpec, keeper: Keeper, console: Console) -> Ended:
    import asyncio

    from phalanx.agent.driver import Driver

    # asyncio's runner would turn SIGINT into a cancelled task. Ours is a stop signal, or the user wants none of
    # it; until the driver has taken it over, a keyboard interrupt has nothing to stop.
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    async def drive() -> Ended:
        return await Driver(spec, keeper, console).run()

    return asyncio.run(drive())
