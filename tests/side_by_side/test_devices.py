"""Devices and threads as torchrun has them: virtual local ranks by index and UUID, and what is inherited."""

from __future__ import annotations

import pytest
from tests.side_by_side.pair import Seen, SideBySide

PROBE = """
    import os, sys
    from telling import tell

    tell("found", words=sys.argv[1:], **os.environ)
"""
NAMES = ("LOCAL_RANK", "RANK", "LOCAL_WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")


def found(seen: Seen) -> list[tuple[list[str], dict[str, str | None]]]:
    assert seen.code == 0, seen.stderr
    return [(event["words"], {name: event.facts.get(name) for name in NAMES}) for event in seen.told("found")]


@pytest.mark.compat(
    "flag --virtual-local-rank",
    "better",
    "too few devices are told before anything starts; HIP and Level Zero too",
)
@pytest.mark.parametrize(
    ("env", "own"),
    [
        ({"CUDA_VISIBLE_DEVICES": " GPU-8f3b , MIG-c7,9"}, ["GPU-8f3b", "MIG-c7"]),
        ({}, ["0", "1"]),
    ],
    ids=["ids and one too many", "no variable"],
)
def test_each_virtual_rank_sees_its_own_device(
    side_by_side: SideBySide, env: dict[str, str], own: list[str]
) -> None:
    torchrun, phalanx = side_by_side(
        PROBE,
        *("--standalone", "--nproc-per-node", 2, "--virtual-local-rank", "-r", 3),
        arguments=("${local_rank}",),
        env=env,
    )
    assert found(phalanx) == found(torchrun)
    assert [facts["CUDA_VISIBLE_DEVICES"] for _, facts in found(phalanx)] == own
    assert [words for words, _ in found(phalanx)] == [["0"], ["1"]], "the macro is the true local rank"
    ours = {path.partition("/")[2] for path in phalanx.log_files()}
    assert {path.partition("/")[2] for path in torchrun.log_files()} <= ours


@pytest.mark.compat("variable PET_VIRTUAL_LOCAL_RANK", "same")
def test_virtual_ranks_by_the_variable(side_by_side: SideBySide) -> None:
    env = {"PET_VIRTUAL_LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "3,5"}
    torchrun, phalanx = side_by_side(PROBE, "--standalone", "--nproc-per-node", 2, env=env)
    assert found(phalanx) == found(torchrun)
    places = [(facts["LOCAL_RANK"], facts["CUDA_VISIBLE_DEVICES"]) for _, facts in found(phalanx)]
    assert places == [("0", "3"), ("0", "5")]


def test_too_few_devices_end_both_launchers_before_a_worker_runs(side_by_side: SideBySide) -> None:
    torchrun, phalanx = side_by_side(
        PROBE,
        *("--standalone", "--nproc-per-node", 2, "--virtual-local-rank"),
        env={"CUDA_VISIBLE_DEVICES": "3"},
    )
    assert (torchrun.code, phalanx.code) == (1, 2)
    assert not phalanx.told("found")
    assert b"Traceback" in torchrun.stderr
    assert phalanx.stderr == (
        b"phalanx: error: --virtual-local-rank: each worker gets a device of its own, and CUDA_VISIBLE_DEVICES=3 "
        b"has 1 device for 2 workers; start fewer workers\n"
    )


@pytest.mark.compat(
    "variable OMP_NUM_THREADS", "better", "one line instead of a banner; `--omp-threads` shares out the CPUs"
)
@pytest.mark.parametrize(("nproc", "env"), [(1, {}), (2, {}), (2, {"OMP_NUM_THREADS": "3"})])
def test_the_number_of_threads_is_the_same(side_by_side: SideBySide, nproc: int, env: dict[str, str]) -> None:
    torchrun, phalanx = side_by_side(PROBE, "--standalone", "--nproc-per-node", nproc, env=env)
    assert found(phalanx) == found(torchrun)
    banner = b"OMP_NUM_THREADS" in torchrun.stderr
    assert phalanx.stderr.count(b"phalanx: OMP_NUM_THREADS is 1 in each worker") == banner
