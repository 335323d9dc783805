"""Reading ``host[:port]``. The endpoint is used as given: no name is looked up here, and an IP stays an IP."""

from __future__ import annotations

__all__ = ["parse_rendezvous_endpoint"]

_PORT_DIGITS_MAX = 5
_PORT_END = 1 << 16
_IN_A_HOST = frozenset("_.:-")


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """Split ``host``, ``host:port``, ``[v6]`` or ``[v6]:port``. An empty endpoint is ``localhost``.

    Semantics are torchelastic's. Raises ``ValueError``, naming the endpoint, for a port or host that cannot be one.
    """
    text = (endpoint or "").strip()
    if not text:
        return "localhost", default_port
    is_bare_v6 = text.startswith("[") and text.endswith("]")
    host, colon, digits = (text, "", "") if is_bare_v6 else _split_last_colon(text)
    port = _port(digits, of=text) if colon else default_port
    if len(host) > 1 and host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not all(sign.isalnum() or sign in _IN_A_HOST for sign in host):
        raise ValueError(
            f"rendezvous endpoint {text!r}: {host!r} is neither a host name nor an address; "
            "write host:port, or [address]:port for IPv6"
        )
    return host, port


def _split_last_colon(text: str) -> tuple[str, str, str]:
    before, colon, after = text.rpartition(":")
    return (before, colon, after) if colon else (text, "", "")


def _port(digits: str, *, of: str) -> int:
    if 0 < len(digits) <= _PORT_DIGITS_MAX and digits.isascii() and digits.isdigit():
        number = int(digits)
        if number < _PORT_END:
            return number
    raise ValueError(f"rendezvous endpoint {of!r}: {digits!r} is not a port (a whole number from 0 to 65535)")
