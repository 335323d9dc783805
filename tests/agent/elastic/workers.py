"""What workers of the tests do; a module, because spawned workers import their function by its name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

__all__ = ["deaf", "fail_once", "fail_once_env", "fail_rank", "told", "too_slow", "wait_for_world"]


def told() -> dict[str, str]:
    """Return the whole environment."""
    return dict(os.environ)


def fail_rank(rank: int, message: str) -> int:
    """One rank fails, the others wait to be stopped."""
    if int(os.environ["RANK"]) == rank:
        raise ValueError(message)
    time.sleep(600)
    return 0


def fail_once(folder: str) -> str:
    """Rank 0 fails in the first round; then every rank returns the restart count."""
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if count == "0":
        if os.environ["RANK"] == "0":
            raise RuntimeError("the first time")
        time.sleep(600)
    Path(folder, os.environ["RANK"]).write_text(count)
    return count


def wait_for_world(size: int, folder: str) -> dict[str, str]:
    """Tell that this rank runs; return the environment in a world of that size, and wait for ever in another."""
    Path(folder, f"{os.environ['PHALANX_ROUND']}-{os.environ['RANK']}-{os.getpid()}").touch()
    while int(os.environ["WORLD_SIZE"]) != size:
        time.sleep(0.05)
    return dict(os.environ)


def deaf() -> None:
    """Ignore SIGTERM; rank 1 fails when rank 0 does so."""
    if os.environ["RANK"] == "0":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(os.environ["DEAF"]).touch()
        time.sleep(600)
    while not os.path.exists(os.environ["DEAF"]):
        time.sleep(0.02)
    raise SystemExit(4)


def too_slow() -> None:
    """Begin something that may take a tenth of a second, and never end it."""
    from phalanx.timer import FileTimerClient, configure, expires

    configure(FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
    with expires(after=0.1):
        time.sleep(600)


def fail_once_env(folder: str) -> dict[str, str]:
    """As ``fail_once``, and return the environment."""
    fail_once(folder)
    return dict(os.environ)
