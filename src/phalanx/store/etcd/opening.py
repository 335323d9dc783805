"""From endpoints and credentials to a session that has had its first answer."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.store.etcd.connection import Call
from phalanx.store.etcd.endpoints import Tls, parse_endpoints
from phalanx.store.etcd.members import Members
from phalanx.store.etcd.session import Session

__all__ = ["open_session"]

_RANGE = Call("KV/Range", "Range")
_KEYS = "/phalanx/"


async def open_session(
    endpoints: str | Sequence[str],
    *,
    tls: bool = False,
    ca_cert: str | None = None,
    cert: str | None = None,
    key: str | None = None,
    user: str | None = None,
    password: str | None = None,
    prefix: str = "",
    attempt_s: float = 1.5,
    pulse_s: float = 10.0,
) -> Session:
    """Open a session, and read once under ``prefix``: then there is a majority, and the user may read there.

    See ``open_etcd`` for the parameters and errors.
    """
    found = parse_endpoints(endpoints, protocol="https" if tls else "http")
    needs_tls = any(endpoint.is_tls for endpoint in found)
    context = Tls(ca_cert=ca_cert, cert=cert, key=key).context() if needs_tls else None
    members = Members(found, context=context, look_up_s=attempt_s)
    session = Session(members, user=user, password=password, attempt_s=attempt_s, pulse_s=pulse_s)
    try:
        # Where all keys of jobs are: a role may cover nothing else.
        request = _RANGE.request(key=f"{prefix}{_KEYS}".encode())
        await session.ask(_RANGE, request, is_repeatable=True, is_ordered=True)
    except BaseException:
        await session.close()
        raise
    return session
