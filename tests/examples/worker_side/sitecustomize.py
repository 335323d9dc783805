"""Holds workers at the steps of BLACK_BOX_GATES until a test opens them: what happens to a job then is no race.

Python imports it at its start. A worker that comes to a gate tells the test so, from within `phalanx.progress`, and
naps until there is a file with the gate's name: who begins anew afterwards passes. Meanwhile it tells when its agent
has asked it to save, or to leave: an agent says what it does before it does so.

BLACK_BOX_LAST_STEP is a gate that nobody opens, for the first attempt of a job that has something happen to it: a test
that cannot see when that was must not find the job at its end.
"""

import os
import sys


def _hold() -> None:
    import time
    from pathlib import Path

    from telling import tell

    import phalanx

    gates = {int(step) for step in os.environ["BLACK_BOX_GATES"].split(",")}
    folder = Path(os.environ["BLACK_BOX_GATE_FOLDER"])
    tell_agent = phalanx.progress

    def progress(step: int) -> None:
        tell_agent(step)
        if step in gates and not (folder / str(step)).exists():
            tell("held", step=step, world=int(os.environ["WORLD_SIZE"]))
            is_asked = False
            while not (folder / str(step)).exists():
                if not is_asked and phalanx.should_checkpoint():
                    is_asked = True
                    tell("asked", step=step)
                time.sleep(0.01)

    phalanx.progress = progress


def _end_at_the_last_step() -> None:
    import time

    import phalanx

    last = int(os.environ["BLACK_BOX_LAST_STEP"])
    tell_agent = phalanx.progress

    def progress(step: int) -> None:
        tell_agent(step)
        while step >= last and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and PAUSES in sys.argv:
            time.sleep(0.01)

    phalanx.progress = progress


PAUSES = "0.02"  # of the job that is disturbed; the other one has none

if "RANK" in os.environ and os.environ.get("BLACK_BOX_GATES"):
    _hold()
if "RANK" in os.environ and os.environ.get("BLACK_BOX_LAST_STEP"):
    _end_at_the_last_step()
