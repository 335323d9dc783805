"""The agent's own lines never hold up supervision."""

from __future__ import annotations

import os
import threading

from phalanx.agent.processes.console import Console


def test_a_line_goes_out_at_once_with_the_launchers_name() -> None:
    read, write = os.pipe()
    Console(write).say("rank 1 failed")
    assert os.read(read, 100) == b"phalanx: rank 1 failed\n"
    os.close(read)
    os.close(write)


def test_a_full_pipe_keeps_lines_back_until_somebody_reads() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    filled = 0
    while True:
        try:
            filled += os.write(write, b"x" * 4096)
        except BlockingIOError:
            break
    os.set_blocking(write, True)
    console = Console(write)
    console.say("kept")  # would block for ever if it were written
    assert len(os.read(read, filled)) == filled
    console.say("at last")
    assert os.read(read, 100) == b"phalanx: kept\nphalanx: at last\n"
    os.close(read)
    os.close(write)


def test_the_last_word_waits_for_a_slow_reader_and_is_whole() -> None:
    read, write = os.pipe()
    received = bytearray()

    def drain() -> None:
        while chunk := os.read(read, 65536):
            received.extend(chunk)

    reader = threading.Thread(target=drain)
    reader.start()
    text = "report\n" * 50_000
    Console(write).finish(text)
    os.close(write)
    reader.join()
    os.close(read)
    assert received.decode() == text


def test_a_console_that_is_gone_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    console = Console(write)
    console.say("nobody hears")
    console.finish("nobody hears")
    os.close(write)
    console.say("nor on a closed descriptor")
    console.finish("nor here")
