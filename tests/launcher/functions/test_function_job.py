"""A job whose workers call a function: the call goes out once, values and exceptions come back as they were."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.system.launch import LIMIT_S

from phalanx.cli.run import run_options
from phalanx.launcher import Outcome
from phalanx.launcher.functions.function_job import FunctionJob, RemoteError, UnreadableValue
from phalanx.records import changed

pytestmark = pytest.mark.system


class Jobs:
    """Starts jobs whose output goes to a file, and ends what is left of them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._stack = stack
        self.output = folder / "output"

    def start(
        self,
        function: Callable[..., Any],
        *args: Any,
        nproc: int = 2,
        own: Mapping[int, tuple[Any, ...]] | None = None,
        more: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> FunctionJob:
        options = changed(
            run_options(["--no-python", "true"]),
            nproc=nproc,
            log_dir=os.devnull,
            entrypoint="",
            **(more or {}),
        )
        with self.output.open("ab") as file:
            job = FunctionJob.start(
                function, args, kwargs, options, args_by_local_rank=own, stdout=file, stderr=file
            )
        self._stack.callback(job.close)
        self._stack.enter_context(job.agent)
        return job

    def run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[FunctionJob, Outcome]:
        job = self.start(function, *args, **kwargs)
        outcome = job.wait(LIMIT_S)
        assert outcome is not None, "the job did not end"
        return job, outcome

    def value(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        job, outcome = self.run(function, *args, nproc=1, **kwargs)
        assert outcome.exit_code == 0, self.output.read_text()
        return job.returned()[0]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with ExitStack() as stack:
        yield Jobs(tmp_path, stack)


def test_each_rank_returns_its_value(jobs: Jobs) -> None:
    def train(first: int, *, second: int) -> tuple[str, int]:
        return os.environ["RANK"], first + second

    job, outcome = jobs.run(train, 1, second=2)

    assert outcome.exit_code == 0
    assert job.returned() == {0: ("0", 3), 1: ("1", 3)}
    assert job.world_size == 2


def test_local_ranks_may_have_arguments_of_their_own(jobs: Jobs) -> None:
    job, _ = jobs.run(lambda *args: args, own={0: ("zero",), 1: ("one", "more")})
    assert job.returned() == {0: ("zero",), 1: ("one", "more")}


def test_an_exception_comes_back_with_its_type_its_attributes_and_its_frames(jobs: Jobs) -> None:
    class Diverged(Exception):
        def __init__(self, loss: float, step: int) -> None:
            super().__init__(f"loss is {loss}")
            self.step = step

    def train() -> None:
        if os.environ["RANK"] == "1":
            raise Diverged(1e9, step=7)
        threading.Event().wait()

    job, outcome = jobs.run(train)

    assert outcome.exit_code == 1
    assert outcome.verdict is not None
    assert outcome.verdict.cause is not None
    assert outcome.verdict.cause.rank == 1
    raised = job.raised(1)
    assert type(raised) is Diverged
    assert (str(raised), raised.step) == ("loss is 1000000000.0", 7)
    assert raised.__traceback__ is not None
    assert raised.__traceback__.tb_frame.f_code.co_filename == __file__
    assert raised.__traceback__.tb_frame.f_code.co_name == "train"
    assert job.raised(0) is None


def test_what_cannot_be_sent_to_a_worker_is_one_sentence_and_starts_nothing(jobs: Jobs) -> None:
    model = {"weights": [1, threading.Lock()]}
    with pytest.raises(TypeError, match=r"argument 1 of <lambda>\['weights'\]\[1\] is of type _thread.lock"):
        jobs.start(lambda *_: None, 1, model)


def test_a_value_that_cannot_be_sent_back_is_a_failure_of_its_rank(jobs: Jobs) -> None:
    def train() -> Any:
        return {"step": 1, "model": [threading.Lock()]}

    job, outcome = jobs.run(train, nproc=1)

    assert outcome.exit_code == 1
    assert str(job.raised(0)) == (
        "the value that rank 0 returned cannot be sent back: result['model'][0] is of type _thread.lock "
        "(cannot pickle '_thread.lock' object); return plain data, or save it to a file"
    )


@pytest.mark.parametrize("code", [None, 0])
def test_an_exit_without_a_code_is_success_without_a_value(jobs: Jobs, code: int | None) -> None:
    def leave() -> None:
        raise SystemExit(code)

    assert jobs.value(leave) is None


def test_an_exit_with_a_code_ends_the_job_with_it(jobs: Jobs) -> None:
    def leave() -> None:
        raise SystemExit(7)

    job, outcome = jobs.run(leave, nproc=1)
    assert outcome.exit_code == 7
    assert job.raised(0) is None


def test_a_process_that_ends_itself_has_returned_none(jobs: Jobs) -> None:
    assert jobs.value(os._exit, 0) is None


def test_an_answer_of_an_earlier_round_is_none_of_this_one(jobs: Jobs) -> None:
    def train() -> str:
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            if os.environ["RANK"] == "0":
                return "first"
            raise ValueError("once more")
        os._exit(0)

    options = run_options(["--max-restarts", "1", "--no-python", "true"])
    job, outcome = jobs.run(train, more={"restarts": options.restarts})

    assert outcome.exit_code == 0
    assert job.returned() == {0: None, 1: None}
    assert job.raised(1) is None


def test_the_program_of_the_worker_leaves_no_trace(jobs: Jobs) -> None:
    def look() -> tuple[list[str], dict[str, Any], list[str]]:
        import sys

        main = vars(sys.modules["__main__"])
        return sys.argv, {name: main.get(name) for name in ("__name__", "__file__", "sys")}, sys.path

    import sys

    argv, main, path = jobs.value(look)
    assert argv == sys.argv
    assert main == {"__name__": "__main__", "__file__": None, "sys": None}
    assert path[: len(sys.path)] == [one or os.getcwd() for one in sys.path]


def test_the_traceback_that_a_worker_prints_shows_the_function_alone(jobs: Jobs) -> None:
    def train() -> None:
        raise ValueError("shown")

    jobs.run(train, nproc=1)

    printed = jobs.output.read_text()
    assert "in train\n" in printed
    assert "functions/calling.py" not in printed
    assert "_boot.py" not in printed


def test_a_forked_child_that_comes_along_is_not_the_worker(jobs: Jobs) -> None:
    def fork() -> str:
        child = os.fork()
        if child == 0:
            return "child"
        os.waitpid(child, 0)
        return "parent"

    assert jobs.value(fork) == "parent"


def test_an_exception_that_no_pickle_takes_is_told_by_name_and_text(jobs: Jobs) -> None:
    class Odd(Exception):
        def __init__(self) -> None:
            super().__init__(threading.Lock())
            self.lock = threading.Lock()

        def __str__(self) -> str:
            return "odd"

    def train() -> None:
        raise KeyError("first") from Odd()

    job, _ = jobs.run(train, nproc=1)

    raised = job.raised(0)
    assert isinstance(raised, KeyError)
    assert isinstance(raised.__cause__, RemoteError)
    assert str(raised.__cause__).endswith("Odd: odd")


@pytest.mark.parametrize(
    ("what", "value"),
    [("round", 2), ("round", -1), ("rank", 1), ("rank", 1 << 62), ("world", 5), ("length", -5), ("kind", 99)],
)
def test_an_answer_that_is_not_as_the_agent_tells_is_no_answer(jobs: Jobs, what: str, value: int) -> None:
    def forge(what: str, value: int) -> None:
        import json
        import struct
        import sys
        import time

        if os.environ["RANK"] == "1":
            time.sleep(0.5)
            return
        words = Path("/proc/self/cmdline").read_text().split("\0")
        order = next(number for number, one in enumerate(words) if one.startswith("/proc/"))
        terms = json.loads(Path(words[order]).read_bytes()[int(words[order + 1]) :])
        head = {"kind": 2, "round": 1, "rank": 0, "world": 2, "length": 7, "others": 0, what: value}
        with open(terms["answers"][0], "r+b") as file:
            file.write(struct.pack("<8sqqqqqq8x", b"phxansw1", *head.values()) + b"garbage")
        sys.stdout.flush()
        os._exit(0)

    job, outcome = jobs.run(forge, what, value)
    assert outcome.exit_code == 0
    for _ in range(2):
        with pytest.raises(UnreadableValue, match="rank 0 has ended with exit code 0 and left no answer"):
            job.returned()


def test_an_exception_of_a_worker_that_succeeds_all_the_same_is_no_shorter_result(jobs: Jobs) -> None:
    def train() -> None:
        import atexit

        atexit.register(os._exit, 0)
        raise ValueError("told")

    job, outcome = jobs.run(train, nproc=1)
    assert outcome.exit_code == 0
    with pytest.raises(
        UnreadableValue, match="left an exception, and then its process ended with exit code 0"
    ):
        job.returned()
