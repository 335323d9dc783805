"""An etcd cluster of the job's own: one member on each named host, run by the agent there.

The members are those of the endpoints, for good: none is added and none removed, so that any minority may die. A member
comes back only with its data; without it, it could vote against what it had promised. The port after an endpoint's is
the members' own. Users and passwords are switched on with a password that only agents with the job's secret know.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import hmac
import ipaddress
import logging
import shutil
import socket
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import IO

from phalanx.store.etcd.answers import LeaseExists, NotDone, Silent, StaleToken
from phalanx.store.etcd.connection import Call, Connection
from phalanx.store.etcd.endpoints import Endpoint, parse_endpoint
from phalanx.store.etcd.member import EtcdMember
from phalanx.store.etcd.opening import open_session
from phalanx.store.etcd.session import Session
from phalanx.store.etcd.store import EtcdV3Store
from phalanx.store.port import Refused, StoreError, Unclear
from phalanx.store.sockets import resolve

__all__ = ["ClusterStore", "EtcdCluster"]

logger = logging.getLogger(__name__)

_MEMBERS = Call("Cluster/MemberList", "MemberList")

_LOOK_S = 1.0  # for one other member to say whom it knows
_LOOK_UP_S = 5.0  # for a name; whoever opens the cluster tries again
_RESTART_PAUSES_S = (1.0, 2.0, 5.0, 10.0)
"""Between the restarts of a member that ended by itself; the last one from then on."""


class ClusterStore(EtcdV3Store):
    """The store on such a cluster. Closing it stops this host's member, if it runs one."""

    def __init__(self, session: Session, cluster: EtcdCluster) -> None:
        super().__init__(session)
        self._cluster = cluster

    @property
    def is_host(self) -> bool:
        """See the port."""
        return self._cluster.member is not None

    def spare_servers(self, spare: Callable[[int], None]) -> None:
        """Call ``spare`` with the pid of our member, now and at each later start: who ends all children of this
        process, as an agent does with what its workers left, must not end that one.
        """
        self._cluster.spare_servers(spare)

    async def close(self) -> None:
        """See the port."""
        await super().close()
        await self._cluster.stop()


class EtcdCluster:
    """This agent's part in the cluster. ``job`` tells jobs apart, ``folder`` keeps a member's data and log, and
    ``secret`` is what all agents of the job know.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        job: str,
        folder: str | Path,
        secret: bytes | None = None,
        heartbeat_ms: int = 100,
        election_ms: int = 1000,
    ) -> None:
        self.endpoints = tuple(parse_endpoint(one) for one in endpoints)
        if len(self.endpoints) % 2 == 0:
            raise Refused(
                f"{len(self.endpoints)} members cannot outvote one another: name three hosts, or five."
            )
        self._folder = Path(folder)
        self._password = None if secret is None else _derive("password", secret, job)
        # Members of another job, or of nobody, are turned away by it.
        self._token = _derive("token", secret or b"", job)[:32]
        self._pace = ("--heartbeat-interval", str(heartbeat_ms), "--election-timeout", str(election_ms))
        self.index: int | None = None
        """Which of the endpoints is ours; None: none of them, or not known yet."""
        self.member: EtcdMember | None = None
        self._lock: IO[bytes] | None = None
        self._spare: Callable[[int], None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._trouble: str | None = None  # while our member does not run

    async def open(self) -> ClusterStore:
        """Start our member, if an endpoint is ours, and open the store.

        Raises ``Unclear`` while there is no majority (our member goes on waiting for the others: call it again), and
        ``Refused`` without a program or with a member that lost its data.
        """
        await self.start()
        try:
            session = await open_session(
                [str(endpoint) for endpoint in self.endpoints],
                user=None if self._password is None else "root",
                password=self._password,
            )
        except Unclear as unclear:
            raise self._explained(unclear) from unclear
        if self._password is not None and self.member is not None:
            try:
                await _close_the_door(session, self._password)
            except BaseException:  # cancelled, too: nobody else knows of this one
                await session.close()
                raise
        return ClusterStore(session, self)

    async def start(self) -> None:
        """Start our member, if an endpoint is ours and free. Idempotent."""
        if self.member is not None:
            return
        for index, endpoint in enumerate(self.endpoints):
            addresses = await _addresses_here(endpoint)
            if not addresses or not self._claim(index):
                continue
            member = EtcdMember(self._arguments(index, addresses), log=self._folder / f"etcd-{index}.log")
            try:
                await self._check_data(index)
                await self._start(member)
            except BaseException:
                await self.stop()  # gives the claim back
                raise
            self.index, self.member = index, member
            self._keeping = asyncio.get_running_loop().create_task(self._keep(member))
            return

    def _claim(self, index: int) -> bool:
        """Several agents of this machine may find the same endpoint free before any of them listens there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = (self._folder / f"etcd-{index}.lock").open("ab")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            return False
        self._lock = lock
        return True

    def spare_servers(self, spare: Callable[[int], None]) -> None:
        """See ``ClusterStore``."""
        self._spare = spare
        if self.member is not None and self.member.pid is not None:
            spare(self.member.pid)

    async def stop(self) -> None:
        """Stop our member, if there is one; its data stays. Idempotent."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait((self._keeping,))
        member, self.member = self.member, None
        if member is not None:
            await member.stop()
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def forget(self) -> None:
        """Remove the data of our stopped member, when the job is over and nobody will come back to it."""
        if self.member is None and self.index is not None:
            shutil.rmtree(self._data(self.index), ignore_errors=True)

    async def _keep(self, member: EtcdMember) -> None:
        """Start it again, with its data, when it ends by itself; and again when that fails."""
        for tries in count():
            try:
                if self._trouble is None:
                    code = await member.wait()
                    self._trouble = f"ended with {code} ({member.last_words() or 'its log is empty'})"
                pause_s = _RESTART_PAUSES_S[min(tries, len(_RESTART_PAUSES_S) - 1)]
                logger.warning(
                    "The etcd member of this host %s; it starts again in %g s.", self._trouble, pause_s
                )
                await asyncio.sleep(pause_s)
                await self._start(member)
                self._trouble = None
            except Exception as error:  # noqa: BLE001 # whatever it is, it may pass, and nobody else looks after it
                self._trouble = f"could not be started ({error!r})"

    async def _start(self, member: EtcdMember) -> None:
        await member.start()
        if self._spare is not None and member.pid is not None:
            self._spare(member.pid)

    def _explained(self, unclear: Unclear) -> Unclear:
        here = "no member of it is ours"
        if self.member is not None and self.index is not None:
            state = (
                "runs"
                if self.member.is_running
                else (self._trouble or f"has ended: {self.member.last_words()}")
            )
            here = f"our member, {self.endpoints[self.index]}, {state}"
        return Unclear(f"The job's etcd cluster has no majority yet ({here}). {unclear}")

    def _data(self, index: int) -> Path:
        return self._folder / f"etcd-{index}"

    async def _check_data(self, index: int) -> None:
        """Raise ``Refused`` if our member has been part of the cluster and its data is gone."""
        if (self._data(index) / "member").exists():
            return
        others = [endpoint for number, endpoint in enumerate(self.endpoints) if number != index]
        for known in await asyncio.gather(*map(_started_members, others)):
            if _name(index) in known:
                raise Refused(
                    f"The etcd member {self.endpoints[index]} has lost its data ({self._data(index)}): it cannot come "
                    "back into the job's cluster. The others go on without it; bring the folder back, or use another "
                    "job id."
                )

    def _arguments(self, index: int, addresses: Sequence[str]) -> list[str]:
        ours = self.endpoints[index]
        peers = [Endpoint(one.host, one.port + 1, False) for one in self.endpoints]
        return [
            *("--name", _name(index), "--data-dir", str(self._data(index))),
            *(
                "--listen-client-urls",
                ",".join(f"http://{Endpoint(it, ours.port, False)}" for it in addresses),
            ),
            *(
                "--listen-peer-urls",
                ",".join(f"http://{Endpoint(it, ours.port + 1, False)}" for it in addresses),
            ),
            *("--advertise-client-urls", f"http://{ours}"),
            *("--initial-advertise-peer-urls", f"http://{peers[index]}"),
            *(
                "--initial-cluster",
                ",".join(f"{_name(number)}=http://{peer}" for number, peer in enumerate(peers)),
            ),
            *("--initial-cluster-state", "new", "--initial-cluster-token", self._token),
            # Watches resume within seconds; ten thousand revisions are minutes of the busiest job.
            *("--auto-compaction-mode", "revision", "--auto-compaction-retention", "10000"),
            # The password is random: a slow hash would only make a thousand agents wait for one another.
            *("--bcrypt-cost", "4"),
            *self._pace,
        ]


def _name(index: int) -> str:
    return f"m{index}"


def _derive(purpose: str, secret: bytes, job: str) -> str:
    return hmac.new(secret, f"etcd {purpose}\0{job}".encode(), hashlib.sha256).hexdigest()


async def _addresses_here(endpoint: Endpoint) -> list[str]:
    """The addresses of the endpoint on which this machine can listen now, on its port and the one after it.

    A name that means loopback here and is not ``localhost`` stands for the machine (Debian writes it so into
    /etc/hosts): all addresses.
    """
    is_name = False
    try:
        addresses = [str(ipaddress.ip_address(endpoint.host))]
    except ValueError:
        is_name = True
        addresses = await _look_up(endpoint, _LOOK_UP_S)
    here = [one for one in addresses if _can_bind(one, endpoint.port) and _can_bind(one, endpoint.port + 1)]
    if (
        is_name
        and endpoint.host != "localhost"
        and any(ipaddress.ip_address(one).is_loopback for one in here)
    ):
        return ["::" if ":" in here[0] else "0.0.0.0"]
    return here


async def _look_up(endpoint: Endpoint, within_s: float) -> list[str]:
    """The addresses of a name, or none while nobody knows it."""
    try:
        async with asyncio.timeout(within_s):
            found = await resolve(endpoint.host, endpoint.port)
    except OSError:  # TimeoutError is one
        return []
    return list(dict.fromkeys(str(place[0]) for _, place in found))


def _can_bind(address: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        probe.setsockopt(
            socket.SOL_SOCKET, socket.SO_REUSEADDR, 1
        )  # as etcd does: old connections do not count
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EADDRINUSE):
                logger.debug("Cannot listen on %s port %d: %s", address, port, error)
            return False
    return True


async def _started_members(endpoint: Endpoint) -> set[str]:
    """The names of the members that have ever served, as one of them knows them; nobody if it does not answer."""
    for address in await _look_up(endpoint, _LOOK_UP_S):
        connection = Connection(endpoint, address, None)
        try:
            with contextlib.suppress(NotDone, Silent, StaleToken, LeaseExists, StoreError):
                answer = await connection.exchange(_MEMBERS, _MEMBERS.request(), within_s=_LOOK_S, token=None)
                return {member.name for member in answer.members if member.clientURLs}
        finally:
            await connection.close()
    return set()


_ADD_ROLE = Call("Auth/RoleAdd", "AuthRoleAdd")
_ADD_USER = Call("Auth/UserAdd", "AuthUserAdd")
_GRANT_ROLE = Call("Auth/UserGrantRole", "AuthUserGrantRole")
_ENABLE = Call("Auth/AuthEnable", "AuthEnable")


async def _close_the_door(session: Session, password: str) -> None:
    """Let only those in who know the password. All members' agents do so, in any order; the first one counts."""
    steps = (
        (_ADD_ROLE, _ADD_ROLE.request(name="root")),
        (_ADD_USER, _ADD_USER.request(name="root", password=password)),
        (_GRANT_ROLE, _GRANT_ROLE.request(user="root", role="root")),
        (_ENABLE, _ENABLE.request()),
    )
    for call, request in steps:
        try:
            await session.ask(call, request, is_repeatable=True)
        except Refused as refused:
            if "already exists" not in str(refused):
                raise
