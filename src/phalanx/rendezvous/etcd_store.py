"""``EtcdStore``: torch's store methods over etcd v3, under a prefix of the user's choice."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from phalanx.rendezvous.etcd_client import EtcdClient
from phalanx.store.synchronous import TIMEOUT_S, StoreTimeout, SynchronousStore

__all__ = ["EtcdStore", "NotPublished"]


class NotPublished(StoreTimeout, LookupError):
    """Nobody has set what was waited for; torchelastic's store raises ``LookupError``."""


class EtcdStore(SynchronousStore):
    """A store in the etcd of ``etcd_client``; closing it leaves that open. ``timeout``: how long ``get`` waits."""

    def __init__(
        self, etcd_client: EtcdClient, etcd_store_prefix: str, timeout: timedelta | None = None
    ) -> None:
        self.client = etcd_client
        super().__init__(
            etcd_client.store,
            etcd_client.thread.loop,
            prefix=f"{etcd_store_prefix.rstrip('/')}/",
            timeout_s=TIMEOUT_S if timeout is None else timeout.total_seconds(),
        )

    def add(self, key: str, num: int) -> int:
        """As every store does; torchelastic's has this name for the amount."""
        return super().add(key, num)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """As every store does. Raises ``LookupError``."""
        try:
            return super().multi_get(keys)
        except StoreTimeout as error:
            raise NotPublished(str(error)) from None

    def wait(self, keys: Sequence[str], override_timeout: timedelta | float | None = None) -> None:
        """As every store does. Raises ``LookupError``."""
        try:
            super().wait(keys, override_timeout)
        except StoreTimeout as error:
            raise NotPublished(str(error)) from None
