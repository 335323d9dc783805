"""Exit status, error files and the report of a failed job, beside torchrun's."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

from tests.side_by_side.pair import Seen, SideBySide, shows
from tests.system.launch import launcher_under_test


def test_the_exit_code_of_a_worker_that_is_killed(side_by_side: SideBySide) -> None:
    """torchrun says 1 to every failure; other ends have their codes compared below, where they are looked at."""
    source = """
        import os
        if os.environ["RANK"] == "1":
            os.kill(os.getpid(), 9)
        """

    torchrun, phalanx = side_by_side(source, "--standalone", "--nproc-per-node", 2)

    assert (torchrun.code, phalanx.code) == (1, 137)


def test_the_exit_code_of_a_stopped_launcher(side_by_side: SideBySide) -> None:
    source = "from telling import tell\ntell('ready')\nimport time\ntime.sleep(1000)"

    torchrun, phalanx = side_by_side(source, "--standalone", stop_at="ready", signal=signal.SIGTERM)

    assert (torchrun.code, phalanx.code) == (1, 143)
    assert b"Traceback" in torchrun.stderr
    assert b"Traceback" not in phalanx.stderr


def test_an_unknown_flag_is_code_2_in_both(side_by_side: SideBySide) -> None:
    torchrun, phalanx = side_by_side("pass", "--no-such-flag")

    assert (torchrun.code, phalanx.code) == (2, 2)


PLAIN = """
    def main():
        raise ValueError("bad batch 17")

    if __name__ == "__main__":
        main()
"""
RECORDED = "    from torch.distributed.elastic.multiprocessing.errors import record\n" + PLAIN.replace(
    "def main", "@record\n    def main"
)


def error_file(seen: Seen) -> Path:
    (path,) = seen.logs.glob("*/attempt_0/0/error.json")
    return path


def shape(value: Any) -> Any:
    """The names and types of a JSON value."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return type(value).__name__


def message_of(path: Path) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(path.read_text())["message"]
    return message


@shows("same", "variable TORCHELASTIC_ERROR_FILE")
def test_the_error_file_and_its_outer_copy_have_torchruns_fields(side_by_side: SideBySide) -> None:
    """torchrun needs its decorator for a file; here an undecorated script, without torch, must give as much."""
    env = {"TORCHELASTIC_ERROR_FILE": "outer.json"}
    torchrun, decorated = side_by_side(RECORDED, "--standalone", env=env)
    plain = SideBySide(side_by_side.folder / "plain")
    undecorated = plain.under(launcher_under_test(), PLAIN, "--standalone", env=env)

    assert (torchrun.code, decorated.code, undecorated.code) == (1, 1, 1)
    theirs = message_of(error_file(torchrun))
    their_copy = message_of(torchrun.logs.parent / "outer.json")
    assert theirs["message"] == their_copy["message"] == "ValueError: bad batch 17"
    for phalanx in decorated, undecorated:
        ours = message_of(error_file(phalanx))
        assert ours["message"] == theirs["message"]
        assert ours.keys() == theirs.keys()
        assert shape(theirs["extraInfo"]).items() <= shape(ours["extraInfo"]).items()
        assert re.fullmatch(r"\d{10}", ours["extraInfo"]["timestamp"]), "seconds"
        assert ours["extraInfo"]["py_callstack"].splitlines()[-1] == "ValueError: bad batch 17"
        assert 'raise ValueError("bad batch 17")' in ours["extraInfo"]["py_callstack"]

        our_copy = message_of(phalanx.logs.parent / "outer.json")
        assert our_copy["message"] == their_copy["message"]
        assert our_copy.get("errorCode") == their_copy.get("errorCode")


def test_torchs_own_reader_understands_our_error_file(side_by_side: SideBySide) -> None:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    phalanx = side_by_side.under(launcher_under_test(), PLAIN, "--standalone")

    path = error_file(phalanx)
    failure = ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file=str(path))
    extra = json.loads(path.read_text())["message"]["extraInfo"]
    assert failure.timestamp == int(extra["timestamp"])
    assert "bad batch 17" in str(failure.message)


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

    assert (torchrun.code, phalanx.code) == (1, 7)
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
