"""The values that the workers of a round share, as a worker sees them: torch's ``Store``, asked of the agent.

Each call is a request on the worker channel, whose end here is ``channel``; the agent's end puts them into the store
of the job.
"""

from __future__ import annotations

import time

from . import channel

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import timedelta
    from typing import Any, overload

__all__ = ["RoundValues"]

_TIMEOUT_S = 300.0  # torch's
_KEYS_PER_REQUEST = 512


class RoundValues:
    """Small values shared by the workers of one round on all nodes, with the methods of torch's ``Store``.

    Keys are texts of up to 1 KiB, values bytes of up to 512 KiB (a text is stored as UTF-8), all values of a round
    together 16 MiB. Raises ``NoAgent`` if the agent or the job's store cannot be reached (a write may have happened
    then), ``ValueError`` for what is refused, and ``ValuesTimeout`` when nobody sets what is waited for.
    """

    def __init__(self) -> None:
        self._timeout_s = _TIMEOUT_S

    @property
    def timeout(self) -> timedelta:
        """How long ``get``, ``multi_get`` and ``wait`` wait; 300 s at first, as torch's stores do."""
        from datetime import timedelta

        return timedelta(seconds=self._timeout_s)

    def set_timeout(self, timeout: timedelta | float) -> None:
        """Set how long to wait, also in seconds."""
        self._timeout_s = _seconds(timeout)

    if TYPE_CHECKING:

        @overload
        def get(self, key: str) -> bytes: ...
        @overload
        def get(self, key: str, *, wait_s: float) -> bytes | None: ...

    def get(self, key: str, *, wait_s: float | None = None) -> bytes | None:
        """The value, once there is one. With ``wait_s`` waits up to so many seconds instead of the timeout, and
        returns None instead of raising ``ValuesTimeout``.
        """
        patience_s = self._timeout_s if wait_s is None else float(wait_s)
        value = _bytes_of(channel._client().ask(_get(key, patience_s), patience_s))
        if value is None and wait_s is None:
            raise _nobody_set((key,), patience_s)
        return value

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of all keys, once they are there; not a picture of one moment."""
        found = channel._client().ask_all([_get(key, self._timeout_s) for key in keys], self._timeout_s)
        values = [value for value in map(_bytes_of, found) if value is not None]
        if len(values) < len(found):
            missing = [key for key, value in zip(keys, found, strict=True) if value is None]
            raise _nobody_set(missing, self._timeout_s)
        return values

    def wait(self, keys: Sequence[str], timeout: timedelta | float | None = None) -> None:
        """Wait until each key has a value, or has had one since the call."""
        patience_s = self._timeout_s if timeout is None else _seconds(timeout)
        ends_at = time.monotonic() + patience_s
        for part in _parts(keys):
            rest_s = max(ends_at - time.monotonic(), 0.0)
            if not channel._client().ask({"type": "wait", "keys": part, "wait_s": rest_s}, rest_s):
                raise _nobody_set([key for key in part if not self.check([key])] or part, patience_s)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys have a value."""
        return all(channel._client().ask({"type": "check", "keys": part}) for part in _parts(keys))

    def set(self, key: str, value: bytes | str) -> None:
        """Store ``value``, whatever was there."""
        channel._client().ask(_set(key, value))

    def multi_set(self, keys: Sequence[str], values: Sequence[bytes | str]) -> None:
        """Store several values; others may see some of them before the rest."""
        channel._client().ask_all([_set(key, value) for key, value in zip(keys, values, strict=True)])

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a decimal number, which is 0 if there is none yet; returns the sum."""
        return int(channel._client().ask({"type": "add", "key": key, "amount": int(amount)}))

    def compare_set(self, key: str, expected: bytes | str | None, desired: bytes | str) -> bytes:
        """Store ``desired`` if the value is ``expected``; returns the value afterwards: ``desired`` if it was stored.

        ``None`` expects that there is no value, an empty text that there is none or an empty one. If there is none
        where one was expected, returns ``expected``, as torch's stores do.
        """
        wanted = None if expected is None else _base64(expected)
        request = {"type": "compare_set", "key": key, "expected": wanted, "desired": _base64(desired)}
        value = _bytes_of(channel._client().ask(request))
        return value if value is not None else _bytes(expected or b"")

    def leave_at_end(self, key: str, value: bytes | str) -> None:
        """Have the agent store ``value`` when this worker has ended with exit code 0, if nothing is there then.

        Up to 4 KiB, one for each worker, the last one counts. Not of torch's ``Store``: it is for who must be missed.
        """
        channel._client().ask({**_set(key, value), "type": "will"})

    def delete_key(self, key: str) -> bool:
        """Remove a value; returns whether there was one."""
        return bool(channel._client().ask({"type": "delete", "key": key}))

    def num_keys(self) -> int:
        """How many keys have a value."""
        return int(channel._client().ask({"type": "num_keys"}))


def _get(key: str, wait_s: float) -> dict[str, Any]:
    return {"type": "get", "key": key, "wait_s": wait_s}


def _set(key: str, value: bytes | str) -> dict[str, Any]:
    return {"type": "set", "key": key, "value": _base64(value)}


def _parts(keys: Sequence[str]) -> Iterator[list[str]]:
    """The keys in as many pieces as requests are needed."""
    if isinstance(keys, str):
        raise TypeError("a list of keys is needed, not a text")
    for start in range(0, len(keys), _KEYS_PER_REQUEST):
        yield list(keys[start : start + _KEYS_PER_REQUEST])


def _nobody_set(keys: Sequence[str], waited_s: float) -> channel.ValuesTimeout:
    named = ", ".join(map(repr, keys[:3])) + (f" and {len(keys) - 3} more" if len(keys) > 3 else "")
    return channel.ValuesTimeout(f"nobody has set {named} within {waited_s:g} s")


def _seconds(timeout: timedelta | float) -> float:
    return float(timeout) if isinstance(timeout, int | float) else timeout.total_seconds()


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else memoryview(value).tobytes()


def _base64(value: bytes | str) -> str:
    import binascii

    return binascii.b2a_base64(_bytes(value), newline=False).decode("ascii")


def _bytes_of(value: str | None) -> bytes | None:
    import binascii

    return None if value is None else binascii.a2b_base64(value)
