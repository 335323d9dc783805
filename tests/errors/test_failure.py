"""The report on failed workers."""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.compat.marks import shows_names

from phalanx.errors import ChildFailedError, ErrorHandler, ProcessFailure, set_error_handler


def _file(folder: Path, name: str, *, at: int = 1700000000, **info: Any) -> str:
    path = folder / name
    extra = {"py_callstack": f"Traceback of {name}\n  line two\n", "timestamp": str(at), **info}
    path.write_text(json.dumps({"message": {"message": f"ValueError: {name}", "extraInfo": extra}}))
    return str(path)


def test_a_signal_is_named() -> None:
    failure = ProcessFailure(1, 42, -9, "/no/such/file")
    assert failure.message == "Signal 9 (SIGKILL) received by PID 42"
    assert (failure.signal_name(), failure.error_file) == ("SIGKILL", "<N/A>")
    assert failure.error_file_data == {"message": "<NONE>"}
    assert abs(failure.timestamp - time.time()) < 3600


@pytest.mark.parametrize("exitcode", [0, 1, 255, -35, -1000])
def test_what_is_no_known_signal_has_no_name(exitcode: int) -> None:
    assert ProcessFailure(1, 42, exitcode, "").signal_name() == "<N/A>"


def test_an_exit_without_a_file_says_that_nothing_was_left() -> None:
    failure = ProcessFailure(1, 42, 3, "/no/such/file")
    assert failure.message == "Process 42 ended with code 3 and left no exception behind"
    assert failure.error_file_data["errorTraits"]["category"] == "system_terminated_error"
    other = ProcessFailure(1, 42, -9, "/no/such/file")
    assert "errorTraits" not in other.error_file_data, "the data of two failures is one object"


def test_a_handler_may_know_more_about_a_signal() -> None:
    class Knowing(ErrorHandler):
        def maybe_enrich_signal_failure_message(self, message: str, *, pid: int, exitcode: int) -> str:
            return f"{message}; the kernel was out of memory ({pid}, {exitcode})"

    set_error_handler(Knowing())
    try:
        assert ProcessFailure(1, 42, -9, "").message.endswith("PID 42; the kernel was out of memory (42, -9)")
    finally:
        set_error_handler(None)


def test_it_is_a_value_that_can_be_compared_and_pickled(tmp_path: Path) -> None:
    path = _file(tmp_path, "a")
    failure = ProcessFailure(1, 42, 1, path, crash="c", stderr_tail="t")
    assert failure == ProcessFailure(1, 42, 1, path, crash="c", stderr_tail="t")
    assert pickle.loads(pickle.dumps(failure)) == failure
    assert [field.name for field in dataclasses.fields(failure)][:4] == [
        "local_rank",
        "pid",
        "exitcode",
        "error_file",
    ]


def test_the_report_has_the_lines_that_tools_look_for(tmp_path: Path) -> None:
    first = ProcessFailure(1, 42, 1, _file(tmp_path, "a"))
    second = ProcessFailure(0, 41, -9, "")
    error = ChildFailedError("train.py", {5: first, 4: second})
    assert error.get_first_failure() == (5, first)
    stamp = r"\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d"
    host = re.escape(os.uname().nodename)
    assert re.fullmatch(
        rf"""
={{60}}
train\.py FAILED
-{{60}}
Failures:
\[1\]:
  time      : {stamp}
  host      : {host}
  rank      : 4 \(local_rank: 0\)
  exitcode  : -9 \(pid: 41\)  \(SIGKILL\)
  error_file: <N/A>
  traceback : Signal 9 \(SIGKILL\) received by PID 41
-{{60}}
Root Cause \(first observed failure\):
\[0\]:
  time      : {stamp}
  host      : {host}
  rank      : 5 \(local_rank: 1\)
  exitcode  : 1 \(pid: 42\)\x20
  error_file: {re.escape(first.error_file)}
  traceback : Traceback of a
    line two
={{60}}""",
        error.format_msg(),
    )


def test_one_failure_is_the_root_cause_and_there_are_no_others(tmp_path: Path) -> None:
    error = ChildFailedError("t", {0: ProcessFailure(0, 1, 1, _file(tmp_path, "a"))})
    assert "Failures:\n  <NO_OTHER_FAILURES>\n" in str(error)
    assert str(error) == error.format_msg()
    assert error.format_msg(boarder_delim="#", section_delim=".").count("#") >= 40


def test_the_first_failure_is_the_earliest_and_finer_times_decide_within_a_second(tmp_path: Path) -> None:
    second_ns = 1700000000 * 10**9
    failures = {
        0: ProcessFailure(0, 1, 1, _file(tmp_path, "coarse")),
        1: ProcessFailure(1, 2, 1, _file(tmp_path, "late", wall_ns=second_ns + 900)),
        2: ProcessFailure(2, 3, 1, _file(tmp_path, "early", wall_ns=second_ns + 500)),
        3: ProcessFailure(3, 4, 1, _file(tmp_path, "later", at=1700000001)),
    }
    assert ChildFailedError("t", failures).get_first_failure()[0] == 2
    assert ChildFailedError("t", failures, first_rank=3).get_first_failure() == (3, failures[3])
    assert list(failures) == [0, 1, 2, 3]


def test_without_failures_there_is_no_such_error() -> None:
    with pytest.raises(ValueError, match="no failure"):
        ChildFailedError("t", {})


def test_the_error_survives_pickling(tmp_path: Path) -> None:
    error = ChildFailedError(
        "t", {3: ProcessFailure(0, 1, -9, ""), 4: ProcessFailure(1, 2, -9, "")}, first_rank=4
    )
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.get_first_failure()[0], again.name) == (str(error), 4, "t")


@shows_names(
    "better",
    "elastic.multiprocessing.errors",
    "ChildFailedError",
    how="the end of stderr is in the report of a worker that left nothing else",
)
def test_the_end_of_stderr_is_below_the_report_of_a_worker_that_left_nothing_else(tmp_path: Path) -> None:
    tail = "x" * 100_000 + "\ncuda: no device\n"
    error = ChildFailedError("t", {3: ProcessFailure(1, 1, 3, "", stderr_tail=tail)})
    assert str(error).endswith("\n  cuda: no device")
    assert "The end of stderr of local rank 1:" in str(error)
    assert len(str(error)) < 20_000
    assert "cuda" not in error.format_msg()
    recorded = ProcessFailure(1, 1, 3, _file(tmp_path, "a"), stderr_tail=tail)
    assert "cuda" not in str(ChildFailedError("t", {3: recorded})), "the traceback says it better"


def test_odd_texts_can_be_printed_everywhere(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps({"message": "\ud800 and \udcff", "timestamp": 7}))
    failure = ProcessFailure(1, 1, 3, str(path), crash="\udcff", stderr_tail="\udcfe")
    str(ChildFailedError("t", {3: failure})).encode("utf-8")
