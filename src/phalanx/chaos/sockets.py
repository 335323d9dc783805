"""TCP connections as ``/proc/<pid>/net`` shows them: those of a whole network namespace, and whose each is."""

from __future__ import annotations

import os
import sys
from ipaddress import IPv4Address, IPv6Address, ip_address

from phalanx.multiprocessing.procfs import read_file
from phalanx.records import Struct

__all__ = ["ESTABLISHED", "LISTENING", "SYN_SENT", "Connection", "connections", "sockets_of"]

ESTABLISHED, SYN_SENT, LISTENING = 1, 2, 10  # the kernel's numbers (include/net/tcp_states.h)


class Connection(Struct):
    """One row: both ends, the state, and the number of the socket, by which its owner knows it."""

    local: str
    local_port: int
    remote: str
    remote_port: int
    state: int
    inode: int

    @property
    def is_ipv6(self) -> bool:
        """Whether its packets are."""
        return ":" in self.local


def connections(pid: int) -> list[Connection]:
    """All TCP sockets of the network namespace of this process."""
    found = []
    for name in ("tcp", "tcp6"):
        found += _read_table(read_file(f"/proc/{pid}/net/{name}", None) or b"")
    return found


def sockets_of(pid: int) -> frozenset[int]:
    """The numbers of a process's open sockets. Raises ``OSError`` when it has ended, or is another user's."""
    folder = f"/proc/{pid}/fd"
    found = set()
    for name in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{name}")
        except FileNotFoundError:  # closed meanwhile
            continue
        if target.startswith("socket:["):
            found.add(int(target[8:-1]))
    return frozenset(found)


def _read_table(table: bytes) -> list[Connection]:
    r"""Read the text of ``/proc/net/tcp`` or ``tcp6``; what is not a row of either is passed over.

    >>> row = b"0: 0100007F:D002 0100007F:72D8 01 00000000:00000000 00:00000000 00000000 0 0 4242 1"
    >>> _read_table(b"sl local_address\n" + row)[0].remote_port
    29400
    """
    found = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        try:
            local, local_port = _end(fields[1])
            remote, remote_port = _end(fields[2])
            found.append(
                Connection(local, local_port, remote, remote_port, int(fields[3], 16), int(fields[9]))
            )
        except (IndexError, ValueError):
            continue
    return found


def _end(text: bytes) -> tuple[str, int]:
    """``0100007F:72D8``: an address in words of the machine's byte order, and a port."""
    digits, _, port = text.partition(b":")
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    address = ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))
    # A socket of IPv6 may speak IPv4; its packets, and so the rules for them, are IPv4's.
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = IPv4Address(address.ipv4_mapped)
    return str(address), int(port, 16)
