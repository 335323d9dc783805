"""Finding a port for rank 0 and holding it until rank 0 is about to start.

A port that is probed and released can be taken by anybody before the worker binds it; the holder keeps it bound (it
never listens) and lets go only at the moment of the spawn. What remains is the worker's own start-up time, and a
bind failure of rank 0 in that window is a "port taken", which costs the job no restart.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable

__all__ = ["HeldPort", "PortError", "hold_port", "is_taken"]


class PortError(OSError):
    """No port could be bound; the message says which were tried and what to do."""


class HeldPort:
    """A port that is ours until ``release()``."""

    def __init__(self, number: int, holder: socket.socket | None) -> None:
        self.number = number
        self._holder = holder

    def release(self) -> None:
        """Let the port go. Calling it twice does nothing."""
        if self._holder is not None:
            self._holder.close()
            self._holder = None


def hold_port(
    wanted: int | None = None, *, among: range | None = None, not_these: Iterable[int] = ()
) -> HeldPort:
    """Bind a port on all interfaces and hold it.

    ``wanted`` is a port that the user gave: it is not held, because the user may have opened it for the workers on
    purpose (and a round that follows at once finds it in TIME_WAIT). ``among`` limits the choice; ``not_these``
    names ports of earlier rounds, which late connections of old workers may still reach.

    Raises ``PortError`` when no port of ``among`` is free.
    """
    if wanted:
        return HeldPort(wanted, None)
    unwanted = set(not_these)
    if among is None:
        return _any_free_port(unwanted)
    for number in among:
        if number in unwanted:
            continue
        try:
            return HeldPort(number, _bind(number))
        except OSError:
            continue
    raise PortError(
        f"no port between {among.start} and {among.stop - 1} is free for MASTER_PORT; widen master_port_range"
    )


def is_taken(number: int) -> bool:
    """Whether somebody else has the port at this moment."""
    try:
        _bind(number).close()
    except OSError:
        return True
    return False


def _any_free_port(unwanted: set[int]) -> HeldPort:
    passed_over: list[socket.socket] = []
    try:
        while True:
            holder = _bind(0)
            number = int(holder.getsockname()[1])
            if number not in unwanted:
                return HeldPort(number, holder)
            passed_over.append(holder)
    finally:
        for holder in passed_over:
            holder.close()


def _bind(number: int) -> socket.socket:
    """Bind both address families where the machine has both: rank 0 may listen on either."""
    if socket.has_dualstack_ipv6():
        holder = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
        address: tuple[str, int] = ("::", number)
        holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    else:
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        address = ("", number)
    try:
        holder.bind(address)
    except OSError:
        holder.close()
        raise
    return holder
