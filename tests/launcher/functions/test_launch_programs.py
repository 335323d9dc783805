"""``phalanx.launch`` in programs of their own: what is of ``__main__``, on two nodes, stopped by Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.system.launch import LIMIT_S, two_free_ports

pytestmark = pytest.mark.system


class Programs:
    """Writes programs into a folder and runs them there."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._stack = stack
        (folder / "temporary").mkdir()
        self.env = {**os.environ, "TMPDIR": str(folder / "temporary")}

    def write(self, source: str, name: str = "program.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(source).lstrip("\n"))
        return path

    def start(self, source: str, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, str(self.write(source)), *words],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)  # does nothing to one that has ended
        return process

    def run(self, source: str, *words: str) -> str:
        out, err = (process := self.start(source, *words)).communicate(timeout=LIMIT_S)
        assert process.returncode == 0, err
        return out

    def without_cloudpickle(self) -> None:
        """Have every Python here find that it is not installed."""
        self.write("raise ImportError('no module named cloudpickle')\n", "absent/cloudpickle.py")
        self.env["PYTHONPATH"] = str(self.folder / "absent")


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    with ExitStack() as stack:
        yield Programs(tmp_path, stack)


CLASSES = """
    import os, sys
    import phalanx

    class Weights:
        def __init__(self, rank):
            self.rank = rank

    class Broken(Exception):
        pass

    def train(scale):
        return Weights(int(os.environ["RANK"]) * scale), sys.argv[1:]

    def fail():
        raise Broken("in a worker")

    if __name__ == "__main__":
        for weights, words in phalanx.launch(train, 10, nproc=2):
            print(type(weights) is Weights, weights.rank, words)
        try:
            phalanx.launch(fail)
        except Broken as broken:
            print("caught", broken)
"""


def test_classes_of_the_main_program_are_the_same_on_the_way_back(programs: Programs) -> None:
    assert programs.run(CLASSES, "--lr", "1") == (
        "True 0 ['--lr', '1']\nTrue 10 ['--lr', '1']\ncaught in a worker\n"
    )


def test_without_cloudpickle_functions_travel_by_name(programs: Programs) -> None:
    programs.without_cloudpickle()
    assert programs.run(CLASSES, "--lr", "1") == (
        "True 0 ['--lr', '1']\nTrue 10 ['--lr', '1']\ncaught in a worker\n"
    )


def test_a_program_without_a_guard_runs_once(programs: Programs) -> None:
    out = programs.run(
        """
        import phalanx

        print("once")
        print(list(phalanx.launch(lambda: "value", nproc=2)))
        """
    )
    assert out == "once\n['value', 'value']\n"


def test_without_cloudpickle_a_lambda_is_refused_with_what_would_help(programs: Programs) -> None:
    programs.without_cloudpickle()
    out = programs.run(
        """
        import phalanx

        try:
            phalanx.launch(lambda: 1)
        except TypeError as error:
            print(error)
        """
    )
    assert out.startswith(
        "cannot be sent to the workers by its name: the function <lambda> at program.py:4 is of type function ("
    )
    assert out.endswith("cloudpickle sends it by value: pip install 'phalanx-launcher[func]'\n")


def test_without_cloudpickle_a_program_without_a_guard_is_told_so(programs: Programs) -> None:
    programs.without_cloudpickle()
    process = programs.start(
        """
        import phalanx

        def train():
            return 1

        phalanx.launch(train)
        """
    )
    _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    assert err.count("put the call under if __name__ == '__main__':") == 1
    assert "pip install 'phalanx-launcher[func]'" in err
    assert "rank" not in err, "no worker has started"


@pytest.mark.parametrize("guard", ["if __name__ == '__main__':", "if '__main__' == __name__ and True:"])
def test_without_cloudpickle_a_program_with_a_guard_runs(programs: Programs, guard: str) -> None:
    programs.without_cloudpickle()
    out = programs.run(
        f"""
        import phalanx

        def train():
            return 1

        def main():
            print(list(phalanx.launch(train)))

        {guard}
            main()
        """
    )
    assert out == "[1]\n"


def test_without_cloudpickle_a_program_from_a_pipe_is_told_what_would_help(programs: Programs) -> None:
    programs.without_cloudpickle()
    ran = subprocess.run(
        [sys.executable, "-"],
        input="import phalanx\ndef f():\n    return 1\nphalanx.launch(f)\n",
        cwd=programs.folder,
        env=programs.env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1] == (
        "TypeError: cannot be sent to the workers by its name: the function f is defined where no worker can import "
        "it; cloudpickle sends it by value: pip install 'phalanx-launcher[func]'"
    )


def test_a_module_beside_the_program_is_found_by_workers(programs: Programs) -> None:
    programs.write("def train():\n    return __name__\n", "training.py")
    out = programs.run(
        """
        import os
        import phalanx, training

        os.chdir("/")
        print(phalanx.launch(training.train)[0])
        """
    )
    assert out == "training\n"


def test_ctrl_c_stops_the_workers_with_their_grace_and_comes_out(programs: Programs) -> None:
    # The workers say that they are ready when the program waits for them: a Ctrl-C while it starts them is another
    # matter. They say so without print, for the handler's print must not come into the middle of it; and they sleep in
    # naps, for a signal right before one long sleep would be heard at its end.
    process = programs.start(
        """
        import os, signal, sys, threading, time, traceback
        import phalanx

        def train():
            def leave(number, frame):
                print("saved", flush=True)
                sys.exit(0)

            signal.signal(signal.SIGINT, leave)
            while not os.path.exists("waits"):
                time.sleep(0.01)
            os.write(1, b"ready\\n")
            while True:
                time.sleep(0.05)

        def names_of_frames(frame):
            while frame:
                yield frame.f_code.co_qualname
                frame = frame.f_back

        def tell_when_it_waits(main=threading.main_thread().ident):
            limit_at = time.monotonic() + 60
            while not {"AgentProcess.wait", "ready_of"} <= set(names_of_frames(sys._current_frames()[main])):
                if time.monotonic() > limit_at:
                    traceback.print_stack(sys._current_frames()[main])
                    os._exit(1)  # and the workers, who wait for it, end with their program
                time.sleep(0.01)
            open("waits", "w").close()

        threading.Thread(target=tell_when_it_waits, daemon=True).start()
        try:
            phalanx.launch(train, nproc=2)
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    if sorted(lines) != ["[rank0]: ready\n", "[rank1]: ready\n"]:
        process.kill()
        pytest.fail(f"{lines}: {process.communicate()}")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert sorted(out.splitlines()) == ["[rank0]: saved", "[rank1]: saved", "interrupted"], err
    assert process.returncode == 0


def test_a_hundred_megabytes_go_out_once_and_come_back(programs: Programs) -> None:
    out = programs.run(
        """
        import resource
        import phalanx

        MB = 1024 * 1024

        def mirror(data):
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            return data[::-1], peak

        data = bytes(range(256)) * (100 * MB // 256)
        result = phalanx.launch(mirror, data, nproc=2)
        print([value == data[::-1] for value, _ in result], max(peak for _, peak in result))
        """
    )
    right, _, peak = out.partition("] ")
    assert right == "[True, True"
    # The argument itself, the interpreter, and no second copy of the argument.
    assert int(peak) < 190


NODE = """
    import os, sys, time
    import phalanx

    def train():
        rank = int(os.environ["RANK"])
        return {0: 0.5, 1: ("one", None, b"1"), 2: {"a": {1, 2}}, 3: "3" * 700_000, 4: train, 5: [5] * 400_000}[rank]

    result = phalanx.launch(
        train, nproc=int(sys.argv[1]), nnodes=2, rdzv_backend="c10d", rdzv_endpoint=f"127.0.0.1:{sys.argv[2]}"
    )
    print(result[0], result[1], result[2], len(result[3]))
    for rank in (4, 5):
        print(rank, result[rank] if isinstance(result[rank], phalanx.NotSent) else type(result[rank]).__name__)
    print(len(result))
    """


def test_each_of_two_nodes_returns_the_values_of_all_ranks(programs: Programs) -> None:
    port = str(two_free_ports())
    nodes = [programs.start(NODE, nproc, port) for nproc in ("4", "2")]
    told = [node.communicate(timeout=LIMIT_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    plain = "0.5 ('one', None, b'1') {'a': {1, 2}} 700000\n"
    texts = sorted(out for out, _ in told)
    assert all(text.startswith(plain) and text.endswith("\n6\n") for text in texts)
    unsent = [
        text for text in texts if "4 <the value of rank 4 was not sent: it has something of type" in text
    ]
    assert unsent, "a function crosses between no nodes"
    assert any("5 list" in text for text in texts)


def test_of_an_exception_on_another_node_type_and_text_come(programs: Programs) -> None:
    source = """
    import os, sys, time
    import phalanx

    class Own(Exception):
        pass

    def train(kind):
        if os.environ["RANK"] == "1":
            raise KeyError("missing") if kind == "builtin" else Own("own")
        time.sleep(1000)

    for number, kind in enumerate(("builtin", "own")):
        try:
            phalanx.launch(
                train, kind, nnodes=2, rdzv_backend="c10d", rdzv_endpoint=f"127.0.0.1:{int(sys.argv[1]) + number}"
            )
        except Exception as error:
            print(type(error).__name__, error, "in train" in str(error.__notes__), error.worker_failed.rank)
    """
    port = str(two_free_ports())
    nodes = [programs.start(source, port) for _ in range(2)]
    told = [node.communicate(timeout=LIMIT_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    lines = sorted(line for out, _ in told for line in out.splitlines())
    assert lines == [
        "KeyError 'missing' False 1",  # the node of rank 1 has the object, and its frames
        "KeyError 'missing' True 1",
        "Own own False 1",
        "RemoteError Own: own True 1",
    ]


def test_who_waits_for_values_is_no_straggler_and_makes_no_job_hang(programs: Programs) -> None:
    source = """
    import os, sys, time
    import phalanx

    def train():
        open(f"{os.environ['RANK']}.here", "w").close()
        while len([one for one in os.listdir() if one.endswith(".here")]) < 4:  # who only comes late is none either
            time.sleep(0.01)
        if os.environ["RANK"] == "3":
            time.sleep(1000)
        return 1

    try:
        phalanx.launch(
            train, nproc=2, nnodes=2, straggler_s=8, grace=1,
            rdzv_backend="c10d", rdzv_endpoint=f"127.0.0.1:{sys.argv[1]}",
        )
    except phalanx.WorkerFailed as error:
        print(error.rank, error.others, "still ran" in str(error) or str(error))
    """
    port = str(two_free_ports())
    nodes = [programs.start(source, port) for _ in range(2)]
    told = [node.communicate(timeout=LIMIT_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    assert {out.split(" ")[0] for out, _ in told} == {"3"}, told
    assert all(out.startswith("3 None") for out, _ in told), told


def test_a_job_ends_with_the_program_that_started_it(programs: Programs) -> None:
    process = programs.start(
        """
        import os, signal, time
        import phalanx

        def train():
            print(os.getpid(), flush=True)
            time.sleep(1000)

        phalanx.start(train).wait()
        """
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[-1])
    process.kill()
    process.wait()
    ends_at = time.monotonic() + LIMIT_S
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < ends_at, "the worker is still there"
        time.sleep(0.05)


def test_nobody_waits_for_a_rank_that_has_ended_without_a_word(programs: Programs) -> None:
    source = """
    import os, sys, time
    import phalanx

    class Leaves:
        def __reduce__(self):
            os._exit(0)

    def train(how):
        rank = int(os.environ["RANK"])
        if rank == 0 and how == "leaves":
            time.sleep(1)
            os._exit(0)
        if rank == 3 and how == "pickles":
            return Leaves()
        return 10**5000 if how == "number" else rank

    for how, port in zip(("leaves", "pickles", "number"), sys.argv[1:]):
        result = phalanx.launch(
            train, how, nproc=2, nnodes=2, rdzv_backend="c10d", rdzv_endpoint=f"127.0.0.1:{port}"
        )
        print(how, len(result), [one == 10**5000 for one in result if how == "number"], flush=True)
    """
    ports = [str(two_free_ports()) for _ in range(3)]
    nodes = [programs.start(source, *ports) for _ in range(2)]
    told = [node.communicate(timeout=LIMIT_S) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], told
    for out, _ in told:
        assert [line.split()[:2] for line in out.splitlines()] == [
            ["leaves", "4"],
            ["pickles", "4"],
            ["number", "4"],
        ]
        assert out.endswith("number 4 [True, True, True, True]\n")


@pytest.mark.parametrize("leaving", ["sys.exit(0)", "raise ValueError('of the child')"])
def test_a_child_that_leaves_its_copy_of_the_block_stops_no_job_of_its_parent(
    programs: Programs, leaving: str
) -> None:
    out = programs.run(
        f"""
        import os, sys, time
        import phalanx

        def train(gate):
            while not os.path.exists(gate):
                time.sleep(0.02)
            return "done"

        with phalanx.start(train, os.path.abspath("gate")) as job:
            child = os.fork()
            if child == 0:
                {leaving}
            os.waitpid(child, 0)
            open("gate", "w").close()
            print(job.result()[0])
        """
    )
    assert out == "done\n"
