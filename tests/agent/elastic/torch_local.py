"""torch's own ``LocalElasticAgent`` on one node: a program, which prints the environments of its workers as JSON.

Its workers are commands: what they are told is the same, and a function would import torch in each of them.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from pathlib import Path

TELL = """
import json, os, sys
with open(f"{sys.argv[1]}/{os.environ['RANK']}", "w") as told:
    json.dump(dict(os.environ), told)
"""

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    handler = get_rendezvous_handler(RendezvousParameters("c10d", "localhost:0", "job", 1, 1))
    with tempfile.TemporaryDirectory() as folder:
        spec = WorkerSpec("trainer", 2, handler, entrypoint=sys.executable, args=("-c", TELL, folder))
        LocalElasticAgent(spec, DefaultLogsSpecs(log_dir=os.devnull)).run()
        print(json.dumps({one.name: json.loads(one.read_text()) for one in Path(folder).iterdir()}))
    handler.shutdown()
