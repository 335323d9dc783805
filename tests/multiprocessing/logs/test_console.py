"""Consoles: slow, dead, shared, and those without a descriptor."""

from __future__ import annotations

import fcntl
import io
import os
import socket
import threading
from collections.abc import Callable

import pytest

from phalanx.multiprocessing.console import FdConsole, TextConsole, console_for, same_place


def _read_all(fd: int) -> bytes:
    data = b""
    while chunk := os.read(fd, 1 << 16):
        data += chunk
    return data


def test_our_callers_descriptor_stays_blocking() -> None:
    reading, writing = os.pipe()
    console = FdConsole(writing)
    console.show("a", b"x\n")
    assert os.get_blocking(writing)
    assert console.fileno() != writing
    console.close()
    os.close(writing)
    assert _read_all(reading) == b"x\n"
    os.close(reading)


def test_a_full_pipe_blocks_the_console_and_no_byte_is_lost() -> None:
    reading, writing = os.pipe()
    console = FdConsole(writing)
    block = b"".join(b"%07d\n" % number for number in range(400_000))
    console.show("a", block)
    assert console.blocked
    assert console.written < console.queued == len(block)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(_read_all(reading)))
    reader.start()
    while console.written < console.queued:
        console.push()
    assert console.written == console.queued
    console.close()
    os.close(writing)
    reader.join(30)
    assert received == [block]
    os.close(reading)


def test_a_pipe_gets_whole_lines_even_when_it_fills_up() -> None:
    reading, writing = os.pipe()
    fcntl.fcntl(reading, fcntl.F_SETPIPE_SZ, 1 << 20)  # as large as it gets: it will not grow
    console = FdConsole(writing)
    console.show("a", (b"x" * 89 + b"\n") * 30_000)
    assert console.blocked
    assert os.read(reading, 1 << 21).endswith(b"x\n")
    console.close()
    os.close(writing)
    os.close(reading)


def test_a_reader_that_left_is_noticed_and_forgotten() -> None:
    reading, writing = os.pipe()
    console = FdConsole(writing)
    os.close(reading)
    console.show("a", b"x\n")
    assert console.gone
    assert not console.blocked
    console.copy(b"y")
    assert console.written == console.queued
    console.close()
    os.close(writing)


def test_a_socket_is_written_without_waiting() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        console = FdConsole(ours.fileno())
        console.show("a", b"line\n" * 200_000)
        assert console.blocked
        assert ours.getblocking()
        received = 0
        while received < 1_000_000:
            received += len(theirs.recv(1 << 16))
            console.push()
        assert console.written == console.queued
        console.close()


def test_a_stream_without_a_descriptor_gets_text() -> None:
    stream = io.StringIO()
    console = console_for(stream)
    assert isinstance(console, TextConsole)
    console.show("a", "é\n".encode())
    console.copy(b"\xff")
    assert stream.getvalue() == "é\n\ufffd"
    with pytest.raises(ValueError, match="no descriptor"):
        console.fileno()


def test_a_closed_stream_is_a_console_that_is_gone() -> None:
    stream = io.StringIO()
    console = console_for(stream)
    assert console is not None
    stream.close()
    console.show("a", b"x\n")
    assert console.gone


def test_no_stream_is_no_console() -> None:
    assert console_for(None) is None


def test_what_python_buffered_before_comes_first() -> None:
    reading, writing = os.pipe()
    stream = io.TextIOWrapper(io.BufferedWriter(io.FileIO(writing, "w")))
    stream.write("ours\n")
    console = console_for(stream)
    assert console is not None
    console.show("a", b"theirs\n")
    console.close()
    stream.close()
    assert _read_all(reading) == b"ours\ntheirs\n"
    os.close(reading)


@pytest.mark.parametrize("open_ends", [os.pipe, os.openpty])
def test_two_streams_to_one_place_are_known_as_such(open_ends: Callable[[], tuple[int, int]]) -> None:
    reading, writing = open_ends()
    other_reading, other_writing = open_ends()
    first = io.TextIOWrapper(io.FileIO(writing, "w"))
    second = io.TextIOWrapper(io.FileIO(os.dup(writing), "w"))
    third = io.TextIOWrapper(io.FileIO(other_writing, "w"))
    assert same_place(first, second)
    assert not same_place(first, third)
    assert not same_place(first, None)
    assert not same_place(first, io.StringIO())
    for stream in (first, second, third):
        stream.close()
    for fd in (reading, other_reading):
        os.close(fd)


def test_a_dumb_terminal_has_no_bottom_row(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.openpty()
    for name, is_live in (("dumb", False), ("xterm", True)):
        monkeypatch.setenv("TERM", name)
        console = FdConsole(writing)
        assert (console.is_terminal, console.is_live) == (True, is_live)
        console.close()
    for fd in (reading, writing):
        os.close(fd)


def test_where_a_pipe_cannot_be_opened_anew_it_is_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise OSError(2, "No such file or directory")

    reading, writing = os.pipe()
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        console = FdConsole(writing)
    assert console.fileno() == writing
    console.show("a", (b"x" * 89 + b"\n") * 30_000)  # must come back though nobody reads
    assert console.blocked
    console.close()
    os.close(writing)
    assert len(_read_all(reading)) > 10_000
    os.close(reading)
