"""An id that was used before, in a store that outlives jobs (etcd, a folder).

What a job has written stays in the store, its verdict too, for agents that come to hear it late. When nobody of that
job is there any more, whoever comes with the same id means a new job: it must neither end at once with the old one's
verdict, nor go on where that was stopped. Nodes that were only cut off tell what they know when they come back.
"""

from __future__ import annotations

from phalanx.rendezvous.keys import JobKeys, job_prefix
from phalanx.store.port import Compare, Delete, Field, Get, Store

__all__ = ["clear_ended_job"]


async def clear_ended_job(store: Store, run_id: str) -> None:
    """Remove the keys of a job that has no node. Raises what the store raises.

    For an agent that has just begun: one that comes back after a cut may be about to hear its own job's verdict.
    """
    keys = JobKeys(run_id)
    answer = await store.transaction(
        then=(Get(keys.verdict), Get(keys.round), Get(keys.all_here, is_prefix=True))
    )
    verdict, settled, here = answer.results
    if here or not (verdict or settled):
        return
    # The guards let one of several newcomers do it; for the others what they saw is gone, or is newer.
    guards = tuple(
        Compare(key, Field.MOD_REVISION, found[0].mod_revision if found else 0)
        for key, found in ((keys.verdict, verdict), (keys.round, settled))
    )
    await store.transaction(guards, (Delete(job_prefix(run_id), is_prefix=True),))
