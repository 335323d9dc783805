"""What is known of a failed worker is in its record: nobody else can read its files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from phalanx.agent.channel.messages import ExceptionRecorded
from phalanx.agent.evidence.collect import Evidence
from phalanx.agent.group import Exit
from phalanx.agent.verdict.stored import EXTRA_MAX
from phalanx.agent.verdict.verdict import Failure
from phalanx.errors import ProcessFailure
from phalanx.rendezvous.round import Round

SETTLED = Round(
    number=4,
    group_rank=1,
    group_world_size=2,
    first_rank=2,
    local_world_size=2,
    world_size=4,
    master_addr="127.0.0.1",
    master_port=1,
    restart_count=0,
    reason="",
)
RECORDS = """
import sys
from phalanx.errors import record
@record
def main():
    {body}
main()
"""


class Ended:
    """Workers of which the first one has ended, as the agent sees them."""

    def __init__(self, error_file: Path, *, stderr: str = "") -> None:
        self.process = ProcessFailure(0, 77, 1, str(error_file), stderr_tail=stderr)

    def failure(self, local_rank: int) -> ProcessFailure:
        return self.process

    def remains(self, local_rank: int) -> None:
        return None


def recorded(path: Path, body: str = "raise ValueError('bad batch 17')") -> Path:
    """The error file of a real process."""
    variables = {**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)}
    subprocess.run([sys.executable, "-c", RECORDS.format(body=body)], env=variables, capture_output=True)
    assert path.exists()
    return path


def failure(
    workers: object,
    told: ExceptionRecorded | None = None,
    *,
    evidence: Evidence | None = None,
    straggler_s: float | None = None,
    **end: Any,
) -> Failure:
    known: dict[str, Any] = {"local_rank": 0, "exit_code": 1, "at": time.monotonic(), "stopped_at": None}
    evidence = evidence or Evidence(straggler_s)
    (found,) = evidence.collect(
        SETTLED,
        workers,  # type: ignore[arg-type] # two methods of it are needed
        [Exit(**{**known, "signed_at": None, **end})],
        {} if told is None else {0: told},
        log_dir="/logs/run",
    )
    evidence.postmortem.close()
    return found


def test_a_recorded_exception_is_in_the_failure_with_all_that_a_report_needs(tmp_path: Path) -> None:
    path = recorded(tmp_path / "error.json")
    before = time.time()

    found = failure(Ended(path, stderr="warming up\n"))

    assert (found.rank, found.group_rank, found.group_world_size, found.round) == (2, 1, 2, 4)
    assert (found.host, found.log_dir, found.error_file) == (os.uname().nodename, "/logs/run", str(path))
    assert (found.exception, found.message) == ("ValueError", "ValueError: bad batch 17")
    assert found.summary.startswith("ValueError: bad batch 17 at <string>:")
    assert found.summary.endswith(found.place)
    assert found.traceback.endswith("ValueError: bad batch 17\n")
    assert found.stderr == "warming up\n"
    assert before - 60 < found.wall_at <= before
    assert json.loads(found.extra)["exception_type"] == "ValueError"
    assert "py_callstack" not in json.loads(found.extra)
    assert found.signed_at is not None


def test_what_was_told_over_the_channel_stands_in_for_a_file_that_could_not_be_written(
    tmp_path: Path,
) -> None:
    told = ExceptionRecorded(
        77,
        4,
        wall_ns=1_700_000_000_500_000_000,
        monotonic_ns=5,
        message="OSError: disk full\nmore",
        place="/x/train.py:9",
        thread="loader",
        error_file=None,
    )

    found = failure(Ended(tmp_path / "none"), told)

    assert (found.exception, found.message) == ("OSError", "OSError: disk full\nmore")
    assert (found.place, found.thread, found.error_file) == ("/x/train.py:9", "loader", "")
    assert found.wall_at == 1_700_000_000.5
    assert found.own_exit_code == 1


def test_a_silent_end_has_the_time_at_which_it_was_seen_and_what_can_be_said(tmp_path: Path) -> None:
    before = time.time()
    found = failure(Ended(tmp_path / "none"), exit_code=3, at=time.monotonic() - 50.0)
    # Two clocks are read one after the other: a pause between them makes it so much earlier.
    assert before - 40.0 < found.wall_at + 50.0 < time.time() + 1.0
    assert (found.exception, found.traceback, found.error_file) == ("", "", "")
    assert "77" in found.message


@pytest.mark.parametrize("content", ["", "[1]", '{"message": null}', "[" * 10_000])
def test_a_file_that_cannot_be_understood_says_so_in_the_failure(tmp_path: Path, content: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(content)
    found = failure(Ended(path), exit_code=3)
    assert found.message.startswith(f"the error file '{path}' ")
    assert (found.exception, found.summary, found.error_file) == ("", "exit code 3", str(path))


@pytest.mark.parametrize("begin", ["the round", "the worker alone"])
def test_a_sign_from_before_the_workers_start_is_not_its_own(tmp_path: Path, begin: str) -> None:
    """Its words are told all the same: there is nothing better."""
    evidence = Evidence()
    evidence.begin()
    path = recorded(tmp_path / "error.json")
    seen_at = time.time()
    if begin == "the round":
        evidence.begin()
    else:
        evidence.begin_single(0)
    now = time.monotonic() + 60.0  # ahead, so that a pause between two looks at clocks makes it no earlier

    found = failure(Ended(path), evidence=evidence, exit_code=-15, at=now, stopped_at=now, signed_at=1e-9)

    assert (found.message, found.signed_at, found.is_collateral) == ("ValueError: bad batch 17", None, True)
    assert found.wall_at >= seen_at


def test_a_sign_of_the_workers_own_time_is_believed(tmp_path: Path) -> None:
    evidence = Evidence()
    evidence.begin()
    path = recorded(tmp_path / "error.json")
    now = time.monotonic()

    found = failure(Ended(path), evidence=evidence, exit_code=-15, at=now, stopped_at=now)

    assert found.signed_at is not None
    assert not found.is_collateral


@pytest.mark.parametrize("stamp", ["9" * 18, "-" + "9" * 18])
def test_a_time_that_no_clock_shows_is_not_believed(tmp_path: Path, stamp: str) -> None:
    path = tmp_path / "error.json"
    info = {"py_callstack": "", "timestamp": stamp, "wall_ns": int(stamp) * 5}
    path.write_text(json.dumps({"message": {"message": "ValueError: x", "extraInfo": info}}))
    assert abs(failure(Ended(path)).wall_at - time.time()) < 60.0


def test_the_longest_parts_of_the_rest_of_a_file_are_left_out_and_then_all_of_it(tmp_path: Path) -> None:
    def extra(**info: object) -> str:
        path = tmp_path / "error.json"
        known = {"py_callstack": "", "timestamp": "1700000000", "format": 1}
        path.write_text(json.dumps({"message": {"message": "E: x", "extraInfo": {**known, **info}}}))
        return failure(Ended(path)).extra

    assert json.loads(extra(notes=["n"])) == {"format": 1, "notes": ["n"]}
    assert json.loads(extra(chain=["c" * EXTRA_MAX])) == {"format": 1}
    assert extra(mine="m" * EXTRA_MAX) == ""


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        (r"'\n   bad batch\nmore'", "ValueError: bad batch at <string>:"),
        ("''", "ValueError at <string>:"),
        (r"'http://x:1/y failed\nmore'", "ValueError: http://x:1/y failed at <string>:"),
        (r"'cannot load:\n  shard 9'", "ValueError: cannot load: shard 9 at <string>:"),
    ],
)
def test_the_summary_has_the_first_words_of_the_exception(tmp_path: Path, argument: str, said: str) -> None:
    path = recorded(tmp_path / "error.json", f"raise ValueError({argument})")
    assert failure(Ended(path)).summary.startswith(said)


def test_a_worker_that_never_began_has_its_node_and_its_reason() -> None:
    logs = failure(None, exit_code=1, why_not_started="its logs cannot be opened: No space left on device")
    assert logs.cannot_heal == "", "a disk has room again some day"
    found = failure(None, exit_code=127, why_not_started="'trian' was not found")
    assert found.cannot_heal == "a command that cannot be executed"
    assert (found.rank, found.host, found.why_not_started) == (
        2,
        os.uname().nodename,
        "'trian' was not found",
    )
    assert found.wall_at > 0


@pytest.mark.parametrize(("ended_with", "told"), [(-15, 1), (-9, 1), (-11, 1), (0, 1), (1, 1), (7, 7)])
def test_a_worker_that_ran_on_too_long_has_one_code_whatever_our_signal_made_of_it(
    tmp_path: Path, ended_with: int, told: int
) -> None:
    now = time.monotonic()
    path = recorded(tmp_path / "error.json", body=f"sys.exit({ended_with})") if ended_with > 1 else tmp_path
    found = failure(
        Ended(path), straggler_s=5.0, exit_code=ended_with, at=now, stopped_at=now - 3, is_straggler=True
    )
    assert (found.exit_code, found.blamed_exit_code, found.is_straggler) == (told, told, True)
    assert found.summary == found.message
    assert "still ran 5 s after others had ended: stopped for that (--straggler-timeout)" in found.summary
    assert (found.explanation, found.exception, found.is_collateral) == ("", "", False)
    assert found.exited_at == now - 3, "when it was stopped, as the others"


def test_where_the_limit_is_not_known_here_a_straggler_is_one_all_the_same(tmp_path: Path) -> None:
    found = failure(Ended(tmp_path), exit_code=-15, stopped_at=1.0, is_straggler=True)
    assert found.summary.startswith("it still ran long after")


USAGE = "usage: train.py [-h]\ntrain.py: error: unrecognized arguments: --foo\n"
CLICK = "Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n\nError: No such option: --foo\n"


@pytest.mark.parametrize(
    ("stderr", "code", "said"),
    [
        (USAGE, 2, ": train.py: error: unrecognized arguments: --foo"),
        (CLICK, 2, ": Error: No such option: --foo"),
        (USAGE, 3, ""),
        ("usage: train.py\n", 2, ""),
        ("ValueError: x\n", 2, ""),
        (USAGE + "step\n" * 50, 2, ""),
    ],
    ids=["argparse", "click", "another code", "no words", "an exception", "long before"],
)
@pytest.mark.parametrize("is_python", [True, False], ids=["python", "another program"])
def test_what_the_scripts_own_parser_refused_is_in_the_summary(
    tmp_path: Path, is_python: bool, stderr: str, code: int, said: str
) -> None:
    path = recorded(tmp_path / "error.json", body=f"sys.exit({code})") if is_python else tmp_path / "none"
    assert failure(Ended(path, stderr=stderr), exit_code=code).summary == f"exit code {code}{said}"


def test_of_a_long_line_of_a_parser_the_summary_has_the_beginning(tmp_path: Path) -> None:
    found = failure(Ended(tmp_path / "none", stderr=f"error: {'x' * 9000}\n"), exit_code=2)
    assert len(found.summary) < 500


def test_an_exception_of_its_own_explains_why_a_worker_ran_on(tmp_path: Path) -> None:
    path = recorded(tmp_path / "error.json")
    found = failure(Ended(path), exit_code=-15, stopped_at=time.monotonic(), is_straggler=True)
    assert (found.exception, found.is_straggler, found.blamed_exit_code) == ("ValueError", False, 1)
    assert not found.is_collateral


def test_an_exception_of_a_worker_that_was_stopped_for_that_shows_where_it_was(tmp_path: Path) -> None:
    before = time.monotonic()
    path = recorded(tmp_path / "error.json")
    found = failure(Ended(path), exit_code=1, stopped_at=before, is_straggler=True)
    assert found.traceback.endswith("ValueError: bad batch 17\n")
    assert (found.is_straggler, found.exception, found.place) == (True, "", "")
