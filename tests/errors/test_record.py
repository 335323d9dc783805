"""The decorator and the handler, in this process and with subclasses."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.compat.marks import shows_names

import phalanx
from phalanx import errors
from phalanx.errors import (
    ChildFailedError,
    ErrorHandler,
    ProcessFailure,
    get_error_handler,
    read_error_file,
    record,
    set_error_handler,
)

CHILDS_FILE = (
    '{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "tb", "timestamp": "7"}}}'
)


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: Any) -> Path:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


class Diary(ErrorHandler):
    """A handler that writes down what it is called for."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Any] = []

    def initialize(self) -> None:
        self.calls.append("initialize")
        super().initialize()

    def set_entrypoint_fn_name(self, name: str) -> None:
        self.calls.append(name.rpartition(".")[2])
        super().set_entrypoint_fn_name(name)

    def record_success(self) -> None:
        self.calls.append("success")

    def record_exception(self, e: BaseException) -> None:
        self.calls.append(type(e))
        super().record_exception(e)

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        self.calls.append(error_code)
        super().dump_error_file(rootcause_error_file, error_code)


@pytest.fixture
def diary() -> Iterator[Diary]:
    handler = Diary()
    set_error_handler(handler)
    yield handler
    set_error_handler(None)


@shows_names(
    "better",
    "elastic.multiprocessing.errors",
    "record",
    how="may be called with a handler alone: @record(error_handler=…)",
)
def test_bare_and_with_arguments_it_wraps_the_same(error_file: Path) -> None:
    mine = Diary()

    @record
    def bare(a: int, *, b: int) -> int:
        """Add."""
        return a + b

    @record()
    def called(a: int, *, b: int) -> int:
        return a + b

    @record(error_handler=mine)
    def with_handler(a: int, *, b: int) -> int:
        return a + b

    assert bare(1, b=2) == called(1, b=2) == with_handler(1, b=2) == 3
    assert (bare.__name__, bare.__doc__) == ("bare", "Add.")
    assert mine.calls == ["initialize", "with_handler", "success"]
    assert not error_file.exists()


def test_an_exception_is_recorded_and_raised_unchanged(error_file: Path, diary: Diary) -> None:
    thrown = ValueError("bad batch 17")

    @record
    def main() -> None:
        raise thrown

    with pytest.raises(ValueError, match="bad batch 17") as caught:
        main()
    assert caught.value is thrown
    assert diary.calls == ["initialize", "main", ValueError]
    found = read_error_file(error_file)
    assert (found.message, found.problem) == ("ValueError: bad batch 17", None)
    assert "recorded" not in found.traceback, "the decorator's own frame is shown"
    assert found.place is not None
    assert found.place[0] == __file__


@pytest.mark.parametrize("code", [0, None, False])
def test_a_normal_exit_returns_none(error_file: Path, diary: Diary, code: Any) -> None:
    @record
    def main() -> int:
        sys.exit(code)

    assert main() is None
    assert diary.calls == ["initialize", "main", "success"]
    assert not error_file.exists()


@pytest.mark.parametrize(("code", "number"), [(7, 7), ("text", 1)])
def test_a_failing_exit_is_recorded_with_its_code_and_raised(
    error_file: Path, code: Any, number: int
) -> None:
    @record
    def main() -> None:
        sys.exit(code)

    with pytest.raises(SystemExit):
        main()
    found = read_error_file(error_file)
    assert (found.exception_type, found.exit_code) == ("SystemExit", number)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
def test_base_exceptions_are_recorded_too(error_file: Path, kind: type[BaseException]) -> None:
    @record
    def main() -> None:
        raise kind

    with pytest.raises(kind):
        main()
    assert read_error_file(error_file).exception_type == kind.__name__


def test_nested_it_writes_once(error_file: Path) -> None:
    written = []

    class Handler(ErrorHandler):
        def record_exception(self, e: BaseException) -> None:
            super().record_exception(e)
            written.append(error_file.stat().st_ino)

    @record(error_handler=Handler())
    def inner() -> None:
        raise ValueError("bad batch 17")

    @record(error_handler=Handler())
    def outer() -> None:
        inner()

    with pytest.raises(ValueError, match="17"):
        outer()
    assert len(written) == 2
    assert written[0] == written[1], "the outer one wrote the file anew"
    with pytest.raises(ValueError, match="17"):
        inner()
    assert written[2] != written[0], "a new exception was taken for the old one"


def test_a_failed_childs_file_is_passed_up_with_its_exit_code(
    error_file: Path, tmp_path: Path, diary: Diary
) -> None:
    child = tmp_path / "child.json"
    child.write_text(CHILDS_FILE)
    error_file.write_text("{ of another time")

    @record
    @record
    def main() -> None:
        raise ChildFailedError("trainer", {3: ProcessFailure(1, 11, -9, str(child))})

    with pytest.raises(ChildFailedError):
        main()
    assert -9 in diary.calls
    expected = json.loads(CHILDS_FILE)
    expected["message"]["errorCode"] = -9
    assert json.loads(error_file.read_text()) == expected


def test_a_failed_child_without_a_file_is_recorded_as_the_exception_it_is(error_file: Path) -> None:
    @record
    def main() -> None:
        raise ChildFailedError("trainer", {3: ProcessFailure(1, 11, -9, "/no/such/file")})

    with pytest.raises(ChildFailedError):
        main()
    found = read_error_file(error_file)
    assert found.exception_type == "phalanx.errors._failure.ChildFailedError"
    assert "SIGKILL" in found.text


@pytest.mark.parametrize("content", ["", "{", '{"message": "short", "timestamp": 7}', "[]", "\x00\xff"])
def test_any_file_of_a_child_can_be_passed_up(error_file: Path, tmp_path: Path, content: str) -> None:
    child = tmp_path / "child.json"
    child.write_text(content)
    ErrorHandler().dump_error_file(str(child), 5)
    assert read_error_file(error_file).problem is None
    assert read_error_file(error_file).message


def test_a_childs_file_that_is_gone_is_said_in_the_parents(error_file: Path, tmp_path: Path) -> None:
    ErrorHandler().dump_error_file(str(tmp_path / "gone.json"), 5)
    assert "gone.json" in read_error_file(error_file).message


def test_without_a_file_to_write_nothing_happens(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    monkeypatch.chdir(tmp_path)
    ErrorHandler().record_exception(ValueError("x"))
    ErrorHandler().dump_error_file("child.json")
    assert os.listdir(tmp_path) == []


def test_a_broken_subclass_hides_nothing(error_file: Path, capfd: Any) -> None:
    class Broken(ErrorHandler):
        def record_exception(self, e: BaseException) -> None:
            raise KeyboardInterrupt

    @record(error_handler=Broken())
    def main() -> None:
        raise ValueError("bad batch 17")

    with pytest.raises(ValueError, match="17"):
        main()
    assert "phalanx: the error handler failed: KeyboardInterrupt" in capfd.readouterr().err


@shows_names(
    "better",
    "elastic.multiprocessing.errors",
    "get_error_handler",
    how="always the same object, until set_error_handler() sets another",
)
def test_the_handler_is_the_same_object_until_another_is_set() -> None:
    first = get_error_handler()
    assert get_error_handler() is first
    mine = ErrorHandler()
    set_error_handler(mine)
    assert get_error_handler() is mine
    set_error_handler(None)
    assert get_error_handler() is first


def test_a_handler_that_is_set_after_the_decoration_is_used(diary: Diary, error_file: Path) -> None:
    set_error_handler(None)

    @record
    def main() -> None:
        return None

    set_error_handler(diary)
    main()
    assert diary.calls == ["initialize", "main", "success"]


def test_a_forked_child_that_comes_along_with_the_handler_writes_nothing(error_file: Path) -> None:
    handler = ErrorHandler()
    handler.initialize()
    child = os.fork()
    if child == 0:
        handler.record_exception(ValueError("in the child"))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not error_file.exists()


def test_threads_that_fail_together_leave_one_whole_file(error_file: Path) -> None:
    handler = ErrorHandler()
    start = threading.Barrier(8)

    def fail(number: int) -> None:
        start.wait()
        handler.record_exception(ValueError(f"thread {number}"))

    threads = [threading.Thread(target=fail, args=(number,), name=f"t{number}") for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = read_error_file(error_file)
    assert found.problem is None
    assert found.text == f"thread {str(found.thread)[1:]}"
    assert os.listdir(error_file.parent) == ["error.json"]


def test_a_recorded_exception_can_be_pickled_and_recorded_elsewhere(error_file: Path) -> None:
    failure = ValueError("x")
    ErrorHandler().record_exception(failure)
    error_file.unlink()
    source = "import pickle, sys; from phalanx.errors import *\n"
    source += "get_error_handler().record_exception(pickle.load(sys.stdin.buffer))"
    subprocess.run([sys.executable, "-c", source], input=pickle.dumps(failure), check=True)
    assert read_error_file(error_file).text == "x"


@pytest.mark.parametrize(
    "names", ["record", "ErrorHandler, get_error_handler, set_error_handler", "boot_file", "channel"]
)
def test_the_workers_side_imports_little(names: str, tmp_path: Path) -> None:
    """A deny-list rather than a time: each of these costs from one to twenty milliseconds."""
    (tmp_path / "phalanx").mkdir()
    (tmp_path / "phalanx" / "__init__.py").touch()
    for name in ("errors", "lazy.py"):
        (tmp_path / "phalanx" / name).symlink_to(Path(phalanx.__file__).parent / name)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); before = set(sys.modules)\n"
    code += f"from phalanx.errors import {names}\nprint(*(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-S", "-E", "-c", code], capture_output=True, text=True, check=True
    )
    heavy = "asyncio dataclasses inspect typing re enum traceback linecache tokenize json socket logging contextlib ast"
    heavy += " subprocess threading selectors tempfile random importlib.metadata urllib http ctypes"
    assert not set(done.stdout.split()) & set(heavy.split())


def test_the_facade_has_what_it_names() -> None:
    assert set(errors.__all__) <= set(dir(errors))
    for name in errors.__all__:
        assert getattr(errors, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'recrod'"):
        errors.recrod  # noqa: B018
