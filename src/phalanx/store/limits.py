"""What a transaction may look like, in any store: the limits of etcd, so that what works on one works on all. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.store.port import Compare, Delete, Operation, Put

__all__ = [
    "ANSWER_BYTES_MAX",
    "ANSWER_KEYS_MAX",
    "OPERATIONS_MAX",
    "REQUEST_BYTES_MAX",
    "TTL_MAX_S",
    "find_mistake",
]

# etcd's defaults: --max-request-bytes, and --max-txn-ops for each of the three lists.
REQUEST_BYTES_MAX = 1536 * 1024
OPERATIONS_MAX = 128
TTL_MAX_S = 1e9
# Ours: a request of a few bytes must not cost whoever serves it gigabytes.
ANSWER_BYTES_MAX = 64 * 1024 * 1024  # all keys of a store that is full
ANSWER_KEYS_MAX = 100_000
# What etcd's encoding adds to a key and a value, at most: tags, lengths, the lease.
_BYTES_PER_ITEM = 32


def find_mistake(
    compares: Sequence[Compare], then: Sequence[Operation], otherwise: Sequence[Operation]
) -> str:
    """Why no store would serve this transaction, as a sentence, or nothing."""
    if max(len(compares), len(then), len(otherwise)) > OPERATIONS_MAX:
        return f"A transaction has {OPERATIONS_MAX} comparisons and operations of each branch at most."
    size = 0
    try:
        for compare in compares:
            value = compare.value
            size += len(compare.key.encode()) + (len(value) if isinstance(value, bytes) else 0)
        for operation in (*then, *otherwise):
            size += len(operation.key.encode())
            if isinstance(operation, Put):
                size += len(operation.value)
    except UnicodeEncodeError:
        return "A key is no text: it holds half of a surrogate pair."
    size += _BYTES_PER_ITEM * (len(compares) + len(then) + len(otherwise))
    if size > REQUEST_BYTES_MAX:
        return f"The request is too large: {size} bytes, and {REQUEST_BYTES_MAX} are possible."
    if any(not compare.key for compare in compares):
        return "A comparison has no key."
    return _mistake_in_branch(then) or _mistake_in_branch(otherwise)


def _mistake_in_branch(operations: Sequence[Operation]) -> str:
    written: set[str] = set()
    for operation in operations:
        if not operation.key and not getattr(operation, "is_prefix", False):
            return "An operation has no key."
        if isinstance(operation, Put):
            if operation.key in written:
                return f"The key {operation.key!r} is written twice in one transaction."
            written.add(operation.key)
    for operation in operations:
        if isinstance(operation, Delete):
            covered = (
                any(key.startswith(operation.key) for key in written)
                if operation.is_prefix
                else operation.key in written
            )
            if covered:
                return f"A transaction deletes {operation.key!r} and writes it or a key below it, too."
    return ""
