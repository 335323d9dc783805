"""``python -m torch.distributed.launch`` and ``python -m phalanx.launch`` on the same jobs."""

from __future__ import annotations

import os
import sys

import pytest
from tests.side_by_side.pair import SideBySide, shows
from tests.system.launch import WORKER_SIDE, Launcher

LAUNCHERS = (
    Launcher("torchrun", (sys.executable, "-m", "torch.distributed.launch")),
    Launcher("phalanx", (sys.executable, "-m", "phalanx.launch")),
)
TELL_ARGUMENTS = """
    import os, sys
    from telling import tell

    tell("arguments", argv=sys.argv[1:], local_rank=os.environ["LOCAL_RANK"])
"""


@shows("same", "flag --use-env")
@pytest.mark.parametrize(
    ("flags", "inserted"),
    [((), True), (("-m",), True), (("--use_env", "-m"), False)],
    ids=str,
)
def test_a_script_is_told_its_local_rank(
    side_by_side: SideBySide, flags: tuple[str, ...], inserted: bool
) -> None:
    path = os.pathsep.join([str(side_by_side.folder), str(WORKER_SIDE)])
    torchrun, phalanx = side_by_side(
        TELL_ARGUMENTS,
        *("--standalone", "--nproc-per-node", 2, *flags),
        named=("train",) if "-m" in flags else (),
        arguments=("--lr", "0.1"),
        env={"PYTHONPATH": path},
        launchers=LAUNCHERS,
    )

    for seen in torchrun, phalanx:
        assert seen.code == 0, seen.stderr
        told = [(event["local_rank"], event["argv"]) for event in seen.told("arguments")]
        assert told == [
            (str(rank), [*([f"--local-rank={rank}"] if inserted else []), "--lr", "0.1"]) for rank in range(2)
        ]
        assert seen.stderr.count(b"deprecated") == 1


def test_a_program_that_is_no_python_needs_use_env_in_both(side_by_side: SideBySide) -> None:
    torchrun, phalanx = side_by_side("pass", "--no-python", named=("true",), launchers=LAUNCHERS)

    assert (torchrun.code, phalanx.code) == (1, 2)
    assert b"you must also set the '--use-env' flag" in torchrun.stderr
    assert b"phalanx: error: --no-python needs --use-env" in phalanx.stderr
    assert b"Traceback" not in phalanx.stderr
