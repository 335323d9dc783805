"""A rendezvous handler of an installed package drives real agents with real workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.events import from_line, job
from phalanx.testing.job_events import JobEventsAreCoherent
from phalanx.testing.trace import Happened

pytestmark = pytest.mark.system

PLUG_IN = Path(__file__).parent / "plug_in"
PATIENCE_S = 90.0


class Agent:
    """One `phalanx run`. ``workers`` are the lines that its workers have said, as lists of words."""

    def __init__(self, arguments: list[str], *, env: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "phalanx", "run", *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def workers(self) -> list[list[str]]:
        return [line.split()[1:] for line in self.lines if line.startswith("worker ")]

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()

    def said(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def wait_until_said(self, words: str) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.said(words), PATIENCE_S), self.lines

    def ended(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[list[Agent]]:
    started: list[Agent] = []
    yield started
    for agent in started:
        agent.end()


def start(agents: list[Agent], folder: Path, what: str, *options: str) -> Agent:
    """Start an agent of the job in ``folder``, on whose machine the plug-in is installed."""
    installed = folder / "installed"
    info = installed / "folder_rendezvous-1.dist-info"
    if not info.exists():
        info.mkdir(parents=True)
        (installed / "folder_rendezvous.py").symlink_to(PLUG_IN / "folder_rendezvous.py")
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: folder-rendezvous\nVersion: 1\n")
        (info / "entry_points.txt").write_text("[torchrun.handlers]\nfolder = folder_rendezvous:generator\n")
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH", "")]))
    agent = Agent(
        [
            *("--rdzv-backend", "folder", "--rdzv-endpoint", str(folder / "meeting"), "--rdzv-id", "job"),
            *("--nproc-per-node", "2", "--log-dir", str(folder / "logs"), *options),
            *(str(PLUG_IN / "worker.py"), str(folder), what),
        ],
        env={**os.environ, "PYTHONPATH": path},
    )
    agents.append(agent)
    return agent


def test_a_job_of_two_nodes_runs_through_a_failure_with_one_restart_count(
    agents: list[Agent], tmp_path: Path
) -> None:
    for _ in range(2):
        start(agents, tmp_path, "fail-once", "--nnodes", "2", "--max-restarts", "1")
    assert [agent.ended() for agent in agents] == [0, 0], [agent.lines for agent in agents]
    workers = [worker for agent in agents for worker in agent.workers]
    for restart in ("0", "1"):
        of_round = [worker for worker in workers if worker[3] == restart]
        assert sorted(int(worker[0]) for worker in of_round) == [0, 1, 2, 3], [
            agent.lines for agent in agents
        ]
        assert {worker[1] for worker in of_round} == {"4"}
        assert len({tuple(worker[4:]) for worker in of_round}) == 1  # the round, and where rank 0 is
    assert all(agent.said("each node counts its own restarts and speaks its own verdict") for agent in agents)


def test_what_agents_with_such_a_handler_tell_is_coherent(agents: list[Agent], tmp_path: Path) -> None:
    files = [tmp_path / f"events{number}" for number in range(2)]
    for file in files:
        start(
            agents, tmp_path, "fail-once", "--nnodes", "2", "--max-restarts", "1", "--events-file", str(file)
        )
    assert [agent.ended() for agent in agents] == [0, 0], [agent.lines for agent in agents]
    for file in files:
        told = [from_line(line) for line in file.read_text().splitlines()]
        checker = JobEventsAreCoherent()
        for one in told:
            assert one is not None
            checker.see(0.0, Happened("agent", one))
        opened = [one.round for one in told if isinstance(one, job.RoundOpened)]
        again = [(one.round, one.restart_count) for one in told if isinstance(one, job.RestartDecided)]
        settled = [(one.round, one.restart_count) for one in told if isinstance(one, job.RoundSettled)]
        assert settled == [(opened[0], 0), (opened[0] + 1, 1)]
        assert settled[1] in again
        assert isinstance(told[-1], job.JobEnded)


def test_the_node_whose_worker_failed_ends_with_its_code(agents: list[Agent], tmp_path: Path) -> None:
    start(agents, tmp_path, "fail", "--nnodes", "1")
    assert agents[0].ended() == 7


def test_a_node_that_comes_later_is_taken_in(agents: list[Agent], tmp_path: Path) -> None:
    first = start(agents, tmp_path, "wait", "--nnodes", "1:2")
    first.wait_until_said("worker 1 2 ")
    second = start(agents, tmp_path, "wait", "--nnodes", "1:2")
    for agent in (first, second):
        agent.wait_until_said(" 4 ")
    assert first.said("1 node waiting for another round")
    for agent in (first, second):
        agent.process.send_signal(signal.SIGTERM)
    assert [agent.ended() for agent in agents] == [143, 143]


def test_a_stop_signal_ends_an_agent_whose_handler_waits(agents: list[Agent], tmp_path: Path) -> None:
    agent = start(agents, tmp_path, "wait", "--nnodes", "2")
    agent.wait_until_said("has not formed a round yet")
    agent.process.send_signal(signal.SIGINT)
    assert agent.ended() == 130


def test_workers_cannot_be_restarted_one_by_one_and_that_is_one_sentence(
    tmp_path: Path, agents: list[Agent]
) -> None:
    agent = start(
        agents, tmp_path, "ends", "--nnodes", "1:2", "--restart-scope", "worker", "--max-restarts", "1"
    )
    assert agent.ended() == 2
    (line,) = [line for line in agent.lines if line]
    assert (
        "--restart-scope: workers cannot be restarted one by one: the rendezvous handler of the backend 'folder' knows "
        "whole rounds only" in line
    )
