"""Both ends of the worker channel on a real socket: the real client, and clients that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import queue
import re
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest

from phalanx.agent.channel import listening
from phalanx.agent.channel.messages import (
    CheckpointDone,
    ExceptionRecorded,
    ExcludeAsked,
    ProgressMade,
)
from phalanx.agent.channel.server import ChannelServer
from phalanx.errors import ErrorHandler
from phalanx.errors import channel as client_end
from phalanx.errors._channel_protocol import CAUSES_WITHOUT_A_STEP
from phalanx.rendezvous.stop_cause import StopCause
from phalanx.store import values as shared
from phalanx.store.memory import MemoryServer, MemoryStore
from phalanx.store.port import Unclear
from phalanx.store.values import SharedValues

PATIENCE_S = 30.0


class Agent:
    """A channel server in a loop of its own thread, and what it has heard."""

    def __init__(self, folder: Path, name: str = "agent.sock", store: MemoryServer | None = None) -> None:
        self.path = str(folder / name)
        self.heard: queue.Queue[tuple[int, Any]] = queue.Queue()
        self.refusals: queue.Queue[str] = queue.Queue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.server = ChannelServer(
            self.path, lambda rank, said: self.heard.put((rank, said)), on_refusal=self.refusals.put
        )
        self.store = MemoryStore(store)
        self.run(self.server.start())
        self.new_round(1)

    def new_round(self, number: int) -> None:
        self.call(self.server.new_round, number, SharedValues(self.store, f"/phalanx/job/kv/{number}/"))

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        async def work() -> Any:
            return function(*args)

        return self.run(work())

    def next(self) -> tuple[int, Any]:
        return self.heard.get(timeout=PATIENCE_S)

    def refusal(self) -> str:
        return self.refusals.get(timeout=PATIENCE_S)

    def close(self) -> None:
        self.run(self.server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    agent = Agent(tmp_path)
    yield agent
    agent.close()


@pytest.fixture
def worker(agent: Agent, monkeypatch: Any) -> Iterator[Any]:
    """The client's module, as in a worker of ``agent``."""
    for name, value in {
        "PHALANX_AGENT": agent.path,
        "PHALANX_ROUND": "1",
        "LOCAL_RANK": "2",
        "RANK": "6",
    }.items():
        monkeypatch.setenv(name, value)
    # What an agent hears is looked at, and a notice that another thread holds up for longer is not sent.
    monkeypatch.setattr(client_end, "_NOTIFY_S", PATIENCE_S)
    yield from _fresh_client(monkeypatch)


@pytest.fixture
def lonely(monkeypatch: Any) -> Iterator[Any]:
    """The client's module without any agent."""
    yield from _fresh_client(monkeypatch)


def _fresh_client(monkeypatch: Any) -> Iterator[Any]:
    monkeypatch.setattr(client_end, "_the_client", None)
    yield client_end
    if client_end._the_client is not None:
        client_end._the_client.forget()


HELLO = {"v": 1, "type": "hello", "local_rank": 0, "rank": 0, "pid": 1, "round": 1}


class Raw:
    """A connection that says what it likes."""

    def __init__(self, agent: Agent | ChannelServer, *lines: Any) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(agent.path)
        self._file = self.socket.makefile("rb")
        for line in lines:
            self.say(line)

    def say(self, line: Any) -> None:
        self.socket.sendall(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")

    def hear(self) -> Any:
        line = self._file.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def test_what_a_worker_tells_arrives_with_its_local_rank(agent: Agent, worker: Any) -> None:
    worker.progress(17)
    worker.checkpoint_done(16)
    worker.exclude_node("the link is down")
    greeting = (os.getpid(), 1)
    assert agent.next() == (2, ProgressMade(*greeting, step=17))
    assert agent.next() == (2, CheckpointDone(*greeting, step=16))
    assert agent.next() == (2, ExcludeAsked(*greeting, reason="the link is down"))


def test_progress_in_a_tight_loop_is_thinned_out(agent: Agent, worker: Any) -> None:
    for step in range(20_000):
        worker.progress(step)
    worker.checkpoint_done(1)
    steps = []
    while isinstance(said := agent.next()[1], ProgressMade):
        steps.append(said.step)
    assert 1 <= len(steps) < 1000
    assert steps == sorted(steps)


def test_a_recorded_exception_is_announced_with_its_place(
    agent: Agent, worker: Any, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "error.json"))
    before = time.monotonic_ns()
    try:
        raise ValueError("bad batch 17" + "x" * 10_000)
    except ValueError as failure:
        ErrorHandler().record_exception(failure)
    rank, said = agent.next()
    assert isinstance(said, ExceptionRecorded)
    assert (rank, said.round, said.thread) == (2, 1, None)
    assert said.message.startswith("ValueError: bad batch 17xxx")
    assert said.place is not None
    assert said.place.startswith(f"{__file__}:")
    assert said.error_file == str(tmp_path / "error.json")
    assert before <= said.monotonic_ns <= time.monotonic_ns()
    assert abs(said.wall_ns - time.time_ns()) < 10**12


def test_an_exception_that_could_not_be_written_is_announced_all_the_same(
    agent: Agent, worker: Any, monkeypatch: Any, capfd: Any
) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/dev/null/error.json")
    ErrorHandler().record_exception(ValueError("bad batch 17"))
    said = agent.next()[1]
    assert (said.message, said.error_file, said.place) == ("ValueError: bad batch 17", None, None)
    assert "could not write" in capfd.readouterr().err


def test_a_worker_hears_that_it_should_stop_and_goes_on_hearing_it(agent: Agent, worker: Any) -> None:
    assert worker.should_stop() is False
    worker.checkpoint_done(1)
    agent.next()
    agent.call(agent.server.announce_stop, "SIGTERM", 30.0)
    _wait_until(worker.should_stop)
    assert worker.should_stop() is True


def test_a_worker_that_connects_later_hears_of_the_stop_too(agent: Agent, worker: Any) -> None:
    agent.call(agent.server.announce_stop, "SIGTERM", 30.0)
    _wait_until(worker.should_stop)


def test_the_stop_is_told_with_its_signal_grace_and_cause(agent: Agent) -> None:
    with Raw(agent, HELLO, {"type": "progress", "step": 1}) as raw:
        agent.next()
        agent.call(agent.server.announce_stop, "SIGUSR2", 2.5)
        heard = raw.hear()
        assert abs(heard.pop("monotonic_ns") - time.monotonic_ns()) < PATIENCE_S * 1e9
        assert heard == {"type": "stop", "signal": "SIGUSR2", "grace_s": 2.5, "cause": "asked"}


def test_values_are_shared_between_workers(agent: Agent, worker: Any) -> None:
    values = worker.values()
    assert values.get("k", wait_s=0.0) is None
    values.set("k", b"\x00\xff")
    assert values.get("k") == b"\x00\xff"
    assert values.compare_set("k", b"\x00\xff", b"new") == b"new"
    assert values.compare_set("k", None, b"other") == b"new"
    assert values.compare_set("fresh", None, b"first") == b"first"
    assert (values.add("n", 5), values.add("n")) == (5, 6)
    assert (values.delete_key("k"), values.delete_key("k")) == (True, False)
    with Raw(agent, HELLO, {"type": "get", "id": 7, "key": "fresh", "wait_s": 0}) as other:
        assert other.hear() == {"type": "answer", "id": 7, "value": "Zmlyc3Q="}


@pytest.mark.torch
def test_values_answer_as_torchs_store_does(worker: Any) -> None:
    from torch.distributed import HashStore

    ours, torchs = worker.values(), HashStore()
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("set", ("a", "1")),
        ("get", ("a",)),
        ("add", ("a", 2)),
        ("get", ("a",)),
        ("set", ("t", "text")),
        ("add", ("t", 1)),
        ("compare_set", ("c", "", "v")),
        ("compare_set", ("c", "", "w")),
        ("compare_set", ("c", "v", "w")),
        ("compare_set", ("d", "x", "w")),
        ("check", (["d"],)),
        ("set", ("e", "")),
        ("get", ("e",)),
        ("check", (["a", "c", "e"],)),
        ("check", (["a", "q"],)),
        ("check", ([],)),
        ("num_keys", ()),
        ("delete_key", ("a",)),
        ("delete_key", ("a",)),
        ("num_keys", ()),
        ("multi_set", (["x", "y"], ["1", "ü"])),
        ("multi_get", (["y", "x"],)),
        ("wait", (["x", "y"],)),
        ("wait", ([],)),
        ("set_timeout", (timedelta(milliseconds=50),)),
        ("get", ("missing",)),
        ("wait", (["x", "missing"],)),
        ("wait", (["missing"], timedelta(milliseconds=20))),
        ("multi_get", (["x", "missing"],)),
    ]
    for method, arguments in calls:
        found = [_result(store, method, *arguments) for store in (ours, torchs)]
        assert found[0] == found[1], (method, arguments)
    assert ours.timeout == torchs.timeout


def _result(store: Any, method: str, *arguments: Any) -> Any:
    """What a call returns, or the widest class of what it raises that is of use to who catches it."""
    try:
        return getattr(store, method)(*arguments)
    except (RuntimeError, ValueError) as error:
        return next(kind for kind in (RuntimeError, ValueError) if isinstance(error, kind))


def test_values_are_shared_between_the_nodes_of_a_job(tmp_path: Path, monkeypatch: Any) -> None:
    store = MemoryServer()
    one = Agent(tmp_path, "one.sock", store)
    # Both agents live in the loop of the first: a memory store belongs to one loop.
    other = ChannelServer(str(tmp_path / "other.sock"), lambda *_: None)
    one.run(other.start())
    one.call(other.new_round, 1, SharedValues(MemoryStore(store), "/phalanx/job/kv/1/"))
    try:
        with (
            Raw(one, HELLO, {"type": "get", "id": 1, "key": "k", "wait_s": 30}) as here,
            Raw(other, HELLO, {"type": "set", "id": 1, "key": "k", "value": "dg=="}) as there,
        ):
            assert there.hear() == {"type": "answer", "id": 1, "value": None}
            assert here.hear() == {"type": "answer", "id": 1, "value": "dg=="}
    finally:
        one.run(other.close())
        one.close()


def test_many_keys_are_waited_for_stored_and_read(worker: Any) -> None:
    values = worker.values()
    keys = [f"rank{number}" for number in range(1200)]  # more than one request may name
    values.multi_set(keys, ["x"] * len(keys))
    values.wait(keys)
    assert values.check(keys)
    assert not values.check([*keys, "rank1200"])
    assert values.multi_get(keys) == [b"x"] * len(keys)
    assert values.num_keys() == 1200


def test_large_values_are_read_together(worker: Any) -> None:
    values = worker.values()
    most = bytes(512 * 1024)
    keys = [f"{number}" for number in range(10)]
    values.multi_set(keys, [most] * 10)
    assert values.multi_get(keys) == [most] * 10


def test_nobody_set_it_says_which(worker: Any) -> None:
    values = worker.values()
    values.set("a", "1")
    with pytest.raises(client_end.ValuesTimeout, match=r"nobody has set 'b' within 0\.01 s"):
        values.wait(["a", "b"], 0.01)
    values.set_timeout(0.01)
    with pytest.raises(TimeoutError, match="nobody has set 'c'"):
        values.get("c")
    with pytest.raises(RuntimeError, match="'c', 'd', 'e' and 1 more"):
        values.multi_get(["c", "d", "a", "e", "f"])


@pytest.mark.parametrize("value", [None, 1, 1.0, ["x"]])
def test_only_text_and_bytes_are_values(worker: Any, value: Any) -> None:
    with pytest.raises(TypeError):
        worker.values().set("k", value)
    with pytest.raises(TypeError):
        worker.values().wait("k")
    worker.values().set("k", bytearray(b"x"))
    assert worker.values().get("k") == b"x"


def test_what_cannot_be_stored_is_a_value_error(worker: Any) -> None:
    values = worker.values()
    values.set("k", b"text")
    with pytest.raises(ValueError, match="no number"):
        values.add("k", 1)
    with pytest.raises(ValueError, match="bytes"):
        values.set("k", b"x" * 600_000)
    with pytest.raises(ValueError, match="bytes"):
        values.set("k", b"x" * 2_000_000)
    assert values.get("k") == b"text"


def test_a_store_that_cannot_be_reached_is_no_mistake_of_the_worker(
    agent: Agent, worker: Any, monkeypatch: Any
) -> None:
    class Silent(MemoryStore):
        async def transaction(self, *_: Any, **__: Any) -> Any:
            raise Unclear("no answer within 2 s")

    monkeypatch.setattr(shared, "PATIENCE_S", 0.0)
    agent.call(agent.server.new_round, 1, SharedValues(Silent(), "/phalanx/job/kv/1/"))
    with pytest.raises(worker.NoAgent, match="the store does not answer: no answer within 2 s"):
        worker.values().get("k")


def test_an_agent_that_shares_no_values_says_so(agent: Agent, worker: Any) -> None:
    agent.call(agent.server.new_round, 1)
    with pytest.raises(ValueError, match="share no values"):
        worker.values().get("k")


def test_a_wait_for_a_value_ends_when_another_thread_sets_it(worker: Any) -> None:
    values = worker.values()
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(values.get("k", wait_s=PATIENCE_S)))
    waiting.start()
    values.set("k", b"v")
    worker.progress(1)
    assert worker.should_stop() is False
    waiting.join(PATIENCE_S)
    assert found == [b"v"]


def test_a_wait_for_a_value_that_nobody_sets_ends_with_none(worker: Any) -> None:
    assert worker.values().get("k", wait_s=0.05) is None


def test_who_asks_too_much_at_once_is_told_so_and_served_again(agent: Agent) -> None:
    waits = [{"type": "get", "id": number, "key": "k", "wait_s": 30} for number in range(33)]
    with Raw(agent, HELLO, *waits) as raw:
        assert raw.hear() == {
            "type": "answer",
            "id": 32,
            "error": "32 requests of this connection are under way already",
        }
        with Raw(agent, HELLO, {"type": "set", "id": 1, "key": "k", "value": "dg=="}) as other:
            other.hear()
        assert sorted(raw.hear()["id"] for _ in range(32)) == list(range(32))
        raw.say(waits[0])
        assert raw.hear()["value"] == "dg=="


def test_what_a_worker_wrote_before_it_went_is_written(agent: Agent, worker: Any) -> None:
    waits = {"type": "get", "id": 1, "key": "other", "wait_s": 30}
    with Raw(agent, HELLO, waits, {"type": "set", "id": 2, "key": "k", "value": "dg=="}):
        pass
    assert worker.values().get("k", wait_s=PATIENCE_S) == b"v"
    _wait_until(lambda: agent.call(lambda: not agent.server._requests))  # its wait is over


def test_a_new_round_forgets_values_and_ends_the_old_rounds_connections(agent: Agent, worker: Any) -> None:
    values = worker.values()
    values.set("k", b"v")
    found: list[Any] = []

    def wait() -> None:
        with pytest.raises((client_end.NoAgent, ValueError), match="over"):
            values.get("other", wait_s=PATIENCE_S)
        found.append("ended")

    waiting = threading.Thread(target=wait)
    waiting.start()
    _wait_until(lambda: agent.call(lambda: bool(agent.server._requests)))
    agent.call(agent.server.announce_stop, "SIGTERM", 1.0)
    agent.new_round(2)
    waiting.join(PATIENCE_S)
    assert found == ["ended"]
    with pytest.raises(client_end.NoAgent, match="round 1"):
        _fails_until(lambda: values.get("k"), "round 1")
    with Raw(agent, {**HELLO, "round": 2}, {"type": "get", "id": 1, "key": "k", "wait_s": 0}) as new:
        assert new.hear() == {"type": "answer", "id": 1, "value": None}, (
            "no stop of the old round, and no value"
        )


def test_a_round_that_begins_while_a_request_is_under_way_answers_it_once(agent: Agent) -> None:
    with Raw(agent, HELLO, {"type": "get", "id": 1, "key": "k", "wait_s": 30}) as raw:
        _wait_until(lambda: agent.call(lambda: bool(agent.server._requests)))
        agent.new_round(1)
        assert raw.hear() == {"type": "answer", "id": 1, "error": "the round is over"}
        raw.say({"type": "get", "id": 2, "key": "k", "wait_s": 0})
        assert raw.hear() == {"type": "answer", "id": 2, "value": None}


def test_a_forked_child_speaks_for_itself_and_leaves_its_parents_connection_alone(
    agent: Agent, worker: Any
) -> None:
    worker.checkpoint_done(1)
    agent.next()
    child = os.fork()
    if child == 0:
        client_end.checkpoint_done(2)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert agent.next()[1] == CheckpointDone(child, 1, step=2)
    worker.checkpoint_done(3)
    assert agent.next()[1] == CheckpointDone(os.getpid(), 1, step=3)


def test_many_threads_may_speak_at_once(agent: Agent, worker: Any) -> None:
    values = worker.values()

    def speak() -> None:
        for step in range(20):
            worker.checkpoint_done(step)
            values.add("n", 1)

    threads = [threading.Thread(target=speak) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert values.add("n", 0) == 160
    assert [type(agent.next()[1]) for _ in range(160)] == [CheckpointDone] * 160


def test_without_an_agent_nothing_happens_and_requests_say_so(lonely: Any) -> None:
    lonely.progress(1)
    lonely.checkpoint_done(1)
    lonely.exclude_node("x")
    assert lonely.should_stop() is False
    with pytest.raises(lonely.NoAgent, match="not started by phalanx"):
        lonely.values().get("k")


@pytest.mark.parametrize("path", ["/no/such/socket", "/dev/null", "/" + "x" * 200, "a\0b"])
def test_an_agent_that_cannot_be_reached_disturbs_no_training(
    lonely: Any, monkeypatch: Any, path: str
) -> None:
    monkeypatch.setattr(os, "environ", {**os.environ, "PHALANX_AGENT": path})
    lonely.progress(1)
    lonely.checkpoint_done(1)
    assert lonely.should_stop() is False
    with pytest.raises((lonely.NoAgent, ValueError)):
        lonely.values().get("k")


@pytest.mark.parametrize("argument", [None, "many", object(), float("nan")])
def test_a_notice_of_something_odd_disturbs_no_training(worker: Any, argument: Any) -> None:
    worker.progress(argument)
    worker.checkpoint_done(argument)
    worker.exclude_node(argument)


def test_an_agent_that_does_not_read_costs_one_short_wait_and_not_one_per_step(
    tmp_path: Path, monkeypatch: Any
) -> None:
    """The listener accepts nothing: its queue and its buffers fill up."""
    path = str(tmp_path / "deaf.sock")
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(path)
        deaf.listen(0)
        monkeypatch.setenv("PHALANX_AGENT", path)
        for client in _fresh_client(monkeypatch):
            sent = 0
            while client._client()._retry_at == 0.0:
                client.exclude_node("x" * 4000)
                sent += 1
                assert sent < 100_000, "the buffers of the kernel have no end"
            waited_from = time.monotonic()
            for step in range(1000):
                client.checkpoint_done(step)
            assert time.monotonic() - waited_from < 100, "each of a thousand notices waited 0.2 s"


def test_an_agent_that_has_died_is_forgotten(agent: Agent, worker: Any) -> None:
    worker.checkpoint_done(1)
    agent.next()
    agent.run(agent.server.close())
    for step in range(100):
        worker.checkpoint_done(step)
    assert worker.should_stop() is False


def test_only_this_user_can_connect(agent: Agent) -> None:
    assert stat.S_IMODE(os.stat(agent.path).st_mode) == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_connection_from_another_user_is_refused_even_if_the_mode_allows_it() -> None:
    # pytest's own folders are for this user alone, and another run of it sees to that when it begins.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        agent = Agent(Path(folder))
        try:
            _is_refused_as_another_user(agent)
        finally:
            agent.close()


def _is_refused_as_another_user(agent: Agent) -> None:
    os.chmod(agent.path, 0o666)
    source = "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1])\n"
    source += "print(s.makefile().read())"
    done = subprocess.run(
        [sys.executable, "-c", source, agent.path], capture_output=True, text=True, check=False
    )
    assert "comes from another user (uid 65534)" in done.stdout, done.stderr
    assert "another user" in agent.refusal()


MISBEHAVIOUR: dict[str, tuple[list[Any], str]] = {
    "no hello": ([{"type": "progress", "step": 1}], "did not say hello"),
    "no JSON": ([b"hello\n"], "no JSON"),
    "no text": ([b"\xff\xfe\n"], "no JSON"),
    "an empty line": ([b"\n"], "no JSON"),
    "HTTP": ([b"GET / HTTP/1.1\r\n"], "no JSON"),
    "a list": ([b"[]\n"], "no JSON object"),
    "nested too deeply": ([b"[" * 100_000 + b"\n"], "no JSON"),
    "another version": ([{**HELLO, "v": 2}], "speaks version 2"),
    "another round": ([{**HELLO, "round": 9}], "is of round 9, and this is round 1"),
    "a rank that is text": ([{**HELLO, "local_rank": "0"}], "'local_rank' that is no integer"),
    "a rank that is true": ([{**HELLO, "local_rank": True}], "'local_rank' that is no integer"),
    "a negative rank": ([{**HELLO, "local_rank": -1}], "no local rank -1"),
    "a missing pid": (
        [{key: value for key, value in HELLO.items() if key != "pid"}],
        "'pid' that is no integer",
    ),
    "a second hello": ([HELLO, HELLO], "unknown type: 'hello'"),
    "an unknown type": ([HELLO, {"type": "dance"}], "unknown type: 'dance'"),
    "no type": ([HELLO, {}], "'type' that is no text"),
    "a step that is text": ([HELLO, {"type": "progress", "step": "1"}], "'step' that is no integer"),
    "a step without end": ([HELLO, {"type": "progress", "step": 1 << 70}], "'step' that is no integer"),
    "a number of too many digits": ([HELLO, b'{"type": ' + b"9" * 9000 + b"}\n"], "no JSON"),
    "a wait that is no time": ([HELLO, {"type": "get", "id": 1, "key": "k", "wait_s": "x"}], "no time"),
    "a wait without end": ([HELLO, b'{"type": "get", "id": 1, "key": "k", "wait_s": Infinity}\n'], "no time"),
    "a value that is no base64": ([HELLO, {"type": "set", "id": 1, "key": "k", "value": "%"}], "not base64"),
    "keys that are a text": ([HELLO, {"type": "check", "id": 1, "keys": "k"}], "no list of texts"),
    "keys that are numbers": ([HELLO, {"type": "check", "id": 1, "keys": ["k", 1]}], "no list of texts"),
    "too many keys": ([HELLO, {"type": "check", "id": 1, "keys": ["k"] * 1025}], "1024 are possible"),
    "a request without id": ([HELLO, {"type": "delete", "key": "k"}], "'id' that is no integer"),
    "a line that is too long": ([HELLO, b"x" * (1 << 20) + b"yy\n"], "more than 1048576 bytes"),
    "a line without end": ([HELLO, b"x" * ((1 << 20) + 100_000)], "more than 1048576 bytes"),
}


@pytest.mark.parametrize("name", MISBEHAVIOUR)
def test_who_misbehaves_is_told_once_why_and_the_agent_goes_on(agent: Agent, worker: Any, name: str) -> None:
    lines, reason = MISBEHAVIOUR[name]
    with Raw(agent) as raw:
        try:
            for line in lines:
                raw.say(line)
            answer = raw.hear()
            assert answer["type"] == "refused"
            assert reason in answer["reason"]
            assert raw.hear() is None
        except (BrokenPipeError, ConnectionResetError):
            pass  # it was closed while more was being said
    assert reason in agent.refusal()
    worker.checkpoint_done(1)
    assert agent.next() == (2, CheckpointDone(os.getpid(), 1, step=1))
    assert agent.refusals.empty()


def test_half_a_line_at_the_end_is_noticed_and_not_heard(agent: Agent) -> None:
    with Raw(agent, HELLO, {"type": "progress", "step": 1}, b'{"type": "progress", "step": 2}'):
        assert agent.next()[1].step == 1
    assert agent.refusal() == "the connection of local rank 0 ended within a line"
    assert agent.heard.empty()


def test_a_line_may_come_in_any_pieces(agent: Agent) -> None:
    with Raw(agent) as raw:
        for byte in json.dumps(HELLO).encode() + b'\n{"type": "progress", "step": 7}\n':
            raw.say(bytes([byte]))
        assert agent.next()[1].step == 7
        raw.say(b'{"type": "progress", "step": 8}\n{"type": "progress", "step": 9}\n')
        assert [agent.next()[1].step, agent.next()[1].step] == [8, 9]


def test_surrogates_in_a_message_are_replaced(agent: Agent) -> None:
    with Raw(agent, HELLO, b'{"type": "exclude", "reason": "\\ud800"}\n'):
        assert agent.next()[1].reason == "?"


def test_who_does_not_read_answers_is_ended(agent: Agent) -> None:
    value = {"type": "set", "id": 1, "key": "k", "value": "A" * 600_000}
    with Raw(agent, HELLO, value) as raw:
        raw.hear()
        get = b'{"type": "get", "id": 1, "key": "k", "wait_s": 0}\n'
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            raw.say(get * 100_000)
    assert agent.refusal() == "the connection of local rank 0 does not read its answers"


def test_a_socket_of_a_dead_agent_is_replaced_and_a_path_that_is_too_long_is_named(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "agent.sock"))
    agent = Agent(tmp_path)
    agent.close()
    assert not os.path.exists(agent.path)

    async def start(path: str) -> None:
        await ChannelServer(path, lambda *_: None).start()

    with pytest.raises(OSError, match="too long"):
        asyncio.run(start("/tmp/" + "x" * 200))
    with pytest.raises(OSError, match="No such file"):
        asyncio.run(start("/no/such/folder/agent.sock"))
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="in use"):
        asyncio.run(start(str(tmp_path / "file")))
    gc.collect()  # a forgotten socket would warn here


def test_an_agent_without_descriptors_serves_again_when_it_has_some(agent: Agent, monkeypatch: Any) -> None:
    monkeypatch.setattr(listening, "ACCEPT_PAUSE_S", 0.05)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as late:
        late.settimeout(PATIENCE_S)
        # No descriptor below this number is free, and none above it is allowed.
        filling = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(filling) + 1, limits[1]))
        try:
            late.connect(agent.path)
            late.sendall(json.dumps(HELLO).encode() + b'\n{"type": "progress", "step": 7}\n')
            assert "Too many open files" in agent.refusal()
            assert agent.heard.empty()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            for descriptor in filling:
                os.close(descriptor)
        assert agent.next()[1].step == 7


def test_what_a_worker_said_before_its_end_is_heard_before_it_is_asked_for(agent: Agent) -> None:
    async def look(*ended: int) -> int:
        with Raw(agent, HELLO, *({"type": "progress", "step": step} for step in range(50))):
            pass  # all of it while this loop does nothing else
        await agent.server.hear_out(ended)
        return agent.heard.qsize()

    assert agent.run(look(0)) == 50
    with Raw(agent, HELLO):  # a child of it that is silent
        assert agent.run(look(0)) == 100


def test_a_child_of_an_ended_worker_may_speak_for_ever(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ChannelServer, "_has_more", lambda *_: True)
    agent.run(agent.server.hear_out({0}))


def test_who_connects_again_and_again_holds_up_nothing(agent: Agent) -> None:
    is_over = threading.Event()
    agent.server._connections_max = 0  # each is refused at once

    def knock() -> None:
        while not is_over.is_set():
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
                one.connect(agent.path)

    knocking = [threading.Thread(target=knock) for _ in range(2)]
    for thread in knocking:
        thread.start()
    try:
        agent.refusal()
        agent.run(agent.server.hear_out({0}))
    finally:
        is_over.set()
        for thread in knocking:
            thread.join(PATIENCE_S)


def test_closing_twice_is_closing_once(agent: Agent) -> None:
    with Raw(agent, HELLO, {"type": "progress", "step": 1}) as raw:
        agent.next()  # who was not accepted by then is told nothing
        agent.run(agent.server.close())
        agent.run(agent.server.close())
        while (said := raw.hear()) is not None:
            assert said == {"type": "refused", "reason": "the agent is leaving"}


def test_the_causes_of_stops_are_those_that_people_read_of() -> None:
    causes = {one.name.lower() for one in StopCause}
    assert causes >= CAUSES_WITHOUT_A_STEP
    documented = (Path(__file__).parents[3] / "docs" / "worker-channel.md").read_text()
    [line] = re.findall(r"`cause` is (.*?)\. The time", documented)
    assert {"asked"} | causes == set(re.findall(r"`(\w+)`", line))


def _wait_until(condition: Callable[[], Any]) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_at, "it never came true"
        time.sleep(0.005)


def _fails_until(function: Callable[[], Any], words: str) -> None:
    """Call until it fails with these words; a connection that is just being closed fails with others before."""
    ends_at = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_at:
        try:
            function()
        except client_end.NoAgent as failure:
            if words in str(failure):
                raise


def test_who_is_connected_in_this_round_is_known(agent: Agent, worker: Any) -> None:
    assert agent.call(lambda: agent.server.connected) == set()
    worker.progress(1)
    agent.next()
    with Raw(agent, {**HELLO, "local_rank": 5}, {"type": "progress", "step": 1}), Raw(agent):
        agent.next()
        assert agent.call(lambda: agent.server.connected) == {2, 5}
        agent.new_round(2)
        assert agent.call(lambda: agent.server.connected) == set()


def test_what_a_worker_leaves_is_stored_when_it_has_ended(agent: Agent, worker: Any) -> None:
    values = worker.values()
    values.leave_at_end("a", "first")
    values.leave_at_end("a", "last")
    assert values.get("a", wait_s=0.0) is None
    for _ in range(2):
        agent.call(agent.server.wills.worker_ended, 1 - int(os.environ["LOCAL_RANK"]), 0)  # another one
    assert values.get("a", wait_s=0.0) is None
    agent.call(agent.server.wills.worker_ended, int(os.environ["LOCAL_RANK"]), 0)
    assert values.get("a") == b"last"


def test_what_a_worker_has_said_itself_is_not_replaced_at_its_end(agent: Agent, worker: Any) -> None:
    values = worker.values()
    values.leave_at_end("a", "never")
    values.set("a", "said")
    agent.call(agent.server.wills.worker_ended, int(os.environ["LOCAL_RANK"]), 0)
    agent.run(agent.server.wills.close(PATIENCE_S))
    assert values.get("a") == b"said"


def test_what_a_worker_leaves_is_stored_when_there_is_room_for_nothing_else(
    agent: Agent, worker: Any, monkeypatch: Any
) -> None:
    values = worker.values()
    values.leave_at_end("a", "left")
    monkeypatch.setattr(shared, "TOTAL_BYTES_MAX", 1)
    with pytest.raises(ValueError, match="would exceed"):
        values.set("b", b"x" * shared.LOOK_BYTES)
    agent.call(agent.server.wills.worker_ended, int(os.environ["LOCAL_RANK"]), 0)
    assert values.get("a") == b"left"


def test_what_is_left_is_small_and_of_this_round(agent: Agent, worker: Any) -> None:
    with pytest.raises(ValueError, match="a will of 4097 bytes; 4096 are possible"):
        worker.values().leave_at_end("a", "x" * 4097)
    worker.values().leave_at_end("a", "old")
    agent.new_round(2)
    agent.call(agent.server.wills.worker_ended, int(os.environ["LOCAL_RANK"]), 0)
    with Raw(agent, {**HELLO, "round": 2}, {"type": "get", "id": 1, "key": "a", "wait_s": 0}) as raw:
        assert raw.hear()["value"] is None


def test_who_is_told_of_a_loss_in_the_warning_has_its_grace(agent: Agent) -> None:
    greeting = HELLO["local_rank"]
    with Raw(agent, HELLO, {"type": "leaves", "is_so": 1}) as raw:
        agent.call(agent.server.announce_stop, "SIGTERM", 90.0, "planned")
        assert raw.hear()["cause"] == "planned"
        _wait_until(lambda: all(one.leaves for one in agent.server.connections))
        agent.call(agent.server.announce_stop, "SIGTERM", 80.0, "loss")
        assert raw.hear()["cause"] == "loss"
        assert agent.call(lambda: agent.server.deaf) == set(), "it is saving, and was told until when"
        agent.new_round(1)
        agent.call(agent.server.announce_stop, "SIGTERM", 80.0, "loss")
        assert raw.hear()["cause"] == "loss"
        assert agent.call(lambda: agent.server.deaf) == {greeting}
