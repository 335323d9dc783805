"""What each outlet does with the chunks of a stream."""

from __future__ import annotations

import io
import time

from hypothesis import given
from hypothesis import strategies as st

from phalanx.multiprocessing.console import TextConsole
from phalanx.multiprocessing.outlets import ConsoleCopy, LastBytes


def test_lines_of_two_ranks_written_in_parts_do_not_mix() -> None:
    shown = io.StringIO()
    console = TextConsole(shown)
    ranks = [ConsoleCopy(console, is_shared=True) for _ in range(2)]
    for part in (b"one ", b"line", b"\nnext "):
        for rank in ranks:
            rank.take(part)
    assert shown.getvalue() == "one line\n" * 2
    for rank in ranks:
        rank.finish()
    assert shown.getvalue() == "one line\n" * 2 + "next next "


def test_a_part_waits_for_a_moment_and_the_moment_begins_with_its_first_byte() -> None:
    copy = ConsoleCopy(TextConsole(io.StringIO()), is_shared=True)
    before = time.monotonic()
    copy.take(b"whole\npart")
    due = copy.due
    assert due is not None
    assert before < due <= time.monotonic() + 0.05  # what a line may take to the screen
    copy.take(b" and more")
    assert copy.due == due
    copy.release()
    assert copy.due is None


def test_a_line_alone_on_the_console_never_waits() -> None:
    shown = io.StringIO()
    copy = ConsoleCopy(TextConsole(shown), is_shared=False)
    copy.take(b"prompt? ")
    assert (shown.getvalue(), copy.due) == ("prompt? ", None)


def test_an_endless_line_is_not_held_back() -> None:
    shown = io.StringIO()
    copy = ConsoleCopy(TextConsole(shown), is_shared=True)
    for _ in range(100):
        copy.take(b"x" * 100)
    assert len(shown.getvalue()) > 5000


@given(st.lists(st.binary(max_size=20) | st.sampled_from([b"\n", b"a\nb"]), max_size=30), st.integers(0, 30))
def test_a_copy_is_exact_whenever_its_parts_are_released(chunks: list[bytes], release_after: int) -> None:
    shown: list[bytes] = []

    class Recorder(TextConsole):
        def _queue(self, data: bytes) -> None:
            shown.append(data)

    copy = ConsoleCopy(Recorder(io.StringIO()), is_shared=True)
    for number, chunk in enumerate(chunks):
        copy.take(chunk)
        if number == release_after:
            copy.release()
    copy.finish()
    assert b"".join(shown) == b"".join(chunks)


@given(st.lists(st.binary(max_size=40), max_size=30), st.integers(1, 50))
def test_the_last_bytes_are_kept_and_memory_is_bounded(chunks: list[bytes], size: int) -> None:
    last = LastBytes(size)
    for chunk in chunks:
        last.take(chunk)
        assert len(last._kept) <= 2 * size
    assert last.last() == b"".join(chunks)[-size:]
