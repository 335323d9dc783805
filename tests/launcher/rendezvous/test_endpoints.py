"""Endpoints as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.launcher.rendezvous.endpoints import Endpoint, is_loopback, read_endpoint, read_endpoints


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("node0", "node0", None),
        ("node0:29400", "node0", 29400),
        ("10.0.0.1:0", "10.0.0.1", 0),
        ("[::1]:29400", "::1", 29400),
        ("[::1]", "::1", None),
        ("fe80::1%eth0", "fe80::1%eth0", None),
        ("job_a-worker-0.job-a.ns.svc:29400", "job_a-worker-0.job-a.ns.svc", 29400),
    ],
)
def test_a_host_is_kept_as_it_was_given(text: str, host: str, port: int | None) -> None:
    assert read_endpoint(text) == Endpoint(host, port)
    assert str(read_endpoint(text)) == (f"[{text}]" if text.startswith("fe80") else text)


@pytest.mark.parametrize(
    "text", ["", ":29400", "[::1", "[::1]29400", "a b:1", "user@host:1", "host/path:1", "[]:1"]
)
def test_what_is_no_endpoint_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no endpoint; write HOST:PORT"):
        read_endpoint(text)


@pytest.mark.parametrize("text", ["h:1:2", "[h:1:2]:3", "[h:1]", "1:2:3"])
def test_several_colons_are_those_of_an_ipv6_address(text: str) -> None:
    with pytest.raises(ValueError, match="is no IPv6 address; write HOST:PORT or"):
        read_endpoint(text)


@pytest.mark.parametrize("text", ["node0:", "node0:http", "node0:65536", "node0:-1", "node0:²"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no port"):
        read_endpoint(text)


def test_several_endpoints_have_commas_between_them() -> None:
    assert read_endpoints(" h0:1, h1 ,,h2:3") == (Endpoint("h0", 1), Endpoint("h1"), Endpoint("h2", 3))
    assert read_endpoints("") == ()
    with pytest.raises(ValueError, match="names an endpoint twice"):
        read_endpoints("h0:1,h0:1")


def test_a_scheme_is_told_apart_from_the_host() -> None:
    assert read_endpoint("https://h0:2379/") == Endpoint("h0", 2379, "https")
    assert str(read_endpoint("https://h0:2379")) == "h0:2379"


def test_a_default_port_is_for_those_that_have_none() -> None:
    assert read_endpoint("h0").with_default(29400) == Endpoint("h0", 29400)
    assert read_endpoint("h0:1").with_default(29400) == Endpoint("h0", 1)


def test_loopback_is_known_by_its_spelling() -> None:
    for host in ("localhost", "127.0.0.1", "127.1.2.3", "::1"):
        assert is_loopback(host)
    for host in ("node0", "127.example.org", "10.0.0.1", "::"):
        assert not is_loopback(host)


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = read_endpoints(text)
    except ValueError:
        return
    for one in found:
        assert one.host
        assert read_endpoint(f"{one.scheme}://{one}" if one.scheme else str(one)) == one


@pytest.mark.torch
@pytest.mark.parametrize("text", ["node0", "node0:29400", "10.0.0.1:1", "[::1]:29400", ":1"])
def test_torchrun_reads_the_same_host_and_port_where_both_take_the_text(text: str) -> None:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    try:
        ours = read_endpoint(text).with_default(7)
        host, port = parse_rendezvous_endpoint(text, 7)
    except ValueError:
        assert text == ":1"
        return
    assert (ours.host, ours.port) == (host, port)
