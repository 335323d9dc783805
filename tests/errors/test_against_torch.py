"""torch 2.13 as an oracle: it reads what we write, we read what it writes, and the reports have the same lines."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.compat.marks import shows_names

from phalanx.errors import ChildFailedError, ErrorHandler, ProcessFailure, read_error_file

pytestmark = pytest.mark.torch

RAISE = """
from {recorder} import record
@record
def main():
    raise ValueError("bad batch 17: ä \\n second line")
try:
    main()
except ValueError:
    pass
"""
TORCHS = "torch.distributed.elastic.multiprocessing.errors"

# One process of torch answers everything: importing it takes seconds.
ORACLE = (
    RAISE.format(recorder=TORCHS)
    + """
import json, os, sys
from torch.distributed.elastic.multiprocessing import errors as torch_errors
asked = json.load(sys.stdin)
reports = []
for case in asked["cases"]:
    failures = {rank: torch_errors.ProcessFailure(*fields) for rank, *fields in case}
    error = torch_errors.ChildFailedError("train.py", failures)
    reports.append({
        "report": error.format_msg(),
        "first": error.get_first_failure()[0],
        "failures": [[f.error_file, f.error_file_data, f.message, f.timestamp, f.signal_name(),
                      f.timestamp_isoformat()] for f in failures.values()],
    })
for child, path in asked["passed up"]:
    os.environ["TORCHELASTIC_ERROR_FILE"] = path
    torch_errors.ErrorHandler().dump_error_file(child, 5)
json.dump(reports, sys.stdout)
"""
)


def _python(source: str, error_file: str, *, said: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", source],
        input=said,
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": error_file},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def cases(tmp_path_factory: Any) -> dict[str, list[list[Any]]]:
    """Name → failures as [rank, local rank, pid, exit code, error file]; the files are ours, torch's and short ones."""
    folder = tmp_path_factory.mktemp("errors")
    files = {name: str(folder / name) for name in ("ours", "torchs", "short", "empty message")}
    _python(RAISE.format(recorder="phalanx.errors"), files["ours"])
    Path(files["short"]).write_text('{"message": "out of memory", "timestamp": 1600000000}')
    Path(files["empty message"]).write_text('{"message": "", "timestamp": 1600000000}')
    return {
        "ours": [[0, 0, 11, 1, files["ours"]]],
        "torch's": [[3, 1, 12, 1, files["torchs"]]],
        "short": [[3, 1, 12, 1, files["short"]]],
        "empty message": [[3, 1, 12, -15, files["empty message"]]],
        "a signal": [[1, 1, 12, -9, ""]],
        "an unknown signal": [[1, 1, 12, -250, ""]],
        "several": [[4, 0, 10, -9, ""], [5, 1, 11, 1, files["ours"]], [6, 2, 12, 1, files["short"]]],
    }


@pytest.fixture(scope="module")
def answers(cases: dict[str, list[list[Any]]]) -> dict[str, Any]:
    """Name → what torch makes of that case; beside each error file what it passes up of it."""
    passed_up = [
        [cases[name][0][4], cases[name][0][4] + " passed up"] for name in ("ours", "torch's", "short")
    ]
    asked = {"cases": list(cases.values()), "passed up": passed_up}
    found = json.loads(_python(ORACLE, cases["torch's"][0][4], said=json.dumps(asked)))
    return dict(zip(cases, found, strict=True))


NAMES = ["ours", "torch's", "short", "empty message", "a signal", "an unknown signal", "several"]


def _ours(case: list[list[Any]]) -> tuple[dict[int, ProcessFailure], ChildFailedError]:
    failures = {rank: ProcessFailure(*fields) for rank, *fields in case}
    return failures, ChildFailedError("train.py", failures)


@pytest.mark.parametrize("name", NAMES)
@shows_names("same", "elastic.multiprocessing.errors", "ProcessFailure")
def test_a_failure_has_the_fields_that_torch_gives_it(name: str, cases: Any, answers: Any) -> None:
    failures, error = _ours(cases[name])
    assert error.get_first_failure()[0] == answers[name]["first"]
    for failure, expected in zip(failures.values(), answers[name]["failures"], strict=True):
        file, data, message, timestamp, signal_name, isoformat = expected
        assert (failure.error_file, failure.message, failure.signal_name()) == (file, message, signal_name)
        assert failure.error_file_data == data
        if file != "<N/A>":
            assert (failure.timestamp, failure.timestamp_isoformat()) == (timestamp, isoformat)


@pytest.mark.parametrize("name", NAMES)
@shows_names("same", "elastic.multiprocessing.errors", "ChildFailedError")
def test_the_report_is_torchs_line_by_line(name: str, cases: Any, answers: Any) -> None:
    _, error = _ours(cases[name])
    assert _comparable(error.format_msg()) == _comparable(answers[name]["report"])


def _comparable(report: str) -> str:
    """The lines that say something, without the times of failures that have none, and the host: torch asks for a name.

    torch has a blank line below each traceback, which says nothing.
    """
    report = re.sub(r"(time|host)      : .*", r"\1      : …", report)
    return "\n".join(line for line in report.splitlines() if line.strip())


def test_torch_prints_our_traceback_and_we_print_torchs(cases: Any, answers: Any) -> None:
    for name in ("ours", "torch's"):
        assert "ValueError: bad batch 17: ä" in answers[name]["report"]
        assert "ValueError: bad batch 17: ä" in str(_ours(cases[name])[1])


@shows_names("same", "elastic.multiprocessing.errors", "record")
def test_our_record_of_an_exception_is_torchs_apart_from_the_additions(cases: Any, answers: Any) -> None:
    ours = json.loads(Path(cases["ours"][0][4]).read_text())
    torchs = json.loads(Path(cases["torch's"][0][4]).read_text())
    assert set(ours) == set(torchs)
    assert set(ours["message"]) == set(torchs["message"])
    assert ours["message"]["message"] == torchs["message"]["message"]
    info, expected = ours["message"]["extraInfo"], torchs["message"]["extraInfo"]
    assert set(expected) <= set(info)
    assert {type(info[key]) for key in expected} == {type(value) for value in expected.values()}
    assert info["py_callstack"].splitlines()[-2:] == expected["py_callstack"].splitlines()[-2:]


def test_torchs_record_is_read_with_type_and_text(cases: Any, answers: Any) -> None:
    record = read_error_file(cases["torch's"][0][4])
    assert (record.exception_type, record.problem) == ("ValueError", None)
    assert record.text == "bad batch 17: ä \n second line"


@pytest.mark.parametrize("name", ["ours", "torch's", "short"])
@shows_names("same", "elastic.multiprocessing.errors", "ErrorHandler")
def test_a_file_is_passed_up_as_torch_passes_it_up(
    name: str, cases: Any, answers: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "ours.json"))
    child = cases[name][0][4]
    ErrorHandler().dump_error_file(child, 5)
    expected = json.loads(Path(child + " passed up").read_text())
    assert json.loads((tmp_path / "ours.json").read_text()) == expected


def test_torchs_decorator_and_torchs_failed_children_in_a_script_that_phalanx_started(bench: Any) -> None:
    """torch writes its own file first; the boot file then finds torch's error and passes the child's file up."""
    child = bench.folder / "child.json"
    child.write_text(
        '{"message": {"message": "KeyError: x", "extraInfo": {"py_callstack": "tb", "timestamp": "7"}}}'
    )
    bench.write(
        f"""
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure, record
@record
def main(child):
    if child is None:
        raise ValueError("bad batch 17")
    raise ChildFailedError("t", {{0: ProcessFailure(0, 1, 1, child)}})
try:
    main(None)
except ValueError as failure:
    print(open({str(bench.error_file)!r}).read())
main({str(child)!r})
"""
    )
    ending = bench.booted("train.py")
    assert ending.code == 1
    assert json.loads(ending.stdout)["message"]["message"] == "ValueError: bad batch 17"
    assert bench.message() == {
        "message": "KeyError: x",
        "extraInfo": {"py_callstack": "tb", "timestamp": "7"},
        "errorCode": 1,
    }
