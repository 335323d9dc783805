"""The report of a failed job, as people and parsers read it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.agent.evidence import hand_up
from phalanx.agent.report import TAIL_BYTES_MAX, failure_report
from phalanx.agent.verdict import Ending, Failure, Verdict, judge
from phalanx.errors import ProcessFailure

CALLSTACK = 'Traceback (most recent call last):\n  File "t.py", line 2, in <module>\nValueError: x\n'


def with_exception(folder: Path, rank: int) -> ProcessFailure:
    path = folder / f"error{rank}.json"
    message = {
        "message": "ValueError: x",
        "extraInfo": {"py_callstack": CALLSTACK, "timestamp": "1700000000"},
    }
    path.write_text(json.dumps({"message": message}))
    return ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=1, error_file=str(path))


def silent(rank: int, exit_code: int = 3) -> ProcessFailure:
    return ProcessFailure(local_rank=rank, pid=100 + rank, exitcode=exit_code, error_file="")


def failed(rank: int, **facts: object) -> Failure:
    values: dict[str, object] = {
        "local_rank": rank,
        "pid": 100 + rank,
        "exit_code": 1,
        "exited_at": 10.0,
        **facts,
    }
    return Failure(rank=rank, **values)  # type: ignore[arg-type]


def test_the_last_line_names_the_rank_the_error_the_code_and_why_it_is_over(tmp_path: Path) -> None:
    verdict = judge([failed(1, summary="ValueError: x at t.py:2")], reason="all 2 restarts are used")
    evidence = {1: with_exception(tmp_path, 1)}
    text = failure_report(
        verdict, evidence, has_run=True, name="t.py", restart_count=2, log_folder="/logs/run"
    )
    assert text.splitlines()[-3:] == [
        "phalanx: logs: /logs/run",
        "phalanx: restarted 2 times before",
        "phalanx: t.py failed: rank 1: ValueError: x at t.py:2 (exit code 1); not restarted: all 2 restarts are used",
    ]


def test_the_block_blames_our_first_failure_and_not_the_smallest_timestamp(tmp_path: Path) -> None:
    failures = [failed(0, exited_at=9.0), failed(1, signed_at=8.0, exited_at=11.0)]
    evidence = {rank: with_exception(tmp_path, rank) for rank in (0, 1)}
    text = failure_report(
        judge(failures, reason=""), evidence, has_run=True, name="t.py", restart_count=0, log_folder=None
    )
    root_cause = text.partition("Root Cause (first observed failure):")[2]
    assert "rank      : 1 (local_rank: 1)" in root_cause
    assert "rank      : 0" not in root_cause
    assert "rank      : 0 (local_rank: 0)" in text


def test_ranks_that_the_launcher_stopped_are_named_as_such_and_not_as_failures(tmp_path: Path) -> None:
    failures = [failed(0), failed(1, exit_code=-15, stopped_at=10.5, exited_at=11.0)]
    evidence = {0: with_exception(tmp_path, 0), 1: silent(1, -15)}
    text = failure_report(
        judge(failures, reason=""), evidence, has_run=True, name="t.py", restart_count=0, log_folder=None
    )
    assert "phalanx: stopped because of it: rank 1" in text
    assert "<NO_OTHER_FAILURES>" in text


def test_a_silent_death_shows_the_end_of_its_standard_error(tmp_path: Path) -> None:
    verdict = judge([failed(0, exit_code=3, summary="exit code 3")], reason="")
    tail = b"".join(b"line %d\n" % one for one in range(10_000))
    text = failure_report(
        verdict, {0: silent(0)}, has_run=True, name="t", restart_count=0, log_folder=None, stderr_tail=tail
    )
    assert "phalanx: last lines of rank 0's standard error:" in text
    assert "  line 9999\n" in text
    assert len(text) < 2 * TAIL_BYTES_MAX
    assert text.splitlines()[-1] == "phalanx: t failed: rank 0: exit code 3"


def test_a_traceback_that_the_block_shows_is_not_shown_again(tmp_path: Path) -> None:
    verdict = judge([failed(0, summary="ValueError: x")], reason="")
    evidence = {0: with_exception(tmp_path, 0)}
    tail = b"warming up\n" + CALLSTACK.encode()
    text = failure_report(
        verdict, evidence, has_run=True, name="t", restart_count=0, log_folder=None, stderr_tail=tail
    )
    assert text.count("ValueError: x\n") == 1
    assert "  warming up\n" in text


def test_standard_error_that_is_no_text_is_shown_as_far_as_it_goes() -> None:
    verdict = judge([failed(0, exit_code=3)], reason="")
    text = failure_report(
        verdict,
        {0: silent(0)},
        has_run=True,
        name="t",
        restart_count=0,
        log_folder=None,
        stderr_tail=b"\xff\xfe ok\n",
    )
    assert "�� ok" in text


def test_a_job_that_never_formed_is_one_sentence() -> None:
    verdict = Verdict(ending=Ending.FAILED, exit_code=75, reason="no port is free")
    text = failure_report(verdict, {}, has_run=False, name="t.py", restart_count=0, log_folder=None)
    assert text == "phalanx: t.py could not be run: no port is free\n"


@pytest.mark.parametrize("variable_is_set", [True, False])
def test_the_first_failures_error_file_is_handed_up_with_its_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable_is_set: bool
) -> None:
    own = tmp_path / "own.json"
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    if variable_is_set:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(own))
    hand_up(with_exception(tmp_path, 0), 137, str(own))
    message = json.loads(own.read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: x", 137)


def test_nothing_is_handed_up_when_there_is_nothing(tmp_path: Path) -> None:
    hand_up(silent(0), 3, str(tmp_path / "own.json"))
    assert not (tmp_path / "own.json").exists()
