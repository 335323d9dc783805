"""Cases 8, 9 and 10 as users may type them: several nodes of a job on one machine, over loopback."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, Job, Launch, Script, two_free_ports

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")


class Nodes:
    """Starts the nodes of one job on this machine, each under a name of its own."""

    def __init__(self, launch: Launch, folder: Path) -> None:
        self._launch = launch
        self._shared = folder / "shared"
        for name in ("alive", "orders"):
            (self._shared / name).mkdir(parents=True)
        self._port = two_free_ports()
        self._endpoint = f"127.0.0.1:{self._port}"

    def start(self, name: str, *arguments: object) -> Job:
        meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", self._endpoint, "--rdzv-id", "job")
        env = {"BLACK_BOX_HOST": name, "BLACK_BOX_SHARED": str(self._shared)}
        return self._launch(*meeting, *arguments, env=env)

    def wait_served(self) -> None:
        """Until the store answers: who is there now serves it."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            with (
                contextlib.suppress(ConnectionRefusedError),
                socket.create_connection(("127.0.0.1", self._port)),
            ):
                return
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def order(self, text: str) -> None:
        path = self._shared / "orders/all"
        path.with_suffix(".new").write_text(text)
        path.with_suffix(".new").rename(path)


@pytest.fixture
def nodes(launch: Launch, tmp_path: Path) -> Nodes:
    return Nodes(launch, tmp_path)


@pytest.mark.parametrize(
    "go",
    [lambda job: job.send(signal.SIGTERM), lambda job: job.send(signal.SIGKILL)],
    ids=["SIGTERM", "SIGKILL"],
)
def test_a_node_leaves(nodes: Nodes, script: Script, go: Callable[[Job], None]) -> None:
    """No timer but that of the lease is waited for: the last call is longer than the limit of the test."""
    conf = f"keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout={2 * LIMIT_S}"
    arguments = ("--nnodes", "1:2", "--max-restarts", 0, "--rdzv-conf", conf)
    train = script("from meeting import attend; attend()")
    a = nodes.start("a", *arguments, train)
    nodes.wait_served()  # else b may serve the store, and what happens is another case
    b = nodes.start("b", *arguments, train)
    a.until("begun", world=2)
    b.until("begun", world=2)

    gone_at = time.monotonic()
    go(b)

    alone = a.until("begun", world=1, after=gone_at)
    # The lease, and room for a slow machine: less than the 25 s after which TCP gives a silent peer up, the grace of
    # 30 s, and the last call.
    assert alone.at - gone_at < 3 + 20
    assert alone.restart == 0
    assert not alone["older"]
    nodes.order("exit 0")
    assert a.wait() == 0


@pytest.mark.torch
@needs_torch
@pytest.mark.parametrize(
    ("first", "second"), [("127.0.0.2", "127.0.0.1"), ("127.0.0.1", "127.0.0.2")], ids=["before", "after"]
)
def test_a_node_joins(nodes: Nodes, script: Script, first: str, second: str) -> None:
    arguments = ("--nnodes", "1:2", "--rdzv-conf", "last_call_timeout=1")
    train = script("from meeting import reduce_for_ever; reduce_for_ever()")
    a = nodes.start("a", *arguments, "--local-addr", first, train)
    a.until("reduced", total=1.0)

    b = nodes.start("b", *arguments, "--local-addr", second, train)

    a.until("reduced", total=2.0)
    b.until("reduced", total=2.0)
    assert a.until("begun", world=2)["master"] == b.until("begun", world=2)["master"]
    nodes.order("exit 0")
    assert (a.wait(), b.wait()) == (0, 0)


@pytest.mark.slow
def test_ranks_end_at_different_times(nodes: Nodes, script: Script) -> None:
    train = script("import os, time; time.sleep({'a': 1, 'b': 12}[os.environ['BLACK_BOX_HOST']])")
    a, b = (nodes.start(name, "--nnodes", 2, train) for name in ("a", "b"))

    assert (b.wait(), a.wait()) == (0, 0)


def test_ctrl_c_to_one_node_of_two_ends_it_alone(nodes: Nodes, script: Script) -> None:
    train = script("from meeting import attend; attend()")
    a = nodes.start("a", "--nnodes", "1:2", train)
    nodes.wait_served()  # else b may serve the store, and stays for it until a has ended
    b = nodes.start("b", "--nnodes", "1:2", train)
    a.until("begun", world=2)

    b.send_to_group(signal.SIGINT)

    assert b.wait() == 130
    a.until("begun", world=1)
    nodes.order("exit 0")
    assert a.wait() == 0
