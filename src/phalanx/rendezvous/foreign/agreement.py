"""Ranks of workers and the master's address, agreed upon through the store that a handler gives to a round.

torchelastic's handlers say which place a *node* has; how many workers each node runs is agreed upon here, as its agent
does it: every node says, node 0 answers each. Some handlers give out the same store again in the next round, where the
last round's words still stand. So node 0 asks with a random word first, and nothing counts that does not repeat it.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from phalanx.records import Struct
from phalanx.rendezvous.handler import RendezvousInfo
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.store_info import own_address

__all__ = ["NodeOffer", "agree", "welcome"]

AGREE_WITHIN_S = 300.0  # torch's stores wait so long for a key
LOOK_AGAIN_S = 0.05
CALL = "phalanx/call"
OFFER, ANSWER = "phalanx/offer/{}", "phalanx/answer/{}"


class NodeOffer(Struct, kw_only=True):
    """What one node brings to a round."""

    slots: int
    role: str = ""
    """What its workers are; their role ranks are counted over the nodes of the same role."""
    number: int
    """The round's number as this node counts; the highest of all nodes counts."""
    restart_count: int
    """In the same way."""
    reason: str
    master_addr: str
    """Where the others reach this node; empty: nobody said."""
    master_port: int


def agree(info: RendezvousInfo, offer: NodeOffer, *, within_s: float = AGREE_WITHIN_S) -> Round:
    """Agree with the other nodes of ``info``. Blocks, and looks into the store every twentieth of a second.

    Raises ``TimeoutError``, ``ValueError`` for words that are none of ours, and what the store raises.
    """
    ends_at = time.monotonic() + within_s
    store, rank = info.store, info.rank
    lead = _lead(store, info.world_size, offer, ends_at) if rank == 0 else None
    answer = lead or _follow(store, rank, offer, ends_at)
    return Round(
        number=answer["number"],
        restart_count=answer["restart_count"],
        reason=offer.reason,
        group_rank=rank,
        group_world_size=info.world_size,
        first_rank=answer["first_rank"],
        local_world_size=offer.slots,
        world_size=answer["world_size"],
        master_addr=answer["master_addr"],
        master_port=answer["master_port"],
        role_first_rank=answer["role_first_rank"],
        role_world_size=answer["role_world_size"],
    )


def welcome(info: RendezvousInfo) -> None:
    """As node 0, write where it is for handlers that look for it in the store of the round.

    torchelastic's handler does so in its first round alone: a node that joins later waits for a minute, and fails.
    """
    where = info.bootstrap_store_info
    if info.rank == 0 and where is not None and info.world_size > 1:
        info.store.set(where.MASTER_ADDR_KEY, where.master_addr)
        info.store.set(where.MASTER_PORT_KEY, str(where.master_port))


def _lead(store: Any, world_size: int, own: NodeOffer, ends_at: float) -> dict[str, Any]:
    call = secrets.token_hex(8)
    store.set(CALL, call)
    offers = [{**_said_by(own), "word": ""}]
    for rank in range(1, world_size):
        while (offer := _read(store, OFFER.format(rank))).get("call") != call:
            _pause(ends_at, f"node {rank} of {world_size} has not said how many workers it runs")
        offers.append(offer)
    shared = {
        "number": max(_whole(offer, "number") for offer in offers),
        "restart_count": max(_whole(offer, "restart_count") for offer in offers),
        "world_size": sum(_whole(offer, "slots") for offer in offers),
        "master_addr": own.master_addr or own_address(store),
        "master_port": own.master_port,
    }
    role_sizes: dict[str, int] = {}
    for offer in offers:
        role_sizes[_role(offer)] = role_sizes.get(_role(offer), 0) + _whole(offer, "slots")
    first_rank, first_of_role = 0, dict.fromkeys(role_sizes, 0)
    answers = []
    for offer in offers:
        role = _role(offer)
        places = {"first_rank": first_rank, "role_first_rank": first_of_role[role]}
        answers.append({**shared, **places, "role_world_size": role_sizes[role], "word": offer.get("word")})
        first_rank += _whole(offer, "slots")
        first_of_role[role] += _whole(offer, "slots")
    for rank, answer in enumerate(answers[1:], 1):
        store.set(ANSWER.format(rank), json.dumps(answer))
    return answers[0]


def _follow(store: Any, rank: int, own: NodeOffer, ends_at: float) -> dict[str, Any]:
    word, heard = secrets.token_hex(8), ""
    offer = {**_said_by(own), "word": word}
    answer: dict[str, Any] = {}
    while answer.get("word") != word:
        _pause(ends_at, "node 0 has not answered with the ranks of the workers")
        call = bytes(store.get(CALL)).decode(errors="replace")
        if call != heard:
            heard = call
            store.set(OFFER.format(rank), json.dumps({**offer, "call": call}))
        if store.check([ANSWER.format(rank)]):
            answer = _read(store, ANSWER.format(rank))
    for name in (
        "number",
        "restart_count",
        "first_rank",
        "world_size",
        "master_port",
        "role_first_rank",
        "role_world_size",
    ):
        _whole(answer, name)
    if not isinstance(answer.get("master_addr"), str):
        raise ValueError(  # noqa: TRY004 # one kind of error for all that another node says wrong
            f"node 0 gave {answer.get('master_addr')!r} as the master's address"
        )
    return answer


def _said_by(own: NodeOffer) -> dict[str, Any]:
    return {name: getattr(own, name) for name in ("slots", "role", "number", "restart_count")}


def _role(offer: dict[str, Any]) -> str:
    role = offer.get("role")
    if not isinstance(role, str):
        raise ValueError(  # noqa: TRY004 # as above
            f"another node gave {role!r} as its role, which is no text"
        )
    return role


def _read(store: Any, key: str) -> dict[str, Any]:
    try:
        found = json.loads(bytes(store.get(key)))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(  # noqa: TRY004 # as above
            f"the handler's store has something else than ours at {key!r}"
        )
    return found


def _whole(record: dict[str, Any], name: str) -> int:
    value = record.get(name)
    if type(value) is not int or value < 0:
        raise ValueError(f"another node gave {value!r} as {name!r}, which is no whole number")
    return value


def _pause(ends_at: float, why: str) -> None:
    if time.monotonic() >= ends_at:
        raise TimeoutError(why)
    time.sleep(LOOK_AGAIN_S)
