"""An asyncio loop in virtual time: one for each agent, so that each has a clock, a speed and a life of its own.

An agent that is frozen is one whose loop is not run; a crashed one is never run again. Loops have no descriptors,
threads or signals: whoever needs those is replaced in a simulation.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Any

from phalanx.testing.timeline import Entry, NodeClock, Timeline

__all__ = ["HAIR_S", "NodeLoop"]

HANDLES_PER_WAKE_MAX = 100_000  # far more than a thousand nodes joining at once; more is a task that spins

# A moment that went through the clock's rate and back is not quite the same; a timer must never be early.
HAIR_S = 1e-6

# The methods that a simulation has no use for raise NotImplementedError; type checkers take them for abstract.
if TYPE_CHECKING:
    _Loop = asyncio.BaseEventLoop
else:
    _Loop = asyncio.AbstractEventLoop


class NodeLoop(_Loop):
    """Runs callbacks and tasks at the moments of a ``Timeline``, by the clock of one node.

    ``lag_s`` gives the delay between the moment at which something is due and the moment at which it runs. Errors
    that nobody catches go to the exception handler, as in asyncio's loops; without one ``Timeline.run`` raises them.
    """

    def __init__(
        self, timeline: Timeline, clock: NodeClock, *, lag_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        self._timeline = timeline
        self._clock = clock
        self._lag_s = lag_s
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._next_run: Entry | None = None
        self._is_frozen = False
        self._is_closed = False
        self._is_running_now = False
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None = None

    # What the world does to it

    def freeze(self) -> None:
        """Run nothing until ``thaw()``; timers that pass meanwhile are late then."""
        self._is_frozen = True
        self._plan()

    def thaw(self) -> None:
        """Go on."""
        self._is_frozen = False
        self._plan()

    def kill(self) -> None:
        """Run nothing any more. No task is told: a process that is killed runs no ``finally``."""
        self._is_closed = True
        self._ready.clear()
        self._timers.clear()
        self._plan()

    def bury(self) -> None:
        """Drop the tasks of a killed loop. What they do in ``finally`` meets a loop that takes nothing."""
        self.kill()
        for task in list(self._tasks):
            task._log_destroy_pending = False  # type: ignore[attr-defined] # asyncio's own switch
            coroutine = task.get_coro()
            try:
                coroutine.close()
            except RuntimeError:  # it awaits in its "finally", which nobody can perform for it
                continue
        self._tasks.clear()

    @property
    def is_idle(self) -> bool:
        """Nothing is to be done before somebody calls."""
        return not self._ready and not self._timers

    def _plan(self) -> None:
        """Have the timeline run this loop when its next callback is due."""
        if self._is_running_now:
            return
        if self._is_closed or self._is_frozen or self.is_idle:
            due = None
        elif self._ready:
            due = self._timeline.now
        else:
            due = max(self._timeline.now, self._clock.true_at_monotonic(self._timers[0][0]) + HAIR_S)
        planned = self._next_run
        if planned is not None and planned.callback is not None:
            # Not earlier than planned: the lag of that run is being waited for already.
            if due is not None and planned.when <= due:
                return
            planned.cancel()
        self._next_run = None if due is None else self._timeline.at(due + self._lag_s(), self._run)

    def _run(self) -> None:
        if self._is_frozen or self._is_closed:
            return
        self._is_running_now = True
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            self._run_what_is_due()
        finally:
            asyncio._set_running_loop(outer)
            self._is_running_now = False
        self._plan()

    def _run_what_is_due(self) -> None:
        now = self.time()
        while self._timers and (self._timers[0][0] <= now or self._timers[0][2].cancelled()):
            handle = heappop(self._timers)[2]
            if not handle.cancelled():
                self._ready.append(handle)
        for _ in range(HANDLES_PER_WAKE_MAX):
            if not self._ready or self._is_frozen:
                break
            handle = self._ready.popleft()  # type: ignore[assignment] # a plain handle from here on
            if not handle.cancelled():
                handle._run()
        else:
            raise RuntimeError("a task spins: it never waits for anything")
        while self._timers and self._timers[0][2].cancelled():
            heappop(self._timers)

    # What asyncio needs

    def time(self) -> float:
        """The node's monotonic clock."""
        return self._clock.monotonic()

    def call_soon(  # type: ignore[override] # as asyncio's own loops
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """Call back as soon as this loop runs again."""
        handle = asyncio.Handle(callback, args, self, context)
        if not self._is_closed:
            self._ready.append(handle)
            self._plan()
        return handle

    def call_soon_threadsafe(  # type: ignore[override] # there is one thread
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        """As ``call_soon``."""
        return self.call_soon(callback, *args, context=context)

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Call back after seconds of this node's clock."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Call back at a moment of this node's clock."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        if not self._is_closed:
            heappush(self._timers, (when, next(self._numbers), handle))
            self._plan()
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Nothing: cancelled timers are passed over when their time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        """Make a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        *,
        name: str | None = None,
        context: Any = None,
    ) -> asyncio.Task[Any]:
        """Run a coroutine."""
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)

    def run_in_executor(  # type: ignore[override] # there are no threads: it is done at once
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call the function at once: nothing in a simulation takes true time."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 # it is the caller's
            future.set_exception(error)
        return future

    def set_exception_handler(
        self, handler: Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None
    ) -> None:
        """Set who hears of errors that nobody catches."""
        self._handler = handler

    def get_exception_handler(self) -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], object] | None:
        """Return who hears of errors that nobody catches."""
        return self._handler

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Tell of an error that nobody caught."""
        if (
            self._is_closed or "exception" not in context
        ):  # else: a task of a world that nobody needs any more
            return
        if self._handler is None:
            raise context["exception"]
        self._handler(self, context)

    def is_running(self) -> bool:
        """Whether a callback of this loop runs at this moment."""
        return self._is_running_now

    def is_closed(self) -> bool:
        """Whether it was killed or closed."""
        return self._is_closed

    def close(self) -> None:
        """Close it as ``kill()`` does."""
        self.kill()

    def get_debug(self) -> bool:
        """Never."""
        return False
