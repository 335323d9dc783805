"""Standard input of a job: one worker of it reads what is typed, and all others read nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.system.launch import Launch, Script, two_free_ports

READER = "import sys; from telling import tell; tell('read', text=sys.stdin.read())"


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    pipes = [os.pipe(), os.pipe()]
    yield pipes
    for pipe in pipes:
        for end in pipe:
            os.close(end)


def typed(pipe: tuple[int, int], text: bytes) -> int:
    """The end to read from, of a pipe that has the text in it and no writer any more but a closed one."""
    reader, writer = pipe
    os.write(writer, text)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, writer)  # the number is closed by the fixture
    os.close(null)
    return reader


def test_rank_0_of_the_first_node_alone_reads_what_is_typed(
    launch: Launch, script: Script, pipes: list[tuple[int, int]]
) -> None:
    train = script(READER)
    port = two_free_ports()
    flags = ("--nnodes", 2, "--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", port)
    nodes = [
        launch(
            *(*flags, "--node-rank", number, train),
            streams={"stdin": typed(pipe, b"typed on node %d" % number)},
        )
        for number, pipe in enumerate(pipes)
    ]

    assert [node.wait() for node in nodes] == [0, 0]
    read = {event.rank: event["text"] for node in nodes for event in node.told("read", 2)}
    assert read == {0: "typed on node 0", 1: "", 2: "", 3: ""}


def test_the_rank_that_is_debugged_is_the_one_that_reads(
    launch: Launch, script: Script, pipes: list[tuple[int, int]]
) -> None:
    job = launch(
        *("--nproc-per-node", 3, "--debug-rank", 1, script(READER)),
        streams={"stdin": typed(pipes[0], b"typed")},
    )

    assert job.wait() == 0
    assert {event.rank: event["text"] for event in job.told("read", 3)} == {0: "", 1: "typed", 2: ""}


def test_an_interactive_interpreter_can_be_a_worker(launch: Launch, pipes: list[tuple[int, int]]) -> None:
    """What is piped into `phalanx run --no-python python` is run, once."""
    job = launch(
        *("--nproc-per-node", 2, "--no-python", "python3", "-c", "import sys; exec(sys.stdin.read())"),
        streams={"stdin": typed(pipes[0], b"print(6 * 7)\n")},
    )

    assert job.wait() == 0
    assert job.stdout.split() == [b"42"]


def test_a_hosted_job_reads_nothing(script: Script) -> None:
    """The host's terminal is the host's."""
    source = (
        "from phalanx.cli.run import run_options\nfrom phalanx.launcher import start_agent\nimport sys\n"
        "with start_agent(run_options(['--no-python', 'cat'])) as job: sys.exit(job.wait().exit_code)\n"
    )
    program = script(source, "host.py")
    done = subprocess.run([sys.executable, program], input=b"typed", capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr
