"""A store inside of a torchelastic rendezvous backend: the store machine as one JSON value, under compare-and-set.

For backends that people have written (``get_state``, ``set_state``). All that is waiting is done in one exchange:
read the state, try the requests on a copy, put the copy in its place, and try again if somebody was faster. It looks
for changes every half second, which no other store but ``file`` has to do.

No two nodes' clocks are compared: a lease that was renewed shows a higher count, and each client measures by its own
clock for how long a count has stood still. Whoever sees it stand for a whole ttl proposes the lease's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.rendezvous.backend import RendezvousBackend
from phalanx.rendezvous.backend_state import BackendState, Damaged, Trial
from phalanx.rendezvous.blocking import BlockingCalls
from phalanx.rendezvous.errors import RendezvousStateError
from phalanx.store.machine import (
    EndWatch,
    Failed,
    GrantAsked,
    Notify,
    RenewAsked,
    RevokeAsked,
    TransactionAsked,
    WatchAsked,
    WatchClosed,
)
from phalanx.store.port import (
    Answer,
    Compare,
    Operation,
    Refused,
    Store,
    StoreError,
    StoreReset,
    Unclear,
    Watch,
)
from phalanx.store.watching import BatchQueue

__all__ = ["BackendStore"]

POLL_S = 0.5
SHORTEST_PAUSE_S = 0.01
ATTEMPT_S = 5.0  # torchelastic's heartbeat timeout: as long as it waits for one operation on a backend
COLLISION_PAUSE_S, COLLISION_PAUSE_MAX_S = 0.005, 0.1  # after losing a compare-and-set, doubled each time


class BackendStore(Store):
    """A client of the store in a backend's value. Closing it leaves the backend, which is the caller's, alone."""

    def __init__(
        self,
        backend: RendezvousBackend,
        *,
        attempt_s: float = ATTEMPT_S,
        poll_s: float = POLL_S,
        source_address: str | None = None,
    ) -> None:
        self._backend = backend
        self._attempt_s = attempt_s
        self._poll_s = poll_s
        self._source_address = source_address
        self._calls = BlockingCalls(f"phalanx-backend-{backend.name}")
        self._state = BackendState()
        self._token: Any = None
        self._lost: StoreError | None = None
        self._requests: dict[asyncio.Future[Any], Any] = {}
        self._new_watches: list[WatchAsked] = []
        self._old_watches: list[BatchQueue] = []
        self._watches: set[BatchQueue] = set()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_open = True
        self._is_deaf = False
        # Leases that were due before a call which took long, with their counts.
        self._forgiven: dict[int, int] = {}
        """The backend failed when it was asked last."""

    # The port

    async def transaction(
        self,
        compares: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
    ) -> Answer:
        """As every store does."""
        lists = tuple(compares), tuple(then), tuple(otherwise)
        answer = await self._ask(lambda caller: TransactionAsked(caller, *lists))
        assert isinstance(answer, Answer)
        return answer

    def watch(self, prefix: str, from_revision: int) -> Watch:
        """As every store does; each change is seen within half a second and one look at the backend."""
        queue = BatchQueue(self._watch_closed)
        if (error := self._hindrance()) is not None:
            queue.end(error)
            return queue
        self._watches.add(queue)
        self._new_watches.append(WatchAsked(queue, prefix, from_revision))
        self._start()
        return queue

    async def grant(self, ttl_s: float) -> int:
        """As every store does."""
        lease = await self._ask(lambda caller: GrantAsked(caller, ttl_s))
        assert isinstance(lease, int)
        return lease

    async def renew(self, lease: int) -> None:
        """As every store does."""
        await self._ask(lambda caller: RenewAsked(caller, lease))

    async def revoke(self, lease: int) -> None:
        """As every store does."""
        await self._ask(lambda caller: RevokeAsked(caller, lease))

    async def close(self) -> None:
        """As every store does."""
        if not self._is_open:
            return
        self._is_open = False
        self._calls.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._fail_all(_closed())
        for queue in tuple(self._watches):
            queue.end(_closed())

    @property
    def source_address(self) -> str | None:
        """Our own address, if the one who made this store knows it: a backend does not say."""
        return self._source_address

    # Requests

    async def _ask(self, event_for: Any) -> Any:
        if (error := self._hindrance()) is not None:
            raise error
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._requests[future] = event_for(future)
        self._start()
        try:
            async with asyncio.timeout(self._attempt_s):
                return await future
        except TimeoutError:
            raise Unclear(f"{self._subject} has not answered within {self._attempt_s:g} s.") from None
        finally:
            self._requests.pop(future, None)

    @property
    def _subject(self) -> str:
        return f"The rendezvous backend {self._backend.name!r}"

    def _hindrance(self) -> StoreError | None:
        return self._lost if self._is_open else _closed()

    def _watch_closed(self, queue: BatchQueue) -> None:
        self._watches.discard(queue)
        self._new_watches = [one for one in self._new_watches if one.watch is not queue]
        self._old_watches.append(queue)

    def _start(self) -> None:
        self._wake.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._is_open and self._lost is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s()):
                    await self._wake.wait()
            self._wake.clear()
            due = self._silent_leases()
            if not (self._requests or self._watches or due):
                continue
            try:
                await self._exchange(due)
                self._is_deaf = False
            except Damaged as error:
                self._give_up(Refused(f"{self._subject} holds no store of ours: {error}."))
            except StoreReset as error:
                self._give_up(error)
            except RendezvousStateError as error:
                self._give_up(Refused(f"{self._subject} says that its state is damaged: {error}"))
            except Exception as error:  # noqa: BLE001 # the border to code of others: whatever it is, it is no answer
                self._is_deaf = True
                self._fail_all(Unclear(f"{self._subject} failed: {type(error).__name__}: {error}"))

    def _pause_s(self) -> float | None:
        """For how long nobody needs to look, unless somebody asks for something."""
        deadline = None if self._is_deaf else self._state.machine.deadline
        pauses = [self._poll_s] if self._watches or self._is_deaf else []
        if deadline is not None:
            # A lease that is due stays so until an exchange has ended it.
            pauses.append(max(SHORTEST_PAUSE_S, deadline - asyncio.get_running_loop().time()))
        return min(pauses, default=None)

    def _silent_leases(self) -> dict[int, int]:
        """The leases whose count has stood still for a ttl, with that count.

        None while the backend is out of reach: nobody else can be expected to renew then, and the machine, stepped
        late after that, gives each lease a full ttl; as it does when it was us who slept.
        """
        if self._is_deaf:
            return {}
        now = asyncio.get_running_loop().time()
        machine = self._state.machine
        machine.step(WatchClosed(None), now)  # changes nothing, but notices a freeze
        return {number: lease.renewals for number, lease in machine.leases.items() if lease.expires_at <= now}

    # Exchanges with the backend

    async def _exchange(self, due: Mapping[int, int]) -> None:
        self._load(await self._calls.start(self._backend.get_state))
        self._update_watches()
        silent = self._silent_after(due)
        pause_s = COLLISION_PAUSE_S
        while (requests := self._waiting()) or silent:
            trial = self._state.attempt(requests, silent, secrets.token_hex(8))
            if trial.state is None or await self._write(trial):
                _answer(trial)
                return
            await asyncio.sleep(random.uniform(0, pause_s))
            pause_s = min(2 * pause_s, COLLISION_PAUSE_MAX_S)

    def _silent_after(self, due: Mapping[int, int]) -> dict[int, int]:
        """The silent leases when the state has come that was asked for while those in ``due`` were.

        A call that hung is an outage as one that failed is, and its time is forgiven. To each count once: where every
        call takes so long, the dead would live for ever.
        """
        leases = self._state.machine.leases
        forgiven = {
            number: count
            for number, count in self._forgiven.items()
            if number in leases and leases[number].renewals == count
        }
        again = {number: count for number, count in due.items() if forgiven.get(number) == count}
        silent = {**self._silent_leases(), **again}
        self._forgiven = {
            number: count for number, count in {**forgiven, **due}.items() if number not in silent
        }
        return silent

    def _waiting(self) -> list[Any]:
        return [event for future, event in self._requests.items() if not future.done()]

    async def _write(self, trial: Trial) -> bool:
        """Put the trial's state in the place of what was loaded; else take over what is there."""
        token = self._token
        result = await self._calls.start(lambda: self._backend.set_state(trial.state or b"", token))
        if result is not None and result[2]:
            self._token = result[1]
            _hand_out(self._state.commit(trial, _now()))
            return True
        if (
            result is None or result[1] == token
        ):  # some stores say that a key which is gone holds what was expected
            self._load(await self._calls.start(self._backend.get_state))
        else:
            self._load(result[:2])
        return False

    def _load(self, held: tuple[bytes, Any] | None) -> None:
        """Take the backend's state over, and tell the watches what is new. Raises ``StoreReset``."""
        try:
            if held is not None:
                bits, self._token = held
                _hand_out(self._state.load(bits, _now()))
            elif self._state.incarnation:
                raise LookupError
            else:
                self._token = None
                self._state.found_nothing()
        except LookupError:
            raise StoreReset(f"{self._subject} has lost its state, or another one was put there.") from None

    def _update_watches(self) -> None:
        """Only now, when the machine knows the state's history, it can say what a watch has missed."""
        new, old = self._new_watches, self._old_watches
        self._new_watches, self._old_watches = [], []
        for event in new:
            _hand_out(self._state.machine.step(event, _now()))
        for queue in old:
            self._state.machine.step(WatchClosed(queue), _now())

    # Failures

    def _give_up(self, error: StoreError) -> None:
        self._lost = error
        self._fail_all(error)
        for queue in tuple(self._watches):
            queue.end(error)

    def _fail_all(self, error: StoreError) -> None:
        for future in tuple(self._requests):
            if not future.done():
                future.set_exception(error)


def _now() -> float:
    return asyncio.get_running_loop().time()


def _answer(trial: Trial) -> None:
    future: Any
    for command in trial.answers:
        future = command.caller
        if future.done():
            continue
        if isinstance(command, Failed):
            future.set_exception(command.error)
        else:
            future.set_result(command.answer)


def _hand_out(commands: Sequence[Any]) -> None:
    for command in commands:
        if isinstance(command, Notify):
            watch: Any
            for watch in command.watches:
                watch.notify(command.batch)
        elif isinstance(command, EndWatch):
            watch = command.watch
            watch.end(command.error)


def _closed() -> Unclear:
    return Unclear("The connection to the store was closed on our side.")
