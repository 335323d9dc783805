from __future__ import annotations

import multiprocessing
import os
import signal
import time
from typing import Any

import pytest
from tests.compat.marks import shows_names
from tests.timer.waiting import LIMIT_S, soon

from phalanx.timer import LocalTimerClient, LocalTimerServer, TimerRequest, configure, expires


def be_slow(queue: Any, tells: Any) -> None:
    configure(LocalTimerClient(queue))
    with expires(after=0.2):
        queue.close()
        queue.join_thread()
        tells.send("the queue's lock is free")
        time.sleep(100)


def be_quick(queue: Any, _tells: Any) -> None:
    configure(LocalTimerClient(queue))
    for _ in range(10):
        with expires(after=100):
            pass


class Considerate(LocalTimerServer):
    """Who is killed just after its request was read may still hold the queue's lock, for all others and for ever."""

    def __init__(self, queue: Any, hears: Any) -> None:
        super().__init__(queue, max_interval=60)
        self._hears = hears

    def _reap_worker(self, worker_id: int) -> bool:
        assert self._hears.poll(LIMIT_S)
        return super()._reap_worker(worker_id)


@pytest.mark.compat("name torch.distributed.elastic.timer.local_timer.LocalTimerServer", "same")
@pytest.mark.compat("name torch.distributed.elastic.timer.local_timer.LocalTimerClient", "same")
@shows_names("same", "elastic.timer.local_timer", "MultiprocessingRequestQueue")
def test_a_worker_that_is_too_slow_is_killed_and_a_quick_one_is_not() -> None:
    spawn = multiprocessing.get_context("spawn")
    queue = spawn.Queue()
    hears, tells = spawn.Pipe(duplex=False)
    server = Considerate(queue, hears)
    server.start()
    workers = [spawn.Process(target=target, args=(queue, tells)) for target in (be_slow, be_quick)]
    try:
        for one in workers:
            one.start()
        for one in workers:
            one.join(120)
        assert [one.exitcode for one in workers] == [-signal.SIGKILL, 0]
    finally:
        for one in workers:
            one.kill()
        server.stop()
        queue.close()
        queue.join_thread()
        hears.close()
        tells.close()


def test_a_server_drops_what_is_no_request_and_never_ends_itself() -> None:
    queue = multiprocessing.get_context("spawn").Queue()
    server = LocalTimerServer(queue, max_interval=60)
    server.start()
    try:
        queue.put("nonsense")
        queue.put(TimerRequest(os.getpid(), "s", 1.0))
        queue.put(TimerRequest(1, "s", 1.0))
        later = time.time() + 1000.0
        queue.put(TimerRequest("another worker", "s", later))
        soon(lambda: server.get_expired_timers(later))  # it has read all before, and has not ended itself
    finally:
        server.stop()
        queue.close()
        queue.join_thread()


@pytest.mark.compat("name torch.distributed.elastic.timer.api.TimerServer", "same")
def test_a_server_is_started_once_at_a_time() -> None:
    queue = multiprocessing.get_context("spawn").Queue()
    server = LocalTimerServer(queue)
    server.start()
    with pytest.raises(RuntimeError, match="runs already"):
        server.start()
    server.stop()
    server.start()
    server.stop()
    queue.close()
    queue.join_thread()
