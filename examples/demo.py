"""``make demo``: a job of four workers loses one in the middle, recovers, and goes on where it was.

The job is examples/numpy/train.py. This program starts it, watches it, and kills a worker from outside, as an operator
or the kernel would; the training script knows nothing of it. In a terminal there is a picture, elsewhere plain lines.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

from demo_picture import watching
from demo_story import Story, summary

from phalanx.cli.run import run_options
from phalanx.launcher import Outcome, start_agent

SCRIPT = Path(__file__).parent / "numpy/train.py"


def main() -> int:
    """Run the job with a loss in the middle, and once more without one; 0 if both came to the same result."""
    flags = argparse.ArgumentParser(description="A job loses a worker, recovers, and goes on where it was.")
    flags.add_argument("--steps", type=int, default=240)
    flags.add_argument("--lose-rank", type=int, default=2)
    flags.add_argument("--at-step", type=int, default=130)
    flags.add_argument(
        "--step-seconds", type=float, default=0.03, help="pause in each step, to be able to watch it"
    )
    args = flags.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="phalanx-demo-") as folder:
            return play(args, Path(folder))
    except KeyboardInterrupt:
        print("interrupted; the job was stopped, and nothing of it is left", file=sys.stderr)
        return 128 + signal.SIGINT


def play(args: argparse.Namespace, folder: Path) -> int:
    """Run both jobs in this folder, and tell how they went."""
    story = Story(steps=args.steps, curve=folder / "curve.jsonl")
    outcome = run(args, folder, story, lose_rank=args.lose_rank)
    if outcome.exit_code != 0:
        return failed(outcome)
    (folder / "undisturbed").mkdir()
    undisturbed = Story(steps=args.steps, curve=folder / "undisturbed/curve.jsonl")
    print("once more, with all workers left alone and without pauses …", flush=True)
    outcome = run(
        argparse.Namespace(**{**vars(args), "step_seconds": 0.0}), folder / "undisturbed", undisturbed
    )
    if outcome.exit_code != 0:
        return failed(outcome)
    for line in summary(story, undisturbed):
        print(line)
    return 0 if story.lost is not None and story.final_loss == undisturbed.final_loss else 1


def failed(outcome: Outcome) -> int:
    """Say why a job failed; returns its exit code."""
    print(outcome.report or f"the job ended with {outcome.exit_code}", file=sys.stderr)
    return outcome.exit_code


def run(args: argparse.Namespace, folder: Path, story: Story, lose_rank: int | None = None) -> Outcome:
    """Run the job to its end, and kill the worker of rank ``lose_rank`` when the job has come to the wanted step."""
    launcher = ["--nproc-per-node", "4", "--max-restarts", "1", "--omp-threads", "1"]
    script = [str(SCRIPT), "--steps", str(args.steps), "--step-seconds", str(args.step_seconds)]
    launcher += ["--log-dir", str(folder / "logs")]
    files = ["--checkpoints", str(folder / "checkpoints"), "--curve", str(story.curve)]
    with (
        (folder / "output").open("wb") as output,
        watching(story, is_silent=lose_rank is None) as view,
        start_agent(run_options([*launcher, *script, *files]), stdout=output, stderr=output) as agent,
    ):
        while True:
            outcome = agent.wait(0.1, on_event=story.take)
            story.read_curve()
            story.status = agent.status()
            if lose_rank is not None and story.lost is None and story.step >= args.at_step:
                kill(story, lose_rank)
            view.show()
            if outcome is not None:
                return outcome


def kill(story: Story, rank: int) -> None:
    """``kill -9``: what the worker was doing is lost, and it cannot say goodbye."""
    for worker in story.status.workers:
        if worker.rank == rank and worker.state == "running":
            os.kill(worker.pid, signal.SIGKILL)
            story.killed(worker)


if __name__ == "__main__":
    sys.exit(main())
