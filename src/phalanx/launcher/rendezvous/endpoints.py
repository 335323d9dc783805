"""Where nodes meet: the text of ``--rdzv-endpoint`` as hosts and ports. Nothing is resolved or connected here.

What people write: ``node0``, ``node0:29400``, ``10.0.0.1:29400``, ``[::1]:29400``, a bare IPv6 address, several of
these with commas between them, and for etcd also ``https://node0:2379``. A host is kept as it was given: an address
stays an address.
"""

from __future__ import annotations

from phalanx.records import Struct

__all__ = ["Endpoint", "is_loopback", "read_endpoint", "read_endpoints"]


class Endpoint(Struct):
    """A host, as it was given, and a port; None where none was given."""

    host: str
    port: int | None = None
    scheme: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    def with_default(self, port: int) -> Endpoint:
        """The same, with this port if it has none."""
        return self if self.port is not None else Endpoint(self.host, port, self.scheme)


def read_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Read one endpoint, or several with commas between them. Raises ``ValueError`` with the rest of a sentence."""
    found = tuple(read_endpoint(part) for part in map(str.strip, text.split(",")) if part)
    if len(set(found)) < len(found):
        raise ValueError(f"{text!r} names an endpoint twice")
    return found


def read_endpoint(text: str) -> Endpoint:
    """Read one endpoint. Raises ``ValueError`` with the rest of a sentence."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    rest = rest.rstrip("/") if scheme else rest
    host, digits = _split(rest)
    if digits is None and host.count(":") > 1 and host.startswith("::1:"):
        address, _, port = host.rpartition(":")
        raise ValueError(
            f"{text!r} may be an address or an address and a port; write [{host}] or [{address}]:{port}"
        )
    if ":" in host and not _is_ipv6(host):
        raise ValueError(
            f"{text!r} has several colons and is no IPv6 address; write HOST:PORT or [ADDRESS]:PORT"
        )
    if not host or any(one.isspace() or one in "/[]@" for one in host):
        raise ValueError(f"{text!r} is no endpoint; write HOST:PORT, with [ ] around an IPv6 address")
    if digits is None:
        return Endpoint(host, None, scheme)
    if not (digits.isascii() and digits.isdecimal() and int(digits) < 65536):
        raise ValueError(f"{digits!r} is no port")
    return Endpoint(host, int(digits), scheme)


def _split(text: str) -> tuple[str, str | None]:
    if text.startswith("["):
        host, closing, after = text[1:].partition("]")
        if not closing or (after and not after.startswith(":")):
            return "", None
        return host, after[1:] if after else None
    if text.count(":") > 1:  # an IPv6 address without brackets cannot have a port
        return text, None
    host, colon, digits = text.partition(":")
    return host, digits if colon else None


def _is_ipv6(host: str) -> bool:
    from ipaddress import IPv6Address  # costs milliseconds, and few write colons

    try:
        IPv6Address(host)
    except ValueError:
        return False
    return True


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its very spelling; a name is not looked up."""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdecimal())
