"""Two of our agents over torch's c10d handler, one of whose workers fails once: a program, which prints JSON."""

from __future__ import annotations

import json
import sys
import threading
import warnings
from typing import Any

from tests.agent.elastic import workers
from tests.system.launch import two_free_ports

from phalanx.agent.elastic import LocalElasticAgent, WorkerSpec
from phalanx.multiprocessing import DefaultLogsSpecs

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    place = f"localhost:{two_free_ports()}"
    agents: list[Any] = [None, None]
    results: list[Any] = [None, None]

    def run(number: int) -> None:
        # torch's handler connects when it is made, and the one that serves waits for nobody.
        handler = get_rendezvous_handler(
            RendezvousParameters("c10d", place, "job", 2, 2, is_host=number == 0)
        )
        spec = WorkerSpec("trainer", 1, handler, entrypoint=workers.fail_once_env, args=(sys.argv[1],))
        agents[number] = LocalElasticAgent(spec, DefaultLogsSpecs(log_dir="/dev/null"))
        results[number] = agents[number].run()
        handler.shutdown()

    threads = [threading.Thread(target=run, args=(number,)) for number in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    found = {rank: env for one in results for rank, env in one.return_values.items()}
    print(
        json.dumps(
            {
                "ranks": sorted(found),
                "counts": sorted({env["TORCHELASTIC_RESTART_COUNT"] for env in found.values()}),
                "masters": len({(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in found.values()}),
                "left": [one._remaining_restarts for one in agents],
                "store": sorted({env["TORCHELASTIC_USE_AGENT_STORE"] for env in found.values()}),
            }
        )
    )
