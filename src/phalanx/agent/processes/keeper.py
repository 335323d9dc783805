"""The keeper: a small process that ends the job when its agent cannot.

Forked without exec before the agent has a loop or a thread, in a session of its own, deaf to the signals that end
jobs. It sleeps until the agent dies (its pidfd, or the end of the socket) or the fence falls, then kills the job's
processes until two scans find none. After the agent's death it exits; after a fence it stays, for an agent that was
only frozen may start workers anew. It touches only what ``ProcessTree`` counts as the job's.

Agent → keeper, one packet each: an operation and two integers, with a pidfd beside ``WATCH`` and a path behind
``TIDY``. Nothing comes back.
On the agent's side no method raises when the keeper is gone; ``fileno()`` becomes readable then.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import stat
import struct
import time
from collections.abc import Collection, Iterable
from enum import IntEnum
from typing import NoReturn

from phalanx.multiprocessing.folders import remove_if_blank
from phalanx.multiprocessing.pidfd import has_ended, is_supported, watch_child
from phalanx.multiprocessing.procfs import now_ticks, start_ticks_of
from phalanx.multiprocessing.trees import ProcessTree

__all__ = ["DEAF_TO", "Keeper"]

_PACKET = struct.Struct("=Bqq")
_PATH_MAX = 4096
_UNKNOWN = -1

DEAF_TO = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGTSTP,
    signal.SIGPIPE,
)
"""Signals that end programs. Who is there to clear up after others ignores them."""

# What the kernel does not let go by then it may never let go, and nobody is left to be told.
KILL_FOR_S = 10.0
# A killed process ends, and wakes us, within milliseconds; this is for one that does not, and for a fork seen too late.
SCAN_AGAIN_S = 0.05
# Who waits in the kernel may be of the job or a stranger. A busy disk lets go within that; what hosts the agent waits.
UNSURE_FOR_S, UNSURE_AGAIN_S = 5.0, 0.2
# The socket takes hundreds of packets; a keeper that has not read for this long is frozen, and the agent goes on.
SEND_TIMEOUT_S = 1.0
# Before it exits the keeper has only the agent's last packets to read.
EXIT_TIMEOUT_S = 2.0


class _Op(IntEnum):
    WATCH = 1
    FENCE = 2
    DONE = 3
    TIDY = 4


class _Kind(IntEnum):
    """Of a folder that the agent has made."""

    SOCKET = 1
    LOGS = 2


class Keeper:
    """The agent's handle on its keeper process; made by ``Keeper.start``."""

    def __init__(self, pid: int, link: socket.socket) -> None:
        self._child = watch_child(pid)
        self._link = link

    @classmethod
    def start(cls, job: str, *, keep: Collection[int] = ()) -> Keeper:
        """Fork the keeper of the job with this token (``PHALANX_JOB``). Call it before any thread or worker exists.

        It holds the descriptors in ``keep`` open, so that whoever has their other end sees when it is gone, too.
        Raises ``OSError`` when no process can be made.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        agent = os.getpid()
        # Taken here: on a busy machine the agent has started workers before the keeper runs at all, and whoever is
        # older than its tree is no member.
        born_ticks = now_ticks()
        # Until it is deaf and has left the session, a Ctrl-C for the agent would end the keeper too.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, DEAF_TO)
        try:
            pid = os.fork()
            if pid == 0:
                _live(job, agent, theirs, unblocked, born_ticks, keep)
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        ours.settimeout(SEND_TIMEOUT_S)
        return cls(pid, ours)

    @property
    def pid(self) -> int:
        """The keeper's process id."""
        return self._child.pid

    def watch(self, pid: int, pidfd: int | None = None) -> None:
        """Tell of a worker, an unreaped child of this process; the descriptor is copied."""
        start_ticks = start_ticks_of(pid)
        self._send(_Op.WATCH, pid, _UNKNOWN if start_ticks is None else start_ticks, pidfd=pidfd)

    def fence(self, deadline: float | None) -> None:
        """Kill the job when ``CLOCK_BOOTTIME`` (seconds, suspension included) reaches ``deadline``; None: never.

        What is started after a fence has fallen lives only if another was set before.
        """
        self._send(_Op.FENCE, _UNKNOWN if deadline is None else int(deadline * 1e9))

    def tidy_socket(self, path: str) -> None:
        """If the agent dies, remove this socket of its own, and the folder around it."""
        self._tidy(_Kind.SOCKET, path)

    def tidy_logs(self, folder: str) -> None:
        """The same for a temporary folder of logs, if nothing was written there. The latest counts."""
        self._tidy(_Kind.LOGS, folder)

    def _tidy(self, kind: _Kind, path: str) -> None:
        encoded = os.fsencode(path)
        if os.path.isabs(path) and len(encoded) <= _PATH_MAX:
            self._send(_Op.TIDY, kind, path=encoded)

    def done(self) -> None:
        """The job has ended and nothing of it is left: let the keeper go, and wait for it. Idempotent."""
        if self._link.fileno() < 0:
            return
        self._send(_Op.DONE)
        self._link.close()
        if not has_ended(self._child.fileno(), EXIT_TIMEOUT_S):
            self._child.send_signal(signal.SIGKILL)
            has_ended(self._child.fileno(), EXIT_TIMEOUT_S)
        self._child.poll()
        self._child.close()

    def fileno(self) -> int:
        """A descriptor that is readable when the keeper is gone; -1 after ``done()``."""
        return self._link.fileno()

    def _send(
        self, operation: _Op, first: int = 0, second: int = 0, *, pidfd: int | None = None, path: bytes = b""
    ) -> None:
        packet = _PACKET.pack(operation, first, second) + path
        # It is gone (then fileno() says so) or frozen (then nobody can help): no reason to disturb the job.
        with contextlib.suppress(OSError):
            socket.send_fds(self._link, [packet], [] if pidfd is None else [pidfd])


def _live(
    job: str,
    agent: int,
    link: socket.socket,
    unblocked: Collection[int],
    born_ticks: int,
    keep: Collection[int],
) -> NoReturn:
    """The keeper's whole life; nothing of the agent's code runs after it, whatever happens."""
    status = 70
    try:
        _detach({link.fileno(), *keep}, unblocked)
        _KeeperProcess(job, agent, link, born_ticks).run()
        status = 0
    finally:
        os._exit(status)


def _detach(kept: Collection[int], unblocked: Collection[int]) -> None:
    """Become deaf, leave the session, and hold nothing else open that somebody waits to see closed."""
    gc.disable()  # a collection would write to every page that we share with the agent
    for signum in DEAF_TO:
        signal.signal(signum, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for fd in _open_descriptors():
        if fd > 2 and fd not in kept:
            with contextlib.suppress(OSError):
                os.close(fd)
    _allow_many_descriptors()
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb") as file:
        file.write(b"phalanx-keeper")


def _allow_many_descriptors() -> None:
    """Raise the soft limit: a worker whose pidfd finds no room here would end unseen. The keeper starts nobody."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open_descriptors() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        return list(range(min(os.sysconf("SC_OPEN_MAX"), 65536)))


class _KeeperProcess:
    """What the keeper knows, and its one loop."""

    def __init__(self, job: str, agent: int, link: socket.socket, born_ticks: int) -> None:
        self._tree = ProcessTree(job, spare=(agent,), born_ticks=born_ticks)
        self._link = link
        self._link.setblocking(False)
        self._pidfds: dict[int, int] = {}
        self._by_pidfd: dict[int, int] = {}
        self._folders: dict[int, str] = {}  # by kind
        self._is_over = False
        self._is_done = False
        self._has_fallen = False  # the fence, and no other was set since
        self._fence_timer: int | None = None
        self._poller = select.poll()
        self._poller.register(link, select.POLLIN)
        self._agent_fd: int | None = None
        if is_supported():
            self._watch_agent(agent)

    def _watch_agent(self, agent: int) -> None:
        # The socket alone could end late: a worker made by fork holds the agent's end of it too.
        try:
            self._agent_fd = os.pidfd_open(agent)
        except ProcessLookupError:
            self._is_over = True
            return
        self._poller.register(self._agent_fd, select.POLLIN)
        self._is_over = os.getppid() != agent  # it died before we looked, and the number may be another's

    def run(self) -> None:
        """Sleep until it is over; then kill the job, unless the agent said that all is done."""
        while not self._is_over:
            self._take(fd for fd, _ in self._poller.poll())
            if self._has_fallen and not self._is_over:
                self._kill_all()
                if self._has_fallen:  # else another was set meanwhile, and holds
                    self._set_fence(_UNKNOWN)
        # It may have died before this process ran at all; what it said counts: it may have been "done".
        self._read_packets()
        if not self._is_done:
            self._kill_all()
            if self._tree.is_empty:
                self._tidy()

    def _tidy(self) -> None:
        """What the agent would have removed. Nothing else is: whatever somebody has put there stays, and its folder."""
        if _Kind.LOGS in self._folders:
            remove_if_blank(self._folders[_Kind.LOGS])
        if _Kind.SOCKET in self._folders:
            path = self._folders[_Kind.SOCKET]
            with contextlib.suppress(OSError):
                if os.path.lexists(path) and stat.S_ISSOCK(os.lstat(path).st_mode):
                    os.unlink(path)
                os.rmdir(os.path.dirname(path))

    def _take(self, ready: Iterable[int]) -> None:
        self._read_packets()
        for fd in ready:
            self._is_over |= fd == self._agent_fd
            self._has_fallen |= fd == self._fence_timer and self._fence_has_fallen(fd)
            # Asked again: a packet may have replaced the one that was ready by a live worker's of the same number.
            if fd in self._by_pidfd and has_ended(fd):
                self._note_end(self._by_pidfd[fd])

    def _read_packets(self) -> None:
        while not self._is_done:
            try:
                packet, fds, _, _ = socket.recv_fds(self._link, _PACKET.size + _PATH_MAX, 1)
            except BlockingIOError:
                return
            except OSError:
                packet, fds = b"", []
            if len(packet) < _PACKET.size:
                self._is_over = True
                return
            operation, first, second = _PACKET.unpack_from(packet)
            self._obey(operation, first, second, fds, packet[_PACKET.size :])

    def _obey(self, operation: int, first: int, second: int, fds: list[int], path: bytes) -> None:
        match operation:
            case _Op.WATCH:
                self._close_pidfd(first)
                self._tree.add_known(first, None if second == _UNKNOWN else second)
                if fds:
                    self._pidfds[first] = fds[0]
                    self._by_pidfd[fds[0]] = first
                    self._poller.register(fds[0], select.POLLIN)
            case _Op.FENCE:
                self._set_fence(first)
            case _Op.TIDY:
                self._folders[first] = os.fsdecode(path)
            case _Op.DONE:
                self._is_over = self._is_done = True

    def _note_end(self, pid: int) -> None:
        """A worker has ended. Now, for later nobody can tell its session from a stranger's of the same number."""
        self._tree.ended(pid)
        self._close_pidfd(pid)

    def _close_pidfd(self, pid: int) -> None:
        fd = self._pidfds.pop(pid, None)
        if fd is not None:
            del self._by_pidfd[fd]
            self._poller.unregister(fd)
            os.close(fd)

    def _set_fence(self, deadline_ns: int) -> None:
        from phalanx.agent.processes.fence import boot_timer, set_boot_timer

        if self._fence_timer is None:
            self._fence_timer = boot_timer()
            self._poller.register(self._fence_timer, select.POLLIN)
        set_boot_timer(self._fence_timer, None if deadline_ns == _UNKNOWN else deadline_ns)
        self._has_fallen = False

    @staticmethod
    def _fence_has_fallen(timer: int) -> bool:
        from phalanx.agent.processes.fence import has_fallen

        return has_fallen(timer)

    def _kill_all(self) -> None:
        give_up_at, unsure_until = time.monotonic() + KILL_FOR_S, time.monotonic() + UNSURE_FOR_S
        empty_scans = 0
        while empty_scans < 2 and time.monotonic() < give_up_at:
            for pid in [pid for pid, fd in self._pidfds.items() if has_ended(fd)]:
                self._note_end(pid)
            self._tree.send(signal.SIGKILL, is_wanted=self._must_kill)
            if not self._must_kill():
                return
            if not self._tree.is_empty:
                empty_scans = 0
                self._wait_for_deaths()
            elif self._tree.is_unsure and time.monotonic() < unsure_until:
                empty_scans = 0
                time.sleep(UNSURE_AGAIN_S)
            else:
                empty_scans += 1

    def _must_kill(self) -> bool:
        """A later fence spares the workers that are started behind it.

        It is told before they start: if they were seen in the scan that comes before this, it is here by now.
        """
        if not self._is_over:
            self._read_packets()
        return not self._is_done and (self._has_fallen or self._is_over)

    def _wait_for_deaths(self) -> None:
        if not is_supported():
            time.sleep(SCAN_AGAIN_S)
            return
        give_up_at = time.monotonic() + SCAN_AGAIN_S
        while not self._tree.all_ended() and (left_s := give_up_at - time.monotonic()) > 0:
            has_ended(self._tree.fileno(), left_s)
