"""Files and folders of logs, and lines on the console, beside torchrun's."""

from __future__ import annotations

import pytest
from tests.side_by_side.pair import SideBySide, shows

# One write for each line: without a tee, lines of two ranks meet on the console as they were written.
WRITER = """
    import os
    os.write(1, b"out of %b\\n" % os.environb[b"RANK"])
    os.write(2, b"err of %b\\n" % os.environb[b"RANK"])
"""
# As `--standalone`, but with a name of our own for the job's folder.
NAMED = ("--rdzv-id", "job-7", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0")

STREAMS: dict[str, tuple[str, ...]] = {
    "none": (),
    "redirect one each": ("-r", "0:1,1:2"),
    "tee both": ("-t", "3"),
    "filter ranks": ("-t", "3", "--local-ranks-filter", "1"),
    "filter ranks, redirect one": ("-r", "1:3", "--local-ranks-filter", "0"),
    "duplicate lines": (
        "-t",
        "3",
        "--duplicate-stdout-filters",
        "out of 1",
        "--duplicate-stderr-filters",
        "err",
    ),
}


@shows("same", "flag --redirects", "flag --local-ranks-filter", "flag --log-dir")
@shows("same", "flag --duplicate-stdout-filters", "flag --duplicate-stderr-filters")
@shows(
    "better",
    "flag --tee",
    how="a line is shown whole, behind one prefix; local ranks of any number of digits",
)
@pytest.mark.parametrize("streams", STREAMS.values(), ids=STREAMS)
def test_the_same_files_and_lines(side_by_side: SideBySide, streams: tuple[str, ...]) -> None:
    said = {"OMP_NUM_THREADS": "1"}  # or both launchers have a word to say about it
    torchrun, phalanx = side_by_side(WRITER, *NAMED, "--nproc-per-node", 2, *streams, env=said)

    assert (torchrun.code, phalanx.code) == (0, 0)
    assert phalanx.log_files() == torchrun.log_files()
    assert sorted(phalanx.stdout.splitlines()) == sorted(torchrun.stdout.splitlines())
    # On stderr torchrun has warnings of its own; a clean run under Phalanx prints nothing.
    of_workers = [line for line in torchrun.stderr.splitlines() if b"err of" in line]
    assert sorted(phalanx.stderr.splitlines()) == sorted(of_workers)
    for theirs in torchrun.logs.rglob("*.log"):
        (ours,) = phalanx.logs.glob("job-7_*/" + "/".join(theirs.relative_to(torchrun.logs).parts[1:]))
        assert sorted(ours.read_bytes().splitlines()) == sorted(theirs.read_bytes().splitlines())


@shows("same", "variable TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
def test_the_same_prefix_by_template(side_by_side: SideBySide) -> None:
    torchrun, phalanx = side_by_side(
        WRITER,
        *("--standalone", "--nproc-per-node", 2, "-t", 1),
        env={"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[${rank}] ${role_name}/${local_rank}: ${unknown}|"},
    )

    assert b"[1] default/1: ${unknown}|out of 1" in phalanx.stdout.splitlines()
    assert sorted(phalanx.stdout.splitlines()) == sorted(torchrun.stdout.splitlines())


def test_a_log_folder_of_dev_null_makes_no_files(side_by_side: SideBySide) -> None:
    source = """
        import os
        from telling import tell
        tell("error file", path=os.environ["TORCHELASTIC_ERROR_FILE"])
        """

    torchrun, phalanx = side_by_side(source, "--standalone", "--log-dir", "/dev/null", "-r", 3)

    assert (torchrun.code, phalanx.code) == (0, 0)
    assert [seen.told("error file")[0]["path"] for seen in (torchrun, phalanx)] == ["", ""]
