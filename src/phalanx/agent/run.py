"""From a job's description to its exit code, in the order that start-up demands.

The keeper is forked first: before the event loop, its threads and its imports exist, so that it is small and safe to
fork without exec. Only then is asyncio, by far the largest import, paid for.
"""

from __future__ import annotations

from phalanx.agent.keeper import Keeper
from phalanx.agent.spec import JobSpec

__all__ = ["run_job"]


def run_job(spec: JobSpec) -> int:
    """Run the job on this node and return the exit code of the table in ``docs/exit-codes.md``.

    With ``spec.own_process`` this process becomes a child subreaper: orphans of workers are adopted, and ended.
    """
    if spec.own_process:
        from phalanx.multiprocessing.trees import become_subreaper

        become_subreaper()
    keeper = Keeper.start(spec.job_token)
    try:
        import asyncio

        from phalanx.agent.console import Console
        from phalanx.agent.driver import Driver

        return asyncio.run(_drive(Driver(spec, keeper, Console())))
    finally:
        keeper.done()


async def _drive(driver: object) -> int:
    from phalanx.agent.driver import Driver

    assert isinstance(driver, Driver)
    return await driver.run()
