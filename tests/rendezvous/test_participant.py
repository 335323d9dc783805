"""What stands in for the agent, or for the member machine, knows every word that passes between them."""

from __future__ import annotations

import asyncio

from phalanx.records import Struct
from phalanx.rendezvous import events
from phalanx.rendezvous.foreign.machine import ForeignMachine
from phalanx.rendezvous.machine import MemberMachine
from phalanx.rendezvous.participant import Participant
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.shared_store import SharedStore
from phalanx.store.memory import MemoryStore
from phalanx.store.port import Store

WORDS = {
    one
    for one in vars(events).values()
    if isinstance(one, type) and issubclass(one, Struct) and one.__module__ == events.__name__
}
# Workers that are restarted one by one: that needs a member machine and an agent, and is refused where one is missing.
ALONE = {events.SingleFailed, events.StartSingle}


async def _open() -> Store:
    return MemoryStore()


def test_whatever_a_member_asks_or_notices_is_performed_for_callers_that_block() -> None:
    async def words_that_are_performed() -> set[type]:
        settings = MembershipSettings(run_id="job", node_id="a", host="a", slots=1, min_nodes=1, max_nodes=1)
        return set(Participant(settings, SharedStore(_open))._perform)

    asked = WORDS - set(MemberMachine.table) - {events.Heard} - ALONE
    assert asked
    assert asked <= asyncio.run(words_that_are_performed())


def test_whatever_the_agent_tells_a_member_it_can_tell_the_machine_for_handlers_of_others() -> None:
    told = {one for one in MemberMachine.table if not issubclass(one, events.Heard)}
    assert told - ALONE <= set(ForeignMachine.table)
