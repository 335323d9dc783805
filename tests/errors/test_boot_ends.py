"""A program ends the same way through the boot file as without it: code, both streams, to the byte."""

from __future__ import annotations

import signal
import textwrap
from typing import Any

import pytest

ENDINGS = {
    "a normal end": "print('done')",
    "an exception": "raise ValueError('bad batch 17')",
    "an exception in a function": "def fit(n):\n    return 1 / n\nfit(0)",
    "an exception without text": "raise KeyError",
    "an exception with notes": "e = ValueError('x')\ne.add_note('see rank 3')\nraise e",
    "an exception with a cause": "try:\n    1 / 0\nexcept Exception as e:\n    raise OSError(5, 'disk') from e",
    "an exception with a context": "try:\n    1 / 0\nexcept Exception:\n    {}['lr']",
    "an exception group": "raise ExceptionGroup('r', [ValueError('a'), ExceptionGroup('b', [OSError(2, 'c')])])",
    "an exception whose str raises": "class E(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise E()",
    "an exception that was printed before": """
        import traceback
        try:
            raise ValueError('first')
        except ValueError:
            traceback.print_exc()
            raise
    """,
    "a base exception": "raise GeneratorExit('odd')",
    "a syntax error in the script": "x = 1\ndef f(:\n    pass",
    "an indentation error in the script": "if True:\npass",
    "a missing module": "import no_such_module_anywhere",
    "an assertion": "assert 1 == 2, 'numbers'",
    "an exception in asyncio": "import asyncio\nasync def main():\n    raise ValueError('x')\nasyncio.run(main())",
    "code that was compiled elsewhere": "exec(compile('1/0', '<config>', 'exec'))",
    "exit without code": "import sys; sys.exit()",
    "exit 0": "import sys; sys.exit(0)",
    "exit 7": "import sys; sys.exit(7)",
    "exit 259": "import sys; sys.exit(259)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit False": "import sys; sys.exit(False)",
    "exit with a text": "import sys; sys.exit('no data')",
    "exit with an object": "import sys; sys.exit([1, 2])",
    "exit after a failure": "import sys\ntry:\n    1 / 0\nexcept Exception:\n    sys.exit(3)",
    "a subclass of SystemExit": "class Leave(SystemExit): pass\nraise Leave(4)",
    "an exit at once": "import os; os._exit(5)",
    "an exit by quit": "quit(6)",
    "a raised KeyboardInterrupt": "raise KeyboardInterrupt",
    "a subclass of KeyboardInterrupt": "class Stop(KeyboardInterrupt): pass\nraise Stop",
    "SIGINT": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nimport time\ntime.sleep(30)",
    "SIGTERM": "import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)",
    "SIGKILL": "import os, signal, time; os.kill(os.getpid(), signal.SIGKILL); time.sleep(30)",
    "SIGSEGV": "import os, signal, time; os.kill(os.getpid(), signal.SIGSEGV); time.sleep(30)",
    "abort": "import os; os.abort()",
    "a handler for SIGTERM that exits": """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    """,
    "exit handlers, newest first": """
        import atexit
        atexit.register(print, 'one')
        atexit.register(print, 'two')
        raise ValueError('x')
    """,
    "an exit handler that looks at __main__": """
        import atexit, sys
        names = ('__file__', '__cached__')
        atexit.register(lambda: print([n in globals() for n in names], hasattr(sys, 'last_value')))
        raise ValueError('x')
    """,
    "an exit handler that raises": "import atexit\natexit.register(lambda: 1 / 0)",
    "what sys remembers of the exception": """
        import atexit, sys, traceback
        atexit.register(lambda: print(sys.last_type, traceback.format_tb(sys.last_traceback),
                                      traceback.format_tb(sys.last_value.__traceback__), sys.excepthook))
        raise ValueError('x')
    """,
    "an exception hook of the script": """
        import sys, traceback
        sys.excepthook = lambda kind, e, tb: print('hook', kind, e, traceback.format_tb(tb), sys.excepthook)
        raise ValueError('x')
    """,
    "an exception hook that raises": """
        import sys
        def hook(*_):
            raise RuntimeError('in the hook')
        sys.excepthook = hook
        raise ValueError('x')
    """,
    "an exception hook that exits": "import sys\nsys.excepthook = lambda *_: sys.exit(9)\nraise ValueError('x')",
    "no exception hook": "import sys\ndel sys.excepthook\nraise ValueError('x')",
    "an interrupt and a hook": "import sys\nsys.excepthook = lambda *a: print(a[0])\nraise KeyboardInterrupt",
    "a thread that raises": """
        import threading
        t = threading.Thread(target=lambda: 1 / 0, name='loader')
        t.start()
        t.join()
        print('main goes on')
    """,
    "a thread that raises after main": """
        import threading, time
        threading.Thread(target=lambda: (threading.main_thread().join(), print('late'), 1 / 0), name='loader').start()
    """,
    "a thread that exits": "import sys, threading\nthreading.Thread(target=sys.exit, args=(3,)).start()",
    "a thread hook of the script": """
        import os, threading
        threading.excepthook = lambda args: (print(args.exc_type, args.thread.name, flush=True), os._exit(3))
        t = threading.Thread(target=lambda: 1 / 0, name='loader')
        t.start()
        t.join()
    """,
    "a thread hook that raises": """
        import threading
        def hook(args):
            raise RuntimeError('in the hook')
        threading.excepthook = hook
        t = threading.Thread(target=lambda: 1 / 0, name='loader')
        t.start()
        t.join()
    """,
    "a forked child that raises": """
        import os
        if os.fork() == 0:
            raise ValueError('in the child')
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """,
    "a forked child that exits": """
        import os, sys
        if os.fork() == 0:
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """,
    "a warning": "import warnings\nwarnings.warn('old', DeprecationWarning)\nwarnings.warn('careful')",
    "an exception that is logged": """
        import logging
        try:
            1 / 0
        except Exception:
            logging.exception('it failed')
    """,
    "no stderr": "import sys\nsys.stderr = None\nraise ValueError('x')",
    "a stdout that cannot be flushed": "import os, sys\nsys.stdout = open('/dev/full', 'w')\nprint('x')",
    "an exception from a destructor": "class A:\n    def __del__(self): 1 / 0\na = A()",
    "a script that changes its name": "__name__ = 'other'\n__file__ = 'gone.py'\n1 / 0",
    "a script that empties __main__": "globals().clear()\nraise SystemError",
    "an exec of another program": "import os, sys; os.execv(sys.executable, [sys.executable, '-c', 'print(1); 1/0'])",
}

POOLS = """
    import multiprocessing, os
    class Batch:
        def __init__(self, size): self.size = size
    def double(batch):
        return Batch(batch.size * 2), __name__, os.environ.get("PHALANX_BOOT")
    def fail(batch):
        raise ValueError("in the child")
    if __name__ == "__main__":
        context = multiprocessing.get_context(METHOD)
        with context.Pool(1) as pool:
            print([(b.size, name, boot) for b, name, boot in pool.map(double, [Batch(1), Batch(2)])])
        process = context.Process(target=fail, args=(Batch(3),))
        process.start()
        process.join()
        print(process.exitcode)
"""


def _both(bench: Any, source: str, *arguments: str) -> tuple[Any, Any]:
    program = str(bench.write(textwrap.dedent(source)))
    return bench.plainly(program, *arguments), bench.booted(program, *arguments)


@pytest.mark.parametrize("name", ENDINGS)
def test_a_script_ends_as_without_the_boot_file(bench: Any, name: str) -> None:
    plain, booted = _both(bench, ENDINGS[name])
    assert booted == plain


@pytest.mark.parametrize("name", [name for name in ENDINGS if "script that" not in name])
def test_a_module_ends_as_without_the_boot_file(bench: Any, name: str) -> None:
    bench.write(textwrap.dedent(ENDINGS[name]))
    assert bench.booted("-m", "train") == bench.plainly("-m", "train")


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
@pytest.mark.parametrize("as_module", [False, True])
def test_children_of_multiprocessing_work_as_without_it(bench: Any, method: str, as_module: bool) -> None:
    bench.write(textwrap.dedent(POOLS).replace("METHOD", repr(method)))
    program = ["-m", "train"] if as_module else ["train.py"]
    plain, booted = bench.plainly(*program), bench.booted(*program)
    assert plain.code == 0, plain.stderr
    assert "in the child" in plain.stderr
    normal = [_without_pids(ending.stderr) for ending in (booted, plain)]
    assert (booted.code, booted.stdout, normal[0]) == (plain.code, plain.stdout, normal[1])
    assert not bench.error_file.exists(), "a child's exception is not the worker's"


def _without_pids(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("Process "))


@pytest.mark.parametrize(
    "program", [["gone.py"], ["sub/gone.py"], ["-m", "gone"], ["-m", "gone.deeper"], ["empty"]]
)
def test_a_program_that_is_not_there_is_reported_as_by_the_interpreter(
    bench: Any, program: list[str]
) -> None:
    (bench.folder / "empty").mkdir()
    plain, booted = bench.plainly(*program), bench.booted(*program)
    assert plain.code in (1, 2)
    assert booted == plain


def test_a_deep_recursion_ends_with_the_same_error(bench: Any) -> None:
    plain, booted = _both(bench, "def dive(n):\n    return dive(n + 1)\ndive(0)")
    # Our two frames take part in the count of repeated lines, and of nothing else.
    assert (booted.code, _without_counts(booted.stderr)) == (plain.code, _without_counts(plain.stderr))
    assert "RecursionError: maximum recursion depth exceeded" in bench.message()["message"]


def _without_counts(text: str) -> list[str]:
    return [line for line in text.splitlines() if "Previous line repeated" not in line]


def test_the_live_stack_has_two_frames_more_and_no_others(bench: Any) -> None:
    """A limit that is known and documented: a running interpreter cannot be rid of the frames below the script."""
    plain, booted = _both(
        bench,
        "import sys\nn = 0\nwhile True:\n    try: sys._getframe(n)\n    except ValueError: break\n    n += 1\nprint(n)",
    )
    assert (plain.stdout, booted.stdout) == ("1\n", "3\n")


def test_a_boot_file_without_a_program_says_so(bench: Any) -> None:
    ending = bench.booted()
    assert ending.code == 1
    assert "no program" in ending.stderr


def test_the_worker_dies_with_an_agent_that_is_already_dead(bench: Any) -> None:
    program = str(bench.write("print('started')"))
    ending = bench.booted(program, order="999999999:")
    assert (ending.code, ending.stdout) == (-signal.SIGKILL, "")


def test_the_parent_death_signal_is_set(bench: Any) -> None:
    program = str(
        bench.write(
            "import ctypes\nfound = ctypes.c_int()\nctypes.CDLL(None).prctl(2, ctypes.byref(found))\nprint(found.value)"
        )
    )
    assert bench.booted(program).stdout == f"{int(signal.SIGKILL)}\n"
    assert bench.booted(program, order=":").stdout == "0\n"
