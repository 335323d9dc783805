from __future__ import annotations

import signal
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli import convert
from phalanx.multiprocessing.std import Std

READERS: list[Callable[[str], object]] = [
    convert.Choice("spawn", "fork"),
    convert.comma_list,
    convert.count,
    convert.node_range,
    convert.pairs,
    convert.port,
    convert.rank_set,
    convert.duration,
    convert.signals,
    convert.size,
    convert.streams,
    convert.switch,
    convert.text,
]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: getattr(reader, "__name__", "Choice"))
@given(raw=st.one_of(st.text(max_size=20), st.from_regex(r"\A[-+0-9:.,=KMGiBe_ ]{0,12}\Z")))
def test_any_text_is_read_or_refused_with_a_sentence(reader: Callable[[str], object], raw: str) -> None:
    try:
        reader(raw)
    except ValueError as reason:
        sentence = str(reason)
    else:
        return
    assert not sentence.startswith("invalid literal")
    assert "\n" not in sentence


@pytest.mark.parametrize("raw", ["1", "true", "True", "TRUE", "yes", "Yes", "on", "ON", "y", "t", " 1 "])
def test_yes_in_every_usual_spelling(raw: str) -> None:
    assert convert.switch(raw) is True


@pytest.mark.parametrize("raw", ["0", "false", "False", "FALSE", "no", "No", "off", "OFF", "n", "f"])
def test_no_in_every_usual_spelling(raw: str) -> None:
    assert convert.switch(raw) is False


@pytest.mark.parametrize("raw", ["", "2", "-1", "maybe", "truee"])
def test_neither_yes_nor_no_is_refused(raw: str) -> None:
    with pytest.raises(ValueError, match="neither yes nor no"):
        convert.switch(raw)


@pytest.mark.parametrize(
    ("raw", "amount"),
    [
        ("0", 0),
        ("65536", 65536),
        ("64K", 65536),
        ("64k", 65536),
        ("64KiB", 65536),
        ("64KB", 65536),
        ("1.5M", 1572864),
    ],
)
def test_a_size_is_in_bytes_or_in_a_unit_of_1024(raw: str, amount: int) -> None:
    assert convert.size(raw) == amount


@pytest.mark.parametrize("raw", ["", "K", "-1", "ten", "1KK", "1X", "nan", "inf", "1e400", "64 kilo"])
def test_what_is_no_size_is_refused(raw: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        convert.size(raw)


@pytest.mark.parametrize(("raw", "nodes"), [("1", (1, 1)), ("4", (4, 4)), ("1:1", (1, 1)), ("2:8", (2, 8))])
def test_a_number_of_nodes_is_one_number_or_a_range(raw: str, nodes: tuple[int, int]) -> None:
    assert convert.node_range(raw) == nodes


@pytest.mark.parametrize("raw", ["", "0", "-1", "2:1", "0:2", "1:", ":2", "1:2:3", "many"])
def test_what_is_no_number_of_nodes_is_refused(raw: str) -> None:
    with pytest.raises(ValueError, match="is no number of nodes"):
        convert.node_range(raw)


def test_settings_are_pairs_with_commas_between_them() -> None:
    assert convert.pairs("") == {}
    assert convert.pairs(" a=1, b = x=y ,") == {"a": "1", "b": "x=y"}
    for raw in ("a", "=1", "a=", "a=1,b"):
        with pytest.raises(ValueError, match="is no setting"):
            convert.pairs(raw)


@pytest.mark.parametrize(
    ("raw", "texts"),
    [
        ("", ()),
        ("a", ("a",)),
        ("a,b", ("a", "b")),
        ("a,,b", ("a,b",)),
        ("a,,,b", ("a,", "b")),
        (",,a", (",a",)),
        (" a , b", (" a ", " b")),
        ("a,", ("a",)),
    ],
)
def test_texts_have_commas_between_them_and_two_commas_are_one_literal_comma(
    raw: str, texts: tuple[str, ...]
) -> None:
    assert convert.comma_list(raw) == texts


def test_local_ranks_are_numbers_with_commas_between_them_and_none_means_all() -> None:
    assert convert.rank_set("") is None
    assert convert.rank_set("0, 12") == frozenset({0, 12})
    for raw in ("-1", "a", "0,,1"):
        with pytest.raises(ValueError, match="is no list of local ranks"):
            convert.rank_set(raw)


def test_streams_are_for_all_workers_or_by_local_rank() -> None:
    assert convert.streams("3") == Std.ALL
    assert convert.streams("0:3,12:1") == {0: Std.ALL, 12: Std.OUT}
    with pytest.raises(ValueError, match="names no streams"):
        convert.streams("4")


def test_signals_are_named_in_full_in_short_or_by_number_and_unknown_ones_are_told_apart() -> None:
    known, unknown = convert.signals("SIGTERM, int,1,SIGTERM,SIGBREAK")
    assert known == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    assert unknown == ("SIGBREAK",)


@pytest.mark.parametrize("raw", ["SIGKILL", "STOP", "SIGTERM,9", "SIGCHLD", "SIGSEGV"])
def test_a_signal_that_cannot_be_taken_over_is_refused(raw: str) -> None:
    with pytest.raises(ValueError, match="leave it out"):
        convert.signals(raw)


@pytest.mark.parametrize("raw", ["-1", "nan", "inf", "soon", ""])
def test_what_is_no_time_is_refused(raw: str) -> None:
    with pytest.raises(
        ValueError, match="is no time; write seconds, or a number with a unit such as 90s, 5m, 1h"
    ):
        convert.duration(raw)


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        ("0", 0),
        ("30", 30),
        ("0.5", 0.5),
        ("90s", 90),
        ("5m", 300),
        ("5 min", 300),
        ("1h", 3600),
        ("1.5H", 5400),
        ("1d", 86400),
    ],
)
def test_times_are_seconds_or_have_a_unit(raw: str, seconds: float) -> None:
    assert convert.duration(raw) == seconds


@pytest.mark.parametrize("raw", ["65536", "-1", "http"])
def test_what_is_no_port_is_refused(raw: str) -> None:
    with pytest.raises(ValueError, match="is no"):
        convert.port(raw)
