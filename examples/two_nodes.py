"""Two nodes of one job on this machine; one dies, the other goes on, and the first comes back.

    python examples/two_nodes.py

Each node is an agent, started as one would start it on a machine of its own; only the addresses are those of
loopback. n1 serves the store in which they meet. n2 is killed, agent and workers: n1 hears nothing more of it, and when
its lease of three seconds has ended forms a round of its own. When n2 is started again, both form one.
"""

from __future__ import annotations

import os
import queue
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from pathlib import Path

SCRIPT = Path(__file__).parent / "numpy/train.py"
PATIENCE_S = 120.0
STEPS = 400


class Node:
    """An agent with two workers. What it prints is shown with the node's name, and can be waited for."""

    def __init__(self, name: str, *, address: str, port: int, checkpoints: Path) -> None:
        print(f"{name} | starts", flush=True)
        meeting = ["--nnodes", "1:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        lease = "keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=3"
        own = [
            "--rdzv-id",
            "two-nodes",
            "--rdzv-conf",
            lease,
            "--local-addr",
            address,
            "--nproc-per-node",
            "2",
        ]
        script = [
            str(SCRIPT),
            "--steps",
            str(STEPS),
            "--step-seconds",
            "0.06",  # so that the job is not over before the story is
            "--checkpoints",
            str(checkpoints),
        ]
        self._agent = subprocess.Popen(
            [sys.executable, "-m", "phalanx", "run", *meeting, *own, *script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(checkpoints.parent)},
            text=True,
        )
        self._name = name
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._show, daemon=True).start()

    def _show(self) -> None:
        assert self._agent.stdout is not None
        for line in self._agent.stdout:
            print(f"{self._name} | {line}", end="", flush=True)
            self._lines.put(line)
        self._lines.put(None)

    def wait_line(self, beginning: str) -> None:
        """Wait until the node has printed a line that begins so."""
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            if line.startswith(beginning):
                return
        raise SystemExit(f"{self._name} ended with {self._agent.wait()}, and never said {beginning!r}")

    def lose_power(self) -> None:
        """Kill the agent; its keeper, which would outlive a machine no better, takes the workers along."""
        print(f"{self._name} | kill -9", flush=True)
        self._agent.kill()
        self._agent.wait()

    def wait(self) -> int:
        """Wait for the node's end, and return its exit code."""
        return self._agent.wait(PATIENCE_S)

    def close(self) -> None:
        """Stop the node, if it still runs."""
        with suppress(ProcessLookupError):
            os.kill(self._agent.pid, signal.SIGTERM) if self._agent.poll() is None else None
        self._agent.wait()


def free_port() -> int:
    """Return a port that nobody has at this moment, below those that the kernel hands out: n1 serves there later."""
    while True:
        port = random.randrange(10_000, 30_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def main() -> int:
    """Play the story; 0 if both nodes were there at its end."""
    with tempfile.TemporaryDirectory(prefix="phalanx-two-nodes-") as folder, ExitStack() as nodes:
        port = free_port()

        def start(name: str, address: str) -> Node:
            node = Node(name, address=address, port=port, checkpoints=Path(folder) / "checkpoints")
            nodes.callback(node.close)
            return node

        n1 = start("n1", "127.0.0.1")
        n1.wait_line("starting at step 0 with 2 workers")  # nobody else came in three seconds
        n2 = start("n2", "127.0.0.2")
        n1.wait_line("starting at")
        n1.wait_line("step ")
        n2.lose_power()
        n1.wait_line("starting at")
        n1.wait_line("step ")
        n2 = start("n2", "127.0.0.2")
        n1.wait_line("starting at")
        n1.wait_line("trained to")
        codes = n1.wait(), n2.wait()
    print(f"n1 ended with {codes[0]}, n2 with {codes[1]}")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
