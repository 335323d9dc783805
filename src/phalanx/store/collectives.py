"""Meeting points of several processes in one store: exchange of values, and a barrier that says who is missing.

They work with torch's stores and with ours (``set``, ``get``, ``add``, ``wait``, ``check``, ``multi_get``,
``set_timeout``), and use torchelastic's keys. Each prefix is used once: a store keeps what was there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

__all__ = ["barrier", "get_all", "store_timeout", "synchronize"]

_NAMED_MAX = 16  # of missing ranks: torchelastic's
_MEMBERS, _LAST = "{}/num_members", "{}/last_member"
_CAME, _MISSING = "{}{}/TRACE", "{}/TRACING_GATE"


@contextmanager
def store_timeout(store: Any, timeout: float) -> Iterator[None]:
    """Let a store wait for ``timeout`` seconds within the block, and as long as before after it.

    >>> from datetime import timedelta
    >>> class Waits:
    ...     timeout = timedelta(seconds=300)
    ...
    ...     def set_timeout(self, timeout):
    ...         self.timeout = timeout
    >>> store = Waits()
    >>> with store_timeout(store, 5):
    ...     print(store.timeout)
    0:00:05
    >>> print(store.timeout)
    0:05:00
    """
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    try:
        yield
    finally:
        store.set_timeout(before)


def get_all(store: Any, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """Return the values of the keys ``<prefix>0…<prefix><world_size - 1>``, when they are all there.

    Rank 0, which may be the store's host, returns when every rank has its values. Raises what the store does when its
    time is over.

    >>> values = {"node0": b"a", "node1": b"b"}
    >>> class Stored:
    ...     def multi_get(self, keys):
    ...         return [values[key] for key in keys]
    ...
    ...     def add(self, key, amount):
    ...         return 2
    ...
    ...     def set(self, key, value):
    ...         pass
    >>> get_all(Stored(), 1, "node", 2)
    [b'a', b'b']
    """
    found = [bytes(one) for one in store.multi_get([f"{prefix}{one}" for one in range(world_size)])]
    last = _arrive(store, f"{prefix}/finished", world_size)
    if rank == 0:
        store.wait([last])
    return found


def synchronize(
    store: Any, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: float = 300
) -> list[bytes]:
    """Give ``data`` to all ranks, and return what each has given, in order. ``timeout`` in seconds.

    >>> synchronize(store, b"mine", rank=0, world_size=2, key_prefix="exchange/")  # doctest: +SKIP
    [b'mine', b'other']
    """
    with store_timeout(store, timeout):
        store.set(f"{key_prefix}{rank}", data)
        return get_all(store, rank, key_prefix, world_size)


def barrier(
    store: Any,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = 300,
    rank: int | None = None,
    rank_tracing_decoder: Callable[[int], str] | None = None,
    trace_timeout: float = 10,
) -> None:
    """Wait until ``world_size`` processes have called this with the same prefix, ``barrier_timeout`` seconds at most.

    With ``rank`` and ``rank_tracing_decoder`` (rank → a name for people) the error names who is missing, on each rank
    that rank 0 can tell within ``trace_timeout`` seconds. Raises what the store does when its time is over: torch's
    ``DistStoreError``, our ``StoreTimeout``; both are ``RuntimeError``.

    >>> barrier(store, world_size=2, key_prefix="before training", rank=0)  # doctest: +SKIP
    """
    is_traced = rank is not None and rank_tracing_decoder is not None
    with store_timeout(store, barrier_timeout):
        if is_traced:  # before it waits: whoever dies while it waits has come all the same
            store.set(_CAME.format(key_prefix, rank), b"1")
        last = _arrive(store, key_prefix, world_size)
        try:
            store.wait([last])
        except RuntimeError as error:
            if not is_traced:
                raise
            missing = _missing(store, world_size, key_prefix, rank, rank_tracing_decoder, trace_timeout)
            if missing is None:
                raise
            raise _same_kind(
                error,
                f"Timed out waiting on barrier on rank {rank}, for key prefix: {key_prefix} "
                f"(world_size={world_size}, missing_ranks={missing}, timeout={barrier_timeout})",
            ) from None


def _arrive(store: Any, prefix: str, world_size: int) -> str:
    """Count this process; the key that is there when all are counted."""
    last = _LAST.format(prefix)
    if store.add(_MEMBERS.format(prefix), 1) == world_size:
        store.set(last, b"1")
    return last


def _missing(
    store: Any,
    world_size: int,
    prefix: str,
    rank: int | None,
    name: Callable[[int], str] | None,
    trace_s: float,
) -> str | None:
    """Who has not come, as rank 0 sees it, which tells the others; None: nobody knows."""
    key = _MISSING.format(prefix)
    try:
        if rank != 0:
            store.wait([key], timedelta(seconds=trace_s))
            return bytes(store.get(key)).decode(errors="replace")
        away = [one for one in range(world_size) if not store.check([_CAME.format(prefix, one)])]
        assert name is not None, "asked for with a decoder"
        shown = [name(one) for one in away[:_NAMED_MAX]]
        text = f"[{', '.join(shown)}{', ...' if len(away) > _NAMED_MAX else ''}]"
        store.set(key, text)
        return text
    except (RuntimeError, OSError):  # the store is gone, or rank 0 is
        return None


def _same_kind(error: RuntimeError, text: str) -> RuntimeError:
    try:
        return type(error)(text)
    except TypeError:  # of a kind that is made in another way
        return RuntimeError(text)
