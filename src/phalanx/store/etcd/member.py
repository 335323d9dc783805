"""One etcd server as a child process: started with its data, watched through a pidfd, stopped in order.

It outlives neither its parent (parent-death signal) nor a Ctrl-C meant for others (session of its own), and what the
user's environment says about etcd is not its business.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx.store.etcd.binary import find_etcd

__all__ = ["EtcdMember"]

# Instead of a preexec_fn, which would fork the whole agent: a small interpreter asks for the signal and becomes etcd.
# KILL, and not TERM: etcd survives it by design, and one that has lost the others may never end when it is asked to
# (seen with 3.5.1: "closing etcd server", for minutes).
_SHIM = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("its parent had ended before it began")
os.execv(sys.argv[2], sys.argv[2:])
"""

_KEPT_VARIABLES = ("PATH", "HOME", "TMPDIR", "TZ", "GOMAXPROCS", "ETCD_UNSUPPORTED_ARCH", "PHALANX_JOB")

_LOG_TAIL_BYTES = 64 * 1024

# To hand leadership over takes a fraction of a second; who cannot do so by then has nobody to hand it to.
_STOP_GRACE_S = 2.0


class EtcdMember:
    """One server: ``arguments`` are etcd's own, ``log`` is the file that it writes to."""

    def __init__(self, arguments: Sequence[str], *, log: Path, binary: str | None = None) -> None:
        self._arguments = list(arguments)
        self._log = log
        self._binary = binary
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: asyncio.Event | None = None

    @property
    def pid(self) -> int | None:
        """Of the running server. Whoever ends all children of this process spares it."""
        return self._process.pid if self.is_running and self._process is not None else None

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start it. Raises ``Refused`` without a program, and ``OSError`` when it cannot be run.

        That it serves is seen by asking it: a member alone waits for the others.
        """
        if self.is_running:
            return
        self._process = self._spawn(self._binary or find_etcd())
        try:
            self._watch(self._process)
        except BaseException:  # no descriptor for it: nobody would see its end
            self._process.kill()
            self._process.wait()
            raise

    async def wait(self) -> int:
        """Wait until it has ended; returns its exit code, negative for a signal. It must have been started."""
        assert self._ended is not None
        assert self._process is not None
        await self._ended.wait()
        return self._process.wait()

    async def stop(self) -> None:
        """Ask it to end, and kill it when it does not within two seconds. Idempotent."""
        if self._process is None:
            return
        self._process.terminate()  # which does nothing when it has ended
        try:
            async with asyncio.timeout(_STOP_GRACE_S):
                await self.wait()
        except TimeoutError:
            self._process.kill()
            await self.wait()

    def last_words(self) -> str:
        """Why it ended, as its log says, for people; empty if that says nothing."""
        try:
            lines = self._log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").split("\n")
        except OSError:
            return ""
        for line in reversed(lines):
            if line.startswith("panic: "):
                return line
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                if isinstance(entry, dict) and entry.get("level") in ("panic", "fatal"):
                    return ": ".join(str(entry[part]) for part in ("msg", "error") if part in entry)
        return next((line for line in reversed(lines) if line.strip()), "")

    def _spawn(self, binary: str) -> subprocess.Popen[bytes]:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SHIM, str(os.getpid()), binary, *self._arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ},
                start_new_session=True,
            )

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        loop = asyncio.get_running_loop()
        self._ended = ended = asyncio.Event()
        pidfd = os.pidfd_open(process.pid)

        def note() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            process.poll()
            ended.set()

        loop.add_reader(pidfd, note)
