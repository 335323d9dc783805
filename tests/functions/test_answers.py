"""An answer is whole or none, and of the worker that started last."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from phalanx.functions.answers import (
    RAISED,
    RETURNED,
    STARTED,
    AnswerFile,
    exception_in,
    others_in,
    read_answer,
    value_in,
)
from phalanx.multiprocessing.nameless import NamelessFile


@pytest.fixture
def file() -> Iterator[NamelessFile]:
    file = NamelessFile("answer")
    yield file
    file.close()


def started(file: NamelessFile, *, number: int = 1) -> AnswerFile:
    return AnswerFile(file.path, number=number, rank=3, world_size=4)


def test_nobody_has_answered(file: NamelessFile) -> None:
    assert read_answer(file.fd) is None


def test_a_worker_that_says_no_more_has_started(file: NamelessFile) -> None:
    started(file, number=2)
    assert read_answer(file.fd) == (STARTED, 2, 3, 4, 0, 0)


@pytest.mark.parametrize("by_value", [True, False])
def test_a_value_comes_with_what_was_added_to_it(file: NamelessFile, by_value: bool) -> None:
    answer = started(file)
    answer.returned({"loss": 1.5}, by_value=by_value)
    answer.adds(b"others")
    found = read_answer(file.fd)
    assert found is not None
    assert (found.kind, value_in(file.fd), others_in(file.fd, found)) == (RETURNED, {"loss": 1.5}, b"others")


def test_an_exception_comes_as_it_was_written(file: NamelessFile) -> None:
    started(file).raised(b"exception")
    found = read_answer(file.fd)
    assert found is not None
    assert (found.kind, exception_in(file.fd, found)) == (RAISED, b"exception")


def test_a_worker_of_a_later_round_empties_the_file(file: NamelessFile) -> None:
    started(file).returned("a long value of the first round", by_value=True)
    started(file, number=2)
    assert read_answer(file.fd) == (STARTED, 2, 3, 4, 0, 0)
    assert os.fstat(file.fd).st_size == 64


def test_a_value_that_no_pickle_takes_is_none(file: NamelessFile) -> None:
    answer = started(file)
    with pytest.raises(TypeError):
        answer.returned([b"x" * 100_000, threading.Lock()], by_value=True)
    found = read_answer(file.fd)
    assert found is not None
    assert found.kind == STARTED


@pytest.mark.parametrize("size", [0, 1, 63, 64, 70])
def test_half_an_answer_is_none(file: NamelessFile, size: int) -> None:
    started(file).returned("value", by_value=True)
    os.ftruncate(file.fd, size)
    found = read_answer(file.fd)
    assert found is None if size < 64 else found is not None and found.kind == STARTED


@pytest.mark.parametrize("content", [b"\0" * 64, b"phxansw1" + b"\xff" * 56, b"another content" * 10])
def test_what_nobody_wrote_is_no_answer(file: NamelessFile, content: bytes) -> None:
    file.write(content)
    assert read_answer(file.fd) is None
