"""Redirects at descriptor level, seen in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.multiprocessing.redirects import get_libc, redirect, redirect_stderr

_SCRIPT = """
import os, subprocess, sys
from phalanx.multiprocessing.redirects import redirect_{name} as redirect, get_libc
stream, fd, libc = sys.{name}, {fd}, get_libc()
puts = lambda text: libc.dprintf(fd, text) if fd == 2 else libc.puts(text)
print("before python", file=stream)
puts(b"before c\\n" if fd == 2 else b"before c")
with redirect(sys.argv[1]):
    print("inside python", file=stream)
    puts(b"inside c\\n" if fd == 2 else b"inside c")
    subprocess.run(["sh", "-c", "echo inside child >&%d" % fd])
    os.write(fd, b"inside raw\\n")
print("after python", file=stream)
puts(b"after c\\n" if fd == 2 else b"after c")
"""


@pytest.mark.parametrize(("name", "fd"), [("stdout", 1), ("stderr", 2)])
def test_python_c_and_children_write_to_the_file_and_only_inside(tmp_path: Path, name: str, fd: int) -> None:
    script = _SCRIPT.format(name=name, fd=fd)
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "log")], capture_output=True, text=True
    )
    outside = result.stdout if fd == 1 else result.stderr
    assert sorted(outside.splitlines()) == ["after c", "after python", "before c", "before python"]
    inside = sorted((tmp_path / "log").read_text().splitlines())
    assert inside == ["inside c", "inside child", "inside python", "inside raw"]


def test_an_exception_restores_the_stream_and_leaks_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))

    def fail() -> None:
        with redirect("stdout", str(tmp_path / "log")):
            print("inside")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    print("after")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert (tmp_path / "log").read_text() == "inside\n"
    assert capfd.readouterr().out == "after\n"


def test_redirects_nest(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with redirect("stderr", str(tmp_path / "outer")), redirect_stderr(str(tmp_path / "inner")):
        print("x", file=sys.stderr)
    assert ((tmp_path / "outer").read_text(), (tmp_path / "inner").read_text()) == ("", "x\n")


def test_an_unknown_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stdout, stderr"), redirect("stdin", str(tmp_path / "log")):
        pass


def test_the_c_library_is_found_once() -> None:
    assert get_libc() is get_libc()
    assert get_libc() is not None
