"""A capped log keeps its beginning and its end, exactly."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given
from hypothesis import strategies as st

from phalanx.multiprocessing.rotation import CappedFile


def _files(path: Path) -> tuple[bytes, bytes]:
    """The head, and all of the tail that is left."""
    parts = [path.with_name(path.name + end) for end in (".tail.1", ".tail")]
    return path.read_bytes(), b"".join(part.read_bytes() for part in parts if part.exists())


@given(st.lists(st.binary(max_size=60) | st.just(b"a line\n"), max_size=40), st.integers(1, 200))
def test_head_and_tail_are_exact_and_within_the_cap(chunks: list[bytes], cap: int) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "stdout.log"
        file = CappedFile(str(path), max_bytes=cap)
        for chunk in chunks:
            file.take(chunk)
        file.close()
        head, tail = _files(path)
    everything = b"".join(chunks)
    assert everything.startswith(head)
    assert everything.endswith(tail)
    assert len(head) + len(tail) <= max(cap, 3)  # each of the three files holds a byte at least
    if len(everything) <= cap // 2:
        assert head == everything
    if len(head) + len(tail) < len(everything):
        assert len(tail) >= cap // 8


def test_files_are_cut_at_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    file = CappedFile(str(path), max_bytes=400)
    for number in range(500):
        file.take(b"line %06d\n" % number * 3)
    file.close()
    head, _ = _files(path)
    assert head.endswith(b"\n")
    assert (tmp_path / "stdout.log.tail").read_bytes().startswith(b"line ")
    assert (tmp_path / "stdout.log.tail.1").read_bytes().startswith(b"line ")


def test_an_earlier_log_of_the_same_name_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "stdout.log"
    path.write_bytes(b"before\n")
    file = CappedFile(str(path), max_bytes=100)
    file.take(b"after\n")
    file.close()
    assert path.read_bytes() == b"before\nafter\n"
