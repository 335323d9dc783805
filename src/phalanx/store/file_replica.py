"""One client's copy of the file store: the store machine, fed with the log. Blocking; one thread uses a ``Replica``.

Every client replays the same entries into the same machine, and so comes to the same state. An entry is a request as
it was made; whether its comparisons hold is decided at its place in the log. The machine gets no time: a lease ends
by an entry, which whoever saw it silent for its ttl publishes.
"""

from __future__ import annotations

import json
import os
import random
import time

from phalanx.store.dialogue import Request, decode_request, encode_request
from phalanx.store.file_leases import ENDED, NO_FILE, LeaseFiles
from phalanx.store.file_log import NEW_SEGMENT, Damaged, Gone, Log
from phalanx.store.limits import TTL_MAX_S, find_mistake
from phalanx.store.machine import (
    Answered,
    EndWatch,
    Failed,
    GrantAsked,
    Notify,
    RenewAsked,
    RevokeAsked,
    SnapshotLoaded,
    StoreMachine,
    TransactionAsked,
    WatchAsked,
    WatchClosed,
)
from phalanx.store.port import Answer, Delete, LeaseExpired, Put, Refused, StoreError
from phalanx.store.wire import BadBytes

__all__ = ["News", "Replica"]

NOBODY = 0  # the caller of requests in the log: who made one knows it by its place
NO_TIME = 0.0
# A file that reads as damaged may be one that our side of a network file system has not got whole yet.
READS_MAX, READ_PAUSE_S = 4, 0.25
# After losing a place in the log to somebody else, chosen at random below this: many writers then lose less often.
LOST_PAUSE_S = 0.005

News = list[Notify | EndWatch]


class Replica:
    """The state of the store in ``folder``, as far as this client has read the log.

    What watches are to be told gathers in ``news``. All methods raise OSError, ``StoreReset`` and ``Refused``, after
    which asking again may help in the first case only.
    """

    def __init__(self, folder: str) -> None:
        self._machine = StoreMachine()
        self._log = Log(folder)
        self._leases = LeaseFiles(os.path.join(folder, "leases"))
        self.news: News = []

    def open(self) -> None:
        """Make the store if it is not there, and read it."""
        self._log.create(json.dumps(self._machine.snapshot()).encode())
        self._leases.create()
        self._load()
        self._catch_up()

    def perform(self, event: Request) -> Answer | int | None:
        """Do what was asked. Also raises the ``StoreError`` that answers the request."""
        match event:
            case WatchAsked() | WatchClosed():
                return self._step(event)
            case TransactionAsked(_, compares, then, otherwise) if find_mistake(compares, then, otherwise):
                return self._step(event)  # the machine says the same
            case RenewAsked(_, lease):
                self._renew(lease)
                return None
            case GrantAsked(_, ttl_s):
                return self._grant(ttl_s)
        self._catch_up()
        answer = self._publish(event)
        if isinstance(event, RevokeAsked):
            self._leases.forget(event.lease)
        return answer

    def look(self) -> None:
        """Read what others have published, and end the leases that have been silent for too long."""
        self._catch_up()
        ttls_s = {number: lease.ttl_s for number, lease in self._machine.leases.items()}
        for number, seen in self._leases.silent(ttls_s, time.monotonic()):
            if self._leases.end(number, seen):
                self.perform(RevokeAsked(NOBODY, number))

    # Requests

    def _writes(self, event: Request) -> bool:
        """Whether the request would change anything as things are now. Else it is answered without an entry."""
        if isinstance(event, RevokeAsked):
            return event.lease in self._machine.leases
        if not isinstance(event, TransactionAsked):
            return True
        answer = self._step(TransactionAsked(NOBODY, event.compares))
        assert isinstance(answer, Answer)
        operations = event.then if answer.succeeded else event.otherwise
        leases = {one.lease for one in operations if isinstance(one, Put) and one.lease}
        return leases <= self._machine.leases.keys() and any(
            isinstance(one, Put | Delete) for one in operations
        )

    def _publish(self, event: Request) -> Answer | int | None:
        """Have the request at the next place of the log, and answer it as of there."""
        if not self._writes(event):
            return self._step(event)
        path = self._log.prepare(encode_request(event))
        try:
            while self._writes(event):
                try:
                    if self._log.publish(path):
                        return self._replay(event)
                except Gone:
                    pass  # as below: there is more to be read first
                time.sleep(random.uniform(0, LOST_PAUSE_S))
                self._catch_up()
            return self._step(event)
        finally:
            self._log.discard(path)

    def _grant(self, ttl_s: float) -> int:
        if not 0 < ttl_s <= TTL_MAX_S:
            self._step(GrantAsked(NOBODY, ttl_s))  # raises
        # Chosen here, so that the file is there before anybody can miss it. Leases need not be told apart by order.
        lease = random.SystemRandom().randrange(1, 1 << 53)
        self._leases.begin(lease)
        self._catch_up()
        self._publish(GrantAsked(lease, ttl_s))
        return lease

    def _renew(self, lease: int) -> None:
        self._catch_up()
        if lease not in self._machine.leases:
            raise LeaseExpired(f"Lease {lease} has ended, or never was.")
        found = self._leases.renew(lease)
        if found == ENDED:
            self.perform(RevokeAsked(NOBODY, lease))
            raise LeaseExpired(f"Lease {lease} has ended.")
        if found == NO_FILE:
            raise OSError(f"lease {lease} has no file")

    # The log

    def _load(self) -> None:
        try:
            self._take(SnapshotLoaded(json.loads(self._log.load())))
        except (Damaged, ValueError, RecursionError) as damage:
            raise Refused(f"The store is damaged: {damage}. Use another folder.") from None

    def _catch_up(self) -> None:
        while True:
            try:
                content = self._next()
            except Gone:
                self._load()
                continue
            if content is None:
                return
            if content == NEW_SEGMENT:
                self._begin_segment()
                continue
            try:
                self._replay(decode_request(content))
            except StoreError:
                pass  # the answer to whoever asked
            except BadBytes as reason:
                raise Refused(f"The store was written by another version: {reason}") from None

    def _next(self) -> bytes | None:
        for attempt in range(READS_MAX):
            try:
                return self._log.next()
            except Damaged as damage:
                if attempt == READS_MAX - 1:
                    raise Refused(f"The store is damaged: {damage}. Use another folder.") from None
                time.sleep(READ_PAUSE_S)
        return None

    def _replay(self, event: Request) -> Answer | int | None:
        """Take an entry. In the log, a lease has the number of the request that asked for it."""
        if isinstance(event, GrantAsked):
            assert isinstance(event.caller, int)
            event = GrantAsked(NOBODY, event.ttl_s, event.caller)
        return self._step(event)

    def _begin_segment(self) -> None:
        if self._log.made_this_segment:
            self._log.keep(json.dumps(self._machine.snapshot(with_history=False)).encode())
            self._leases.clear_away(self._machine.leases.__contains__)

    # The machine

    def _step(self, event: object) -> Answer | int | None:
        """Step, and return the answer or raise the error of the request."""
        answer = self._take(event)
        if isinstance(answer, Failed):
            raise answer.error
        return None if answer is None else answer.answer

    def _take(self, event: object) -> Answered | Failed | None:
        found: Answered | Failed | None = None
        for command in self._machine.step(event, NO_TIME):
            if isinstance(command, Answered | Failed):
                found = command
            else:
                self.news.append(command)
        return found
