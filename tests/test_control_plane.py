from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ASKING = """
import os, socket
from phalanx.control_plane import worker_main

@worker_main()
def main():
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(os.environ["TORCH_WORKER_SERVER_SOCKET"])
        link.sendall(b"POST /handler/ping HTTP/1.0\\r\\nContent-Length: 0\\r\\n\\r\\n")
        answer = b""
        while part := link.recv(4096):
            answer += part
    print(answer.decode().splitlines()[0])

main()
"""


@pytest.mark.torch
@pytest.mark.compat("name torch.distributed.elastic.control_plane.worker_main", "same")
@pytest.mark.compat("variable TORCH_WORKER_SERVER_SOCKET", "same")
def test_torchs_handlers_are_served_while_the_block_runs(tmp_path: Path) -> None:
    env = {**os.environ, "TORCH_WORKER_SERVER_SOCKET": str(tmp_path / "worker.sock")}
    done = subprocess.run([sys.executable, "-c", ASKING], env=env, capture_output=True, text=True)
    assert "200" in done.stdout, done.stderr


def test_without_a_socket_torch_is_not_imported() -> None:
    program = (
        "import sys; from phalanx.control_plane import worker_main\n"
        "with worker_main(): print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_without_torch_who_asks_for_its_server_is_told_so(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from phalanx.control_plane import worker_main\nwith worker_main(): pass"
    )
    env = {**os.environ, "TORCH_WORKER_SERVER_SOCKET": str(tmp_path / "worker.sock")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert "has no torch that offers it" in done.stderr
