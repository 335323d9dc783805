"""The report of a failed job, as people and parsers read it: a text, a JSON file, an error file for who is above."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.agent.report.data import error_data, report_data
from phalanx.agent.report.files import last_words, save_flight
from phalanx.agent.report.flight import FlightRecord
from phalanx.agent.report.text import OTHERS_MAX, failure_report, shown
from phalanx.agent.verdict.stored import STDERR_MAX, verdict_from, verdict_text
from phalanx.agent.verdict.verdict import Ending, Failure, Verdict, judge, listed, ranges_of
from phalanx.errors import ProcessFailure
from phalanx.records import changed
from phalanx.rendezvous.round import Round

CALLSTACK = 'Traceback (most recent call last):\n  File "t.py", line 2, in <module>\nValueError: x\n'
DOCS = Path(__file__).parents[3] / "docs"


def failed(rank: int, **facts: object) -> Failure:
    values: dict[str, object] = {
        "local_rank": rank,
        "pid": 100 + rank,
        "exit_code": 1,
        "exited_at": 10.0,
        "host": "n2",
        "wall_at": 1_700_000_000.25,
        **facts,
    }
    return Failure(rank=rank, **values)  # type: ignore[arg-type]


def raised(rank: int, **facts: object) -> Failure:
    known: dict[str, object] = {
        "exception": "ValueError",
        "message": "ValueError: x",
        "summary": "ValueError: x at t.py:2",
        "place": "t.py:2",
        "traceback": CALLSTACK,
        "error_file": f"/logs/run/attempt_0/{rank}/error.json",
    }
    return failed(rank, **{**known, **facts})


def report(verdict: Verdict, **how: Any) -> str:
    return failure_report(verdict, **{"name": "t.py", **how})


def root_cause(text: str) -> str:
    return text.partition("Root Cause (first observed failure):")[2].partition("\n=")[0]


# The last lines


def test_the_last_lines_say_what_was_restarted_why_it_is_over_and_who_failed_first_of_what_and_where() -> (
    None
):
    verdict = with_restarts(
        judge([raised(1, group_world_size=2)], reason="all 2 restarts are used"),
        ("rank 0 failed: exit code 3 (restart 1 of 2)", "rank 1 failed: exit code 4 (restart 2 of 2)"),
    )
    text = report(verdict, log_dir="/logs/run")
    assert text.splitlines()[-6:] == [
        "phalanx: logs of this node: /logs/run",
        "phalanx: restarted 2 times before:",
        "phalanx:   rank 0 failed: exit code 3 (restart 1 of 2)",
        "phalanx:   rank 1 failed: exit code 4 (restart 2 of 2)",
        "phalanx: not restarted: all 2 restarts are used",
        "phalanx: t.py failed: rank 1 on n2: ValueError: x at t.py:2 (exit code 1)",
    ]


def with_restarts(verdict: Verdict, restarts: tuple[str, ...]) -> Verdict:
    return changed(verdict, restarts=restarts, restart_count=len(restarts))


def test_restarts_that_cost_nothing_are_told_too() -> None:
    told = "round 1: rank 0 failed: OSError: in use (not charged)"
    text = report(changed(with_restarts(judge([raised(1)], reason=""), (told,)), restart_count=0))
    assert text.splitlines()[-3:-1] == ["phalanx: restarted before:", f"phalanx:   {told}"]


LATE = "it still ran 5 s after others had ended: stopped for that (--straggler-timeout)"


def late(rank: int, **facts: object) -> Failure:
    return failed(rank, summary=LATE, message=LATE, is_straggler=True, **facts)


def test_all_that_ran_on_too_long_are_named_in_the_last_line() -> None:
    still = "still ran 5 s after others had ended: stopped for that (--straggler-timeout) (exit code 1)"
    last = report(judge([late(3, group_world_size=2)], reason="")).splitlines()[-1]
    assert last == f"phalanx: t.py failed: rank 3 on n2 {still}"
    several = judge([late(1, exited_at=7.0), late(3, host="n3", group_rank=1, group_world_size=2)], reason="")
    *_, tie, last = report(several).splitlines()
    assert tie == "phalanx: rank 1 and rank 3 failed at the same moment; rank 1 is shown"
    assert last == f"phalanx: t.py failed: ranks 1, 3 {still}"


def test_on_one_machine_no_host_is_named_and_the_logs_once() -> None:
    text = report(judge([raised(1, log_dir="/logs/run")], reason=""), log_dir="/logs/run")
    assert text.splitlines()[-2:] == [
        "phalanx: logs: /logs/run",
        "phalanx: t.py failed: rank 1: ValueError: x at t.py:2 (exit code 1)",
    ]


def test_an_exception_of_any_length_and_its_place_are_whole_in_the_last_line() -> None:
    long = "ValueError: " + "bad " * 200 + "batch"
    verdict = judge([raised(0, message=f"{long}\nmore", summary=f"{long[:200]}… at t.py:2")], reason="")
    assert report(verdict).splitlines()[-1] == f"phalanx: t.py failed: rank 0: {long} at t.py:2 (exit code 1)"


def test_the_thread_that_raised_is_named() -> None:
    assert "x at t.py:2 in thread loader (exit" in report(judge([raised(0, thread="loader")], reason=""))


def test_a_rank_that_left_by_sys_exit_has_its_exit_code_said_once() -> None:
    one = raised(0, exit_code=3, exception="SystemExit", message="SystemExit: 3", summary="exit code 3")
    assert report(judge([one], reason="")).splitlines()[-1] == "phalanx: t.py failed: rank 0: exit code 3"


def test_a_worker_that_could_not_be_started_needs_no_block() -> None:
    one = failed(0, exit_code=127, pid=0, why_not_started="'trian' was not found")
    text = report(judge([one], reason=""))
    assert text == "phalanx: t.py failed: rank 0: 'trian' was not found (exit code 127)\n"


def test_a_job_that_never_formed_is_one_sentence() -> None:
    verdict = Verdict(ending=Ending.FAILED, exit_code=75, reason="no port is free")
    assert report(verdict, has_run=False) == "phalanx: t.py could not be run: no port is free\n"
    assert report(verdict, has_run=True) == "phalanx: t.py was stopped: no port is free\n"
    known = Verdict(ending=Ending.FAILED, exit_code=75, reason="no port is free", has_run=True)
    assert report(known, has_run=False) == report(verdict, has_run=True), "a spare tells the same"


def test_a_mistake_of_the_user_is_one_sentence() -> None:
    verdict = Verdict(ending=Ending.FAILED, exit_code=2, reason="another job is there")
    assert report(verdict) == "phalanx: error: another job is there\n"


@pytest.mark.parametrize("ending", [Ending.SUCCEEDED, Ending.STOPPED])
def test_any_other_end_needs_no_report(ending: Ending) -> None:
    assert report(Verdict(ending=ending, exit_code=0)) == ""


# The block


def test_the_block_has_the_lines_of_torchelastic_with_host_and_time_of_the_failing_host() -> None:
    text = report(judge([raised(3, local_rank=1, utc_offset_s=3600)], reason=""))
    assert root_cause(text).splitlines()[1:] == [
        "[0]:",
        "  time      : 2023-11-14_23:13:20",
        "  host      : n2",
        "  rank      : 3 (local_rank: 1)",
        "  exitcode  : 1 (pid: 103) ",
        "  error_file: /logs/run/attempt_0/3/error.json",
        "  traceback : Traceback (most recent call last):",
        '    File "t.py", line 2, in <module>',
        "  ValueError: x",
    ]
    assert "t.py FAILED\n" in text
    assert "  <NO_OTHER_FAILURES>\n" in text


def test_the_block_blames_the_verdicts_cause_and_lists_the_others_before_it() -> None:
    late = raised(0, wall_at=1.0, exited_at=11.0)
    text = report(judge([late, raised(1, signed_at=8.0, exited_at=12.0)], reason=""))
    assert "rank      : 1 (local_rank: 1)" in root_cause(text)
    assert "rank      : 0" not in root_cause(text)
    assert "rank      : 0 (local_rank: 0)" in text


def test_a_silent_death_has_what_can_be_said_in_the_place_of_a_traceback() -> None:
    one = failed(
        0, exit_code=-9, message="Signal 9 (SIGKILL) received by PID 100", summary="killed by SIGKILL"
    )
    cause = root_cause(report(judge([one], reason="")))
    assert "exitcode  : -9 (pid: 100)  (SIGKILL)" in cause
    assert "error_file: <N/A>" in cause
    assert "traceback : Signal 9 (SIGKILL) received by PID 100" in cause


def test_the_stack_of_a_native_crash_follows() -> None:
    one = failed(0, exit_code=-11, message="Signal 11", crash="Fatal Python error: x\n\nThread 0x1:\n")
    assert "traceback : Signal 11\n  Fatal Python error: x\n  \n  Thread 0x1:" in root_cause(
        report(judge([one], reason=""))
    )


def test_a_failure_that_is_told_in_a_line_has_its_exception_and_place_in_the_block() -> None:
    verdict = verdict_from(verdict_text(judge([raised(0, signed_at=1.0), raised(1)], reason="")))
    assert "traceback : ValueError: x at t.py:2\n" in report(verdict).partition("Root Cause")[0]


def test_of_very_many_failures_the_block_shows_some_and_names_the_others() -> None:
    failures = [raised(rank, signed_at=float(rank)) for rank in range(300)]
    verdict = verdict_from(verdict_text(judge(failures, reason="")))
    text = report(verdict)
    assert text.count("  rank      : ") == OTHERS_MAX + 1
    assert f"\n  and ranks {OTHERS_MAX + 1}-299\n" in text
    assert root_cause(text)


def test_ranks_that_the_launcher_stopped_are_named_as_such_and_not_as_failures() -> None:
    stopped = failed(1, exit_code=-15, stopped_at=10.5, exited_at=11.0)
    text = report(judge([raised(0), stopped], reason="", stopped=[1, 4, 5, 6, 7]))
    assert "phalanx: stopped because of it: ranks 1, 4-7\n" in text
    assert "<NO_OTHER_FAILURES>" in text
    assert "phalanx: stopped because of it: rank 1\n" in report(judge([raised(0), stopped], reason=""))


RESET = {
    "exception": "ConnectionResetError",
    "message": "ConnectionResetError: peer",
    "summary": "ConnectionResetError: peer at t.py:7",
}
LATE_ONE = raised(2, signed_at=9.5, stopped_at=9.0)


def test_where_only_a_symptom_is_known_an_exception_from_after_the_stop_is_listed() -> None:
    silent = failed(3, exit_code=-15, stopped_at=9.0)
    verdict = judge([raised(1, **RESET, signed_at=8.0), LATE_ONE, silent], reason="")
    for told in (verdict, verdict_from(verdict_text(verdict))):
        text = report(told)
        assert "rank      : 2 (local_rank: 2)" in text.partition("Root Cause")[0]
        assert "traceback : ValueError: x at t.py:2, after it was asked to stop\n" in text
        assert "rank      : 1" in root_cause(text)
        assert "rank      : 3" not in text
        assert "stopped because of it: ranks 2, 3\n" in text
        (other,) = report_data(told, name="t.py")["other_failures"]
        assert (other["rank"], other["is_after_stop"]) == (2, True)


@pytest.mark.parametrize(
    "late",
    [
        *(
            raised(2, signed_at=9.5, stopped_at=9.0, exception=one, message=one)
            for one in (
                "SystemExit",
                "KeyboardInterrupt",
                "asyncio.exceptions.CancelledError",
                "mine.SignalException",
            )
        ),
        raised(2, **RESET, signed_at=9.5, stopped_at=9.0),
    ],
    ids=lambda one: one.exception,
)
def test_what_the_stop_itself_raises_is_not_listed(late: Failure) -> None:
    verdict = judge([raised(1, **RESET, signed_at=8.0), late], reason="")
    assert "<NO_OTHER_FAILURES>" in report(verdict)


def test_where_the_cause_is_known_what_came_after_the_stop_is_not_listed() -> None:
    assert "<NO_OTHER_FAILURES>" in report(judge([raised(1, signed_at=8.0), LATE_ONE], reason=""))


def test_a_tie_is_named_as_one() -> None:
    def last_but_one(*ranks: int) -> str:
        failures = [failed(rank, summary="exit code 1") for rank in ranks]
        return report(judge(failures, reason="")).splitlines()[-2]

    assert last_but_one(2, 5) == "phalanx: rank 2 and rank 5 failed at the same moment; rank 2 is shown"
    assert last_but_one(2, 3) == "phalanx: rank 2 and rank 3 failed at the same moment; rank 2 is shown"
    assert last_but_one(3, 4, 5, 9) == "phalanx: ranks 3-5, 9 failed at the same moment; rank 3 is shown"


def test_what_is_known_of_a_death_is_told_a_sentence_a_line() -> None:
    one = failed(
        0, exit_code=-9, summary="killed by SIGKILL", explanation="its cgroup was full\nuse less memory"
    )
    text = report(judge([one], reason=""))
    assert (
        "phalanx: what is known of the death of rank 0:\n"
        "phalanx:   its cgroup was full\n"
        "phalanx:   use less memory\n"
    ) in text


def test_that_our_signal_cut_the_way_out_of_a_failure_short_is_told_below_the_block() -> None:
    cut = raised(1, exit_code=-15, own_exit_code=1, signed_at=8.0, stopped_at=9.0)
    verdict = judge([cut], reason="")
    text = report(verdict)
    told = (
        "had not exited yet after its exception: this launcher's SIGTERM cut that short; exit code 1 counts"
    )
    assert f"===\nphalanx: rank 1 {told}\n" in text
    data = report_data(verdict, name="t.py")["first_failure"]
    assert (data["exit_code"], data["signal"], data["signal_name"]) == (1, 15, "SIGTERM")
    for other in ({"stopped_at": None}, {"exit_code": 1}):
        assert "cut that short" not in report(judge([changed(cut, **other)], reason=""))


# Standard error


def test_a_silent_death_shows_the_end_of_its_standard_error() -> None:
    tail = "".join(f"line {one}\n" for one in range(10_000))[-STDERR_MAX:]
    text = report(judge([failed(0, exit_code=3, summary="exit code 3", stderr=tail)], reason=""))
    assert "phalanx: last lines of rank 0's standard error:" in text
    assert "  line 9999\n" in text
    assert len(text) < 2 * STDERR_MAX
    assert text.splitlines()[-1] == "phalanx: t.py failed: rank 0: exit code 3"


def test_a_traceback_that_the_block_shows_is_not_shown_again() -> None:
    text = report(judge([raised(0, stderr=f"warming up\n{CALLSTACK}")], reason=""))
    assert text.count("ValueError: x\n") == 1
    assert "  warming up\n" in text


def test_a_traceback_that_torch_wrote_with_its_rank_is_not_shown_again() -> None:
    source = "raise ValueError('x\\n\\n  y')"
    trace = f'Traceback (most recent call last):\n  File "t.py", line 2\n    {source}\nValueError: x\n\n  y\n'
    hooked = "".join(f"[rank3]: {line}\n" if line else "\n" for line in trace.rstrip().split("\n"))
    text = report(judge([raised(3, traceback=trace, stderr=f"warming up\n{hooked}")], reason=""))
    assert "[rank3]" not in text
    assert "  warming up\n" in text


def test_a_traceback_with_the_frames_of_the_callers_is_not_shown_again() -> None:
    """``@record`` notes an exception where it is called, and the interpreter writes it from the first frame on."""
    cause = 'Traceback (most recent call last):\n  File "t.py", line 1, in f\nKeyError: 1\n\nThe above …:\n\n'
    callers = (
        '  File "t.py", line 9, in <module>\n    main()\n  File "r.py", line 3, in call\n    f()\n    ^^^\n'
    )
    head, frames = "Traceback (most recent call last):\n", '  File "t.py", line 2, in main\n    raise E\n'
    noted = f"{cause}{head}{frames}ValueError: x\n"
    written = f"{cause}{head}{callers}{frames}ValueError: x\n"
    by_torch = "".join(f"[rank0]: {line}\n" if line else "\n" for line in written.splitlines())
    for stderr in (written, by_torch):
        assert "standard error" not in report(judge([raised(0, traceback=noted, stderr=stderr)], reason=""))
        around = report(judge([raised(0, traceback=noted, stderr=f"before\n{stderr}after\n")], reason=""))
        assert "standard error:\n  before\n  after\nphalanx:" in around


def test_another_exception_on_standard_error_is_shown() -> None:
    noted = 'Traceback (most recent call last):\n  File "t.py", line 2, in main\nValueError: x\n'
    other = noted.replace("ValueError: x", "ValueError: y")
    text = report(judge([raised(0, traceback=noted, stderr=other)], reason=""))
    assert "standard error:\n  Traceback" in text
    assert "  ValueError: y\n" in text


def left(message: str, stderr: str) -> str:
    one = raised(0, exception="SystemExit", message=f"SystemExit: {message}", stderr=stderr)
    return report(judge([one], reason="")).rpartition("===\n")[2]


def test_the_text_of_a_sys_exit_is_not_shown_again() -> None:
    assert "standard error" not in left("no data\nuse --data", "no data\nuse --data\n")
    text = left("no data\nuse --data", "no data\nwarming up\nno data\nuse --data\n")
    assert "standard error:\n  no data\n  warming up\nphalanx:" in text
    assert "standard error:\n  there are no data\nphalanx:" in left("no data", "there are no data\n")
    assert "standard error:\n  2\nphalanx:" in left("2", "2\n")


# Odd bytes

HOSTILE = "a\x1b]0;title\x07b\x1b[2J\x1b[31mred\x1b[0m\x00\x7f\x9b1m\u202egnp\u2069\ud800\x08\x0e"


def test_nothing_that_a_worker_wrote_acts_on_the_terminal() -> None:
    texts = {field: HOSTILE for field, kind in Failure.__annotations__.items() if kind == "str"}
    verdict = judge(
        [failed(0, **{**texts, "why_not_started": ""}), failed(1, **{**texts, "why_not_started": ""})],
        reason=HOSTILE,
    )
    for how in ({}, {"width": 80}):
        text = report(with_restarts(verdict, (HOSTILE,)), name=HOSTILE, log_dir=HOSTILE, **how)
        text.encode()
        assert set(re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]", text)) == set()
        assert "red" in text
        assert r"\x1b[2J" in text, "what was left out can be seen"


def test_a_line_that_was_written_over_itself_shows_its_last_state() -> None:
    assert shown("10%\r20%\r30%\nnext\r\nlast\r") == "30%\nnext\nlast"


def test_letters_of_any_language_are_left_alone() -> None:
    text = "ä 日本\u3000語 🏖️ \tok"
    assert shown(text) == text


@given(st.text())
def test_any_text_can_be_shown(text: str) -> None:
    safe = shown(text, is_line=True)
    safe.encode()
    assert "\n" not in safe
    assert "\x1b" not in safe


# The width of the terminal

PATH = "/home/me/my runs/" + "x" * 90 + "/run"
WIDE = [
    raised(
        0,
        group_world_size=2,
        log_dir=PATH,
        place=f"{PATH}/t.py:2",
        message="ValueError: " + "bad " * 30 + "batch",
        explanation="it had up to 3 GiB of memory " * 5,
    )
]


def test_lines_of_ours_are_wrapped_on_a_terminal_and_nothing_is_cut() -> None:
    verdict = judge(WIDE, reason="it failed in the same way three times " * 3, stopped=range(1, 400, 2))
    wrapped, plain = (report(verdict, log_dir=PATH, width=width) for width in (80, None))
    own = wrapped.partition("\n====")[2].rpartition("====\n")[2].splitlines()
    for line in own:
        assert len(line) <= 80 or PATH in line, line
        assert line.startswith(("phalanx: ", " " * len("phalanx: ")))
    assert wrapped.count(PATH) == plain.count(PATH) >= 3
    assert " ".join(wrapped.split()) == " ".join(plain.split())
    assert wrapped.rpartition("====\n")[0] == plain.rpartition("====\n")[0], "the block is as it was"


def test_where_there_is_no_terminal_each_line_is_one_line() -> None:
    lines = report(judge(WIDE, reason="it failed in the same way three times " * 3)).splitlines()
    assert lines[-1].startswith("phalanx: t.py failed: rank 0 on n2: ValueError: bad bad")
    assert lines[-1].endswith("/t.py:2 (exit code 1)")
    assert lines[-2].startswith("phalanx: not restarted: it failed")


def test_ranks_are_listed_as_ranges() -> None:
    assert listed(ranges_of([3])) == "rank 3"
    assert listed(ranges_of([0, 2, 3, 4, 5])) == "ranks 0, 2-5"
    assert listed(ranges_of([0, 1])) == "ranks 0, 1"


# As JSON

TEXTS = st.text(max_size=20)
FAILURES = st.builds(
    failed,
    st.integers(0, 40),
    exit_code=st.integers(-64, 255),
    exited_at=st.floats(0, 20),
    signed_at=st.none() | st.floats(0, 20),
    stopped_at=st.none() | st.floats(0, 20),
    own_exit_code=st.none() | st.integers(1, 255),
    wall_at=st.floats(-1e18, 1e18),
    utc_offset_s=st.integers(-200_000, 200_000),
    group_world_size=st.integers(1, 3),
    **{field: TEXTS for field, kind in Failure.__annotations__.items() if kind == "str" and field != "host"},
)
VERDICTS = st.builds(
    lambda failures, reason, stopped, restarts: with_restarts(
        judge(failures, reason=reason, stopped=stopped), restarts
    ),
    st.lists(FAILURES, min_size=1, max_size=5, unique_by=lambda one: one.rank),
    TEXTS,
    st.sets(st.integers(0, 60)),
    st.lists(TEXTS, max_size=3).map(tuple),
) | st.builds(
    Verdict,
    ending=st.sampled_from(Ending),
    exit_code=st.integers(0, 255),
    reason=TEXTS,
    restart_count=st.integers(0),
)
AS_IT_IS = {
    *("rank", "local_rank", "group_rank", "round", "host", "pid", "cannot_heal", "is_secondary"),
    *("message", "traceback", "crash", "stderr"),
}
OR_NULL = {"exception", "place", "thread", "error_file", "log_dir"}


@given(VERDICTS)
def test_any_verdict_as_json_has_the_same_content(verdict: Verdict) -> None:
    data = json.loads(
        json.dumps(report_data(verdict, name="t.py", host="n1", log_dir="/logs"), allow_nan=False)
    )

    assert (data["version"], data["job"], data["node"]) == (1, "t.py", {"host": "n1", "log_dir": "/logs"})
    assert data["ending"] == verdict.ending.value
    for field in ("exit_code", "reason", "restart_count"):
        assert data[field] == getattr(verdict, field)
    assert data["restarts"] == list(verdict.restarts)
    for name in ("failed", "tied", "stopped"):
        assert ranges_of(data[f"{name}_ranks"]) == getattr(verdict, name)
    symptom = verdict.cause is not None and verdict.cause.is_secondary
    own = {
        one.rank: one
        for one in verdict.failures
        if not one.is_collateral or one is verdict.cause or (symptom and one.is_late_exception)
    }
    told = [*([data["first_failure"]] if verdict.cause else []), *data["other_failures"]]
    assert sorted(own) == sorted(one["rank"] for one in told)
    for plain in told:
        _is_told(plain, own[plain["rank"]])


def _is_told(plain: dict[str, Any], one: Failure) -> None:
    for field in AS_IT_IS:
        assert plain[field] == getattr(one, field), field
    for field in OR_NULL:
        assert (plain[field] or "") == getattr(one, field), field
    assert plain["explanation"] == (one.explanation.split("\n") if one.explanation else [])
    assert plain["signal"] == (-one.exit_code if one.exit_code < 0 else None)
    assert (plain["time_s"] or 0) == one.wall_at
    assert plain["was_started"] is not bool(one.why_not_started)
    assert plain["summary"] == (one.why_not_started or one.summary)


@given(VERDICTS)
def test_any_verdict_has_a_text_and_an_error_file(verdict: Verdict) -> None:
    for width in (None, 80):
        failure_report(verdict, name="t.py", width=width).encode()
    data = json.loads(json.dumps(error_data(verdict, name="t.py", wall_at=7.0)))
    assert data["message"]["errorCode"] == verdict.exit_code
    int(data["message"]["extraInfo"]["timestamp"])


def test_each_name_in_the_json_report_is_in_the_pages() -> None:
    page = (DOCS / "errors.md").read_text()
    data = report_data(judge([raised(0)], reason=""), name="t.py")
    names = {*data, *data["first_failure"], *data["node"]}
    assert {name for name in names if f"`{name}`" not in page} == set()


# The files


def words(folder: Path, verdict: Verdict, **how: Any) -> str:
    known: dict[str, Any] = {"name": "t.py", "settled": None, "log_dir": None, "flight": FlightRecord()}
    return last_words(verdict, **{**known, **how})


VERDICT = judge([raised(1, extra='{"notes": ["n"]}')], reason="")


def test_the_error_file_has_the_first_failure_with_the_exit_code_and_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    assert words(tmp_path, VERDICT, error_file=str(path)).endswith("(exit code 1)\n")
    message = json.loads(path.read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: x", 1)
    info = message["extraInfo"]
    assert (info["py_callstack"], info["timestamp"], info["notes"]) == (CALLSTACK, "1700000000", ["n"])
    assert (info["host"], info["rank"], info["local_rank"], info["pid"]) == ("n2", 1, 1, 101)


SILENT = failed(
    0, exit_code=-9, message="Signal 9 (SIGKILL) received by PID 100", explanation="out of memory"
)
ENDS = {
    "an exception": VERDICT,
    "a signal": judge([SILENT], reason="all 3 restarts are used"),
    "a command that does not exist": judge([failed(0, exit_code=127, why_not_started="no")], reason=""),
    "no round": Verdict(ending=Ending.FAILED, exit_code=75, reason="1 of 2 nodes came"),
}


@pytest.mark.parametrize("verdict", ENDS.values(), ids=ENDS)
def test_our_own_reader_understands_the_error_file(tmp_path: Path, verdict: Verdict) -> None:
    path = tmp_path / "own.json"
    words(tmp_path, verdict, error_file=str(path))
    read = ProcessFailure(0, 1, verdict.exit_code, str(path))
    assert read.record.problem is None
    assert read.record.message
    assert read.error_file_data["message"]["errorCode"] == verdict.exit_code


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore")
def test_torchs_reader_understands_the_error_file(tmp_path: Path) -> None:
    errors = pytest.importorskip("torch.distributed.elastic.multiprocessing.errors")
    for number, verdict in enumerate(ENDS.values()):
        path = tmp_path / f"own{number}.json"
        words(tmp_path, verdict, error_file=str(path))
        read = errors.ProcessFailure(0, 1, verdict.exit_code, str(path))
        assert read.message["errorCode"] == verdict.exit_code
        assert read.timestamp >= 1_700_000_000
        callstack = read.message["extraInfo"]["py_callstack"]
        assert callstack
        assert callstack in errors.ChildFailedError("outer", {0: read}).format_msg().replace("\n  ", "\n")


@pytest.mark.parametrize("option", ["error_file", "report_file"])
def test_a_file_that_cannot_be_written_is_one_line_before_the_report(tmp_path: Path, option: str) -> None:
    path = str(tmp_path / "no such folder" / "x.json")
    text = words(tmp_path, VERDICT, **{option: path})
    assert text.splitlines()[0] == f"phalanx: could not write {path!r}: No such file or directory"
    assert text.splitlines()[-1].startswith("phalanx: t.py failed: rank 1: ValueError: x")


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict(ending=Ending.SUCCEEDED, exit_code=0, restart_count=2),
        Verdict(ending=Ending.STOPPED, exit_code=143, reason="stopped by SIGTERM"),
    ],
)
def test_a_report_file_is_written_for_other_ends_too_and_nothing_else_is(
    tmp_path: Path, verdict: Verdict
) -> None:
    path = tmp_path / "report.json"
    files = {
        "report_file": str(path),
        "error_file": str(tmp_path / "error.json"),
        "log_dir": str(tmp_path / "logs"),
    }
    (tmp_path / "logs").mkdir()
    assert words(tmp_path, verdict, **files) == ""
    data = json.loads(path.read_text())
    assert (data["ending"], data["exit_code"]) == (verdict.ending.value, verdict.exit_code)
    assert (data["restart_count"], data["first_failure"]) == (verdict.restart_count, None)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["logs", "report.json"]
    assert list((tmp_path / "logs").iterdir()) == []


def test_a_node_that_was_told_to_stop_tells_how_often_its_job_was_restarted(tmp_path: Path) -> None:
    settled = Round(
        number=3,
        restart_count=2,
        reason="rank 1 failed: exit code 5 (restart 2 of 9)",
        group_rank=0,
        group_world_size=1,
        first_rank=0,
        local_world_size=1,
        world_size=1,
        master_addr="127.0.0.1",
        master_port=1,
    )
    stopped = Verdict(ending=Ending.STOPPED, exit_code=143)
    words(tmp_path, stopped, settled=settled, report_file=str(tmp_path / "report.json"))
    data = json.loads((tmp_path / "report.json").read_text())
    assert (data["restart_count"], data["restarts"]) == (2, [settled.reason])
    for verdict in (VERDICT, Verdict(ending=Ending.FAILED, exit_code=75, reason="the store is lost")):
        lines = words(tmp_path, verdict, settled=settled).splitlines()
        assert lines[-3:-1] == ["phalanx: restarted 2 times before:", f"phalanx:   {settled.reason}"]


def test_a_failed_job_leaves_its_report_beside_the_flight_record(tmp_path: Path) -> None:
    words(tmp_path, VERDICT, log_dir=str(tmp_path))
    assert sorted(one.name for one in tmp_path.iterdir()) == ["flight.jsonl", "report.json"]
    assert json.loads((tmp_path / "report.json").read_text())["first_failure"]["rank"] == 1


def flight() -> FlightRecord:
    record = FlightRecord()
    record.add(1.0, "RUNNING", "x" * 100_000, [])
    return record


def test_a_flight_record_of_a_bug_has_a_name_that_nobody_can_foresee_and_is_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "victim").write_text("whole")
    (tmp_path / f"phalanx-flight-{os.getpid()}.jsonl").symlink_to(tmp_path / "victim")
    paths = [save_flight(flight(), None, is_bug=True) for _ in range(2)]
    assert (tmp_path / "victim").read_text() == "whole"
    assert len({*paths, None}) == 3
    for path in paths:
        assert path is not None
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert json.loads(Path(path).read_text())["state"] == "RUNNING"


@pytest.mark.parametrize("is_at_home", [True, False])
def test_a_flight_record_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_at_home: bool
) -> None:
    """As on a full disk: no file of this process may grow beyond a page."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        assert save_flight(flight(), str(tmp_path) if is_at_home else None, is_bug=True) is None
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_a_flight_record_replaces_a_link_and_leaves_its_target_alone(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    (tmp_path / "victim").write_text("whole")
    (logs / "flight.jsonl").symlink_to(tmp_path / "victim")
    assert save_flight(flight(), str(logs), is_bug=False) == str(logs / "flight.jsonl")
    assert (tmp_path / "victim").read_text() == "whole"
    assert "RUNNING" in (logs / "flight.jsonl").read_text()


def test_a_log_folder_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    assert (
        words(tmp_path, VERDICT, log_dir=str(tmp_path / "gone"))
        .splitlines()[-1]
        .startswith("phalanx: t.py failed")
    )


def test_a_report_file_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    words(tmp_path, VERDICT, report_file=str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink()
    assert json.loads((tmp_path / "target").read_text())["exit_code"] == 1


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}", "link"])
def test_what_is_open_already_is_written_to_and_not_replaced(tmp_path: Path, name: str) -> None:
    path = tmp_path / "all.txt"
    with path.open("w") as output:
        output.write("step 1\n")
        output.flush()
        name = name.format(output.fileno())
        if name == "link":
            name = str(tmp_path / "link")
            os.symlink(f"/dev/fd/{output.fileno()}", name)
        assert words(tmp_path, VERDICT, report_file=name).startswith("\n=")
        output.write("the last words\n")
    first, report, last = path.read_text().splitlines()
    assert (first, last) == ("step 1", "the last words")
    assert json.loads(report)["exit_code"] == 1


@pytest.mark.parametrize("option", ["error_file", "report_file"])
def test_a_name_that_ends_as_a_folders_is_no_files(tmp_path: Path, option: str) -> None:
    path = f"{tmp_path}/x/"
    told, *_ = words(tmp_path, VERDICT, **{option: path}).splitlines()
    assert told == f"phalanx: could not write {path!r}: Is a directory"
    assert list(tmp_path.iterdir()) == []


def test_a_bug_of_ours_says_so_and_is_in_the_report_file(tmp_path: Path) -> None:
    verdict = Verdict(ending=Ending.FAILED, exit_code=70)
    text = words(
        tmp_path, verdict, bug=KeyError("x"), log_dir=str(tmp_path), report_file=str(tmp_path / "r.json")
    )
    assert "KeyError: 'x'" in text
    assert "this is a bug of phalanx" in text
    assert str(tmp_path / "flight.jsonl") in text
    assert json.loads((tmp_path / "r.json").read_text())["exit_code"] == 70
