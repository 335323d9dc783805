"""Ranks that are threads of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from phalanx.checkpoint import Checkpointer
from phalanx.checkpoint.agreement import List, Listing, Request

LIMIT_S = 60.0

Ranks = Sequence[Checkpointer]


class Shared:
    """The store of ranks that are threads here: torch's methods, as far as they are needed."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = threading.Lock()

    def add(self, key: str, amount: int) -> int:
        with self.lock:
            self.values[key] = str(int(self.values.get(key, b"0")) + amount).encode()
            return int(self.values[key])

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def delete_key(self, key: str) -> bool:
        return self.values.pop(key, None) is not None

    def wait_until_said(self, ranks: Iterable[int]) -> None:
        """Return when all of these have said what they have to say in some conversation."""
        ends_at = time.monotonic() + LIMIT_S
        # A list, made in one go: other ranks add keys meanwhile.
        while not all(any(key.endswith(f"said/{rank}") for key in list(self.values)) for rank in ranks):
            assert time.monotonic() < ends_at
            time.sleep(0.001)


def together(ranks: Ranks, run: Callable[[Checkpointer], Any]) -> list[Any]:
    """What each rank returned or raised."""

    def settled(rank: Checkpointer) -> Any:
        try:
            return run(rank)
        except Exception as error:  # noqa: BLE001 # it is what the test asks for
            return error

    with ThreadPoolExecutor(len(ranks)) as pool:
        return [future.result(LIMIT_S) for future in [pool.submit(settled, rank) for rank in ranks]]


def seeing(steps: Iterable[int], talk: Generator[Request, Any, Any]) -> Generator[Request, Any, Any]:
    """What a rank says whose folder has these steps."""
    answer: Any = None
    while True:
        try:
            request = talk.send(answer)
        except StopIteration as end:
            return end.value
        answer = Listing(tuple(steps)) if isinstance(request, List) else (yield request)
