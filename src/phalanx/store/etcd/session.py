"""A session with a cluster: one member at a time, left for the next as soon as it is silent.

Attempts are short, since a write that was under way when the leader died is answered only after some seven seconds,
and a frozen member keeps its connections open for ever. Nothing is repeated here unless the caller says that it may be;
what certainly was never begun goes to the next member in any case. Everything uses the same member, so that whatever
notices its silence first (mostly the renewal of a lease) moves the watches too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from phalanx.store.etcd.answers import NotDone, Silent, StaleToken, Untrusted
from phalanx.store.etcd.connection import Call, Connection
from phalanx.store.etcd.members import Members
from phalanx.store.etcd.messages import Message
from phalanx.store.port import Refused, StoreError, StoreReset, Unclear

__all__ = ["Session", "next_pause"]

logger = logging.getLogger(__name__)

_AUTHENTICATE = Call("Auth/Authenticate", "Authenticate")
_STATUS = Call("Maintenance/Status", "Status")

# How many attempts' time a call may take when attempts are known to have done nothing or may be repeated.
_PATIENCE = 3

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


class Session:
    """See above. ``attempt_s`` limits one attempt; ``pulse_s`` is how long a watched member may be silent unasked."""

    def __init__(
        self,
        members: Members,
        *,
        user: str | None,
        password: str | None,
        attempt_s: float,
        pulse_s: float,
    ) -> None:
        self._members = members
        self._user, self._password = user, password
        self._attempt_s = attempt_s
        self._pulse_s = pulse_s
        self._token: str | None = None
        self._logging_in = asyncio.Lock()
        self._cluster_id = 0
        self._revision = 0
        """The newest of all linearizable answers: an older one to a later question is of a store that lost its data."""
        self._end: StoreError | None = None
        self._readers = 0
        self._pulse: asyncio.Task[None] | None = None
        self.source_address: str | None = None

    async def ask(
        self,
        call: Call,
        request: Message,
        *,
        is_repeatable: bool,
        is_ordered: bool = False,
        attempt_s: float | None = None,
    ) -> Message:
        """Ask the current member; if it certainly did nothing, or ``is_repeatable``, the next ones too.

        ``is_ordered`` says that the answer's revision is at least that of any such answer before the question.
        ``attempt_s`` can make attempts shorter than the session's. Raises what the port says, or ``LeaseExists``.
        """
        now = asyncio.get_running_loop().time
        attempt_s = min(attempt_s or self._attempt_s, self._attempt_s)
        ends_at = now() + _PATIENCE * attempt_s
        troubles: list[Exception] = []
        pause_s, has_logged_in = 0.0, False
        while True:
            self.check_open()
            floor, token = self._revision if is_ordered else 0, self._token
            within_s = max(0.01, min(attempt_s, ends_at - now()))
            connection: Connection | None = None
            try:
                connection = await self._members.connection()
                answer = await connection.exchange(call, request, within_s=within_s, token=token)
                self._check_revision(answer.header, floor, is_ordered=is_ordered)
                self.source_address = connection.source_address or self.source_address
                return answer
            except StaleToken as stale:
                if has_logged_in or call is _AUTHENTICATE:
                    raise Refused(f"etcd does not let this user in: {stale}.") from stale
                await self._log_in(token, stale)
                has_logged_in = True
            except (NotDone, Silent) as trouble:
                troubles.append(trouble)
                self._members.leave(connection)
                self.check_open()
                had_turns = len(troubles) >= self._members.turn
                if had_turns and all(isinstance(one, Untrusted) for one in troubles):
                    raise Refused(f"No member of etcd can be trusted: {_joined(troubles)}.") from trouble
                is_over = isinstance(trouble, Silent) and not is_repeatable
                if is_over or now() + pause_s >= ends_at:
                    raise Unclear(f"No answer from etcd: {_joined(troubles)}.") from trouble
                # Each member has its turn first; then some patience, for an election takes a second.
                if had_turns:
                    await asyncio.sleep(pause_s)
                    pause_s = next_pause(pause_s)

    async def read(self, call: Call, request: Message, take: Callable[[Message], Awaitable[None]]) -> None:
        """Read a stream of the current member until it ends or the member is left.

        Always raises: ``NotDone`` or ``Silent`` when another try may help, else what the port says, or what ``take``
        raised.
        """
        self.check_open()
        token = self._token
        connection: Connection | None = None
        self._readers += 1
        if self._pulse is None or self._pulse.done():
            self._pulse = asyncio.get_running_loop().create_task(self._feel_pulse())
        try:
            connection = await self._members.connection()
            await connection.read(call, request, take, token=token)
        except StaleToken as stale:
            await self._log_in(token, stale)
            raise NotDone(str(stale)) from stale
        except (NotDone, Silent):
            self._members.leave(connection)
            self.check_open()
            raise
        finally:
            self._readers -= 1

    async def _feel_pulse(self) -> None:
        """While something is watched, ask a member that was silent for a while: a frozen one would never tell."""
        while self._readers and self._end is None:
            try:
                await self._feel_while_it_is_well()
            except Exception:  # nobody awaits this task, and without it watches are blind
                logger.warning("An etcd member could not be asked whether it lives.", exc_info=True)
                self._members.leave(self._members.current)
                await asyncio.sleep(self._pulse_s)

    async def _feel_while_it_is_well(self) -> None:
        now = asyncio.get_running_loop().time
        while self._readers and self._end is None:
            connection = self._members.current
            quiet_s = now() - connection.heard_at if connection is not None else 0.0
            if connection is None or quiet_s < self._pulse_s:
                await asyncio.sleep(self._pulse_s - quiet_s)
                continue
            try:
                answer = await connection.exchange(
                    _STATUS, _STATUS.request(), within_s=self._attempt_s, token=self._token
                )
                if not answer.leader:
                    self._members.leave(connection)
            except (NotDone, Silent):
                self._members.leave(connection)
            except (StoreError, StaleToken):
                continue  # it will not tell us, but it lives, and that was the question

    # The token

    async def _log_in(self, refused_token: str | None, reason: StaleToken) -> None:
        """Get a new token, unless somebody has got one since ``refused_token``. Raises ``Refused`` without a user."""
        if self._user is None:
            raise Refused(f"etcd asks for a user and a password, and none are given ({reason}).")
        async with self._logging_in:
            if self._token == refused_token:
                self._token = await self._authenticate(self._user)

    async def _authenticate(self, user: str) -> str | None:
        request = _AUTHENTICATE.request(name=user, password=self._password or "")
        try:
            return str((await self.ask(_AUTHENTICATE, request, is_repeatable=True)).token)
        except Refused as refused:
            if "authentication is not enabled" in str(refused):
                return None  # a cluster that lets everybody in lets us in
            raise

    # The end

    def check_cluster(self, header: Message) -> None:
        """See whether the cluster is the one it was. Raises ``StoreReset``, then and ever after."""
        self._cluster_id = self._cluster_id or header.cluster_id
        if header.cluster_id != self._cluster_id:
            self._fail("Another etcd cluster answers than before: what the job had stored is lost.")

    def _check_revision(self, header: Message, floor: int, *, is_ordered: bool) -> None:
        self.check_cluster(header)
        # A cluster that was made anew with the old names has the old id as well; its revisions begin anew.
        if header.revision < floor:
            self._fail(
                f"etcd is at revision {header.revision} after {floor}: it has lost its data, and the job's with it."
            )
        if is_ordered:
            self._revision = max(self._revision, header.revision)

    def _fail(self, sentence: str) -> None:
        self._end = self._end or StoreReset(sentence)
        self._members.leave(self._members.current)  # which ends the watches, and they look here
        self.check_open()

    def check_open(self) -> None:
        """Raise what has ended this session, if something has."""
        if self._end is not None:
            raise type(self._end)(str(self._end))

    async def close(self) -> None:
        """Close all connections; what waits raises ``Unclear``. Idempotent."""
        self._end = self._end or Unclear("The connection to etcd has been closed.")
        await self._members.close()
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.wait((self._pulse,))


def next_pause(pause_s: float) -> float:
    """The next of growing pauses, somewhat random so that many clients do not come back at once."""
    return min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, pause_s * 2)) * random.uniform(0.7, 1.0)


def _joined(troubles: list[Exception]) -> str:
    return "; ".join(dict.fromkeys(map(str, troubles)))
