"""What happened in the demo's job: folded from its job events and its loss curve, and told in sentences."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.events import job
from phalanx.events.status import JobStatus, WorkerStatus


@dataclass
class Story:
    """The job so far."""

    steps: int
    """How many it is to take."""
    curve: Path
    """Where it writes its losses."""
    losses: dict[int, float] = field(default_factory=dict)
    step: int = 0
    """Where it is."""
    status: JobStatus = field(default_factory=JobStatus)
    told: list[str] = field(default_factory=list)
    """What happened, a sentence each."""
    lost: WorkerStatus | None = None
    lost_near_step: int = 0
    """Where the job was seen to be when the worker was killed."""
    lost_at_step: int | None = None
    """How far the job had come when it was lost. Known when all of its workers have ended: others may have taken the
    step that they were in."""
    resumed_at_step: int | None = None
    restarted_after_s: float = math.nan
    """From the death to the moment when all workers ran again."""
    _lost_at_ns: int = 0
    _began_at_ns: int = 0
    _read: int = 0

    @property
    def final_loss(self) -> float:
        """The loss of the last step; not a number if there was none."""
        return self.losses.get(self.steps, math.nan)

    def killed(self, worker: WorkerStatus) -> None:
        """Note that this worker was sent SIGKILL just now."""
        self.lost, self.lost_near_step = worker, self.step
        self.told.append(f"kill -9 {worker.pid}: the end of rank {worker.rank}")

    @property
    def loss_of_worker(self) -> str:
        """The loss in a sentence, with what is known of it by now; nothing if there was none."""
        if self.lost is None:
            return ""
        killed = f"kill -9 {self.lost.pid}: the end of rank {self.lost.rank}"
        if self.lost_at_step is None:
            return killed
        return f"{killed} at step {self.lost_at_step}; resumed at step {self.resumed_at_step}"

    def read_curve(self) -> None:
        """Read what the job has added to its curve."""
        if not self.curve.exists():
            return
        with self.curve.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break  # the rest of it comes
                self._read += len(line)
                entry = json.loads(line)
                if entry["step"] <= self.step:
                    self.lost_at_step, self.resumed_at_step = self.step, entry["step"] - 1
                    self.told.append(
                        f"had come to step {self.lost_at_step}, "
                        f"resumed at the checkpoint of step {self.resumed_at_step}"
                    )
                self.step = entry["step"]
                self.losses[self.step] = entry["loss"]

    def take(self, event: job.JobEvent) -> None:
        """Take in a job event."""
        if (sentence := self._sentence(event)) is not None:
            self.told.append(sentence)

    def _sentence(self, event: job.JobEvent) -> str | None:
        match event:
            case job.RoundSettled(round=number, world_size=size):
                return f"round {number} begins with {size} workers"
            case job.WorkersStarted(at_ns=at, pids=pids):
                self._began_at_ns = self._began_at_ns or at
                if self._lost_at_ns and math.isnan(self.restarted_after_s):
                    self.restarted_after_s = (at - self._lost_at_ns) / 1e9
                return f"workers run as processes {', '.join(map(str, pids.values()))}"
            case job.CheckpointSaved(step=step):
                return f"checkpoint of step {step} saved"
            case job.WorkerEnded(rank=rank, exit_code=code) if code == -9:
                if self.lost is not None and self.lost.rank == rank and not self._lost_at_ns:
                    self._lost_at_ns = event.at_ns
                return f"rank {rank} was killed by SIGKILL"
            case job.StopBegan(reason=reason):
                return reason
            case job.RestartDecided(reason=reason):
                return f"starting anew: {reason}"
            case job.JobEnded(ending=ending):
                return f"job {ending}"
        return None

    @property
    def lost_after_s(self) -> float:
        """When the worker was lost, from the first start of workers on."""
        return (self._lost_at_ns - self._began_at_ns) / 1e9


def summary(story: Story, undisturbed: Story) -> list[str]:
    """Return what a person wants to know at the end, a line each."""
    if story.lost is None or story.lost_at_step is None or story.resumed_at_step is None:
        return [f"no worker was lost; final loss {story.final_loss:.6f}"]
    twice = story.lost_at_step - story.resumed_at_step
    is_same = story.final_loss == undisturbed.final_loss
    return [
        "",
        f"lost          rank {story.lost.rank} (process {story.lost.pid}), by kill -9 from outside",
        f"when          at step {story.lost_at_step} of {story.steps}, after {story.lost_after_s:.1f} s",
        f"restart       all workers ran again {story.restarted_after_s * 1000:.0f} ms after its death",
        f"resume        from the checkpoint of step {story.resumed_at_step}: {twice} steps were done twice",
        f"final loss    {story.final_loss:.6f}",
        f"undisturbed   {undisturbed.final_loss:.6f}: {'the same, to the last bit' if is_same else 'NOT THE SAME'}",
    ]
