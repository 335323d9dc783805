"""TLS for a store that the agents host themselves: one context to serve with, one to connect with.

Every agent may come to serve, and every one proves who it is, so all three files are needed on each node. The server's
name is checked against its certificate, as everywhere.
"""

from __future__ import annotations

import ssl

__all__ = ["hosted_contexts"]


def hosted_contexts(*, ca_cert: str, cert: str, key: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """(server, client). Raises ``OSError``, of which ``ssl.SSLError`` is one, for files that cannot be used."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=ca_cert)
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=ca_cert)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are ours
        context.load_cert_chain(cert, key)
    return server, client
