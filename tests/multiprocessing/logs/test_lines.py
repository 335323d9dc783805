"""Line code: for every way to cut a stream into chunks, the same whole lines and no byte lost or torn."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from phalanx.multiprocessing.lines import LineAssembler, matching, prefixed, printable

# Bytes that mean something to the code come often.
_TEXT = st.lists(
    st.sampled_from([b"a", b"bc", b" ", b"\n", b"\r", b"\r\n", b"\x1b[K", "é".encode(), b"\xff", b"\0"]),
    max_size=60,
).map(b"".join)
_PLAIN = st.lists(st.sampled_from([b"a", b"bc", b" ", b"\n", b"\xff", "é".encode()]), max_size=60).map(
    b"".join
)


def _chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


def _shown(chunks: list[bytes], *, max_line: int = 1 << 20) -> bytes:
    assembler = LineAssembler(max_line=max_line)
    return b"".join([*map(assembler.feed, chunks), assembler.flush()])


@given(_TEXT, st.lists(st.integers(0, 10_000), max_size=12))
@example(b"a\r\nb", [2])
@example(b"\rstep 1\rstep 2\r\n", [14, 15])
@example(b"a\r  \r\n", [1, 2, 3, 4, 5])
def test_chunks_do_not_matter(data: bytes, cuts: list[int]) -> None:
    assert _shown(_chunks(data, cuts)) == _shown([data])


@given(_PLAIN, st.lists(st.integers(0, 10_000), max_size=12))
def test_without_carriage_returns_every_byte_comes_out_in_order(data: bytes, cuts: list[int]) -> None:
    expected = data if data.endswith(b"\n") or not data else data + b"\n"
    assert _shown(_chunks(data, cuts)) == expected


@given(_TEXT, st.lists(st.integers(0, 10_000), max_size=12))
def test_every_block_is_whole_lines_without_carriage_returns(data: bytes, cuts: list[int]) -> None:
    assembler = LineAssembler()
    for block in [*map(assembler.feed, _chunks(data, cuts)), assembler.flush()]:
        assert not block or block.endswith(b"\n")
        assert b"\r" not in block


@given(_TEXT.filter(lambda data: b"\n" not in data), st.lists(st.integers(0, 10_000), max_size=12))
def test_what_a_terminal_shows_unfinished_is_what_the_flush_shows(data: bytes, cuts: list[int]) -> None:
    assembler = LineAssembler()
    for chunk in _chunks(data, cuts):
        assembler.feed(chunk)
    unfinished = assembler.unfinished
    flushed = assembler.flush()
    assert flushed == (unfinished + b"\n" if unfinished else b"")


@given(_PLAIN.filter(bool), st.lists(st.integers(0, 10_000), max_size=12), st.integers(1, 20))
def test_a_line_above_the_limit_is_cut_and_nothing_is_lost(data: bytes, cuts: list[int], limit: int) -> None:
    shown = _shown(_chunks(data, cuts), max_line=limit)
    assert shown.replace(b"\n", b"") == data.replace(b"\n", b"")


def test_an_endless_line_never_takes_more_memory_than_the_limit() -> None:
    assembler = LineAssembler(max_line=1000)
    for _ in range(100):
        assembler.feed(b"x" * 700)
        assert len(assembler.unfinished) <= 1000


def test_an_endless_progress_bar_takes_the_memory_of_one_state() -> None:
    assembler = LineAssembler()
    for step in range(10_000):
        assert assembler.feed(b"\rstep %d of 10000" % step) == b""
        assert len(assembler._part) < 100
    assert assembler.flush() == b"step 9999 of 10000\n"


def test_a_line_is_never_cut_inside_a_character() -> None:
    shown = _shown(["ä".encode() * 10], max_line=5)
    assert shown.decode() == "ää\n" * 5


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"plain\n", b"plain\n"),
        (b"windows\r\n", b"windows\n"),
        (b"\n", b"\n"),
        (b"\r\n", b"\n"),
        (b"no newline", b"no newline\n"),
        (b"\rstep 1\rstep 2\rstep 3\n", b"step 3\n"),
        (b"\rstep 1\rstep 2\rstep 3", b"step 3\n"),
        (b"\rstep 1\rstep 2\r", b"step 2\n"),
        (b"step 1\rstep 2\r\n", b"step 2\n"),
        (b"\r 50%\r100%\r    \r", b"100%\n"),  # a bar that wipes itself out still tells how far it came
        (b"\r    \r\x1b[K\rnext line\n", b"next line\n"),
        (b"\r    \r\n", b""),
        (b"\r\x1b[2K\r\n", b""),
        (b"\r  1%\r100%\x1b[0m\n", b"100%\x1b[0m\n"),
        (b"a\rb\nc\rd\n", b"b\nd\n"),
    ],
)
def test_a_line_is_shown_as_it_looked_in_the_end(written: bytes, shown: bytes) -> None:
    assert _shown([written]) == shown


def test_every_line_gets_the_prefix_once() -> None:
    assert prefixed(b"a\n\nb\n", b"[0]:") == b"[0]:a\n[0]:\n[0]:b\n"
    assert prefixed(b"", b"[0]:") == b""
    assert prefixed(b"a\n", b"") == b"a\n"


@given(_PLAIN)
def test_a_prefix_changes_nothing_else(data: bytes) -> None:
    block = _shown([data])
    assert prefixed(block, b"[x]:").replace(b"[x]:", b"") == block


def test_bytes_that_are_no_text_are_replaced_and_stop_nothing() -> None:
    assert printable(b"ok\n\xff\xfe\nnext \xc3\xa9\n").decode() == "ok\n��\nnext é\n"


@given(st.binary())
def test_printable_bytes_are_valid_and_lines_stay_lines(data: bytes) -> None:
    text = printable(data)
    text.decode("utf-8")
    assert text.count(b"\n") == data.count(b"\n")


def test_matching_keeps_whole_lines_that_contain_a_filter() -> None:
    block = b"loss=1\nother\nWARN x\nloss=2\n"
    assert matching(block, [b"loss", b"WARN"]) == b"loss=1\nWARN x\nloss=2\n"
    assert matching(block, [b"absent"]) == b""
    assert matching(b"", [b"loss"]) == b""
