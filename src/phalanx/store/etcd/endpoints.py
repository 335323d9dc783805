"""Where etcd is: endpoints as people write them, and the TLS that reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.records import Struct
from phalanx.store.port import Refused

if TYPE_CHECKING:
    import ssl

__all__ = ["CLIENT_PORT", "Endpoint", "Tls", "parse_endpoint", "parse_endpoints"]

CLIENT_PORT = 2379
"""Registered for etcd's clients; also torchelastic's default."""


class Endpoint(Struct):
    """One member of a cluster, or a name behind which there are several."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Tls(Struct, kw_only=True):
    """How to trust the servers, and how to be trusted by them. Paths of PEM files; None: the system's authorities."""

    ca_cert: str | None = None
    cert: str | None = None
    """Our own certificate, for servers that ask for one. A server with ``--trusted-ca-file`` does, always."""
    key: str | None = None
    """Its key; None: in the same file."""

    def context(self) -> ssl.SSLContext:
        """The context of connections. Raises ``Refused`` for a file that cannot be used."""
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca_cert)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(name for name in (self.ca_cert, self.cert, self.key) if name is not None)
            raise Refused(f"TLS for etcd cannot be set up with {files}: {error}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Without it the server takes us for an HTTP/1 client, and the connection is lost for no reason that one sees.
        context.set_alpn_protocols(["h2"])
        return context


def parse_endpoints(endpoints: str | Sequence[str], *, protocol: str = "http") -> tuple[Endpoint, ...]:
    """Read ``host[:port]``, ``[ipv6]:port`` and ``http(s)://…``, several separated by commas, each kept once.

    ``protocol`` (http or https) is that of an endpoint without its own. Raises ``Refused`` for what is none.
    """
    words = endpoints.split(",") if isinstance(endpoints, str) else endpoints
    found = dict.fromkeys(parse_endpoint(word, protocol=protocol) for word in words if word.strip())
    if not found:
        raise Refused("No endpoint of etcd is given: name at least one host:port.")
    return tuple(found)


def parse_endpoint(text: str, *, protocol: str = "http", default_port: int = CLIENT_PORT) -> Endpoint:
    """Read one endpoint. Raises ``Refused`` for what is none."""
    scheme, mark, rest = text.strip().partition("://")
    if not mark:
        scheme, rest = protocol, scheme
    scheme, rest = scheme.lower(), rest.rstrip("/")
    if scheme not in ("http", "https"):
        raise Refused(f"{text!r} is no endpoint of etcd: its protocol is http or https, not {scheme!r}.")
    host, port = _split(rest)
    if (
        not host
        or not port.isascii()
        or not (port.isdigit() or not port)
        or int(port or 1) not in range(1, 65536)
    ):
        raise Refused(f"{text!r} is no endpoint of etcd: write host:port, or [address]:port for IPv6.")
    return Endpoint(host, int(port or default_port), scheme == "https")


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, closing, port = text[1:].partition("]")
        if not closing or (port and not port.startswith(":")):
            return "", ""
        return host, port[1:]
    if text.count(":") > 1:  # an IPv6 address without a port
        return text, ""
    host, _, port = text.partition(":")
    return host, port
