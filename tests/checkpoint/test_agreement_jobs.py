"""Real jobs agree on the step to resume from: on one node and on two, with one folder for all or one each."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.system.launch import two_free_ports

from phalanx.checkpoint import Checkpointer

LIMIT_S = 150

pytestmark = pytest.mark.system

_WORKER = """
    import json, logging, os, sys
    from pathlib import Path
    from phalanx.checkpoint import Checkpointer, CheckpointError

    told, layout, folders = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    rank, node = int(os.environ["RANK"]), int(os.environ["GROUP_RANK"])

    class Said(logging.Handler):
        lines = []
        def emit(self, record):
            if record.levelno >= logging.WARNING:
                self.lines.append(record.getMessage())

    logging.getLogger("phalanx.checkpoint").addHandler(Said())
    checkpointer = Checkpointer(folders[node % len(folders)], per_node=layout == "per-node")
    try:
        if os.environ.get("DIES") == str(rank) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            checkpointer._settings.directory.checked = lambda *_, **__: os.kill(os.getpid(), 9)
        loaded = checkpointer.load_latest()
        found = loaded and loaded.step
    except CheckpointError as error:
        found = str(error)
    with open(told, "a") as file:
        file.write(json.dumps([rank, found, Said.lines]) + "\\n")
"""


class Job:
    """A job whose workers load once, on as many nodes as it has folders, or on one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worker = folder / "worker.py"
        self.worker.write_text(textwrap.dedent(_WORKER))
        self.said = ""  # by the agents of the last run

    def steps(self, name: str, *steps: int) -> Path:
        made = Checkpointer(self.folder / name, keep=9, rank=0, local_rank=0, world_size=1)
        for step in steps:
            made.save(step, {f"file{number}": bytes([number]) * 1000 for number in range(8)})
        return self.folder / name

    def run(
        self,
        *folders: Path,
        layout: str = "whole",
        nodes: int = 1,
        workers: int = 4,
        env: dict[str, str] | None = None,
    ) -> tuple[set[Any], dict[int, list[str]]]:
        """What the ranks loaded, and what each has logged."""
        told = self.folder / "told"
        told.unlink(missing_ok=True)
        flags = [
            "--nproc-per-node",
            str(workers),
            "--max-restarts",
            "1",
            "--log-dir",
            str(self.folder / "logs"),
        ]
        if nodes == 1:
            flags += ["--standalone"]
        else:
            flags += [
                "--nnodes",
                str(nodes),
                "--rdzv-backend",
                "c10d",
                "--rdzv-endpoint",
                f"127.0.0.1:{two_free_ports()}",
                "--rdzv-id",
                "job",
            ]
        command = [sys.executable, "-m", "phalanx", "run", *flags, str(self.worker), str(told), layout]
        agents = [
            subprocess.Popen(
                [*command, *map(str, folders)], stderr=subprocess.PIPE, text=True, env=_environment(env)
            )
            for _ in range(nodes)
        ]
        said = [agent.communicate(timeout=LIMIT_S)[1] for agent in agents]
        assert [agent.returncode for agent in agents] == [0] * nodes, said
        self.said = "".join(said)
        lines = [json.loads(line) for line in told.read_text().splitlines()]
        assert sorted(rank for rank, _, _ in lines) == list(range(nodes * workers))
        return {found for _, found, _ in lines}, {rank: logged for rank, _, logged in lines}


def _environment(more: dict[str, str] | None) -> dict[str, str]:

    return {**os.environ, **(more or {})}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("nodes", [1, 2])
def test_all_ranks_load_the_newest_step_of_a_folder_that_all_see(job: Job, nodes: int) -> None:
    found, said = job.run(job.steps("steps", 1, 2, 3), nodes=nodes, workers=4 // nodes)
    assert found == {3}
    assert not any(said.values())


@pytest.mark.parametrize("file", [f"file{number}.bin" for number in range(0, 8, 3)])
def test_a_fault_in_any_ranks_share_moves_all_to_an_older_step_and_is_named_once(job: Job, file: str) -> None:
    steps = job.steps("steps", 1, 2, 3)
    _flip(steps / "step-000000003" / file)
    found, said = job.run(steps)
    assert found == {2}
    assert [len(lines) for _, lines in sorted(said.items())] == [1, 0, 0, 0]
    assert "step 3 is not used: rank " in said[0][0]
    assert f"{file} is damaged" in said[0][0]
    assert "it is now step-000000003.bad" in said[0][0]
    assert Checkpointer(steps, world_size=1).steps() == [1, 2]


def test_nodes_with_folders_of_their_own_load_the_newest_step_that_both_have(job: Job) -> None:
    one, other = job.steps("one", 1, 2, 3), job.steps("other", 1, 2)
    found, said = job.run(one, other, layout="per-node", nodes=2, workers=2)
    assert found == {2}
    assert not any(said.values())
    assert Checkpointer(one, world_size=1).steps() == [1, 2, 3], "a step that one node has is not harmed"


def test_a_step_that_is_damaged_on_one_node_is_set_aside_there_and_not_on_the_other(job: Job) -> None:
    one, other = job.steps("one", 1, 2), job.steps("other", 1, 2)
    _flip(other / "step-000000002" / "file5.bin")
    found, said = job.run(one, other, layout="per-node", nodes=2, workers=2)
    assert found == {1}
    assert sum(map(len, said.values())) == 1
    assert Checkpointer(one, world_size=1).steps() == [1, 2]
    assert Checkpointer(other, world_size=1).steps() == [1]
    assert (other / "step-000000002.bad").is_dir()


def test_nodes_without_a_step_in_common_are_told_what_is_there_and_do_not_begin_anew(job: Job) -> None:
    folders = job.steps("one", 1, 2), job.steps("other")
    texts, _ = job.run(*folders, layout="per-node", nodes=2, workers=1)
    assert len(texts) == 2, "each names its folder"
    for text in texts:
        assert " sees step 2, rank " in text
        assert " sees none" in text
        assert "per_node=True" in text
        assert "To begin anew, remove the folder" in text


def test_an_empty_folder_is_no_reason_to_say_anything(job: Job) -> None:
    found, said = job.run(job.steps("steps"))
    assert found == {None}
    assert not any(said.values())


def test_a_step_of_a_newer_release_is_not_passed_over(job: Job) -> None:
    steps = job.steps("steps", 1, 2)
    manifest = steps / "step-000000002" / "manifest.json"

    value = json.loads(manifest.read_text()) | {"version": 99}
    del value["checksum"]
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    manifest.write_text(json.dumps(value | {"checksum": hashlib.sha256(canonical.encode()).hexdigest()}))
    [text], _ = job.run(steps, workers=2)
    assert "have not agreed on a step to resume from" in text
    assert "was saved by a newer phalanx" in text
    assert Checkpointer(steps, world_size=1).steps() == [1, 2]


def test_when_a_rank_dies_while_they_agree_the_next_round_agrees(job: Job) -> None:
    found, _ = job.run(job.steps("steps", 1, 2, 3), env={"DIES": "2"})
    assert found == {3}
    assert "rank 2 failed: killed by SIGKILL (restart 1 of 1)" in job.said
