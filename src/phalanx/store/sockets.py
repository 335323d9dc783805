"""Addresses and sockets of the hosted store: names become addresses, addresses that are ours become listeners."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import threading
from collections.abc import Sequence
from typing import Any

from phalanx.store.port import Refused

__all__ = ["Address", "NotOurs", "is_loopback", "keep_alive", "listen", "resolve"]

Address = tuple[int, tuple[Any, ...]]
"""A family and a socket address."""

# What bind says of an address of another machine, of an interface that is down, and of a family that is switched off.
_ELSEWHERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENODEV)
BACKLOG = 4096  # Linux's own limit, net.core.somaxconn, since 5.4


class NotOurs(OSError):
    """No address of an endpoint belongs to this machine."""


async def resolve(host: str, port: int) -> list[Address]:
    """The addresses of a host, in the system's order of preference. Raises ``OSError``, ``gaierror`` among them, and
    ``Refused`` for what can never be a name.

    A name is looked up in a daemon thread: the resolver cannot be interrupted, and shall keep no process from ending.
    """
    try:
        return _look_up(host, port, socket.AI_NUMERICHOST)
    except socket.gaierror:
        pass  # it is a name
    except UnicodeError:
        raise Refused(f"{host!r} is no host name.") from None
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[Address]] = loop.create_future()

    def look_up() -> None:
        answer: list[Address] | OSError
        try:
            answer = _look_up(host, port, 0)
        except OSError as error:
            answer = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_hand_over, found, answer)

    threading.Thread(target=look_up, name="phalanx-resolver", daemon=True).start()
    return await found


def _look_up(host: str, port: int, flags: int) -> list[Address]:
    # As bytes where that is enough: for text Python loads a codec for names of all scripts. That takes milliseconds,
    # and the codec is missing for the rest of the process when the first one to need it is out of descriptors.
    is_plain = host.isascii() and all(0 < len(label) < 64 for label in host.removesuffix(".").split("."))
    name = host.encode("ascii") if is_plain else host
    found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=flags)
    return list(dict.fromkeys((family, place) for family, _, _, _, place in found))


def _hand_over(future: asyncio.Future[list[Address]], answer: list[Address] | OSError) -> None:
    if future.done():
        return
    if isinstance(answer, OSError):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def is_loopback(address: Address) -> bool:
    """Whether an address leads back to the machine that uses it."""
    host = str(address[1][0])
    return host == "::1" or host.startswith(("127.", "::ffff:127."))


def listen(addresses: Sequence[Address], *, everywhere: bool) -> list[socket.socket]:
    """Sockets that listen on those of the addresses that are ours, or on their port of all interfaces.

    Raises ``NotOurs`` when none is ours, and ``OSError`` when one is ours and its port is taken.
    """
    listeners: list[socket.socket] = []
    try:
        if everywhere:
            return [_listener_everywhere(int(addresses[0][1][1]))]
        for address in addresses:
            try:
                listeners.append(_listener(*address))
            except OSError as error:
                if error.errno not in _ELSEWHERE:
                    raise
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    if not listeners:
        raise NotOurs("the address belongs to another machine")
    return listeners


def _listener_everywhere(port: int) -> socket.socket:
    try:
        return _listener(socket.AF_INET6, ("::", port), is_dual=True)
    except OSError as error:
        if error.errno not in _ELSEWHERE:
            raise
        return _listener(socket.AF_INET, ("0.0.0.0", port))  # a kernel without IPv6


def _listener(family: int, place: tuple[Any, ...], *, is_dual: bool = False) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if is_dual else 1)
        listener.bind(place)
        listener.listen(BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel find out when the other end is gone, and not wait for more bytes to send."""
    connected = transport.get_extra_info("socket")
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # A peer that vanished without a word is noticed after some 25 seconds, with nothing to be sent or with something.
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 25_000),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
