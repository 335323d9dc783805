"""A console to write to, and workers with the streams of a group."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.multiprocessing.logs import DefaultLogsSpecs, LogsDest
from phalanx.multiprocessing.streams import WorkerStreams

PATIENCE_S = 30.0


class Console:
    """One end of a pipe or terminal that stands for our stdout or stderr; a thread reads what arrives."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self.stream = io.TextIOWrapper(io.FileIO(writing, "w"), write_through=True)
        self._data = bytearray()
        self._arrived = threading.Condition()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._is_read = False

    def read(self) -> Console:
        """Begin to read: until then nobody takes what is written."""
        self._is_read = True
        self._thread.start()
        return self

    def leave(self) -> None:
        """Go away: what is written from now on meets a closed pipe."""
        assert not self._is_read
        os.close(self._reading)

    def wait_for(self, text: bytes) -> bytes:
        with self._arrived:
            assert self._arrived.wait_for(lambda: text in self._data, PATIENCE_S), bytes(self._data[-500:])
            return bytes(self._data)

    def everything(self) -> bytes:
        """All that was written, after the writing end has been closed."""
        self.stream.close()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "somebody still holds the writing end"
        return bytes(self._data)

    def close(self) -> None:
        self.stream.close()
        if self._is_read:
            self._thread.join(PATIENCE_S)

    def _read(self) -> None:
        try:
            while chunk := os.read(self._reading, 1 << 16):
                with self._arrived:
                    self._data += chunk
                    self._arrived.notify_all()
        except OSError:  # a terminal ends like this
            pass
        finally:
            os.close(self._reading)


@pytest.fixture
def consoles(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Console]]:
    """Give sys.stdout or sys.stderr a new console: ``consoles("stdout")``, or ``consoles("stderr", os.openpty)``."""
    made: list[Console] = []

    def make(name: str, open_ends: Callable[[], tuple[int, int]] = os.pipe) -> Console:
        made.append(Console(*open_ends()))
        monkeypatch.setattr(sys, name, made[-1].stream)
        return made[-1]

    yield make
    for console in made:
        console.close()


class Group:
    """Workers with the streams of a group, as a process context uses them."""

    def __init__(self, specs: DefaultLogsSpecs, count: int, **options: Any) -> None:
        self.dest: LogsDest = specs.reify({rank: {} for rank in range(count)})
        self.streams = WorkerStreams(self.dest, local_ranks=range(count), name="w", **options)
        self.workers: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, *scripts: str, **options: Any) -> Group:
        for rank, script in enumerate(scripts):
            ends = self.streams.open_for(rank)
            command = [sys.executable, "-S", "-u", "-c", script]
            # The descriptors of this process as the process context would hand them on.
            stdout = ends.stdout if ends.stdout is not None else sys.stdout.fileno()
            stderr = ends.stderr if ends.stderr is not None else sys.stderr.fileno()
            self.workers[rank] = subprocess.Popen(command, stdout=stdout, stderr=stderr, **options)
            self.streams.spawned(rank)
        return self

    def wait(self) -> Group:
        for rank, worker in self.workers.items():
            worker.wait(PATIENCE_S)
            self.streams.worker_ended(rank)
        return self

    def finish(self) -> Group:
        """Wait for the workers and for all that they wrote."""
        self.wait()
        assert self.streams.drain(PATIENCE_S)
        self.streams.close()
        return self

    def written(self, rank: int, name: str) -> bytes:
        paths = self.dest.stdouts if name == "stdout" else self.dest.stderrs
        return Path(paths[rank]).read_bytes()


@pytest.fixture
def group(tmp_path: Path, consoles: object) -> Iterator[Callable[..., Group]]:
    """Make a `Group`; options of the logs specs by keyword, those of the streams as a dict ``streams``."""
    made: list[Group] = []

    def make(count: int = 1, *, streams: dict[str, Any] | None = None, **specs: Any) -> Group:
        made.append(
            Group(DefaultLogsSpecs(log_dir=str(tmp_path / "logs"), **specs), count, **(streams or {}))
        )
        return made[-1]

    yield make
    for each in made:
        for worker in each.workers.values():
            worker.kill()
            worker.wait()
            for pipe in filter(None, (worker.stdin, worker.stdout, worker.stderr)):
                pipe.close()
        each.streams.close()
