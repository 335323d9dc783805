"""Case 12: what workers write arrives on the console in whole, prefixed lines, and byte by byte in the files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.system.launch import Launch, Script

LINES = 50_000


def log_of(folder: Path, rank: int, stream: str = "stdout", attempt: int = 0) -> bytes:
    """The one log file of a local rank under `--log-dir folder`."""
    (path,) = folder.glob(f"*/attempt_{attempt}/{rank}/{stream}.log")
    return path.read_bytes()


def lines_by_rank(console: bytes) -> dict[int, list[bytes]]:
    """Console lines without their prefix, by local rank; every line must have exactly one."""
    lines: dict[int, list[bytes]] = {}
    for line in console.splitlines(keepends=True):
        prefixed = re.fullmatch(rb"\[default(\d+)\]:(.*\n)", line, re.DOTALL)
        assert prefixed, line
        assert b"[default" not in prefixed[2], line
        lines.setdefault(int(prefixed[1]), []).append(prefixed[2])
    return lines


def numbered(rank: int) -> Iterator[bytes]:
    """The lines of 90 characters that a rank writes in the test below."""
    for number in range(LINES):
        yield f"rank {rank} line {number:>6} ".ljust(90, ".").encode() + b"\n"


def test_a_hundred_thousand_lines_of_two_ranks_are_each_there_once_and_whole(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script(
        f"""
        import os, sys

        rank = os.environ["RANK"]
        for number in range({LINES}):
            stream = sys.stdout if number % 5 else sys.stderr
            print(f"rank {{rank}} line {{number:>6}} ".ljust(90, "."), file=stream)
        """
    )
    flags = ("--standalone", "--nproc-per-node", 2, "--omp-threads", 1)
    job = launch(*flags, "-t", 3, "--log-dir", tmp_path / "logs", train)

    assert job.wait() == 0
    out, err = lines_by_rank(job.stdout), lines_by_rank(job.stderr)
    for rank in 0, 1:
        expected_out = [line for number, line in enumerate(numbered(rank)) if number % 5]
        expected_err = [line for number, line in enumerate(numbered(rank)) if number % 5 == 0]
        # Plain comparisons inside bool(): pytest's diff of two such lists would take minutes.
        assert bool(out[rank] == expected_out)
        assert bool(err[rank] == expected_err)
        assert bool(log_of(tmp_path / "logs", rank) == b"".join(expected_out))
        assert bool(log_of(tmp_path / "logs", rank, "stderr") == b"".join(expected_err))


Teed = Callable[[str], dict[int, list[bytes]]]


@pytest.fixture
def teed(launch: Launch, script: Script, tmp_path: Path) -> Teed:
    """Run a script on two ranks with `-t 3`; return what came on stdout, without prefixes, by rank."""

    def run(source: str) -> dict[int, list[bytes]]:
        train = script(source)
        job = launch("--standalone", "--nproc-per-node", 2, "-t", 3, "--log-dir", tmp_path / "logs", train)
        assert job.wait() == 0, job.stderr
        return lines_by_rank(job.stdout)

    return run


def test_a_line_that_is_written_in_parts_is_shown_once(teed: Teed) -> None:
    shown = teed(
        """
        import sys, time
        for part in "written ", "in ", "parts\\n":
            sys.stdout.write(part)
            sys.stdout.flush()
            time.sleep(0.4)
        """
    )

    assert shown == {0: [b"written in parts\n"], 1: [b"written in parts\n"]}


@pytest.mark.parametrize("end", ["", "\\n"], ids=["without newline", "with newline"])
def test_a_progress_bar_gives_no_empty_lines_and_its_last_state(teed: Teed, tmp_path: Path, end: str) -> None:
    shown = teed(
        f"""
        import sys, time
        for step in range(40):
            sys.stdout.write(f"\\rstep {{step}}")
            sys.stdout.flush()
            time.sleep(0.02)
        sys.stdout.write("{end}")
        """
    )

    for rank in 0, 1:
        assert shown[rank]
        assert all(re.fullmatch(rb"\r?step \d+\n", line) for line in shown[rank]), shown[rank]
        assert b"step 39" in shown[rank][-1]
        exact = b"".join(b"\rstep %d" % step for step in range(40)) + end.replace("\\n", "\n").encode()
        assert log_of(tmp_path / "logs", rank) == exact


def test_bytes_that_are_no_text_stop_nothing(teed: Teed, tmp_path: Path) -> None:
    shown = teed(
        """
        import os
        os.write(1, b"before\\n\\xff\\xfe\\x80 caf\\xc3\\n\\x00\\xe2\\x82\\nafter\\n")
        """
    )

    for rank in 0, 1:
        assert (shown[rank][0], shown[rank][-1]) == (b"before\n", b"after\n")
        assert len(shown[rank]) == 4
        assert log_of(tmp_path / "logs", rank) == b"before\n\xff\xfe\x80 caf\xc3\n\x00\xe2\x82\nafter\n"


def test_characters_that_are_cut_between_two_writes_arrive_whole(teed: Teed) -> None:
    shown = teed(
        """
        import os, time
        for byte in "grüße 日本\\n".encode():
            os.write(1, bytes([byte]))
            time.sleep(0.05)
        """
    )

    assert shown == {rank: ["grüße 日本\n".encode()] for rank in (0, 1)}


def test_a_last_line_without_newline_is_not_joined_with_another_ranks(teed: Teed, tmp_path: Path) -> None:
    shown = teed("import os; os.write(1, b'first\\nthe end of ' + os.environb[b'RANK'])")

    for rank in 0, 1:
        assert shown[rank] == [b"first\n", b"the end of %d\n" % rank]
        assert log_of(tmp_path / "logs", rank) == b"first\nthe end of %d" % rank


def test_a_line_of_megabytes_is_whole(teed: Teed, tmp_path: Path) -> None:
    teed("print('x' * 3_000_000)")

    assert log_of(tmp_path / "logs", 0) == b"x" * 3_000_000 + b"\n"


def test_what_was_written_right_before_a_sudden_end_is_shown(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script(
        """
        import os
        os.write(1, b"".join(b"line %d\\n" % number for number in range(20_000)))
        os.kill(os.getpid(), 9)
        """
    )
    job = launch("--standalone", "-t", 3, "--log-dir", tmp_path / "logs", train)

    assert job.wait() == 137
    expected = [b"line %d\n" % number for number in range(20_000)]
    assert bool(lines_by_rank(job.stdout)[0] == expected)


def test_what_a_child_writes_belongs_to_its_workers_log(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script(
        "import subprocess; subprocess.run(['sh', '-c', 'echo from a child; echo and an error >&2'])"
    )

    job = launch("--standalone", "-t", 3, "--log-dir", tmp_path / "logs", train)

    assert job.wait() == 0
    assert job.stdout == b"[default0]:from a child\n"
    assert job.stderr == b"[default0]:and an error\n"


def test_redirected_streams_are_in_the_files_and_not_on_the_console(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script("import os, sys; print('out', os.environ['RANK']); print('err', file=sys.stderr)")

    flags = ("--standalone", "--nproc-per-node", 2, "--omp-threads", 1)
    job = launch(*flags, "-r", "0:3,1:1", "--log-dir", tmp_path / "logs", train)

    assert job.wait() == 0
    assert (job.stdout, job.stderr) == (b"", b"err\n")
    assert log_of(tmp_path / "logs", 0) == b"out 0\n"
    assert log_of(tmp_path / "logs", 1) == b"out 1\n"
    assert log_of(tmp_path / "logs", 0, "stderr") == b"err\n"


def test_a_filter_of_local_ranks_keeps_the_others_off_the_console(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    job = launch(
        *("--standalone", "--nproc-per-node", 2, "-t", 3, "--log-dir", tmp_path / "logs"),
        *("--local-ranks-filter", 1, script("import os; print('rank', os.environ['RANK'])")),
    )

    assert job.wait() == 0
    assert job.stdout == b"[default1]:rank 1\n"
    assert log_of(tmp_path / "logs", 0) == b"rank 0\n"


def test_lines_that_match_a_duplicate_filter_are_gathered(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    job = launch(
        *("--standalone", "--nproc-per-node", 2, "-t", 3, "--log-dir", tmp_path / "logs"),
        *("--duplicate-stdout-filters", "loss,accuracy"),
        script("import os; print('epoch 1'); print('loss', os.environ['RANK']); print('accuracy')"),
    )

    assert job.wait() == 0
    (gathered,) = tmp_path.glob("logs/*/attempt_0/filtered_stdout.log")
    expected = {f"[default{rank}]:{text}" for rank in (0, 1) for text in (f"loss {rank}", "accuracy")}
    assert set(gathered.read_text().splitlines()) == expected


def test_two_jobs_in_one_log_folder_keep_their_logs_apart(
    launch: Launch, script: Script, tmp_path: Path
) -> None:
    train = script("import sys; print('job', sys.argv[1])")
    for number in 1, 2:
        job = launch("--rdzv-id", "same", "-r", 3, "--log-dir", tmp_path / "logs", train, number)
        assert job.wait() == 0

    logs = sorted(path.read_text() for path in tmp_path.glob("logs/same_*/attempt_0/0/stdout.log"))
    assert logs == ["job 1\n", "job 2\n"]


def test_a_capped_log_keeps_its_head_and_its_tail(launch: Launch, script: Script, tmp_path: Path) -> None:
    train = script("for number in range(200_000): print(f'line {number:>10}')")

    job = launch("--standalone", "-r", 1, "--log-max-size", "400K", "--log-dir", tmp_path / "logs", train)

    assert job.wait() == 0
    (head,) = tmp_path.glob("logs/*/attempt_0/0/stdout.log")
    kept = sorted(head.parent.glob("stdout.log*"))
    assert head.read_text().startswith("line          0\n")
    assert any(path.read_text().endswith("line     199999\n") for path in kept)
    assert sum(path.stat().st_size for path in kept) <= 400 * 1024
