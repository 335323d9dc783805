"""Holds workers at the steps of BLACK_BOX_GATES until a test opens them: what happens to a job then is no race.

Python imports it at its start. A worker that comes to a gate tells the test so, from within `phalanx.progress`, and
naps until there is a file with the gate's name: who begins anew afterwards passes.
"""

import os


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
            while not (folder / str(step)).exists():
                time.sleep(0.01)

    phalanx.progress = progress


if "RANK" in os.environ and os.environ.get("BLACK_BOX_GATES"):
    _hold()
