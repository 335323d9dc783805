"""A worker that says who it is, meets all others through files, and does what its arguments say.

worker.py FOLDER fail-once | fail | wait
"""

import os
import sys
import time

folder, what = sys.argv[1:]
names = (
    "RANK",
    "WORLD_SIZE",
    "GROUP_RANK",
    "TORCHELASTIC_RESTART_COUNT",
    "PHALANX_ROUND",
    "MASTER_ADDR",
    "MASTER_PORT",
)
values = [os.environ[name] for name in names]
rank, size, _, restart, round_number = values[:5]
os.write(1, " ".join(["worker", *values, "\n"]).encode())  # whole, beside what the others write
meeting = os.path.join(folder, f"meeting-{round_number}")
os.makedirs(meeting, exist_ok=True)
with open(os.path.join(meeting, rank), "w"):
    pass
while len(os.listdir(meeting)) < int(size) or what == "wait":
    time.sleep(0.05)
if rank == "1" and (what == "fail" or (what == "fail-once" and restart == "0")):
    sys.exit(7)
