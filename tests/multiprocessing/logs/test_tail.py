"""``TailLog`` and ``tail_logfile``, with torchelastic's signatures."""

from __future__ import annotations

import io
import threading
import time
from pathlib import Path

import pytest
from tests.compat.marks import shows_names

from phalanx.multiprocessing import inotify
from phalanx.multiprocessing.tail import TailLog, tail_logfile


def test_lines_of_all_files_are_copied_with_the_name_and_index(tmp_path: Path) -> None:
    files = {index: str(tmp_path / f"{index}.log") for index in (0, 11)}
    dst = io.StringIO()
    tail = TailLog("trainer", files, dst).start()
    assert not tail.stopped()
    for index, path in files.items():
        Path(path).write_text(f"line of {index}\n\nend")
    tail.stop()
    assert tail.stopped()
    expected = [f"[trainer{index}]:{line}" for index in (0, 11) for line in ("", "end", f"line of {index}")]
    assert sorted(dst.getvalue().splitlines()) == sorted(expected)


def test_prefixes_given_take_the_place_of_the_name(tmp_path: Path) -> None:
    for index in (0, 1):
        (tmp_path / str(index)).write_text("x\n")
    dst = io.StringIO()
    TailLog("t", {0: str(tmp_path / "0"), 1: str(tmp_path / "1")}, dst, {0: ">"}).start().stop()
    assert sorted(dst.getvalue().splitlines()) == [">x", "[t1]:x"]


def test_a_file_may_appear_later_in_a_folder_that_appears_later(tmp_path: Path) -> None:
    places = [tmp_path / "a.log", tmp_path / "sub" / "b.log"]
    with open(tmp_path / "shown", "w+") as dst:
        tail = TailLog("t", {0: str(places[0]), 1: str(places[1])}, dst).start()
        places[1].parent.mkdir()
        for place in places:
            place.write_text("there\n")
        patience_ends = time.monotonic() + 30
        while (tmp_path / "shown").read_text().count("\n") < 2 and time.monotonic() < patience_ends:
            time.sleep(0.01)
        shown = sorted((tmp_path / "shown").read_text().splitlines())
        tail.stop()
    assert shown == ["[t0]:there", "[t1]:there"]


def test_a_file_that_never_appears_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    dst = io.StringIO()
    TailLog("t", {0: str(tmp_path / "never")}, dst).start().stop()
    assert dst.getvalue() == ""


def test_a_filter_sees_whole_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"keep 1\ndrop\n\xffkeep 2")
    seen: list[str] = []

    def keeps(line: str) -> bool:
        seen.append(line)
        return "keep" in line

    dst = io.StringIO()
    TailLog("t", {0: str(tmp_path / "log")}, dst, log_line_filter=keeps).start().stop()
    assert seen == ["keep 1\n", "drop\n", "�keep 2\n"]
    assert dst.getvalue() == "[t0]:keep 1\n[t0]:�keep 2\n"


def test_without_inotify_the_interval_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(inotify.Inotify, "__init__", fail)
    path = tmp_path / "log"
    dst = io.StringIO()
    tail = TailLog("t", {0: str(path)}, dst, interval_sec=0.01).start()
    path.write_text("x\n")
    patience_ends = time.monotonic() + 30
    while not dst.getvalue() and time.monotonic() < patience_ends:
        time.sleep(0.01)
    assert dst.getvalue() == "[t0]:x\n"
    tail.stop()


@shows_names("same", "elastic.multiprocessing.tail_log", "tail_logfile")
def test_one_file_is_tailed_in_the_callers_thread_until_it_is_told_to_finish(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("first\n")
    dst, finished = io.StringIO(), threading.Event()
    thread = threading.Thread(target=tail_logfile, args=("head ", str(path), dst, finished, 0.01))
    thread.start()
    with path.open("a") as log:
        log.write("second")
    finished.set()
    thread.join(30)
    assert not thread.is_alive()
    assert dst.getvalue() == "head first\nhead second\n"


def test_stopping_twice_or_before_the_start_is_no_error(tmp_path: Path) -> None:
    tail = TailLog("t", {0: str(tmp_path / "log")}, io.StringIO())
    tail.stop()
    assert tail.stopped()
    tail.stop()


def test_no_files_is_no_error() -> None:
    TailLog("t", {}, io.StringIO()).start().stop()


def test_a_second_start_is_refused(tmp_path: Path) -> None:
    tail = TailLog("t", {0: str(tmp_path / "log")}, io.StringIO()).start()
    with pytest.raises(RuntimeError, match="make a new one"):
        tail.start()
    tail.stop()
