"""A worker of a job on several hosts: tells its place in the round, looks for workers of older rounds, takes orders.

The hosts of these tests share one kernel and one folder (`BLACK_BOX_SHARED`), which no job on real machines could
count on; only the test's own looking does. Each worker holds a lock on a file as long as it lives, so a worker of a new
round sees whether one of an older round is still there, wherever it ran.
"""

import fcntl
import os
import sys
import time
from typing import IO

from telling import tell

SHARED = os.environ["BLACK_BOX_SHARED"]
HOST = os.environ["BLACK_BOX_HOST"]
_held: list[IO[str]] = []  # open for life


def begin(**facts: object) -> None:
    """Tell `begun`: the world that this worker finds itself in, and who of an older round is alive (nobody)."""
    number = int(os.environ["PHALANX_ROUND"])
    own = open(f"{SHARED}/alive/{number}-{HOST}-{os.environ['LOCAL_RANK']}", "w")  # noqa: SIM115
    fcntl.flock(own, fcntl.LOCK_EX)
    _held.append(own)
    tell(
        "begun",
        host=HOST,
        round=number,
        world=int(os.environ["WORLD_SIZE"]),
        group=int(os.environ["GROUP_RANK"]),
        nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        reason=os.environ.get("PHALANX_RESTART_REASON", ""),
        run_id=os.environ["TORCHELASTIC_RUN_ID"],
        master=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        older=[
            name
            for name in os.listdir(f"{SHARED}/alive")
            if int(name.split("-")[0]) < number and _is_held(name)
        ],
        **facts,
    )


def _is_held(name: str) -> bool:
    # Shared: two workers that look at the same time must not take each other for its holder.
    with open(f"{SHARED}/alive/{name}") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def order() -> str:
    """What the test has ordered: for this host (taken once, by one worker), or for all."""
    for path in (f"{SHARED}/orders/{HOST}", f"{SHARED}/orders/all"):
        try:
            with open(path) as file:
                text = file.read()
            if not path.endswith("/all"):
                os.unlink(path)
        except FileNotFoundError:
            continue
        return text
    return ""


def obey(text: str) -> None:
    """Carry out an order: ``exit <code>`` or ``raise <text>``."""
    verb, _, rest = text.partition(" ")
    tell("obeying", order=text)
    if verb == "raise":
        raise RuntimeError(rest)
    sys.exit(int(rest))


def attend() -> None:
    """Be a worker that does nothing until it is told to end; in naps, as `telling.stay` does."""
    if not _held:
        begin()
    for _ in range(20_000):
        if text := order():
            obey(text)
        time.sleep(0.05)


def reduce_for_ever() -> None:
    """Be a worker of a real process group, which adds up ones in each step, until all are told to end."""
    import torch
    import torch.distributed as dist

    begin()
    dist.init_process_group("gloo")
    dist.barrier()
    for step in range(20_000):
        text = order() if dist.get_rank() == 0 or os.path.exists(f"{SHARED}/orders/{HOST}") else ""
        if text and not text.endswith(" 0"):
            obey(text)
        votes = torch.tensor([1.0, 1.0 if text else 0.0])
        dist.all_reduce(votes)
        if step == 0:
            tell("reduced", host=HOST, round=int(os.environ["PHALANX_ROUND"]), total=votes[0].item())
        if votes[1].item():
            break
        time.sleep(0.05)
    dist.destroy_process_group()
