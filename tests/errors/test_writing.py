"""Error files are written whole or not at all, wherever they can be written."""

from __future__ import annotations

import json
import os
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.errors import ErrorHandler, read_error_file
from phalanx.errors._writing import encode, remove_unfinished, write_atomically

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values)
def test_what_is_encoded_is_json_of_the_same_value(value: Any) -> None:
    assert json.loads(encode(value)) == value
    assert encode(value).isascii()


def test_an_integer_that_is_an_enumeration_is_encoded_as_its_number() -> None:
    assert (
        encode({"signal": stat.FILE_ATTRIBUTE_ARCHIVE, "n": __import__("signal").SIGTERM})
        == '{"signal": 32, "n": 15}'
    )


def test_what_an_error_file_cannot_hold_is_refused() -> None:
    with pytest.raises(TypeError, match="no set"):
        encode({"x": {1}})


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text("old")
    write_atomically(str(path), b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["error.json"]


def test_the_mode_follows_the_umask_so_that_an_agent_of_the_group_can_read_it(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(str(tmp_path / "error.json"), b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "error.json").stat().st_mode) == 0o640


def test_a_relative_path_and_the_longest_name_can_be_written(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    write_atomically("e" * 255, b"new")
    assert (tmp_path / ("e" * 255)).read_bytes() == b"new"


def test_a_reader_sees_the_old_content_or_the_new_and_never_a_part(tmp_path: Path) -> None:
    path = str(tmp_path / "error.json")
    contents = [bytes([65 + n]) * 300_000 for n in range(2)]
    write_atomically(path, contents[0])
    seen: set[bytes] = set()
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            seen.add(Path(path).read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(60):
        write_atomically(path, contents[number % 2])
    is_over.set()
    reader.join()
    assert seen <= set(contents)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a few pages only."""
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def _record(path: Path, failure: BaseException, capfd: Any) -> str:
    class Handler(ErrorHandler):
        def _get_error_file_path(self) -> str:
            return str(path)

    Handler().record_exception(failure)
    return str(capfd.readouterr().err)


@root_only
def test_a_disk_that_is_full_is_one_line_and_leaves_the_old_file(small_disk: Path, capfd: Any) -> None:
    path = small_disk / "error.json"
    path.write_text("{}")
    with pytest.raises(OSError, match="No space"):
        (small_disk / "fill").write_bytes(b"x" * 10**6)
    said = _record(path, ValueError("bad batch 17"), capfd)
    assert said == f"phalanx: could not write the error file {str(path)!r}: No space left on device\n"
    assert sorted(os.listdir(small_disk)) == ["error.json", "fill"], "a temporary file stayed"


@root_only
def test_a_disk_that_is_almost_full_takes_the_short_form(small_disk: Path, capfd: Any) -> None:
    (small_disk / "fill").write_bytes(b"x" * 20 * 1024)
    path = small_disk / "error.json"
    failure = ValueError("bad batch 17 " + "x" * 10**7)
    failure.__cause__ = KeyError("y" * 10**6)
    assert _record(path, failure, capfd) == ""
    record = read_error_file(path)
    assert record.problem is None
    assert record.message.startswith("ValueError: bad batch 17 xxx")
    assert path.stat().st_size < 44 * 1024


@root_only
def test_a_read_only_file_system_is_one_line(small_disk: Path, capfd: Any) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    path = small_disk / "error.json"
    said = _record(path, ValueError("bad batch 17"), capfd)
    assert said == f"phalanx: could not write the error file {str(path)!r}: Read-only file system\n"


@root_only
def test_a_bind_mounted_file_is_written_in_place(tmp_path: Path, capfd: Any) -> None:
    """As Kubernetes mounts a termination log: the file can be written, and nothing can be renamed over it."""
    source, path = tmp_path / "source", tmp_path / "error.json"
    source.write_text("old and much longer than what will be written" * 1000)
    path.touch()
    subprocess.run(["mount", "--bind", source, path], check=True)
    try:
        assert _record(path, ValueError("bad batch 17"), capfd) == ""
        assert read_error_file(path).message == "ValueError: bad batch 17"
        assert sorted(os.listdir(tmp_path)) == ["error.json", "source"]
    finally:
        subprocess.run(["umount", "-l", path], check=True)


@pytest.mark.parametrize(
    "path", ["/dev/null/error.json", "/no/such/folder/error.json", "/proc/error.json", "/"]
)
def test_a_path_that_cannot_be_written_is_one_line(path: str, capfd: Any) -> None:
    said = _record(Path(path), ValueError("bad batch 17"), capfd)
    assert said.startswith(f"phalanx: could not write the error file {path!r}: ")
    assert said.count("\n") == 1


def test_a_fifo_that_nobody_reads_does_not_block(tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "error.json"
    os.mkfifo(path)
    assert "could not write" in _record(path, ValueError("x"), capfd)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_a_device_is_written_to_and_stays_a_device(capfd: Any) -> None:
    assert _record(Path("/dev/null"), ValueError("x"), capfd) == ""
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_dangling_link_is_replaced(tmp_path: Path, capfd: Any) -> None:
    path = tmp_path / "error.json"
    path.symlink_to(tmp_path / "gone" / "error.json")
    assert _record(path, ValueError("x"), capfd) == ""
    assert read_error_file(path).text == "x"


def test_a_limit_on_the_size_of_files_takes_the_short_form(tmp_path: Path) -> None:
    source = """
import sys
from phalanx.errors import get_error_handler
get_error_handler().record_exception(ValueError("bad batch 17" + "x" * 10**7))
"""
    path = tmp_path / "error.json"
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),  # no threads here
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert read_error_file(path).message.startswith("ValueError: bad batch 17xxx")


def test_no_descriptor_left_is_one_line(tmp_path: Path) -> None:
    source = """
import os
from phalanx.errors import get_error_handler
handler = get_error_handler()
try:
    while True: os.open("/dev/null", os.O_RDONLY)
except OSError as failure:
    handler.record_exception(failure)
"""
    done = subprocess.run(
        [sys.executable, "-c", source],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(tmp_path / "error.json")},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),  # no threads here
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr.startswith("phalanx: could not write the error file")
    assert done.stderr.rstrip().endswith("Too many open files")


def test_what_a_killed_process_left_beside_its_file_is_removed_and_nothing_else(tmp_path: Path) -> None:
    program = (
        "import os, signal\nfrom phalanx.errors import _writing\n"
        "os.fsync = lambda _fd: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"_writing.write_atomically({str(tmp_path / 'error.json')!r}, b'half')"
    )
    killed = subprocess.Popen([sys.executable, "-c", program])
    assert killed.wait() == -9
    (left,) = tmp_path.iterdir()
    (tmp_path / ".error-another.tmp").touch()

    remove_unfinished(str(tmp_path / "error.json"), killed.pid)

    assert not left.exists()
    assert [one.name for one in tmp_path.iterdir()] == [".error-another.tmp"]
    remove_unfinished("", killed.pid)  # of a worker without an error file
