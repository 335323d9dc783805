"""How ranks that share checkpoints reach each other: numbers and small messages under keys that are used once.

``StorePeers`` stands on whatever has the methods of torch's ``Store``: the values of the round, which the agent keeps,
or a store of torch itself. ``RankGroup`` holds a conversation (``agreement``) and takes away what it has left behind.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Protocol, TypeVar, cast

from phalanx.checkpoint.agreement import Count, Hear, Local, Member, Number, Request, Tell, named
from phalanx.checkpoint.exceptions import NoPeers
from phalanx.checkpoint.origin import log
from phalanx.errors import channel

__all__ = ["Alone", "Peers", "RankGroup", "StorePeers", "find_peers"]

_FIRST_LOOK_S, _LAST_LOOK_S = 0.002, 0.25  # between looks into a store of torch; see StorePeers.hear
_LOOK_ROUND_S = 1.0  # between looks whether this process has failed meanwhile
_FAILED_S = 5.0  # how long a process that has failed waits for other ranks, all in all
_TOLD_S = 30.0  # of waiting before people hear for whom
_ENDED_S = 60.0  # and one whose script has ended, well or not, for the next sign of them: a step is shorter
_T = TypeVar("_T")


class Peers(Protocol):
    """What ranks need of each other."""

    def count(self, key: str, amount: int = 1) -> int:
        """Add to a number that begins with 0; returns the sum."""

    def tell(self, key: str, message: bytes) -> None:
        """Leave a message, up to 512 KiB."""

    def hear(self, key: str, timeout_s: float) -> bytes | None:
        """The message, once there is one; None if there is none in time."""

    def forget(self, keys: list[str]) -> None:
        """Take away numbers and messages; what is not there is no fault."""


class Alone:
    """The one rank of a job, which needs nobody: touches no store.

    >>> peers = Alone()
    >>> peers.count("done"), peers.count("done"), peers.hear("nothing", 0.0)
    (1, 2, None)
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._messages: dict[str, bytes] = {}

    def count(self, key: str, amount: int = 1) -> int:
        """Add to a number that begins with 0; returns the sum."""
        self._numbers[key] = self._numbers.get(key, 0) + amount
        return self._numbers[key]

    def tell(self, key: str, message: bytes) -> None:
        """Leave a message."""
        self._messages[key] = message

    def hear(self, key: str, timeout_s: float) -> bytes | None:
        """The message. There is nobody to wait for."""
        return self._messages.get(key)

    def forget(self, keys: list[str]) -> None:
        """Take away numbers and messages."""
        for key in keys:
            self._numbers.pop(key, None)
            self._messages.pop(key, None)


class StorePeers:
    """The ranks that share a store: ``phalanx.values()``, or one with the methods of torch's ``Store``.

    Raises what the store raises: ``NoAgent`` (a ``ConnectionError``), or torch's ``RuntimeError``.
    """

    def __init__(self, store: Any, prefix: str = "") -> None:
        self._store = store
        self._prefix = prefix

    def count(self, key: str, amount: int = 1) -> int:
        """Add to a number that begins with 0; returns the sum."""
        return int(self._store.add(self._prefix + key, amount))

    def tell(self, key: str, message: bytes) -> None:
        """Leave a message."""
        self._store.set(self._prefix + key, message)

    def hear(self, key: str, timeout_s: float) -> bytes | None:
        """The message, once there is one; None if there is none in time.

        The agent answers when there is something. A store of torch is looked at, up to four times a second: its
        ``wait`` would keep signal handlers and all other users of the store waiting, and prints when it ends in vain.
        """
        from phalanx.errors._values import RoundValues

        key = self._prefix + key
        if isinstance(self._store, RoundValues):
            return self._store.get(key, wait_s=timeout_s)
        ends_at, pause_s = time.monotonic() + timeout_s, _FIRST_LOOK_S
        while not self._store.check([key]):
            if (rest_s := ends_at - time.monotonic()) <= 0:
                return None
            time.sleep(min(pause_s, rest_s))
            pause_s = min(2 * pause_s, _LAST_LOOK_S)
        return bytes(self._store.get(key))

    def forget(self, keys: list[str]) -> None:
        """Take away numbers and messages. A store that cannot, or has gone, is no fault: it is tidiness."""
        try:
            for key in keys:
                self._store.delete_key(self._prefix + key)
        except (OSError, RuntimeError, ValueError, NotImplementedError):
            return


def find_peers(store: Any, world_size: int) -> Peers:
    """Who this rank can talk to: through ``store`` if one is given, the agent, or torch's process group.

    Raises ``NoPeers`` if there are other ranks and no way to them.

    >>> type(find_peers(None, 1)).__name__
    'Alone'
    """
    if world_size == 1:
        return Alone()
    if store is not None:
        return StorePeers(store, _of_attempt())
    if os.environ.get("PHALANX_AGENT"):
        return StorePeers(channel.values(), "phalanx/checkpoint/")
    if (found := _store_of_torch()) is not None:
        return StorePeers(found, _of_attempt())
    raise NoPeers(
        f"{world_size} ranks have to agree and have no store in common: run under phalanx, call "
        "torch.distributed.init_process_group first, or give store= (a torch.distributed.TCPStore, say)"
    )


def _of_attempt() -> str:
    """A store may live longer than the workers, whose counts begin anew: torchrun's, or one that is given."""
    count = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    number = os.environ.get("PHALANX_ROUND")  # a node that joins or is lost is a new round, and no restart
    return f"phalanx/checkpoint/{count if number is None else f'{number}.{count}'}/"


def _store_of_torch() -> Any:
    """The store of the default process group, if this program has one. torch is not imported for it."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.distributed_c10d._get_default_store()
    except (AttributeError, RuntimeError, ValueError):  # a torch that has changed
        pass
    return None


class RankGroup:
    """One checkpointer's conversations with its like in the other ranks, numbered: all ranks hold the same ones in the
    same order. What a conversation has left in the store goes when the next one shows that all have come out of it.
    """

    def __init__(self, peers: Peers, me: Member, timeout_s: float, *, name: str | None = None) -> None:
        """``name``: the same in all ranks, and another one for each checkpointer; by default they are counted."""
        if name is None:
            name = str(_groups.get(me.rank, 0))
            _groups[me.rank] = int(name) + 1
        self.me = me
        self._peers = peers
        self.timeout_s = timeout_s
        self._name = name
        self._number = 0
        self._word = ""
        self._left: list[str] = []  # keys of conversations that may not have ended everywhere
        self._begun: dict[int, list[str]] = {}  # keys of those that this rank has come to and not held yet
        self._heard_at = 0.0  # when there was a sign of the others

    def next_number(self) -> int:
        """The number of a conversation that is to be held; taken in the order in which the program asks for them."""
        self._number += 1
        return self._number

    def come(self, number: int) -> None:
        """Say, once, that this rank works on what conversation ``number`` will be about: who has come is worth waiting
        for. Another thread may be in an earlier conversation. A store that is out of reach is found out by ``hold``.
        """
        with suppress(NoPeers):
            self._answer(number, Count("come"), self._begun.setdefault(number, []))

    def hold(
        self,
        number: int,
        conversation: Generator[Request, Any, _T],
        act: Callable[[Local], Any],
    ) -> _T:
        """Hold a conversation; ``act`` answers what is no matter of the store. Raises ``NoPeers``."""
        left = self._begun.pop(number, [])
        have_all_come = False
        answer: Any = None
        try:
            while True:
                try:
                    request = conversation.send(answer)
                except StopIteration as end:
                    return cast("_T", end.value)
                if isinstance(request, Local):
                    answer = act(request)
                    continue
                answer = self._answer(number, request, left)
                if isinstance(request, Count) and request.key == "done":
                    have_all_come = answer == self.me.world_size
                if isinstance(request, Hear) and request.key == "decided" and answer is not None:
                    have_all_come = bool(answer.get("all"))
        finally:
            if have_all_come:
                self._heard_at = time.monotonic()
                self._peers.forget(self._left)
                self._left = []
            self._left += left

    def leave(self, number: int, conversation: Generator[Request, Any, None]) -> None:
        """Say the last words of who leaves a conversation; they are there until the round ends. Raises ``NoPeers``."""
        answer: Any = None
        while True:
            try:
                request = conversation.send(answer)
            except StopIteration:
                return
            assert not isinstance(request, Local)
            answer = self._answer(number, request, [])

    def word(self) -> str:
        """A random word, the same in all ranks and another one in each round. Raises ``NoPeers``."""
        if self._word:
            return self._word
        key = f"{self._name}/word"
        try:
            if self._peers.count(f"{key}/askers") == 1:
                self._peers.tell(key, os.urandom(8).hex().encode())
            found = self._hear(key)
        except (OSError, RuntimeError, ValueError) as error:
            raise NoPeers(f"the other ranks cannot be reached: {error}") from error
        if found is None:
            raise NoPeers("the rank that gives this round's saves their word is gone")
        self._word = found.decode()
        return self._word

    def look(self) -> None:
        """Return if this rank can still reach the others' store. Raises ``NoPeers``: its round is over, say."""
        try:
            self._peers.count(f"{self._name}/looks", 0)
        except (OSError, RuntimeError, ValueError) as error:
            raise NoPeers(f"the other ranks cannot be reached: {error}") from error

    def _hear(
        self, key: str, number: int | None = None, tell: Callable[[], None] | None = None
    ) -> bytes | None:
        """The message, with patience; ``number``: of the conversation; ``tell`` is called once, when it takes long.

        A thread that outlives the main one has little, for this process may be the reason that the others never come:
        only its end tells the agent, which then ends ranks that wait for it.
        """
        begun_at, come = time.monotonic(), 1
        ends_at = begun_at + self.timeout_s
        while True:
            now, last_at = time.monotonic(), ends_at
            if _failed_at is not None:
                last_at = min(ends_at, _failed_at + _FAILED_S)
            elif _ended_at is not None and number is not None:
                before, come = come, self._answer(number, Number("come"), [])
                self._heard_at = now if come > before else self._heard_at
                if come < self.me.world_size:
                    last_at = min(ends_at, max(_ended_at, self._heard_at) + _ENDED_S)
            found = self._peers.hear(key, max(min(last_at - now, _LOOK_ROUND_S), 0.0))
            if found is not None or last_at - now <= _LOOK_ROUND_S:
                return found
            if tell is not None and now - begun_at >= _TOLD_S:
                tell()
                tell = None
            _look_round()

    def _tell_absent(self, number: int, phase: str, left: list[str]) -> None:
        """Say who is waited for: one of those that wait does it, for all. Nobody is, while a step is published."""
        if self._answer(number, Count(f"{phase}told"), left) > 1:
            return
        keys = {rank: f"{self._name}/{number}/{phase}said/{rank}" for rank in range(self.me.world_size)}
        absent = [rank for rank, key in keys.items() if self._peers.hear(key, 0.0) is None]
        if absent:
            log.warning(
                "rank %d waits for %s, for up to %g s: all ranks must call load_latest, load and sharded save, "
                "in the same order; one that has called is still reading or writing",
                self.me.rank,
                named(absent),
                self.timeout_s,
            )

    def _answer(self, number: int, request: Count | Number | Tell | Hear, left: list[str]) -> Any:
        import json

        key = f"{self._name}/{number}/{request.key}"
        try:
            if isinstance(request, Count | Number):
                total = self._peers.count(key, 1 if isinstance(request, Count) else 0)
                if total <= 1:  # who begins a number takes it away
                    left.append(key)
                return total
            if isinstance(request, Tell):
                left.append(key)
                return self._peers.tell(key, json.dumps(dict(request.message)).encode())
            if request.is_patient:
                phase, is_decision = request.key.removesuffix("decided"), request.key.endswith("decided")
                tell = (lambda: self._tell_absent(number, phase, left)) if is_decision else None
                found = self._hear(key, number, tell)
            else:
                found = self._peers.hear(key, 0.0)
        except (OSError, RuntimeError, ValueError) as error:  # the agent's and torch's stores raise these
            raise NoPeers(f"the other ranks cannot be reached: {error}") from error
        return None if found is None else json.loads(found)


def _look_round() -> None:
    """Notice that the main thread has ended; the interpreter waits for the other threads then."""
    global _failed_at, _ended_at  # noqa: PLW0603 # one per process
    threading = sys.modules.get("threading")  # without it this is the main thread
    if _ended_at is None and threading is not None and not threading.main_thread().is_alive():
        _ended_at = time.monotonic()
        # The interpreter leaves here what it has printed. Of SystemExit it leaves nothing, whatever the exit code.
        _failed_at = _ended_at if hasattr(sys, "last_value") else None


_failed_at: float | None = None
_ended_at: float | None = None
_groups: dict[int, int] = {}  # how many each rank of this process has; a process is one rank, but in tests
