"""The bottom row of a terminal, seen through a small terminal that knows the few sequences in use."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from phalanx.multiprocessing.live import LiveScreen


def _terminal(written: bytes) -> list[str]:
    """The rows that a terminal shows after these bytes, colours left out."""
    rows, column = [""], 0
    for token in re.findall(r"\x1b\[\??[0-9;]*[A-Za-z]|[^\x1b]", written.decode()):
        if token == "\n":
            rows.append("")
            column = 0
        elif token == "\r":
            column = 0
        elif token == "\x1b[K":
            rows[-1] = rows[-1][:column]
        elif not token.startswith("\x1b"):
            rows[-1] = rows[-1][:column] + token + rows[-1][column + 1 :]
            column += 1
    return rows


def test_an_unfinished_line_stays_below_the_lines_of_others() -> None:
    screen = LiveScreen()
    written = screen.compose("a", b"", b"[0]: 10%")
    written += screen.compose("b", b"[1]:hello\n", b"")
    written += screen.compose("a", b"", b"[0]: 20%")
    assert _terminal(written) == ["[1]:hello", "[0]: 20%"]


def test_the_finished_line_takes_the_place_of_the_live_one() -> None:
    screen = LiveScreen()
    written = screen.compose("a", b"", b"[0]: 99%") + screen.compose("a", b"[0]:100%\n", b"")
    assert _terminal(written) == ["[0]:100%", ""]


def test_the_row_belongs_to_its_first_stream_until_that_line_ends() -> None:
    screen = LiveScreen()
    written = screen.compose("a", b"", b"[0]: 1%")
    written += screen.compose("b", b"", b"[1]: 1%")
    assert _terminal(written) == ["[0]: 1%"]
    written += screen.compose("a", b"[0]: 2%\n", b"") + screen.compose("b", b"", b"[1]: 2%")
    assert _terminal(written) == ["[0]: 2%", "[1]: 2%"]


def test_a_line_that_did_not_change_is_not_drawn_again() -> None:
    screen = LiveScreen()
    assert screen.compose("a", b"", b"[0]: 1%")
    assert screen.compose("a", b"", b"[0]: 1%") == b""
    assert screen.compose("b", b"", b"[1]: 1%") == b""


def test_lines_alone_are_written_as_they_are() -> None:
    assert LiveScreen().compose("a", b"[0]:x\n[0]:y\n", b"") == b"[0]:x\n[0]:y\n"


def test_foreign_bytes_pass_unchanged_when_nothing_is_live() -> None:
    screen = LiveScreen()
    assert screen.passthrough(b"\r 5%|#   |") == b"\r 5%|#   |"
    assert screen.passthrough(b"\r10%|##  |") == b"\r10%|##  |"


def test_lines_do_not_run_into_an_unfinished_foreign_line() -> None:
    screen = LiveScreen()
    written = (
        screen.passthrough(b"\r 5%|#  |")
        + screen.compose("a", b"[0]:x\n", b"")
        + screen.passthrough(b"\r 9%|#  |")
    )
    assert _terminal(written) == [" 5%|#  |", "[0]:x", " 9%|#  |"]


def test_a_live_line_makes_room_for_foreign_bytes_and_comes_back() -> None:
    screen = LiveScreen()
    written = screen.compose("a", b"", b"[0]: 1%") + screen.passthrough(b"warning\n")
    assert _terminal(written) == ["warning", "[0]: 1%"]
    written += screen.passthrough(b"half")
    assert _terminal(written) == ["warning", "half"]
    written += screen.passthrough(b" done\n")
    assert _terminal(written) == ["warning", "half done", "[0]: 1%"]


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.lists(st.sampled_from(["x", "yy"]), max_size=2),
            st.sampled_from(["", "p", "pq"]),
        ),
        max_size=20,
    )
)
def test_whole_lines_are_never_garbled(history: list[tuple[int, list[str], str]]) -> None:
    screen = LiveScreen()
    written, expected = b"", []
    for source, lines, unfinished in history:
        whole = [f"[{source}]:{line}" for line in lines]
        expected += whole
        block = "".join(f"{line}\n" for line in whole).encode()
        written += screen.compose(source, block, f"[{source}]:{unfinished}".encode() if unfinished else b"")
    assert _terminal(written)[:-1] == expected
