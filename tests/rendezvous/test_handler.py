"""The public names of a rendezvous, beside torchelastic's own, which is run as an oracle."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.compat.marks import shows_names

import phalanx.rendezvous as ours
from phalanx.rendezvous.endpoint import parse_rendezvous_endpoint
from phalanx.rendezvous.limits import RendezvousSettings, RendezvousTimeout


class KeptValues:
    """As much of torch's store as a rendezvous needs to say where it is."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.values[key] = value

    def get(self, key: str) -> bytes:
        return self.values[key]


# The same names, shapes and readings as torchelastic


@pytest.fixture(scope="module")
def theirs() -> Any:
    import torch.distributed.elastic.rendezvous as found

    return found


@pytest.mark.torch
def test_every_public_name_is_there(theirs: Any) -> None:
    assert set(theirs.__all__) == set(ours.__all__)
    for name in ours.__all__:
        assert getattr(ours, name) is not None


@pytest.mark.torch
@shows_names(
    "same",
    "elastic.rendezvous",
    "RendezvousClosedError",
    "RendezvousConnectionError",
    "RendezvousError",
    "RendezvousGracefulExitError",
    "RendezvousStateError",
    "RendezvousTimeoutError",
)
def test_errors_form_the_same_tree(theirs: Any) -> None:
    for name in [name for name in ours.__all__ if name.endswith("Error")]:
        bases = [base.__name__ for base in getattr(theirs, name).__mro__]
        assert [base.__name__ for base in getattr(ours, name).__mro__] == bases


@pytest.mark.torch
@shows_names("same", "elastic.rendezvous", "RendezvousHandler")
def test_a_handler_must_have_the_same_methods_and_nothing_else(theirs: Any) -> None:
    assert ours.RendezvousHandler.__abstractmethods__ == theirs.RendezvousHandler.__abstractmethods__
    for name in ours.RendezvousHandler.__abstractmethods__:
        own, other = getattr(ours.RendezvousHandler, name), getattr(theirs.RendezvousHandler, name)
        assert list(inspect.signature(own).parameters) == list(inspect.signature(other).parameters)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("api", "RendezvousParameters"),
        ("api", "RendezvousStoreInfo.build"),
        ("dynamic_rendezvous", "RendezvousTimeout"),
        ("dynamic_rendezvous", "DynamicRendezvousHandler.from_backend"),
        ("dynamic_rendezvous", "create_handler"),
        ("dynamic_rendezvous", "RendezvousBackend.set_state"),
        ("c10d_rendezvous_backend", "C10dRendezvousBackend"),
        ("c10d_rendezvous_backend", "create_backend"),
        ("registry", "get_rendezvous_handler"),
        ("utils", "parse_rendezvous_endpoint"),
    ],
)
def test_what_is_called_takes_the_same_arguments(module: str, name: str) -> None:
    import importlib

    from phalanx.rendezvous import c10d_backend, dynamic, endpoint, parameters, registry, store_info

    found: Any = importlib.import_module(f"torch.distributed.elastic.rendezvous.{module}")
    own = next(
        part
        for part in (dynamic, c10d_backend, parameters, store_info, registry, endpoint)
        if name.partition(".")[0] in part.__all__
    )
    for part in name.split("."):
        found, own = getattr(found, part), getattr(own, part)
    wanted, had = inspect.signature(found).parameters, inspect.signature(own).parameters  # type: ignore[arg-type]
    assert list(had) == list(wanted)
    assert [one.default for one in had.values()] == [one.default for one in wanted.values()]
    assert [one.kind for one in had.values()] == [one.kind for one in wanted.values()]


def _outcome(call: Any, *args: Any, **options: Any) -> Any:
    try:
        return call(*args, **options)
    except Exception as error:  # noqa: BLE001 # the kind of error is what is compared
        return type(error).__name__


VALUES = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=6) | st.binary(max_size=2)
)
WORDS = st.sampled_from(
    ["1", "0", "true", "FALSE", "t", "F", "yes", "No", "y", "n", " 1", "7", "-1", "1.5", "0x1"]
)


@pytest.mark.torch
@given(
    value=VALUES | WORDS,
    default=st.none() | st.booleans() | st.integers(-1, 2) | WORDS,
    is_there=st.booleans(),
)
@shows_names("same", "elastic.rendezvous", "RendezvousParameters")
def test_options_are_read_as_torchelastic_reads_them(value: Any, default: Any, is_there: bool) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters as Theirs

    options = {"key": value} if is_there else {}
    own = ours.RendezvousParameters("b", "e", "i", 1, 2, **options)
    other = Theirs("b", "e", "i", 1, 2, **options)
    for name in ("get", "get_as_bool", "get_as_int"):
        expected = _outcome(getattr(other, name), "key", default)
        found = _outcome(getattr(own, name), "key", default)
        assert found is expected or found == expected  # nan is only itself
        assert type(found) is type(expected)


@pytest.mark.torch
@given(
    backend=st.sampled_from(["", "b"]),
    low=st.integers(-1, 3),
    high=st.integers(-1, 3),
    address=st.sampled_from(["a", None]),
)
def test_limits_that_torchelastic_refuses_are_refused(
    backend: str, low: int, high: int, address: str | None
) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters as Theirs

    args = (backend, "e", "i", low, high, address)
    expected, found = _outcome(Theirs, *args), _outcome(ours.RendezvousParameters, *args)
    if isinstance(expected, str):
        assert found == expected == "ValueError"
    else:
        assert vars(found) == vars(expected)


HOSTS = st.sampled_from(
    ["", "host", "h-1.example", "10.0.0.1", "::1", "[::1]", "[", "]", "[]", "a b", "ä", "h_1", "*", "[::1"]
)
PORTS = st.sampled_from(
    ["", ":", ":1", ":0", ":65535", ":65536", ":99999", ":123456", ":-1", ":x", ":٣", ": 1", ":1 "]
)


@pytest.mark.torch
@given(
    endpoint=st.none()
    | st.builds(str.__add__, HOSTS, PORTS)
    | st.text(alphabet="ah:[]. 19-_\t\n", max_size=12)
)
@shows_names("same", "elastic.rendezvous.utils", "parse_rendezvous_endpoint")
def test_an_endpoint_is_read_as_torchelastic_reads_it(endpoint: str | None) -> None:
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint as theirs

    assert _outcome(parse_rendezvous_endpoint, endpoint, 7) == _outcome(theirs, endpoint, 7)


@pytest.mark.torch
@shows_names("same", "elastic.rendezvous.dynamic_rendezvous", "RendezvousTimeout")
def test_timeouts_have_torchelastics_defaults_and_limits() -> None:
    from datetime import timedelta

    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout as Theirs

    names = ("join", "last_call", "close", "heartbeat")
    assert [getattr(RendezvousTimeout(), name) for name in names] == [
        getattr(Theirs(), name) for name in names
    ]
    for name in names:
        for seconds in (-1, 0, 1):
            given = {name: timedelta(seconds=seconds)}
            expected, found = _outcome(Theirs, **given), _outcome(RendezvousTimeout, **given)
            assert isinstance(found, str) == isinstance(expected, str)
            assert isinstance(found, str) or getattr(found, name) == getattr(expected, name)


@pytest.mark.torch
@shows_names("same", "elastic.rendezvous.dynamic_rendezvous", "RendezvousSettings")
def test_settings_have_torchelastics_fields() -> None:
    from dataclasses import fields

    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousSettings as Theirs

    assert list(RendezvousSettings.__struct_fields__) == [field.name for field in fields(Theirs)]


# Our own


def test_importing_the_package_loads_nothing_of_it() -> None:
    program = (
        "import sys, phalanx.rendezvous\n"
        "assert not [name for name in sys.modules if name.startswith('phalanx.rendezvous.')]\n"
        "from phalanx.rendezvous import RendezvousParameters\n"
        "assert 'phalanx.rendezvous.registry' not in sys.modules\n"
        "assert 'asyncio' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_name_that_is_not_public_is_no_attribute() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Rendezvous'"):
        _ = ours.Rendezvous
    assert set(ours.__all__) <= set(dir(ours))


def test_rank_0_tells_where_it_is_and_the_others_read_it() -> None:
    store = KeptValues()
    told = ours.RendezvousStoreInfo.build(0, store, "node0", server_port=1234)
    assert told == ours.RendezvousStoreInfo("node0", 1234)
    assert ours.RendezvousStoreInfo.build(1, store, "node1") == told
    assert store.values == {"MASTER_ADDR": b"node0", "MASTER_PORT": b"1234"}


def test_without_a_given_port_one_that_is_free_is_told() -> None:
    import socket

    told = ours.RendezvousStoreInfo.build(0, KeptValues(), "127.0.0.1")
    with socket.create_server(("127.0.0.1", told.master_port)):
        pass


def test_the_address_of_rank_0_is_the_one_that_reached_the_store_if_that_is_known() -> None:
    store = KeptValues()
    store.source_address = "10.1.2.3"  # type: ignore[attr-defined]
    assert ours.RendezvousStoreInfo.build(0, store, None, 1).master_addr == "10.1.2.3"


@shows_names(
    "better", "elastic.rendezvous", "RendezvousStoreInfo", how="an address, for which no name server is asked"
)
def test_the_address_of_rank_0_is_never_a_name_that_others_may_not_know() -> None:
    import ipaddress

    ipaddress.ip_address(ours.RendezvousStoreInfo.build(0, KeptValues(), None, 1).master_addr)


@pytest.mark.torch
@shows_names("same", "elastic.rendezvous", "RendezvousStoreInfo")
def test_rank_0_writes_what_torchelastic_reads(theirs: Any) -> None:
    from torch.distributed import HashStore

    store = HashStore()
    told = ours.RendezvousStoreInfo.build(0, store, "node0", 1234)
    read = theirs.RendezvousStoreInfo.build(1, store, None)
    assert (read.master_addr, read.master_port) == (told.master_addr, told.master_port)


@shows_names("same", "elastic.rendezvous", "RendezvousInfo")
def test_info_is_what_was_agreed_and_does_not_change() -> None:
    where = ours.RendezvousStoreInfo("node0", 1234)
    info = ours.RendezvousInfo("store", 1, 2, where)
    assert (info.store, info.rank, info.world_size, info.bootstrap_store_info) == ("store", 1, 2, where)
    with pytest.raises(AttributeError):
        info.rank = 0  # type: ignore[misc]


def test_a_node_is_lost_after_its_interval_times_its_attempts_and_never_at_once() -> None:
    from datetime import timedelta

    def ttl_s(seconds: int, attempts: int) -> float:
        return RendezvousSettings("i", 1, 1, RendezvousTimeout(), timedelta(seconds=seconds), attempts).ttl_s

    assert ttl_s(5, 3) == 15
    assert ttl_s(0, 3) == ttl_s(5, 0) == 1
