"""Endpoints as people write them, what is missing, and what it costs to import."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.store.etcd import open_etcd, session
from phalanx.store.etcd.endpoints import Endpoint, parse_endpoint, parse_endpoints
from phalanx.store.port import Refused, Unclear


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("node0", Endpoint("node0", 2379, False)),
        ("node0:1234", Endpoint("node0", 1234, False)),
        ("10.0.0.1:1234", Endpoint("10.0.0.1", 1234, False)),
        (" https://node0:1234/ ", Endpoint("node0", 1234, True)),
        ("http://node0", Endpoint("node0", 2379, False)),
        ("[::1]:1234", Endpoint("::1", 1234, False)),
        ("[::1]", Endpoint("::1", 2379, False)),
        ("fe80::1:2", Endpoint("fe80::1:2", 2379, False)),
        ("HTTPS://[2001:db8::1]:1", Endpoint("2001:db8::1", 1, True)),
    ],
)
def test_an_endpoint_is_read_as_it_is_meant(text: str, endpoint: Endpoint) -> None:
    assert parse_endpoint(text) == endpoint
    assert parse_endpoint(str(endpoint)) == Endpoint(endpoint.host, endpoint.port, False)


@pytest.mark.parametrize(
    "text", ["", ":1", "a:b", "a:0", "a:65536", "a:-1", "a:²", "ftp://a", "[::1", "[::1]x", "[]:1"]
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is no endpoint of etcd"):
        parse_endpoint(text)


def test_several_endpoints_are_separated_by_commas_and_kept_once() -> None:
    assert [str(endpoint) for endpoint in parse_endpoints("a, b:1 ,a:2379,,[::1]:1")] == [
        "a:2379",
        "b:1",
        "[::1]:1",
    ]
    assert [endpoint.is_tls for endpoint in parse_endpoints(["a", "http://b"], protocol="https")] == [
        True,
        False,
    ]
    for nothing in ("", " , "):
        with pytest.raises(Refused, match="No endpoint"):
            parse_endpoints(nothing)


def test_a_server_that_is_not_there_is_unclear_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each endpoint has its turn, however slow this machine is; then the next pause would be too long for the call.
    monkeypatch.setattr(session, "next_pause", lambda pause_s: 1000.0)
    with pytest.raises(Unclear, match=r"127\.0\.0\.1:1: .*\[::1\]:1: |\[::1\]:1: .*127\.0\.0\.1:1: "):
        asyncio.run(open_etcd("127.0.0.1:1,[::1]:1", attempt_s=30.0))


def test_a_name_that_nobody_knows_is_unclear_and_named() -> None:
    with pytest.raises(Unclear, match=r"nobody\.invalid"):
        asyncio.run(open_etcd("nobody.invalid", attempt_s=0.2))


@pytest.mark.parametrize("is_member", [False, True], ids=["client", "member"])
def test_a_resolver_that_hangs_keeps_no_process_from_ending(is_member: bool, tmp_path: Path) -> None:
    call = (
        f'EtcdCluster(["h.invalid:1"], job="j", folder={str(tmp_path)!r}).start()'
        if is_member
        else 'open_etcd("h.invalid", attempt_s=0.2)'
    )
    code = f"""
import asyncio, socket, threading
true_one = socket.getaddrinfo
def hang(host, *arguments, flags=0, **more):
    if flags & socket.AI_NUMERICHOST:
        return true_one(host, *arguments, flags=flags, **more)
    threading.Event().wait()
socket.getaddrinfo = hang
from phalanx.store.etcd import cluster, open_etcd
from phalanx.store.etcd.cluster import EtcdCluster
from phalanx.store.port import Unclear
cluster._LOOK_UP_S = 0.2
async def run():
    try:
        await {call}
    except Unclear as unclear:
        print(unclear)
asyncio.run(run())
print("ended")
"""
    said = run_python(code)
    assert said.endswith("ended\n")
    assert is_member or "was not found within 0.2 s" in said


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_without_the_extra_one_sentence_says_what_to_install() -> None:
    code = """
import asyncio, sys
sys.modules["grpclib"] = sys.modules["grpclib.const"] = None
from phalanx.store.etcd import open_etcd
from phalanx.store.port import Refused
try:
    asyncio.run(open_etcd("127.0.0.1:1"))
except Refused as refused:
    print(refused)
"""
    assert "pip install 'phalanx-launcher[etcd]'" in run_python(code)


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = run_python("import sys, phalanx.store.etcd; print(*sys.modules)").split()
    assert not {"asyncio", "google.protobuf", "grpclib", "h2", "ssl", "dataclasses"} & set(loaded)
