"""How tests of timers wait for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 60.0  # nothing here is waited for so long, unless it never comes


def soon(holds: Callable[[], object]) -> None:
    """Wait until something holds."""
    limit_at = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < limit_at
        time.sleep(0.005)
