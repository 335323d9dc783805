"""What is said of workers that have ended, in the values of their round.

A worker that ends with exit code 0 has succeeded, whatever it has not done before. Others that wait for something of it
would wait for as long as the round lasts: the agent, which sees the end, tells them what the worker has left for it to
say, one small value. Who has ended while workers are being stopped, however it did, agrees on no step to stop at any
more: the agent says that they need not wait for it, unless they have agreed (``errors/_step_agreement.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

from phalanx.errors._channel_protocol import AGREEMENTS, STOP
from phalanx.errors._step_agreement import first_line_of, stopped_now
from phalanx.store.values import SharedValues, ValueRefused, ValuesUnreachable

__all__ = ["Wills"]

WILL_BYTES_MAX = 4096
_STOP_LINE = first_line_of(f"{AGREEMENTS}{STOP}")


class Wills:
    """The wills of the workers of one round on this node, by local rank; the last one of each counts."""

    def __init__(self) -> None:
        self._values: SharedValues | None = None
        self._wills: dict[int, tuple[str, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = self._is_stopping = False  # some worker; they all

    def new_round(self, values: SharedValues | None) -> None:
        """Forget what workers of earlier rounds have left; these are the values of the new one."""
        self._values = values
        self._wills.clear()
        self._has_ended = self._is_stopping = False
        for task in self._tasks:
            task.cancel()

    def take(self, local_rank: int, key: str, value: bytes) -> str | None:
        """Remember what to store when this worker has ended; returns why not, if it cannot be."""
        if self._values is None:
            return "the workers of this round share no values"
        if len(value) > WILL_BYTES_MAX:
            return f"a will of {len(value)} bytes; {WILL_BYTES_MAX} are possible"
        self._wills[local_rank] = (key, value)
        return None

    def worker_ended(self, local_rank: int, exit_code: int) -> None:
        """A worker has ended: with exit code 0 store its will, unless something is there."""
        will = self._wills.pop(local_rank, None)
        if will is not None and exit_code == 0:
            self._run(_store, *will)
        if self._is_stopping and not self._has_ended:
            self._run(_stop_now)
        self._has_ended = True

    def stop_announced(self) -> None:
        """The workers are being stopped, and may want to agree on a step."""
        if self._has_ended and not self._is_stopping:
            self._run(_stop_now)
        self._is_stopping = True

    def _run(self, act: Callable[..., Coroutine[None, None, None]], *arguments: object) -> None:
        if self._values is not None:
            task = asyncio.get_running_loop().create_task(act(self._values, *arguments))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def close(self, patience_s: float) -> None:
        """Give what is being stored this long."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=patience_s)
            for task in late:
                task.cancel()


async def _store(values: SharedValues, key: str, value: bytes) -> None:
    # Who cannot reach the store now is about to lose its place in the job, and with it the round ends.
    with contextlib.suppress(ValueRefused, ValuesUnreachable):
        await values.leave(key, value)


async def _stop_now(values: SharedValues) -> None:
    """Decide where the ranks have not; each turn in vain is one in which some rank wrote something."""
    with contextlib.suppress(ValueRefused, ValuesUnreachable, ValueError):  # the last: of a line that is none
        while True:
            line = await values.get(_STOP_LINE)
            decision = stopped_now(None if line is None else line.decode(), STOP)
            if decision is None:
                return
            if line is None:
                await values.leave(_STOP_LINE, decision.encode())  # though the bound be reached
            else:
                await values.compare_set(_STOP_LINE, line, decision.encode())
