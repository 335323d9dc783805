"""What the boot file records of a program that knows nothing of it, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import textwrap
from typing import Any

import pytest

from phalanx.errors import ProcessFailure, read_error_file


def _record(bench: Any, source: str, *program: str, **more: str) -> Any:
    bench.write(textwrap.dedent(source))
    bench.booted(*(program or ("train.py",)), **more)
    return read_error_file(bench.error_file)


@pytest.mark.parametrize("program", [["train.py"], ["-m", "train"]])
def test_an_uncaught_exception_is_recorded_with_type_text_and_place(bench: Any, program: list[str]) -> None:
    source = "def fit(step):\n    raise ValueError('bad batch 17')\nfit(3)\n"
    record = _record(bench, source, *program, RANK="3", LOCAL_RANK="1", PHALANX_ROUND="2")
    script = str(bench.folder / "train.py")
    assert record.problem is None
    assert (record.exception_type, record.text) == ("ValueError", "bad batch 17")
    assert record.place == record.script_place == (script, 2)
    assert record.message == "ValueError: bad batch 17"
    assert record.traceback.splitlines()[-1] == "ValueError: bad batch 17"
    assert f'File "{script}", line 3, in <module>' in record.traceback
    assert "phalanx" not in record.traceback
    info = bench.info()
    assert (info["rank"], info["local_rank"], info["round"], info["host"]) == (3, 1, 2, os.uname().nodename)
    assert abs(int(info["timestamp"]) - info["wall_ns"] // 10**9) <= 1


def test_the_place_is_the_deepest_frame_and_the_scripts_own_frame_is_kept_beside_it(bench: Any) -> None:
    bench.write("def dig():\n\n    raise OSError(5, 'disk')\n", "library.py")
    record = _record(bench, "import library\n\n\ndef fit():\n    library.dig()\nfit()\n")
    assert record.place == (str(bench.folder / "library.py"), 3)
    assert record.script_place == (str(bench.folder / "train.py"), 5)


@pytest.mark.parametrize("file", ["train.py", "config.py"])
def test_a_syntax_error_is_placed_where_the_mistake_is(bench: Any, file: str) -> None:
    bench.write("import config\n")
    bench.write("x = 1\n\nif x\n", file)
    assert bench.booted("train.py").code == 1
    assert read_error_file(bench.error_file).place == (str(bench.folder / file), 3)


@pytest.mark.parametrize(("code", "number"), [("7", 7), ("True", 1), ("'no data'", 1), ("-1", -1)])
def test_a_failing_exit_is_recorded_with_its_code(bench: Any, code: str, number: int) -> None:
    record = _record(bench, f"import sys\nsys.exit({code})")
    assert (record.exception_type, record.exit_code) == ("SystemExit", number)


@pytest.mark.parametrize("source", ["", "import sys; sys.exit(0)", "import sys; sys.exit()", "exit(False)"])
def test_a_normal_end_records_nothing(bench: Any, source: str) -> None:
    bench.write(source)
    assert bench.booted("train.py").code == 0
    assert not bench.error_file.exists()


def test_a_missing_script_records_nothing(bench: Any) -> None:
    assert bench.booted("gone.py").code == 2
    assert not bench.error_file.exists()


def test_a_threads_exception_is_recorded_when_it_happens(bench: Any) -> None:
    source = """
        import os, threading
        def load():
            raise OSError("shard 7 is gone")
        t = threading.Thread(target=load, name="loader-3")
        t.start()
        t.join()
        os._exit(4)
    """
    record = _record(bench, source)
    assert (record.exception_type, record.thread) == ("OSError", "loader-3")
    assert record.script_place == (str(bench.folder / "train.py"), 4)


def test_a_thread_hook_that_ends_the_process_hides_nothing(bench: Any) -> None:
    source = """
        import os, threading
        threading.excepthook = lambda args: os._exit(3)
        t = threading.Thread(target=lambda: 1 / 0)
        t.start()
        t.join()
    """
    assert _record(bench, source).exception_type == "ZeroDivisionError"


def test_the_main_threads_exception_replaces_a_threads_and_names_it(bench: Any) -> None:
    source = """
        import threading
        t = threading.Thread(target=lambda: 1 / 0, name="loader")
        t.start()
        t.join()
        raise RuntimeError("the loader has died")
    """
    record = _record(bench, source)
    assert (record.exception_type, record.thread) == ("RuntimeError", None)
    earlier = bench.info()["earlier"]
    assert earlier["message"] == "ZeroDivisionError: division by zero"
    assert earlier["thread"] == "loader"
    assert "ZeroDivisionError" in earlier["py_callstack"]
    assert earlier["monotonic_ns"] <= record.monotonic_ns


@pytest.mark.parametrize("end", ["sys.exit(1)", "pass"])
def test_the_first_threads_exception_stands_against_later_threads_and_exits(bench: Any, end: str) -> None:
    source = f"""
        import sys, threading
        def fail(kind):
            raise kind
        for kind in (ValueError, KeyError):
            t = threading.Thread(target=fail, args=(kind,))
            t.start()
            t.join()
        {end}
    """
    assert _record(bench, source).exception_type == "ValueError"


def test_an_exit_in_consequence_of_a_recorded_exception_leaves_it_standing(bench: Any) -> None:
    source = """
        import sys
        from phalanx.errors import record
        @record
        def main():
            raise ValueError("bad batch 17")
        try:
            main()
        except ValueError:
            sys.exit(3)
    """
    record = _record(bench, source)
    assert record.exception_type == "ValueError"


def test_an_unrelated_exit_replaces_an_exception_that_was_overcome(bench: Any) -> None:
    source = """
        import sys
        from phalanx.errors import record
        @record
        def main():
            raise ValueError("bad batch 17")
        try:
            main()
        except ValueError:
            pass
        sys.exit(3)
    """
    record = _record(bench, source)
    assert (record.exception_type, record.exit_code) == ("SystemExit", 3)
    assert bench.info()["earlier"]["message"] == "ValueError: bad batch 17"


def test_a_forked_child_does_not_write_the_workers_file(bench: Any) -> None:
    source = """
        import os
        if os.fork() == 0:
            raise ValueError("in the child")
        os.wait()
    """
    bench.write(textwrap.dedent(source))
    assert bench.booted("train.py").code == 0
    assert not bench.error_file.exists()


def test_an_interrupt_is_recorded(bench: Any) -> None:
    record = _record(bench, "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nwhile True: pass")
    assert record.exception_type == "KeyboardInterrupt"


def test_record_under_the_boot_file_writes_once_and_without_its_own_frame(bench: Any) -> None:
    source = """
        from phalanx.errors import record
        @record
        def main():
            raise ValueError("bad batch 17")
        main()
    """
    record = _record(bench, source)
    assert record.exception_type == "ValueError"
    assert "earlier" not in bench.info(), "it was recorded twice"


@pytest.mark.parametrize(
    "name", ["json", "traceback", "tokenize", "linecache", "socket", "re", "types_", "os_"]
)
def test_modules_beside_the_script_with_names_of_the_standard_library_harm_nothing(
    bench: Any, name: str
) -> None:
    bench.write("raise SystemExit('this is not for you')", f"{name}.py")
    record = _record(bench, "raise ValueError('bad batch 17')")
    assert (record.exception_type, record.script_place) == ("ValueError", (str(bench.folder / "train.py"), 1))
    assert "raise ValueError" in record.traceback


def test_a_script_that_has_loaded_its_own_tokenize_is_recorded_nevertheless(bench: Any) -> None:
    bench.write("", "tokenize.py")
    record = _record(bench, "import tokenize\nraise ValueError('bad batch 17')")
    assert record.message == "ValueError: bad batch 17"
    assert 'train.py", line 2' in record.traceback


def test_an_error_file_that_cannot_be_written_is_one_line_and_changes_nothing_else(bench: Any) -> None:
    bench.write("raise ValueError('bad batch 17')")
    plain = bench.plainly("train.py")
    booted = bench.booted("train.py", TORCHELASTIC_ERROR_FILE="/dev/null/error.json")
    assert booted.code == plain.code
    said, _, rest = booted.stderr.partition("\n")
    assert said == "phalanx: could not write the error file '/dev/null/error.json': Not a directory"
    assert rest == plain.stderr


@pytest.mark.parametrize("variable", ["", None])
def test_without_an_error_file_nothing_is_written_or_said(bench: Any, variable: str | None) -> None:
    bench.write("raise ValueError('bad batch 17')")
    more = {"TORCHELASTIC_ERROR_FILE": ""} if variable == "" else {}
    assert bench.booted("train.py", **more) == bench.plainly("train.py")


CRASHES = {
    "SIGSEGV": "import ctypes; ctypes.string_at(0)",
    "SIGABRT": "import os; os.abort()",
    "SIGFPE": "import os, signal, time; os.kill(os.getpid(), signal.SIGFPE); time.sleep(30)",
    "SIGBUS": "import os, signal, time; os.kill(os.getpid(), signal.SIGBUS); time.sleep(30)",
    "SIGILL": "import os, signal, time; os.kill(os.getpid(), signal.SIGILL); time.sleep(30)",
}


@pytest.mark.parametrize("name", CRASHES)
def test_a_native_crash_leaves_its_stack_in_the_crash_file(bench: Any, name: str) -> None:
    bench.write(f"def native():\n    {CRASHES[name]}\nnative()\n")
    ending = bench.booted("train.py")
    assert (ending.code, ending.stderr) == (-signal.Signals[name], "")
    crash = bench.crash_file.read_text()
    assert "Fatal Python error" in crash
    assert 'train.py", line 2 in native' in crash
    failure = ProcessFailure(0, 1, ending.code, str(bench.error_file), crash=crash)
    shown = failure.explanation()
    assert shown.startswith(f"Signal {-ending.code} ({name}) received by PID 1\n")
    assert 'train.py", line 2 in native' in shown
    assert "boot" not in shown, "frames of ours are shown"


def test_a_crash_without_a_crash_file_shows_on_stderr(bench: Any) -> None:
    bench.write(CRASHES["SIGSEGV"])
    assert "Fatal Python error: Segmentation fault" in bench.booted("train.py", order=":").stderr


def test_the_users_own_faulthandler_is_left_alone(bench: Any) -> None:
    bench.write(CRASHES["SIGSEGV"])
    assert "Fatal Python error" in bench.booted("train.py", flags=("-Xfaulthandler",)).stderr
    assert not bench.crash_file.read_text()


def test_a_crash_file_that_cannot_be_opened_does_not_stop_the_program(bench: Any) -> None:
    bench.write("print('done')")
    assert bench.booted("train.py", order=":/dev/null/crash.txt").stdout == "done\n"


def test_the_handler_that_the_environment_names_is_used(bench: Any) -> None:
    bench.write(
        """
from phalanx.errors import ErrorHandler
class Mine(ErrorHandler):
    def initialize(self):
        print("initialized")
    def record_exception(self, e):
        print("mine", e)
        super().record_exception(e)
""",
        "plugin.py",
    )
    bench.write("print('script')\nraise ValueError('bad batch 17')")
    ending = bench.booted("train.py", PHALANX_ERROR_HANDLER="plugin:Mine")
    assert ending.stdout.splitlines() == ["initialized", "script", "mine bad batch 17"]
    assert bench.message()["message"] == "ValueError: bad batch 17"


@pytest.mark.parametrize("named", ["no_such:Thing", "os:no_such", "os:getcwd", "os", ":", "plugin:Broken"])
def test_a_handler_that_cannot_be_loaded_is_one_line(bench: Any, named: str) -> None:
    bench.write("class Broken:\n    def __init__(self): raise RuntimeError('no')\n", "plugin.py")
    bench.write("raise ValueError('bad batch 17')")
    ending = bench.booted("train.py", PHALANX_ERROR_HANDLER=named)
    assert ending.stderr.startswith(f"phalanx: cannot load the error handler '{named}': ")
    assert ending.stderr.count("phalanx:") == 1
    assert bench.message()["message"] == "ValueError: bad batch 17"


def test_a_handler_that_raises_is_one_line_and_changes_nothing_else(bench: Any) -> None:
    source = """
        from phalanx.errors import ErrorHandler, set_error_handler
        class Broken(ErrorHandler):
            def record_exception(self, e):
                raise SystemExit(99)
        set_error_handler(Broken())
        raise ValueError('bad batch 17')
    """
    bench.write(textwrap.dedent(source))
    ending = bench.booted("train.py")
    assert ending.code == 1
    assert ending.stderr.startswith("phalanx: the error handler failed: SystemExit: 99\nTraceback")


def test_a_handler_that_the_script_sets_is_used(bench: Any) -> None:
    source = """
        from phalanx.errors import ErrorHandler, set_error_handler
        class Mine(ErrorHandler):
            def record_exception(self, e):
                print("mine", e)
        set_error_handler(Mine())
        raise ValueError('bad batch 17')
    """
    bench.write(textwrap.dedent(source))
    assert bench.booted("train.py").stdout == "mine bad batch 17\n"


def test_an_interpreter_without_phalanx_is_captured_too(bench: Any) -> None:
    source = """
        try:
            import phalanx
        except ImportError:
            raise ValueError("bad batch 17") from None
    """
    bench.write(textwrap.dedent(source))
    assert bench.booted("train.py", flags=("-S", "-E")).code == 1, "phalanx is on that interpreter's path"
    assert read_error_file(bench.error_file).message == "ValueError: bad batch 17"


def test_a_failed_child_jobs_error_file_is_passed_up_without_a_decorator(bench: Any) -> None:
    child = bench.folder / "child.json"
    child.write_text(
        '{"message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "tb", "timestamp": "7"}}}'
    )
    source = f"""
        from phalanx.errors import ChildFailedError, ProcessFailure
        raise ChildFailedError("trainer", {{0: ProcessFailure(0, 11, -9, {str(child)!r})}})
    """
    record = _record(bench, source)
    assert (record.message, record.traceback, record.timestamp) == ("ValueError: x", "tb", 7)
    assert bench.message()["errorCode"] == -9
