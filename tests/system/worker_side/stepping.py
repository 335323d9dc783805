"""A worker whose steps have a collective, and which saves and leaves at the steps that all ranks agree on.

It tells `ready` when its agent hears it, `saved` and `left` with the step, and `going` in the tenth step after a save.
"""

import os
import sys
import time
from collections.abc import Callable

from telling import tell

import phalanx

ROUND = int(os.environ.get("PHALANX_ROUND", "0"))
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def meet(step: int) -> None:
    """All ranks are in this step: by the values that they share."""
    values = phalanx.values()
    if values.add(f"met/{step}") == WORLD:
        values.set(f"all met/{step}", b"")
    values.get(f"all met/{step}")
    if RANK == 0 and step > 1:  # nobody is there any more
        values.delete_key(f"met/{step - 2}")
        values.delete_key(f"all met/{step - 2}")


def train(collective: Callable[[int], object] = meet, pause_s: float = 0.01) -> None:
    """Until it is told to stop."""
    saved_at = None
    for step in range(1_000_000):
        collective(step)
        if phalanx.should_checkpoint(step):
            tell("saved", step=step, round=ROUND, world=WORLD)
            saved_at = step
            if RANK == 0:
                phalanx.checkpoint_done(step)
        if phalanx.should_stop(step):
            tell("left", step=step, round=ROUND, world=WORLD)
            sys.exit(0)
        if step == 0:
            phalanx.values().set(
                f"here/{RANK}", b""
            )  # answered: the agent has read what this worker said before
            tell("ready", round=ROUND, world=WORLD, local_rank=int(os.environ["LOCAL_RANK"]))
        if saved_at is not None and step == saved_at + 10:
            tell("going", round=ROUND, saved_at=saved_at)
        time.sleep(pause_s)
