"""The store on an etcd v3 cluster (extra ``[etcd]``). grpclib and protobuf load when a cluster is opened."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.store.port import Refused

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.store.etcd.store import EtcdV3Store

__all__ = ["open_etcd"]


async def open_etcd(
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
) -> EtcdV3Store:
    """Open an etcd cluster of version 3.4 or newer, and make sure that it answers.

    ``endpoints`` are ``host:port``, ``[ipv6]:port`` or URLs, several also separated by commas; ``tls`` is for those
    that are no URLs. ``ca_cert`` (None: the system's authorities), ``cert`` and ``key`` are PEM files. Every key is
    stored with ``prefix`` before it. ``attempt_s`` limits one attempt; ``pulse_s`` is how long a member may be silent
    before a watch doubts it.

    Raises ``Unclear`` when no member answers, and ``Refused`` when trying again is of no use: without the extra, with
    a certificate that is not trusted, without the permission to read ``prefix``.
    """
    try:
        from phalanx.store.etcd.opening import open_session
        from phalanx.store.etcd.store import EtcdV3Store
    except ImportError as error:
        sentence = "The etcd backend needs more packages: pip install 'phalanx-launcher[etcd]'"
        raise Refused(f"{sentence} ({error}).") from error
    session = await open_session(
        endpoints,
        tls=tls,
        ca_cert=ca_cert,
        cert=cert,
        key=key,
        user=user,
        password=password,
        prefix=prefix,
        attempt_s=attempt_s,
        pulse_s=pulse_s,
    )
    return EtcdV3Store(session, prefix=prefix)
