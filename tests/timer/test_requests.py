from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.timer.countdowns import HELD_UP_S, STEP_S, ClockSteps, TimerBook
from phalanx.timer.requests import NO_ENDS, FileTimerRequest, TimerRequest, read_line


def line(**changed: object) -> bytes:
    good = {"version": 1, "pid": 7, "scope_id": "forward", "expiration_time": 12.5, "signal": 9}
    return json.dumps({**good, **changed}).encode()


@given(
    pid=st.integers(2, 1 << 22),
    scope=st.text(max_size=50),
    at=st.floats(-1e12, 1e12),
    number=st.integers(-1, 64).filter(lambda one: one not in NO_ENDS),
)
def test_a_request_comes_back_from_its_line(pid: int, scope: str, at: float, number: int) -> None:
    request = FileTimerRequest(pid, scope, at, number)
    assert read_line(request.to_json().encode()) == request
    assert request.to_json().encode() == line(pid=pid, scope_id=scope, expiration_time=at, signal=number)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[1]", "no JSON object"),
        (b"[" * 3000, "no JSON"),
        (line(version=2), "version 2"),
        (line(pid=1), "pid 1"),
        (line(pid=-1), "pid -1"),
        (line(pid=True), "pid True"),
        (line(pid=1 << 30), "pid"),
        (line(pid="7"), "pid '7'"),
        (line(scope_id=3), "scope_id 3"),
        (line(expiration_time="soon"), "expiration_time"),
        (line(expiration_time=True), "expiration_time"),
        (
            b'{"version": 1, "pid": 7, "scope_id": "f", "expiration_time": NaN, "signal": 9}',
            "expiration_time",
        ),
        (line(expiration_time=10**400), "expiration_time"),
        (line(expiration_time=-(10**400)), "expiration_time"),
        (line(signal=99), "signal 99"),
        (line(signal=None), "signal None"),
        (line(signal=19), "SIGSTOP ends no process"),
        (line(signal=17), "SIGCHLD ends no process"),
        (line(signal=18), "SIGCONT ends no process"),
        (line(signal=28), "SIGWINCH ends no process"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_line(text)


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(text: bytes) -> None:
    with contextlib.suppress(ValueError):
        read_line(text)


@given(
    st.lists(
        st.tuples(
            st.integers(2, 4), st.sampled_from("ab"), st.one_of(st.just(-1.0), st.floats(0, 100, width=16))
        )
    ),
    st.floats(0, 100, width=16),
)
def test_the_book_knows_the_last_word_of_each_worker_and_scope(
    asked: list[tuple[int, str, float]], now: float
) -> None:
    book: TimerBook[TimerRequest] = TimerBook()
    book.enter(TimerRequest(*one) for one in asked)

    last = {(worker, scope): at for worker, scope, at in asked}
    over = {key for key, at in last.items() if 0 <= at <= now}
    found = {(worker, one.scope_id) for worker, timers in book.expired(now).items() for one in timers}
    assert found == over
    assert book.next_expiration == min((at for at in last.values() if at >= 0), default=None)

    book.forget({2})
    assert 2 not in book.workers


def test_requests_are_equal_when_all_of_them_is() -> None:
    assert FileTimerRequest(7, "a", 1.0, 9) != FileTimerRequest(7, "a", 1.0, 15)
    assert TimerRequest(7, "a", 1.0) == TimerRequest(7, "a", 1.0)
    assert TimerRequest(7, "a", 1.0) != "a"
    assert len({FileTimerRequest(7, "a", 1.0, 9), FileTimerRequest(7, "a", 1.0, 9)}) == 1


def test_a_worker_side_import_stays_small() -> None:
    program = "import sys; from phalanx.timer import FileTimerClient, expires; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert not {"logging", "asyncio", "multiprocessing", "phalanx.timer.server"} & set(modules)


@given(
    offsets=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    passed=st.floats(0.0, 100.0),
)
def test_a_step_of_the_clock_is_seen_once_and_a_clock_that_goes_is_none(
    offsets: list[float], passed: float
) -> None:
    steps = ClockSteps()

    def seen(monotonic: float, wall: float) -> float | None:
        return steps.seen(before=monotonic, wall=wall, after=monotonic)

    seen(50.0, 1e9)
    before = 0.0
    for number, offset in enumerate(offsets, 1):
        monotonic = 50.0 + number * passed
        step = seen(monotonic, 1e9 + number * passed + offset)
        assert step == pytest.approx(
            offset - before if abs(offset - before) >= STEP_S else 0.0, abs=1e-3
        ) or (abs(abs(offset - before) - STEP_S) < 1e-3)
        assert seen(monotonic + 10.0, 1e9 + number * passed + offset + 10.005) == 0.0
        seen(monotonic, 1e9 + number * passed + offset)
        before = offset


@given(
    held_up=st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(0.0, 100.0)), min_size=1, max_size=20),
)
def test_who_is_held_up_between_its_clocks_takes_it_for_no_step(held_up: list[tuple[float, float]]) -> None:
    steps = ClockSteps()
    assert steps.seen(before=50.0, wall=1e9 + 50.0, after=50.0) == 0.0
    now = 50.0
    for before_wall, after_wall in held_up:
        before, at = now, now + before_wall
        now = at + after_wall
        assert steps.seen(before=before, wall=1e9 + at, after=now) == (
            None if now - before >= HELD_UP_S else 0.0
        )


def test_a_step_is_seen_by_who_looks_again() -> None:
    steps = ClockSteps()
    assert steps.seen(before=5.0, wall=1000.0, after=5.7) is None  # nor does it begin with such a look
    assert steps.seen(before=6.0, wall=1001.0, after=6.0) == 0.0
    assert steps.seen(before=7.0, wall=4602.7, after=7.7) is None
    assert steps.seen(before=7.7, wall=4602.7, after=7.7) == pytest.approx(3600.0)
    assert steps.seen(before=8.7, wall=4603.7, after=8.7) == 0.0
