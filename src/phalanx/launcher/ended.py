"""An id that was used before, in a store that outlives jobs (etcd, a folder).

The verdict of a job stays in the store for agents that come to hear it late. When nobody of that job is there any
more, whoever comes with the same id means a new job, and must not end at once with the old one's verdict.
"""

from __future__ import annotations

from phalanx.rendezvous.keys import JobKeys, job_prefix
from phalanx.store.port import Compare, Delete, Field, Get, Store

__all__ = ["clear_ended_job"]


async def clear_ended_job(store: Store, run_id: str) -> None:
    """Remove the keys of a job that has a verdict and no node. Raises what the store raises.

    For an agent that has just begun: one that comes back after a cut may be about to hear its own job's verdict.
    """
    keys = JobKeys(run_id)
    answer = await store.transaction(then=(Get(keys.verdict), Get(keys.all_here, is_prefix=True)))
    verdict, here = answer.results
    if not verdict or here:
        return
    # The guard lets one of several newcomers do it; for the others the verdict is gone, or is a newer one.
    same = Compare(keys.verdict, Field.MOD_REVISION, verdict[0].mod_revision)
    await store.transaction((same,), (Delete(job_prefix(run_id), is_prefix=True),))
