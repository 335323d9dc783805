"""An agent of ours joins another one over torch's c10d handler: a program, which prints JSON. Needs torch.

Arguments: a folder, and the addresses of the first node and of the one that joins, whose order is that of the ranks.
"""

from __future__ import annotations

import json
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from tests.agent.elastic import workers
from tests.system.launch import two_free_ports

from phalanx.agent.elastic import LocalElasticAgent, WorkerSpec
from phalanx.multiprocessing import DefaultLogsSpecs

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    folder, *addresses = sys.argv[1:]
    place = f"localhost:{two_free_ports()}"
    results: list[Any] = [None, None]

    def run(number: int) -> None:
        params = RendezvousParameters(
            "c10d", place, "job", 1, 2, addresses[number], is_host=number == 0, last_call_timeout=1
        )
        handler = get_rendezvous_handler(params)
        spec = WorkerSpec("trainer", 1, handler, entrypoint=workers.wait_for_world, args=(2, folder))
        results[number] = LocalElasticAgent(spec, DefaultLogsSpecs(log_dir="/dev/null")).run()
        handler.shutdown()

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    threads[0].start()
    while not list(Path(folder).glob("1-0-*")):
        time.sleep(0.02)
    threads[1].start()
    for one in threads:
        one.join()
    names = ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    told = [sorted(one.return_values) for one in results]
    masters = {tuple(env[name] for name in names) for one in results for env in one.return_values.values()}
    print(json.dumps({"ranks": told, "counts": [one[:2] for one in masters]}))
