"""How the nodes of a job meet: from what was asked for to a node's membership and the store that it opens.

The rules are those of docs/machines.md. Nothing is resolved, connected or started here: what is wrong with the words
is said before anything is, and ``open_store`` is called by the agent, in its loop. A node that meets nobody needs none
of the code for many, and loads none.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from phalanx.records import Struct
from phalanx.rendezvous.settings import MembershipSettings

if TYPE_CHECKING:
    from phalanx.launcher.options import RunOptions
    from phalanx.launcher.rendezvous.conf import Conf
    from phalanx.rendezvous.handler import RendezvousHandler
    from phalanx.store.port import Store

__all__ = ["Meeting", "MeetingError", "is_alone", "meeting_of", "meeting_of_one", "read_settings"]


class MeetingError(ValueError):
    """Words that do not go together. ``about`` names the option (as a field of the option table) that is to change."""

    def __init__(self, about: str, sentence: str) -> None:
        super().__init__(sentence)
        self.about = about


class Meeting(Struct, kw_only=True):
    """One node's part in a job, and its way to the others."""

    membership: MembershipSettings
    """Its ``run_id`` is that of keys: quoted, and empty where nobody gave one and the store's host makes it."""
    open_store: Callable[[], Awaitable[Store]]
    """Raises ``Refused`` when asking again cannot help, ``Unclear`` or ``OSError`` when it can."""
    run_id: Callable[[], str]
    """The job's id; known at the latest when the store has been opened."""
    master_port_range: range | None = None
    make_handler: Callable[[], RendezvousHandler] | None = None
    """Of a plug-in: then it is this that meets, in a thread, and there is no store."""
    forget: Callable[[], None] | None = None
    """Removes what this node keeps for the job's sake when the job is over; not when only this node's part is.

    Who has it runs children of its own beside the workers, so not each child of the agent is the job's.
    """
    warnings: tuple[tuple[str, str], ...] = ()
    """(option as in ``MeetingError``, sentence): what has another effect than the words promise."""
    notices: tuple[str, ...] = ()
    """What the user is told once, when the job starts."""


def is_alone(options: RunOptions) -> bool:
    """``RunOptions.is_alone``."""
    return options.is_alone


def meeting_of(options: RunOptions) -> Meeting:
    """The meeting that was asked for. Raises ``MeetingError``."""
    if is_alone(options):
        return meeting_of_one(options)
    from phalanx.launcher.rendezvous.backends import meeting_of_several

    return meeting_of_several(options)


def meeting_of_one(options: RunOptions) -> Meeting:
    """A node that meets nobody: the store is in its own memory, and workers find rank 0 on the loopback address."""
    run_id = options.run_id or os.urandom(6).hex()
    port_range: range | None = None
    warnings: tuple[tuple[str, str], ...] = ()
    if options.rdzv_conf:
        conf, warnings = read_settings(options)
        port_range = conf.master_port_range
    master_addr, master_port = _master(options)
    return Meeting(
        membership=MembershipSettings(
            run_id=run_id,
            node_id=os.urandom(8).hex(),
            host=os.uname().nodename,
            slots=options.nproc,
            role=options.role,
            min_nodes=1,
            max_nodes=1,
            ttl_s=float("inf"),  # nobody waits for a sign of life of ours, and an idle agent is to sleep
            straggler_s=options.straggler_s,
            local_addr=options.local_addr,
            master_addr=master_addr or options.local_addr or "127.0.0.1",
            master_port=master_port,
        ),
        open_store=_open_memory,
        run_id=lambda: run_id,
        master_port_range=port_range,
        warnings=warnings,
    )


def _master(options: RunOptions) -> tuple[str | None, int | None]:
    """What the user says of rank 0's address; the static backend takes it from its endpoint, too."""
    address, port = options.master_addr, options.master_port
    if options.rdzv_backend != "static" or options.standalone or not options.rdzv_endpoint:
        return address, port
    from phalanx.launcher.rendezvous.endpoints import read_endpoint

    try:
        master = read_endpoint(options.rdzv_endpoint)
    except ValueError as reason:
        raise MeetingError("rdzv_endpoint", str(reason)) from None
    return master.host, master.port or port


def read_settings(options: RunOptions) -> tuple[Conf, tuple[tuple[str, str], ...]]:
    """``--rdzv-conf``, understood, and warnings. Raises ``MeetingError``."""
    from phalanx.launcher.rendezvous.conf import foreign_keys, read_conf

    try:
        conf, unknown = read_conf(options.rdzv_conf)
    except ValueError as reason:
        raise MeetingError("rdzv_conf", str(reason)) from None
    foreign = () if is_alone(options) else foreign_keys(options.rdzv_conf, options.rdzv_backend)
    return conf, tuple(("rdzv_conf", sentence) for sentence in (*unknown, *foreign))


async def _open_memory() -> Store:
    from phalanx.store.memory import MemoryStore

    return MemoryStore()
