"""Exit status, error files and the report of a failed job, beside torchrun's."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.side_by_side.pair import Seen, SideBySide, shows

# How rank 1 ends, and the exit code under torchrun and under Phalanx: torchrun says 1 to every failure.
ENDINGS = {
    "well": ("sys.exit(0)", 0, 0),
    "exit 7": ("sys.exit(7)", 1, 7),
    "exception": ("raise ValueError('bad batch 17')", 1, 1),
    "killed": ("os.kill(os.getpid(), 9)", 1, 137),
}


@pytest.mark.parametrize(("how", "theirs", "ours"), ENDINGS.values(), ids=ENDINGS)
def test_exit_codes(side_by_side: SideBySide, how: str, theirs: int, ours: int) -> None:
    source = f"""
        import os, sys
        if os.environ["RANK"] == "1":
            {how}
        """

    torchrun, phalanx = side_by_side(source, "--standalone", "--nproc-per-node", 2)

    assert (torchrun.code, phalanx.code) == (theirs, ours)


def test_the_exit_code_of_a_stopped_launcher(side_by_side: SideBySide) -> None:
    source = "from telling import tell\ntell('ready')\nimport time\ntime.sleep(1000)"

    torchrun, phalanx = side_by_side(source, "--standalone", stop_at="ready", signal=signal.SIGTERM)

    assert (torchrun.code, phalanx.code) == (1, 143)
    assert b"Traceback" in torchrun.stderr
    assert b"Traceback" not in phalanx.stderr


def test_an_unknown_flag_is_code_2_in_both(side_by_side: SideBySide) -> None:
    torchrun, phalanx = side_by_side("pass", "--no-such-flag")

    assert (torchrun.code, phalanx.code) == (2, 2)


RECORDED = """
    from torch.distributed.elastic.multiprocessing.errors import record

    @record
    def main():
        raise ValueError("bad batch 17")

    if __name__ == "__main__":
        main()
"""
PLAIN = RECORDED.replace("@record", "")


def error_file(seen: Seen) -> Path:
    (path,) = seen.logs.glob("*/attempt_0/0/error.json")
    return path


def shape(value: Any) -> Any:
    """The names and types of a JSON value."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return type(value).__name__


@pytest.mark.parametrize("source", [RECORDED, PLAIN], ids=["decorated by torch", "undecorated"])
def test_the_error_file_has_torchruns_fields(side_by_side: SideBySide, source: str) -> None:
    """torchrun needs its decorator for a file; here an undecorated script must give as much."""
    torchrun, phalanx = side_by_side(RECORDED, "--standalone")
    if source is PLAIN:
        _, phalanx = SideBySide(_fresh(side_by_side.folder))(PLAIN, "--standalone")

    theirs = json.loads(error_file(torchrun).read_text())["message"]
    ours = json.loads(error_file(phalanx).read_text())["message"]
    assert ours["message"] == theirs["message"] == "ValueError: bad batch 17"
    assert ours.keys() == theirs.keys()
    assert shape(theirs["extraInfo"]).items() <= shape(ours["extraInfo"]).items()
    assert re.fullmatch(r"\d{10}", ours["extraInfo"]["timestamp"]), "seconds"
    assert ours["extraInfo"]["py_callstack"].splitlines()[-1] == "ValueError: bad batch 17"
    assert 'raise ValueError("bad batch 17")' in ours["extraInfo"]["py_callstack"]


def _fresh(folder: Path) -> Path:
    fresh = folder / "plain"
    fresh.mkdir()
    return fresh


def test_torchs_own_reader_understands_our_error_file(side_by_side: SideBySide) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    _, phalanx = side_by_side(PLAIN, "--standalone")

    path = error_file(phalanx)
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(path))
    extra = json.loads(path.read_text())["message"]["extraInfo"]
    assert failure.timestamp == int(extra["timestamp"])
    assert "bad batch 17" in str(failure.message)


@shows("same", "variable TORCHELASTIC_ERROR_FILE")
def test_the_outer_error_file_is_the_same_copy_with_the_exit_code(side_by_side: SideBySide) -> None:
    torchrun, phalanx = side_by_side(RECORDED, "--standalone", env={"TORCHELASTIC_ERROR_FILE": "outer.json"})

    copies = [
        json.loads((seen.logs.parent / "outer.json").read_text())["message"] for seen in (torchrun, phalanx)
    ]
    theirs, ours = copies
    assert ours["message"] == theirs["message"] == "ValueError: bad batch 17"
    assert ours.get("errorCode") == theirs.get("errorCode")


def report_of(seen: Seen) -> str:
    text = seen.stderr.decode()
    start = text.index("\n===")
    return text[start : text.index("\n===", start + 4)]


def test_the_report_has_the_lines_that_tools_look_for(side_by_side: SideBySide) -> None:
    source = """
        import os, time
        if os.environ["RANK"] == "1":
            os._exit(7)
        time.sleep(1000)
        """

    torchrun, phalanx = side_by_side(source, "--standalone", "--nproc-per-node", 2)

    theirs, ours = report_of(torchrun), report_of(phalanx)
    names = ["time      ", "host      ", "rank      ", "exitcode  ", "error_file", "traceback "]
    assert re.findall(r"^  (\w+ *):", ours, re.MULTILINE) == names
    # torchrun also lists the rank that it ended itself, so it has them twice.
    assert set(re.findall(r"^  (\w+ *):", theirs, re.MULTILINE)) == set(names)
    for line in (
        r"^\S*train\.py FAILED$",
        r"^Failures:$",
        r"^Root Cause \(first observed failure\):$",
        r"^  rank      : 1 \(local_rank: 1\)$",
        r"^  exitcode  : 7 \(pid: \d+\)",
        r"^  error_file: <N/A>$",
    ):
        assert re.search(line, theirs, re.MULTILINE), line
        assert re.search(line, ours, re.MULTILINE), line
    assert "<NO_OTHER_FAILURES>" in ours, "a rank that the launcher ended has not failed"


def test_a_malformed_error_file_breaks_torchrun_alone(side_by_side: SideBySide) -> None:
    source = """
        import os
        open(os.environ["TORCHELASTIC_ERROR_FILE"], "w").write("{")
        os._exit(int(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"))
        """

    torchrun, phalanx = side_by_side(source, "--standalone", "--max-restarts", 1)

    assert (torchrun.code, phalanx.code) == (1, 0)
