"""What programs import from torchelastic's modules for etcd's v2 protocol; behind it is v3, the one that etcd has."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.rendezvous import RendezvousHandler, RendezvousParameters

__all__ = [
    "EtcdRendezvousRetryImmediately",
    "EtcdRendezvousRetryableFailure",
    "cas_delay",
    "create_rdzv_handler",
]


class EtcdRendezvousRetryableFailure(Exception):
    """Raised by nobody here: torchelastic's v2 rendezvous tells itself by it to begin again after a while."""


class EtcdRendezvousRetryImmediately(Exception):
    """Raised by nobody here: torchelastic's v2 rendezvous tells itself by it to begin again at once."""


def cas_delay() -> None:
    """Sleep for up to 0.1 s, at random, before another compare-and-set is tried. Source: torchelastic.

    >>> cas_delay()
    """
    time.sleep(random.uniform(0, 0.1))


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """Make a handler for the etcd at ``params.endpoint``, over its v3 protocol. Needs the extra ``etcd``.

    Raises ``RendezvousConnectionError`` when etcd is not reached, ``ValueError`` for parameters that mean nothing.
    Source: torchelastic's function of the same name, for v2.

    >>> from phalanx.rendezvous import RendezvousParameters
    >>> params = RendezvousParameters("etcd-v2", "host:2379", "job", 1, 4)
    >>> create_rdzv_handler(params)  # doctest: +SKIP
    """
    from phalanx.rendezvous.dynamic import create_handler
    from phalanx.rendezvous.etcd_backend import create_backend

    backend, store = create_backend(params)
    return create_handler(store, backend, params)
