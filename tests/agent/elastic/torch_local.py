"""torch's own ``LocalElasticAgent`` on one node: a program, which prints the environments of its workers as JSON."""

from __future__ import annotations

import json
import os
import warnings


def told():
    return dict(os.environ)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    handler = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "job", 1, 1))
    spec = WorkerSpec("trainer", 2, handler, entrypoint=told)
    result = LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=os.devnull)).run()
    print(json.dumps(result.return_values))
    handler.shutdown()
