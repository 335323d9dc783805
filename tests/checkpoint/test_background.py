"""Saves in the background: in order, bounded, with errors that are heard of. A process that ends waits for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from phalanx.checkpoint.background import Background
from phalanx.checkpoint.exceptions import SaveFailed, StillSaving

LIMIT_S = 60.0


def _held() -> tuple[threading.Event, threading.Event, Any]:
    """A save that says when it has begun, and ends when it is let go."""
    begun, go = threading.Event(), threading.Event()

    def save() -> None:
        begun.set()
        assert go.wait(LIMIT_S)

    return begun, go, save


def _wait_until_waited_for(saves: Background) -> None:
    """Return when a thread waits within ``saves``."""
    waiters = saves._changed._waiters  # type: ignore[attr-defined] # what Condition.wait adds itself to
    while not waiters:
        time.sleep(0.001)


def test_saves_are_done_one_after_the_other_in_the_order_of_the_calls() -> None:
    saves, done = Background(3), list[tuple[int, str]]()

    def note(step: int) -> None:
        done.append((step, threading.current_thread().name))

    begun, go, held = _held()
    saves.put(0, held)
    assert begun.wait(LIMIT_S)
    for step in (1, 2, 3):
        saves.put(step, partial(note, step))
    assert done == []
    go.set()
    saves.wait(LIMIT_S)
    assert done == [(step, "phalanx-checkpoint") for step in (1, 2, 3)]


def test_a_full_queue_makes_the_caller_wait_until_a_save_begins() -> None:
    saves = Background(1)
    begun, go, held = _held()
    saves.put(1, held)
    assert begun.wait(LIMIT_S)
    saves.make_room()  # the one that is being written takes no room
    saves.put(2, lambda: None)
    has_room = threading.Event()

    def wait_for_room() -> None:
        saves.make_room()
        has_room.set()

    waiter = threading.Thread(target=wait_for_room)
    waiter.start()
    assert not has_room.wait(0.1)
    go.set()
    assert has_room.wait(LIMIT_S)
    waiter.join()
    saves.wait(LIMIT_S)


def test_the_error_of_a_save_is_raised_once() -> None:
    def fail() -> None:
        raise OSError("disk full")

    saves = Background(2)
    saves.put(1, fail)
    with pytest.raises(OSError, match="disk full"):
        saves.wait(LIMIT_S)
    saves.wait(LIMIT_S)
    saves.raise_error()


def test_an_error_that_comes_while_one_waits_for_room_is_no_reason_not_to_take_the_save() -> None:
    def fail() -> None:
        assert go.wait(LIMIT_S)
        raise OSError("disk full")

    saves, go, done = Background(1), threading.Event(), list[int]()
    saves.put(1, fail)

    def let_go() -> None:
        _wait_until_waited_for(saves)
        go.set()

    threading.Thread(target=let_go).start()
    for step in range(2, 100):
        saves.make_room()
        saves.put(step, partial(done.append, step))
    with pytest.raises(OSError, match="disk full"):
        saves.wait(LIMIT_S)
    saves.wait(LIMIT_S)
    assert done == list(range(2, 100))


def test_of_two_errors_both_are_logged_and_raised_as_one(caplog: pytest.LogCaptureFixture) -> None:
    def fail(text: str) -> None:
        raise OSError(text)

    saves = Background(2)
    begun, go, held = _held()
    saves.put(0, held)
    assert begun.wait(LIMIT_S)
    saves.put(1, lambda: fail("first"))
    saves.put(2, lambda: fail("second"))
    go.set()
    with pytest.raises(OSError, match="second") as raised:
        saves.wait(LIMIT_S)
    assert raised.value.__notes__ == ["also, step 1 was not saved: OSError: first"]
    saves.wait(LIMIT_S)
    assert "step 1 was not saved: OSError: first" in caplog.text
    assert "step 2 was not saved: OSError: second" in caplog.text


def test_a_wait_that_is_not_long_enough_names_the_steps_and_harms_nothing() -> None:
    saves = Background(2)
    begun, go, held = _held()
    saves.put(100, held)
    saves.put(200, lambda: None)
    assert begun.wait(LIMIT_S)
    with pytest.raises(StillSaving, match=r"not saved after 0.01 s: steps 100, 200; .* goes on"):
        saves.wait(0.01)
    go.set()
    saves.wait(LIMIT_S)


def test_no_thread_is_left_when_all_is_saved() -> None:
    saves = Background(2)
    saves.put(1, lambda: None)
    saves.wait(LIMIT_S)
    for thread in threading.enumerate():
        if thread.name == "phalanx-checkpoint":
            thread.join(LIMIT_S)
            assert not thread.is_alive()


def test_a_save_that_waits_for_itself_is_refused() -> None:
    saves = Background(1)
    saves.put(1, saves.wait)
    with pytest.raises(Exception, match="cannot wait for itself"):
        saves.wait(LIMIT_S)


def test_a_writer_that_saves_by_its_own_checkpointer_is_refused_and_not_waited_for() -> None:
    saves = Background(1)
    saves.put(1, saves.make_room)
    with pytest.raises(Exception, match="cannot save by the checkpointer that has called it"):
        saves.wait(LIMIT_S)
    saves.make_room()


@pytest.mark.parametrize("end", [SystemExit(0), KeyboardInterrupt()])
def test_a_writer_that_ends_its_thread_has_failed_and_does_not_end_the_program(end: BaseException) -> None:
    def leave() -> None:
        raise end

    saves = Background(1)
    saves.put(7, leave)
    with pytest.raises(SaveFailed, match=f"step 7 was not saved: .*{type(end).__name__}"):
        saves.wait(LIMIT_S)


def test_where_no_thread_can_be_started_saves_are_done_in_the_foreground(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saves, done = Background(1), list[str]()
    with monkeypatch.context() as limited:
        # What a limit on processes does: not to be set for root.
        limited.setattr("threading._start_new_thread", _no_thread)
        saves.put(1, lambda: done.append(threading.current_thread().name))
        assert done == ["MainThread"]
        assert "step 1 is saved in the foreground" in caplog.text
        saves.wait(0)
        with pytest.raises(ZeroDivisionError):
            saves.put(2, lambda: 1 / 0)
        saves.make_room()
        with pytest.raises(Exception, match="cannot wait for itself"):
            saves.put(3, saves.wait)
        with pytest.raises(KeyboardInterrupt):
            saves.put(4, _interrupt)
    saves.put(5, lambda: done.append(threading.current_thread().name))
    saves.wait(LIMIT_S)
    assert done == ["MainThread", "phalanx-checkpoint"]


def test_an_error_in_the_foreground_is_not_hidden_by_one_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    saves = Background(1)
    saves.put(1, lambda: 1 / 0)
    with saves._changed:
        assert saves._changed.wait_for(lambda: saves._thread is None, LIMIT_S)
    monkeypatch.setattr("threading._start_new_thread", _no_thread)
    with pytest.raises(KeyboardInterrupt) as raised:
        saves.put(2, _interrupt)
    assert raised.value.__notes__ == ["also, step 1 was not saved: ZeroDivisionError: division by zero"]


def _no_thread(*_: object, **__: object) -> None:
    raise RuntimeError("can't start new thread")


def _interrupt() -> None:
    raise KeyboardInterrupt


_PRELUDE = """
    import os, pathlib, signal, sys, threading, time
    from phalanx.checkpoint.background import Background
    saves, go, begun, out = Background(4), threading.Event(), threading.Event(), pathlib.Path(sys.argv[1])
    def save(step):
        begun.set()
        go.wait(60)
        (out / str(step)).touch()
    for step in range(3):
        saves.put(step, lambda step=step: save(step))
    begun.wait(60)

    def when(is_so, do):
        def watch():
            while not is_so():
                time.sleep(0.001)
            do()
        threading.Thread(target=watch, daemon=True).start()

    def is_at(name):  # whether the main thread is in a function of this name
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None:
            if frame.f_code.co_name == name:
                return True
            frame = frame.f_back
        return False
"""


def _script(body: str, folder: Path) -> subprocess.CompletedProcess[str]:
    text = textwrap.dedent(_PRELUDE) + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", text, str(folder)], capture_output=True, text=True, timeout=LIMIT_S
    )


def _saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_interpreter_waits_at_exit_for_what_is_queued(tmp_path: Path) -> None:
    done = _script("when(lambda: is_at('_shutdown'), go.set)", tmp_path)
    assert (done.returncode, done.stderr, _saved(tmp_path)) == (0, "", ["0", "1", "2"])


def test_it_waits_after_an_exception_too(tmp_path: Path) -> None:
    done = _script("when(lambda: is_at('_shutdown'), go.set)\nraise ValueError('mine')", tmp_path)
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    assert _saved(tmp_path) == ["0", "1", "2"]


_LINE = (
    "phalanx: checkpoints: step 9 was not saved: ZeroDivisionError: division by zero; the next call raises it, if there"
    " is one\n"
)


def test_an_error_of_a_last_save_is_one_line_and_the_exit_code_stays_the_programs(tmp_path: Path) -> None:
    done = _script("saves.put(9, lambda: 1 / 0)\ngo.set()", tmp_path)
    assert (done.returncode, done.stderr) == (0, _LINE)


def test_an_error_is_said_when_it_happens_and_not_only_when_somebody_asks(tmp_path: Path) -> None:
    body = """
    go.set()
    saves.wait()
    saves.put(9, lambda: 1 / 0)
    while not saves._errors:
        time.sleep(0.001)
    os._exit(3)
    """
    done = _script(body, tmp_path)
    assert (done.returncode, done.stderr) == (3, _LINE)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_an_error_in_a_child_of_multiprocessing_is_said(tmp_path: Path, method: str) -> None:
    (tmp_path / "script.py").write_text(
        textwrap.dedent(f"""
            import multiprocessing
            from phalanx.checkpoint.background import Background
            def fail():
                1 / 0
            def child():
                Background(1).put(9, fail)
            if __name__ == "__main__":
                process = multiprocessing.get_context({method!r}).Process(target=child)
                process.start()
                process.join()
        """)
    )
    done = subprocess.run(
        [sys.executable, tmp_path / "script.py"], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert (done.returncode, done.stderr) == (0, _LINE)


def test_a_forked_child_neither_waits_nor_saves_and_can_save_by_itself(tmp_path: Path) -> None:
    body = """
    with saves._changed:  # as if another thread held it
        pid = os.fork()
        if not pid:
            saves.wait(0)
            saves.make_room()
            saves.put(7, (out / "child").touch)
            saves.wait(60)
            sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    print(sorted(path.name for path in out.iterdir()))
    go.set()
    """
    done = _script(body, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "['child']\n", "")
    assert _saved(tmp_path) == ["0", "1", "2", "child"]


@pytest.mark.parametrize(
    ("waits", "where"),
    [("saves.wait()", "wait_for"), ("saves.make_room()", "wait_for"), ("None", "_shutdown")],
)
def test_signal_handlers_run_while_somebody_waits_for_saves(tmp_path: Path, waits: str, where: str) -> None:
    body = f"""
    saves.put(3, lambda: save(3))
    saves.put(4, lambda: save(4))
    def handle(*_):
        saves.put(5, lambda: save(5))  # a handler may save, too
        go.set()
    signal.signal(signal.SIGTERM, handle)
    when(lambda: is_at({where!r}), lambda: os.kill(os.getpid(), signal.SIGTERM))
    {waits}
    """
    done = _script(body, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert _saved(tmp_path) == ["0", "1", "2", "3", "4", "5"]


def test_an_exception_in_a_with_block_is_not_held_back_by_saves_that_take_long(tmp_path: Path) -> None:
    body = """
    from phalanx.checkpoint import Checkpointer
    class State:
        def write(self, folder):
            go.wait(60)
            (folder / "a").write_bytes(b"1")
        def snapshot(self):
            return self
    def hook(kind, error, trace):
        print(kind.__name__, checkpointer.steps(), flush=True)
        go.set()
    sys.excepthook = hook
    with Checkpointer(out / "steps", background=True, world_size=1) as checkpointer:
        checkpointer.save(1, State())
        raise ValueError("mine")
    """
    done = _script(body, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (1, "ValueError []\n", "")
    assert (tmp_path / "steps" / "step-000000001").is_dir(), "what was taken is saved all the same"


_SHARDED = """
    from phalanx.checkpoint import Checkpointer
    class Store:  # of a job whose other rank never comes
        values = {{}}
        def add(self, key, amount):
            self.values[key] = self.values.get(key, 0) + amount
            return self.values[key]
        def set(self, key, value):
            self.values[key] = value
        def get(self, key):
            return self.values[key]
        def check(self, keys):
            if any(key.endswith("decided") for key in keys):
                waited.set()
            return all(key in self.values for key in keys)
        def delete_key(self, key):
            return self.values.pop(key, None) is not None
    go.set()
    waited = threading.Event()
    checkpointer = Checkpointer(
        out / "steps", sharded=True, background=2, rank=0, world_size=2, store=Store(), timeout_s={timeout_s}
    )
    checkpointer.save(1, {{"a": 1}})
    checkpointer.save(2, {{"a": 1}})
    waited.wait(60)
"""


def test_a_process_that_has_failed_does_not_wait_for_other_ranks_for_long(tmp_path: Path) -> None:
    done = _script(textwrap.dedent(_SHARDED.format(timeout_s=1800)) + "raise ValueError('mine')", tmp_path)
    assert done.returncode == 1
    assert "ValueError: mine" in done.stderr
    assert "rank 0 has waited in vain for rank 1" in done.stderr


def test_a_process_that_ends_as_it_wants_to_has_all_its_patience(tmp_path: Path) -> None:
    done = _script(
        textwrap.dedent(_SHARDED.format(timeout_s=8)) + "ended = time.monotonic()\n"
        "import atexit\natexit.register(lambda: print(time.monotonic() - ended > 12))\nsys.exit(3)",
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (3, "True\n")  # 8 s for each of two saves


def test_a_process_that_has_ended_does_not_wait_half_an_hour_for_who_does_not_come(tmp_path: Path) -> None:
    done = _script(
        "import phalanx.checkpoint.peers\nphalanx.checkpoint.peers._ENDED_S = 1.0\n"
        + textwrap.dedent(_SHARDED.format(timeout_s=1800))
        + "sys.exit(1)",  # sys.exit(main()), and main has found the loss to be nan
        tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.count("rank 0 has waited in vain for rank 1") == 2


def test_a_killed_process_leaves_what_was_saved(tmp_path: Path) -> None:
    body = """
    go.set()
    saves.wait()
    go.clear(); begun.clear()
    saves.put(3, lambda: save(3))
    begun.wait(60)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    done = _script(body, tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert _saved(tmp_path) == ["0", "1", "2"]


def test_room_for_no_save_is_no_background() -> None:
    with pytest.raises(ValueError, match="background=0"):
        Background(0)


def test_importing_it_imports_no_threads() -> None:
    text = "import sys, phalanx.checkpoint.background; sys.exit('threading' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-S", "-c", text],
            env={**os.environ, "PYTHONPATH": "src"},
            cwd=Path(__file__).parents[2],
        ).returncode
        == 0
    )
