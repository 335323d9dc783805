"""Endpoints as people write them, what is missing, and what it costs to import."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from phalanx.store.etcd import open_etcd
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


def test_a_server_that_is_not_there_is_unclear_and_named() -> None:
    with pytest.raises(Unclear, match=r"127\.0\.0\.1:1: .*\[::1\]:1: |\[::1\]:1: .*127\.0\.0\.1:1: "):
        asyncio.run(open_etcd("127.0.0.1:1,[::1]:1", attempt_s=0.2))


def test_a_name_that_nobody_knows_is_unclear_and_named() -> None:
    with pytest.raises(Unclear, match=r"nobody\.invalid"):
        asyncio.run(open_etcd("nobody.invalid", attempt_s=0.2))


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
