"""Trains the examples, with and without failures, and reads what came of it.

A job is held at given steps (`worker_side/sitecustomize.py`), so that a test does what it does to a job that stands
there, and not to one that may have ended by then. The job's own files tell the rest.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.system.launch import LIMIT_S, WORKER_SIDE, Job, Launcher, launcher_under_test
from tests.system.machines import Agent, Host, Network

from phalanx.checkpoint import Checkpointer

ROOT = Path(__file__).parents[2]
NUMPY = ROOT / "examples/numpy/train.py"
DDP = ROOT / "examples/ddp/train.py"
HERE = Path(__file__).parent


class Training:
    """One training in a folder of its own: its curve and its checkpoints outlive the jobs that add to them."""

    def __init__(
        self, folder: Path, script: Path, arguments: Sequence[object], *, gates: Sequence[int] = ()
    ) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.curve = folder / "curve.jsonl"
        self._gates = folder / "gates"
        self._gates.mkdir(parents=True)
        self._jobs: list[Job] = []
        self._command = (
            *(script, *arguments),
            *("--checkpoints", self.checkpoints, "--curve", self.curve),
        )
        self._env = {
            "PYTHONPATH": os.pathsep.join([str(HERE / "worker_side"), str(WORKER_SIDE)]),
            "BLACK_BOX_GATES": ",".join(map(str, gates)),
            "BLACK_BOX_GATE_FOLDER": str(self._gates),
            "OMP_NUM_THREADS": "1",
        }

    # Jobs

    def start(self, *options: object, launcher: Launcher | None = None) -> Job:
        """Start an agent on this machine, or another launcher, of which nothing but its exit is known."""
        folder = self._next_folder()
        own = () if launcher else ("--events-file", folder / "events")
        arguments = tuple(map(str, (*options, *own, *self._command)))
        job = Job(launcher or launcher_under_test(), arguments, folder=folder, env=self._env)
        self._jobs.append(job)
        return job

    def start_on(self, host: Host, network: Network, *options: object) -> Agent:
        """Start an agent on a host of its own."""
        folder = self._next_folder()
        arguments = tuple(map(str, (*options, "--events-file", folder / "events", *self._command)))
        agent = Agent(host, network, arguments, env=self._env, folder=folder)
        self._jobs.append(agent)
        return agent

    def run(self, *options: object) -> None:
        """Run an agent to its good end."""
        job = self.start(*options)
        assert self.end_of(job) == 0, job.so_far()

    def end_of(self, job: Job) -> int:
        """Wait until the launcher has ended; its return code. Patience begins anew with each step that is taken."""
        size, patience_ends = -1, 0.0
        while job.process.poll() is None:
            if (now := self.curve.stat().st_size if self.curve.exists() else 0) != size:
                size, patience_ends = now, time.monotonic() + 3 * LIMIT_S
            assert time.monotonic() < patience_ends, f"no step is taken any more\n{job.so_far()}"
            time.sleep(0.05)
        return job.wait()

    def _next_folder(self) -> Path:
        return self.folder / f"job{len(self._jobs)}"

    def open(self, gate: int) -> None:
        """Let workers go on from this step, these and all that come."""
        (self._gates / str(gate)).touch()

    def close(self) -> None:
        """End what still runs; whatever else a test asserts: an agent that ended has left nothing of its job alive."""
        for job in self._jobs:
            with job:
                if job.process.poll() is not None:
                    job.wait_nobody()

    # What came of it

    def told(self) -> list[tuple[int, float]]:
        """Each step that was taken, in order, with its loss."""
        entries = map(json.loads, self.curve.read_text().splitlines())
        return [(entry["step"], entry["loss"]) for entry in entries]

    def losses(self, *, within: float = 0.0) -> dict[int, float]:
        """The loss of each step; one that was done twice had the same loss both times."""
        losses: dict[int, float] = {}
        for step, loss in self.told():
            assert abs(losses.setdefault(step, loss) - loss) <= within, (
                f"step {step}: {losses[step]}, then {loss}"
            )
            losses[step] = loss
        return losses

    def done_twice(self) -> list[int]:
        """Steps that were taken more than once."""
        steps = [step for step, _ in self.told()]
        return sorted({step for step in steps if steps.count(step) > 1})

    def resumed_at(self) -> list[int]:
        """The steps at which the job went on, in order, its first start left out."""
        steps = [step for step, _ in self.told()]
        return [after - 1 for before, after in itertools.pairwise(steps) if after <= before]

    def value(self) -> dict[str, Any]:
        """The last checkpoint of the numpy job."""
        loaded = Checkpointer(self.checkpoints).load_latest()
        assert loaded is not None
        return {"step": loaded.step, **loaded.value}


def assert_same(found: Training, wanted: Training) -> None:
    """Both took the same steps with the same losses, and came to the same weights: to the last bit."""
    assert found.losses() == wanted.losses()
    mine, other = found.value(), wanted.value()
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        assert np.array_equal(value, other[name]), name


def assert_close(found: Training, wanted: Training) -> None:
    """The same but for the order in which numbers were added up.

    Two jobs of unlike size sum the same gradients in another order. In float64 that is an error of about 1e-16 in each
    step; a few hundred steps that converge do not make it 1e-9. A batch that is lost or taken twice
    moves the loss by 1e-2.
    """
    mine, other = found.losses(within=1e-9), wanted.losses()
    assert mine.keys() == other.keys()
    assert max(abs(mine[step] - other[step]) for step in mine) < 1e-9
    np.testing.assert_allclose(found.value()["weights"], wanted.value()["weights"], rtol=0, atol=1e-9)
    assert found.value()["sampler"] == wanted.value()["sampler"]


# Waiting for what an agent tells


def events(job: Job, name: str) -> list[dict[str, Any]]:
    """What the agent has told so far of this kind."""
    path = job.folder / "events"
    text = path.read_text() if path.exists() else ""
    told = map(json.loads, text[: text.rfind("\n") + 1].splitlines())
    return [event for event in told if event["event"] == name]


def wait_event(job: Job, name: str, *, count: int = 1, **facts: object) -> dict[str, Any]:
    """Wait until the agent has told this, with these facts, so many times; the last of them."""

    def found() -> list[dict[str, Any]]:
        return [
            event for event in events(job, name) if all(event[key] == value for key, value in facts.items())
        ]

    wait_until(job, lambda: len(found()) >= count, f"{count} × {name} with {facts}")
    return found()[count - 1]


def wait_until(job: Job, is_true: Callable[[], bool], awaited: str) -> None:
    """Wait for a fact about files, of whose growth nobody tells."""
    deadline = time.monotonic() + LIMIT_S
    while not is_true():
        assert time.monotonic() < deadline, f"waited in vain for {awaited}\n{job.so_far()}"
        assert job.process.poll() is None or is_true(), f"ended before {awaited}\n{job.so_far()}"
        time.sleep(0.02)


def held(job: Job, step: int, rank: int) -> int:
    """Wait until this rank is held at this step; its process."""
    return job.until("held", step=step, rank=rank).pid


def wait_asked(job: Job, step: int, *ranks: int) -> None:
    """Wait until all of these, which are held at this step, know that they are to save or to leave.

    What the agent tells does not show that: it says what it does before it does so. Who went on without knowing might
    come to any step.
    """
    for rank in ranks:
        job.until("asked", step=step, rank=rank)
