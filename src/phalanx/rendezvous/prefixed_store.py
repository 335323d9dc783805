"""A part of somebody's key-value store, under a prefix, with the methods that torch's stores have."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

__all__ = ["PrefixedStore", "prefixed"]


def prefixed(store: Any, prefix: str) -> Any:
    """``store`` under a prefix: in torch's own wrapper if it is torch's, because process groups take no other."""
    torch_distributed = sys.modules.get("torch.distributed")
    if torch_distributed is not None and isinstance(store, getattr(torch_distributed, "Store", ())):
        return torch_distributed.PrefixStore(prefix, store)
    return PrefixedStore(store, prefix)


class PrefixedStore:
    """Every key gets ``prefix/`` before it. Everything else is the store's: waiting, timeouts, errors."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store = store
        self._prefix = f"{prefix}/"

    def set(self, key: str, value: Any) -> None:
        """Write a key."""
        self._store.set(self._prefix + key, value)

    def get(self, key: str) -> bytes:
        """Wait for a key and read it."""
        return bytes(self._store.get(self._prefix + key))

    def add(self, key: str, amount: int) -> int:
        """Add to a counter; a new one is 0. Return the sum."""
        return int(self._store.add(self._prefix + key, amount))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """Write ``desired`` if the key holds ``expected``, or is not there and that is empty. Return what it holds."""
        return bytes(self._store.compare_set(self._prefix + key, expected, desired))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Wait until all keys are there."""
        names = [self._prefix + key for key in keys]
        if timeout is None:
            self._store.wait(names)
        else:
            self._store.wait(names, timeout)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return bool(self._store.check([self._prefix + key for key in keys]))

    def delete_key(self, key: str) -> bool:
        """Delete a key; whether it was there."""
        return bool(self._store.delete_key(self._prefix + key))

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Wait for keys and read them."""
        return list(self._store.multi_get([self._prefix + key for key in keys]))

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        """Write keys."""
        self._store.multi_set([self._prefix + key for key in keys], values)

    def num_keys(self) -> int:
        """How many keys the whole store has, as torch's wrapper counts."""
        return int(self._store.num_keys())

    def set_timeout(self, timeout: timedelta) -> None:
        """Change how long the store waits."""
        self._store.set_timeout(timeout)

    @property
    def timeout(self) -> timedelta:
        """How long the store waits."""
        found: timedelta = self._store.timeout
        return found

    @property
    def source_address(self) -> str | None:
        """Our own address on the connection that reached the store, if it tells."""
        return getattr(self._store, "source_address", None)
