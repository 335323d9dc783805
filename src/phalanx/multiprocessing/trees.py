"""Which processes belong to a job, and how to end them without ever touching another.

A process belongs by descent from a worker (or, where this process adopts orphans, from this process), by sitting in a
worker's session, or by ``PHALANX_JOB=<token>`` in the environment it was started with. Three facts keep strangers safe:
nothing older than the tree is a member; a session number counts only while it provably is the worker's; and each
process is identified by number *and* start time, checked again behind a pidfd before a signal leaves.

Everything is read from ``/proc``; without one (macOS) a tree has no members beyond what workers' own handles reach.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from phalanx.multiprocessing.identity import open_checked, send_checked
from phalanx.multiprocessing.marks import marked
from phalanx.multiprocessing.pidfd import is_supported
from phalanx.multiprocessing.procfs import (
    Stat,
    now_ticks,
    own_children,
    read_all,
    read_stat,
    start_ticks_of,
)
from phalanx.records import Struct

__all__ = ["JobProcess", "ProcessTree", "become_subreaper"]

_GONE = "ZX"
_RESERVED = 3  # one to read /proc with, one for a pidfd, one for who opens something in between
_PR_SET_CHILD_SUBREAPER = 36
# With who cannot be told from a stranger just now: what it needs from a disk is mostly there then.
_PATIENCE_S = 0.02
_LOOK_AGAIN_S = 0.002
# A process has 1024 descriptors by default, and 256 workers use most of them. The rest of a larger tree is watched
# after the scan that follows the end of these.
_WATCHED_AT_ONCE = 64


class JobProcess(Struct):
    """A live process of the job. ``start_ticks``: clock ticks since boot; ``state``: the letter of ``ps``."""

    pid: int
    start_ticks: int
    state: str
    command: str


@dataclass(slots=True)
class _Root:
    """A worker. Its number is its own until it is reaped: ``ended_ticks`` is when that happened."""

    start_ticks: int | None
    ended_ticks: int | None = None


class ProcessTree:
    """The processes of one job on this node.

    ``job``: the token in the variable ``mark``. ``spare``: pids that are never members (the keeper).
    ``include_own_children``: every child of this process is a member unless it is spared; for a process that is the
    job's alone and adopts orphans (`become_subreaper`). ``born_ticks``: a moment before the job's first process was
    started, as `now_ticks` told it; who is older is never a member. Now, unless the tree is made later than that.

    To end a tree: ``send()``; when ``is_empty`` then, it is over; else wait until ``fileno()`` is readable, and if
    ``all_ended()``, send again.
    """

    def __init__(
        self,
        job: str,
        *,
        spare: Collection[int] = (),
        include_own_children: bool = False,
        born_ticks: int | None = None,
        mark: str = "PHALANX_JOB",
    ) -> None:
        self._reserve: list[int] = []
        self._is_blind = False
        self._is_unsure = False
        self._is_closed = False
        with self._room():
            pass
        self._token = os.fsencode(job)
        self._mark = f"{mark}=".encode()
        self._spare = {os.getpid(), *spare}
        self._include_own_children = include_own_children
        self._is_of_an_adopter = False
        # A tick of tolerance: the kernel rounds a start time down.
        self._born_ticks = (now_ticks() if born_ticks is None else born_ticks) - 1
        self._roots: dict[int, _Root] = {}
        self._signalled: set[tuple[int, int, int]] = set()
        self._watched: dict[tuple[int, int], int] = {}
        self._epoll: select.epoll | None = None
        self._due = -1  # an eventfd: set when a scan is due and no death is left that would say so
        self._last_scan: list[JobProcess] = []

    def add(self, pid: int) -> None:
        """Make an unreaped child of this process a root of the tree."""
        self.add_known(pid, start_ticks_of(pid))

    def add_known(self, pid: int, start_ticks: int | None) -> None:
        """Make a process a root whose start time somebody else read; None: it had ended by then."""
        self._roots[pid] = _Root(start_ticks)

    def spare(self, pid: int) -> None:
        """Never count this process among the members; its children are not spared."""
        self._spare.add(pid)

    def ended(self, pid: int) -> None:
        """A worker was reaped: from now on its number may be given to a stranger."""
        root = self._roots.get(pid)
        if root is not None and root.ended_ticks is None:
            root.ended_ticks = now_ticks()

    def branch(self, pid: int, token: str, mark: str) -> ProcessTree:
        """The tree of one worker alone, which has this number, and the token in the variable ``mark``.

        What it started and what that started, in whatever session. An orphan that has cleared its environment *and*
        left the session cannot be told from another worker's: it is a member of the whole tree alone.
        """
        root = self._roots[pid]
        since = self._born_ticks if root.start_ticks is None else root.start_ticks
        others = (other for other, one in self._roots.items() if other != pid and one.ended_ticks is None)
        branch = ProcessTree(token, spare=(*self._spare, *others), born_ticks=since, mark=mark)
        branch._is_of_an_adopter = self._include_own_children
        branch._roots[pid] = root
        return branch

    def forget(self, pid: int) -> None:
        """An ended worker of which nothing is left: its number means nothing any more."""
        self._roots.pop(pid, None)

    def members(self) -> list[JobProcess]:
        """Scan: the live processes of the job without this one, spared ones and zombies. ``fileno()`` follows."""
        with self._room():
            members = self._last_scan = self._look()
        if self.is_empty:
            self._forget_the_dead()
        if self._epoll is not None:
            self._watch()
        return members

    def send(self, signum: int, *, is_wanted: Callable[[], bool] = lambda: True) -> list[JobProcess]:
        """Signal each member that has not had this signal from here before, and return the members signalled.

        Once each: a program takes a second TERM for impatience. SIGKILL is sent as often as it is asked for.
        ``is_wanted`` is asked when the members are known, and none is signalled yet.
        """
        signalled: list[JobProcess] = []
        members = self.members()
        if not is_wanted():
            return signalled
        for member in members:
            key = (member.pid, member.start_ticks, signum)
            if key in self._signalled:
                continue
            is_sent = False
            with self._room(), contextlib.suppress(OSError):  # then it is seen by the next scan
                is_sent = send_checked(member.pid, member.start_ticks, signum)
            if is_sent:
                signalled.append(member)
                if signum != signal.SIGKILL:
                    self._signalled.add(key)
        return signalled

    @property
    def is_empty(self) -> bool:
        """Whether the last scan, by ``members()`` or ``send()``, found nobody, and could look."""
        return not self._last_scan and not self._is_blind

    @property
    def is_unsure(self) -> bool:
        """Whether the last scan met somebody who may be a member, or a stranger: nobody can read its mark just now.

        It waits in the kernel, or was in the middle of exec. That takes a moment mostly; the first may be for ever.
        """
        return self._is_unsure

    def fileno(self) -> int:
        """A descriptor that is readable when processes that the last scan found have ended; ask ``all_ended()`` then.

        It follows the last scan, by ``members()`` or ``send()``, and makes none: a scan nobody sees the result of would
        lose the news that nobody is left. That a scan found nobody is told by ``is_empty``, not by the descriptor.
        Raises ``OSError`` (ENOSYS) without pidfds.
        """
        if self._epoll is None:
            if not is_supported():
                import errno

                raise OSError(errno.ENOSYS, "this system has no pidfds: scan again from time to time")
            self._epoll = select.epoll()
            self._due = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            self._epoll.register(self._due, select.EPOLLIN)
            self._watch()
        return self._epoll.fileno()

    def all_ended(self) -> bool:
        """Whether those whom the last scan found have ended: time for another scan. Quiets ``fileno()`` if not.

        A scan per death would read all of /proc 256 times for 256 workers; one per generation is enough, for who is
        born meanwhile is found by the next one.
        """
        if self._epoll is None:
            return False
        by_fd = {fd: key for key, fd in self._watched.items()}
        for fd, _ in self._epoll.poll(0, 1 + len(by_fd)):
            if fd == self._due:
                os.eventfd_read(fd)
            else:
                self._unwatch(by_fd[fd])
        return not self._watched

    def close(self) -> None:
        """Close the descriptors behind ``fileno()``; idempotent."""
        self._is_closed = True
        with self._room():
            pass
        for fd in self._watched.values():
            os.close(fd)
        self._watched.clear()
        if self._epoll is not None:
            self._epoll.close()
            os.close(self._due)
            self._epoll, self._due = None, -1

    def reap_adopted(self) -> list[int]:
        """Reap zombies that this process adopted; workers and spared processes are left to their owners."""
        kept = {*self._spare, *self._roots}
        reaped = []
        for pid in own_children():
            if pid in kept:
                continue
            stat = read_stat(pid)
            if stat is None or stat.state not in _GONE or stat.parent != os.getpid():
                continue
            with contextlib.suppress(ChildProcessError):
                if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG) is not None:
                    reaped.append(pid)
        return reaped

    def _forget_the_dead(self) -> None:
        """Nobody is left: workers that ended left nothing, and their numbers mean nothing from now on."""
        self._roots = {pid: root for pid, root in self._roots.items() if root.ended_ticks is None}
        self._signalled.clear()

    # Scanning

    @contextlib.contextmanager
    def _room(self) -> Iterator[None]:
        """Let go of the reserve, so that a process that has no descriptor left can still look and kill."""
        while self._reserve:
            os.close(self._reserve.pop())
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                while not self._is_closed and len(self._reserve) < _RESERVED:
                    self._reserve.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def _look(self) -> list[JobProcess]:
        # A scan is no snapshot: a process that forks and ends while /proc is read hides its child from this scan, and
        # not from the next. "Nobody" is believed when it is said twice in a row by scans that could ask everybody.
        give_up_at, sure = time.monotonic() + _PATIENCE_S, 0
        while not (members := self._scan()):
            sure = 0 if self._is_unsure else sure + 1
            if sure == 2 or (self._is_unsure and time.monotonic() >= give_up_at):
                break
            if self._is_unsure:
                time.sleep(_LOOK_AGAIN_S)
        return members

    def _scan(self) -> list[JobProcess]:
        self._is_unsure = False
        try:
            os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            self._is_blind = False
        except OSError:  # another thread was faster than our reserve: nobody seen is not nobody there
            self._is_blind = True
            return []
        return [
            JobProcess(stat.pid, stat.start_ticks, stat.state, stat.command)
            for stat in self._closure(read_all())
            if stat.state not in _GONE
        ]

    def _closure(self, table: dict[int, Stat]) -> list[Stat]:
        """Seeds (workers, their sessions, marked processes, own children) and everything that descends from them."""
        young = {pid: stat for pid, stat in table.items() if stat.start_ticks >= self._born_ticks}
        for pid in self._spare:
            young.pop(pid, None)
        children: dict[int, list[int]] = {}
        for pid, stat in young.items():
            children.setdefault(stat.parent, []).append(pid)
        sessions = self._own_sessions(young)
        own = os.getpid() if self._include_own_children else -1
        found: set[int] = set()

        def take(pid: int) -> None:
            pending = [pid]
            while pending:
                pid = pending.pop()
                if pid not in found:
                    found.add(pid)
                    pending += children.get(pid, ())

        for pid, stat in young.items():
            if self._is_root(stat) or stat.session in sessions or stat.parent == own:
                take(pid)
        for pid, stat in young.items():  # last: reading an environment is the dear part
            if pid not in found and self._is_marked(stat):
                take(pid)
        return [young[pid] for pid in found]

    def _is_root(self, stat: Stat) -> bool:
        root = self._roots.get(stat.pid)
        return root is not None and root.ended_ticks is None and root.start_ticks == stat.start_ticks

    def _own_sessions(self, table: dict[int, Stat]) -> set[int]:
        """The session numbers that are certainly our workers'.

        While the worker is unreaped its number is its own. Afterwards the kernel gives the number away only when no
        process is left in the session, so one member older than the reaping proves that it is still the same session.
        """
        sessions = {pid for pid, root in self._roots.items() if pid in table and self._is_root(table[pid])}
        for stat in table.values():
            root = self._roots.get(stat.session)
            if root is None or root.start_ticks is None or stat.pid == stat.session:
                continue
            if root.ended_ticks is None or stat.start_ticks < root.ended_ticks:
                sessions.add(stat.session)
        return sessions

    def _is_marked(self, stat: Stat) -> bool:
        is_marked = marked(stat, self._mark, self._token)
        if is_marked is None:
            # Who adopts orphans knows its own by their parent.
            may_hide = (
                stat.parent == os.getpid() if self._is_of_an_adopter else not self._include_own_children
            )
            self._is_unsure |= may_hide
        return bool(is_marked)

    def _watch(self) -> None:
        assert self._epoll is not None
        wanted = {(member.pid, member.start_ticks) for member in self._last_scan}
        for key in self._watched.keys() - wanted:
            self._unwatch(key)
        for key in wanted - self._watched.keys():
            if len(self._watched) >= _WATCHED_AT_ONCE:
                break
            try:
                fd = open_checked(*key)
            except OSError:  # gone; or out of descriptors: then this one is seen by the next scan
                continue
            self._watched[key] = fd
            self._epoll.register(fd, select.EPOLLIN)
        # Those who died between the scan and here can no longer wake anybody; the first to ask is told.
        if wanted and not self._watched:
            os.eventfd_write(self._due, 1)

    def _unwatch(self, key: tuple[int, int]) -> None:
        # Unregistered before it is closed: a forked child may hold a copy, and epoll follows copies, not numbers.
        fd = self._watched.pop(key)
        if self._epoll is not None:
            self._epoll.unregister(fd)
        os.close(fd)


def become_subreaper() -> bool:
    """Make orphans among this process's descendants its children; False where the system cannot."""
    import ctypes

    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False
