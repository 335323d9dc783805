"""A job that is watched: every change, for each watcher, in a plain loop, in threads and in an asyncio loop."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S

import phalanx
from phalanx.events import job as job_events
from phalanx.events.status import JobStatus

pytestmark = pytest.mark.system


def failing_once() -> Callable[[], int]:
    def train() -> int:
        import os

        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("not yet")
        return int(os.environ["RANK"])

    return train


def staying() -> Callable[[], None]:
    def stay() -> None:
        import signal

        while True:
            signal.pause()

    return stay


def stepping(folder: Path) -> Callable[[], None]:
    """A function that goes one step further for each file ``<step>.go``, and ends with ``end.go``."""
    path = str(folder)

    def train() -> None:
        import os
        import time

        import phalanx

        done = 0
        while not os.path.exists(f"{path}/end.go"):
            if os.path.exists(f"{path}/{done + 1}.go"):
                done += 1
            if done:
                phalanx.progress(done)  # again and again, as a loop does: not each call is a message
            time.sleep(0.01)

    return train


@pytest.fixture
def let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Until this is called, agents that the test starts stand still before their first word.

    A watch begins with how the job stands then: who is to see it from its beginning must be there before it.
    """
    folder, gate = tmp_path / "customized", tmp_path / "gate"
    folder.mkdir()
    # The interpreter of agents and workers imports it before anything else.
    (folder / "sitecustomize.py").write_text(
        f"import os, time\nends_at = time.monotonic() + {LIMIT_S}\n"
        f"while not os.path.exists({str(gate)!r}) and time.monotonic() < ends_at:\n    time.sleep(0.01)\n"
    )
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    return gate.touch


def phases(seen: list[JobStatus]) -> list[str]:
    """Each phase once, as long as it lasts."""
    found: list[str] = [one.phase for one in seen]
    return found[:1] + [after for before, after in pairwise(found) if before != after]


def test_a_loop_sees_a_restart_from_the_first_round_to_the_end(let_go: Callable[[], None]) -> None:
    with phalanx.start(failing_once(), nproc=2, max_restarts=1) as job:
        watch = job.watch(LIMIT_S)
        let_go()
        seen = list(watch)
        assert list(job.result()) == [0, 1]
    # Without "stopping" where both workers have failed by themselves.
    told = [one for one in phases(seen) if one != "stopping"]
    assert told == ["rendezvous", "running", "waiting", "running", "waiting", "ended"]
    assert [one for one in pairwise(seen) if one[0] == one[1]] == []
    assert {one.round for one in seen} == {0, 1, 2}
    assert (seen[-1].ending, seen[-1].exit_code, seen[-1].restarts) == ("succeeded", 0, 1)
    assert {worker.state for worker in seen[-1].workers} == {"succeeded"}


def test_who_watches_hears_of_progress_when_it_is_made(tmp_path: Path) -> None:
    steps: list[int] = []
    with phalanx.start(stepping(tmp_path)) as job:
        for status in job.watch(LIMIT_S):
            if status.phase == "running" and len(steps) == 0:
                steps.append(0)
                (tmp_path / "1.go").touch()
            if status.step is not None and status.step > steps[-1]:
                steps.append(status.step)
                (tmp_path / ("end.go" if status.step == 3 else f"{status.step + 1}.go")).touch()
    assert steps == [0, 1, 2, 3]


def test_each_of_several_watchers_sees_every_change_beside_one_that_waits(let_go: Callable[[], None]) -> None:
    # Each of them may be the one that reads what has come; the others are to hear of it nevertheless.
    seen: list[list[JobStatus]] = [[] for _ in range(4)]
    heard: list[job_events.JobEvent] = []
    with phalanx.start(failing_once(), nproc=2, max_restarts=1) as job:
        watches = [job.watch(LIMIT_S) for _ in seen]
        let_go()
        threads = [
            *(
                threading.Thread(target=lambda one=one, watch=watch: one.extend(watch))
                for one, watch in zip(seen, watches, strict=True)
            ),
            threading.Thread(target=lambda: job.wait(LIMIT_S, on_event=heard.append)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    assert seen[0][-1].phase == "ended"
    assert [one == seen[0] for one in seen] == [True] * 4
    assert isinstance(heard[-1], job_events.JobEnded)
    folded = JobStatus()
    for one in heard:
        folded = folded.after(one)
    assert folded == seen[0][-1]


def test_what_another_waiter_has_taken_in_wakes_a_watcher(tmp_path: Path) -> None:
    there = threading.Event()
    with phalanx.start(stepping(tmp_path)) as job:

        def look() -> None:
            for status in job.watch(LIMIT_S):
                if status.step == 1:
                    there.set()

        thread = threading.Thread(target=look)
        thread.start()
        (tmp_path / "1.go").touch()
        while (
            job.status().step != 1
        ):  # it reads the pipe as fast as it can, and the watcher seldom finds anything
            pass
        assert there.wait(LIMIT_S)
        job.stop()
        thread.join(LIMIT_S)
    assert not thread.is_alive()


def test_a_watch_after_the_end_sees_the_end() -> None:
    with phalanx.start(max, 3, 5) as job:
        job.wait()
        late = [one.phase for one in job.watch(LIMIT_S)]
    assert late == ["ended"]
    assert [one.ending for one in job.watch()] == ["succeeded"]

    async def watched() -> list[str]:
        return [one.phase async for one in job.watch_async()]

    assert asyncio.run(watched()) == ["ended"]


def test_a_watch_without_a_change_ends_with_a_timeout_and_can_go_on() -> None:
    with phalanx.start(staying(), name="stay") as job:
        for status in job.watch(LIMIT_S):
            if status.workers and status.workers[0].state == "running":
                break
        watch = job.watch(0.05)
        assert next(watch).phase == "running"
        with pytest.raises(TimeoutError, match=r"^stay still runs after 0\.05 s$"):
            next(watch)
        job.stop()
        assert [one.ending for one in job.watch(LIMIT_S)][-1] == "stopped"


def test_several_watchers_in_a_loop_see_the_same_and_one_may_be_cancelled(let_go: Callable[[], None]) -> None:
    async def every(job: phalanx.Job[int]) -> list[JobStatus]:
        return [one async for one in job.watch_async(LIMIT_S)]

    async def main() -> tuple[list[JobStatus], list[JobStatus]]:
        async with phalanx.start(failing_once(), nproc=2, max_restarts=1) as job:
            idle = asyncio.create_task(every(job))
            tasks = [asyncio.create_task(every(job)) for _ in range(2)]
            await asyncio.sleep(0)  # each of them has begun to watch
            let_go()
            idle.cancel()
            first, second = await asyncio.gather(*tasks)
            assert list(await job) == [0, 1]
            return first, second

    first, second = asyncio.run(main())
    assert first == second
    assert first[-1].restarts == 1


def test_a_loop_that_waits_too_long_for_a_change_has_a_timeout() -> None:
    async def main() -> None:
        async with phalanx.start(staying()) as job:
            async for status in job.watch_async(LIMIT_S):
                if status.phase == "running":
                    break
            with pytest.raises(TimeoutError):
                async for _ in job.watch_async(0.05):
                    pass

    asyncio.run(main())


def test_a_job_lives_as_long_as_somebody_watches_it() -> None:
    watch = phalanx.start(max, 3, 5).watch(LIMIT_S)
    gc.collect()
    assert list(watch)[-1].ending == "succeeded"


def test_watchers_leave_no_descriptor() -> None:
    with phalanx.start(staying()) as job:
        for status in job.watch(LIMIT_S):
            if status.phase == "running":
                break
        del status
        gc.collect()  # garbage of another test may hold descriptors, and must not go meanwhile
        before = sorted(os.listdir("/proc/self/fd"))
        for _ in range(3):
            for _ in job.watch(LIMIT_S):
                break
        job.wait(0.0, on_event=lambda _: None)
        assert sorted(os.listdir("/proc/self/fd")) == before


def test_wait_hands_out_what_happens() -> None:
    seen: list[job_events.JobEvent] = []
    with phalanx.start(failing_once(), nproc=2, max_restarts=1) as job:
        assert job.wait(LIMIT_S, on_event=seen.append)
    kinds = [type(one) for one in seen]
    assert kinds.count(job_events.RestartDecided) == 1
    assert kinds[-1] is job_events.JobEnded


def test_a_watcher_takes_no_time_of_the_processor_while_nothing_happens() -> None:
    with phalanx.start(staying()) as job:
        for status in job.watch(LIMIT_S):
            if status.workers and status.workers[0].state == "running":
                break
        gc.collect()  # now, and not while the time is taken
        used = time.thread_time()
        with pytest.raises(TimeoutError):
            list(job.watch(1.0))
        # One that looks again and again takes a second, or what others leave of it; on a virtual machine, time that the
        # machine stood still may count, too.
        assert time.thread_time() - used < 0.3
        assert job.signal(signal.SIGUSR1)


def test_a_stop_by_the_program_is_told_as_that(capfd: pytest.CaptureFixture[str]) -> None:
    with phalanx.start(time.sleep, 1000) as job:
        for status in job.watch(timeout_s=120):
            if status.phase == "running":
                break
    told = [line for line in capfd.readouterr().err.splitlines() if "asked the worker to stop" in line]
    assert told == [
        "phalanx: stopped by the program: asked the worker to stop, 30 s of grace; again to end at once"
    ]


def test_a_signal_that_the_program_passes_on_is_told_by_its_name(capfd: pytest.CaptureFixture[str]) -> None:
    with phalanx.start(time.sleep, 1000) as job:
        for status in job.watch(timeout_s=120):
            if status.phase == "running":
                break
        assert job.agent.send_signal(signal.SIGINT)
        job.wait()
    assert "phalanx: SIGINT: asked the worker to stop" in capfd.readouterr().err
