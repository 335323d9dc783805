"""The virtual-time loop runs asyncio as a real one does, by a clock that the test sets."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.testing.loop import NodeLoop
from phalanx.testing.timeline import NodeClock, Timeline


def a_loop(**clock: float) -> tuple[Timeline, NodeClock, NodeLoop]:
    timeline = Timeline()
    node_clock = NodeClock(timeline, **clock)
    return timeline, node_clock, NodeLoop(timeline, node_clock)


def test_an_hour_of_sleep_takes_no_time_and_ends_at_the_hour() -> None:
    timeline, _, loop = a_loop()
    task = loop.create_task(asyncio.sleep(3600, "slept"))
    timeline.run(until=3599.9)
    assert not task.done()
    timeline.run(until=3600.1)
    assert task.result() == "slept"


def test_a_fast_clock_is_due_earlier() -> None:
    timeline, _, loop = a_loop(rate=1.1, offset=5000)
    woken: list[float] = []
    loop.call_later(110, lambda: woken.append(timeline.now))
    timeline.run(until=200)
    assert woken == [pytest.approx(100)]


def test_timeouts_and_gathered_tasks_work() -> None:
    timeline, _, loop = a_loop()

    async def main() -> tuple[object, object]:
        return await asyncio.gather(
            asyncio.wait_for(asyncio.Event().wait(), 5), asyncio.sleep(3, "three"), return_exceptions=True
        )

    task = loop.create_task(main())
    timeline.run(until=10)
    late, three = task.result()
    assert isinstance(late, TimeoutError)
    assert three == "three"


def test_a_frozen_loop_runs_late_and_sees_how_late() -> None:
    timeline, _, loop = a_loop()
    woken: list[float] = []
    loop.call_later(1, lambda: woken.append(loop.time()))
    loop.freeze()
    timeline.run(until=60)
    assert not woken
    loop.thaw()
    timeline.run(until=61)
    assert woken == [pytest.approx(60)]


def test_a_suspended_node_does_not_see_how_long_it_slept_but_its_boot_time_does() -> None:
    timeline, clock, _ = a_loop(rate=0.9)
    timeline.run(until=10)
    clock.suspend()
    timeline.run(until=100)
    clock.resume()
    assert clock.monotonic() == pytest.approx(9)
    assert clock.boottime() == pytest.approx(90)
    assert clock.true_at_monotonic(18) == pytest.approx(110)


def test_a_killed_loop_runs_no_finally() -> None:
    timeline, _, loop = a_loop()
    ran: list[str] = []

    async def main() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            ran.append("finally")

    loop.create_task(main())
    timeline.run(until=1)
    loop.kill()
    timeline.run(until=10)
    assert not ran


def test_an_error_that_nobody_catches_ends_the_run() -> None:
    timeline, _, loop = a_loop()
    loop.call_soon(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        timeline.run(until=1)


def test_a_task_that_spins_is_found() -> None:
    timeline, _, loop = a_loop()

    async def spin() -> None:
        while True:  # noqa: ASYNC110 # that is the mistake
            await asyncio.sleep(0)

    loop.create_task(spin())
    with pytest.raises(RuntimeError, match="spins"):
        timeline.run(until=1)
    loop.bury()


def test_entries_of_one_moment_run_in_order_and_a_cancelled_one_does_not() -> None:
    timeline = Timeline()
    seen: list[int] = []
    timeline.after(1, seen.append, 1)
    timeline.after(1, seen.append, 2).cancel()
    timeline.after(1, seen.append, 3)
    timeline.run(until=2)
    assert seen == [1, 3]
    assert timeline.now == 2
