"""What workers and rendezvous handlers of the tests of elastic_launch do; a module that another process can import."""

from __future__ import annotations

import os
import time
from typing import Any

from phalanx.multiprocessing import DefaultLogsSpecs, LogsDest
from phalanx.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters

__all__ = ["Locked", "Marked", "SelfMade", "mark", "of_rank"]


def of_rank(*args: Any) -> tuple[int, tuple[Any, ...]]:
    """Return the rank and the arguments."""
    return int(os.environ["RANK"]), args


def mark() -> str:
    """Return what the log layout has told this worker."""
    return os.environ["MARK"]


class _Values:
    """As much of a store as one node needs."""

    def __init__(self) -> None:
        self._held: dict[str, bytes] = {}

    def set(self, key: str, value: Any) -> None:
        self._held[key] = value if isinstance(value, bytes) else str(value).encode()

    def get(self, key: str) -> bytes:
        return self._held[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._held for key in keys)


class SelfMade(RendezvousHandler):
    """A rendezvous with oneself that writes down which process made it."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._params = params
        with open(str(params.get("made_by")), "w") as file:
            file.write(f"{os.getpid()} {params.get('limit')!r}")

    def get_backend(self) -> str:
        return self._params.backend

    def get_run_id(self) -> str:
        return self._params.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        return RendezvousInfo(_Values(), 0, 1, None)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        return True


class Locked(SelfMade):
    """One that is made with something that no pickle takes."""

    def __init__(self, params: RendezvousParameters, lock: Any) -> None:
        with lock:
            super().__init__(params)


class Marked(DefaultLogsSpecs):
    """A log layout that tells each worker where it comes from, and counts how often it was asked."""

    def __init__(self, log_dir: str, mark: str, lock: Any = None) -> None:
        super().__init__(log_dir)
        self._mark = mark
        self._lock = lock or _NoLock()

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        with self._lock:
            for env in envs.values():
                env["MARK"] = f"{self._mark} {os.getpid()}"
            return super().reify(envs)


class _NoLock:
    def __enter__(self) -> None:
        time.sleep(0)

    def __exit__(self, *_: object) -> None:
        pass
