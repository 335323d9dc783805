"""Library use: a program hosts an agent, and stays the program that it was.

Real agents, workers and keepers. Where the program itself must die, it is a process of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.launcher.hosting.house import GRACEFUL, SLEEPER, STUBBORN, WAITS_FOR_GO, House
from tests.repository.test_start_up import denied, imported_by
from tests.system.launch import LIMIT_S, Job, Launcher, two_free_ports

from phalanx.agent.verdict.verdict import Ending
from phalanx.cli.mistakes import UsageError
from phalanx.cli.run import run_options
from phalanx.launcher import AgentProcess, Outcome, RunOptions
from phalanx.launcher.hosting import library
from phalanx.launcher.hosting.handover import from_json, to_json
from phalanx.launcher.hosting.outcome import LastWords
from phalanx.multiprocessing.nameless import NamelessFile

pytestmark = pytest.mark.system


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    """Whatever else a test asserts: nothing of its jobs is alive at its end."""
    with House(tmp_path) as house:
        yield house
        assert not house.survivors()


def end(agent: AgentProcess) -> Outcome:
    outcome = agent.wait(LIMIT_S)
    assert outcome is not None, "the agent did not end"
    return outcome


def changed(options: RunOptions, **changes: Any) -> RunOptions:
    return RunOptions(
        **{**{name: getattr(options, name) for name in RunOptions.__struct_fields__}, **changes}
    )


# How jobs end


def test_a_job_that_succeeds(house: House) -> None:
    agent = house.start(
        "--nproc-per-node",
        2,
        house.script("import os; os.write(1, f'rank {os.environ[\"RANK\"]}\\n'.encode())"),
    )

    outcome = end(agent)

    assert (outcome.exit_code, outcome.ending, outcome.report) == (0, Ending.SUCCEEDED, "")
    assert outcome.verdict is not None
    assert not outcome.verdict.failures
    assert sorted(house.out.splitlines()) == ["rank 0", "rank 1"]
    assert house.err == ""


def test_a_job_that_fails_tells_its_cause_as_data_and_as_text(house: House) -> None:
    train = house.script(
        """
        import os, sys, time
        if os.environ["RANK"] == "1":
            raise SystemExit(7)
        time.sleep(1000)
        """
    )

    outcome = end(house.start("--nproc-per-node", 2, train))

    assert (outcome.exit_code, outcome.ending) == (7, Ending.FAILED)
    assert outcome.verdict is not None
    assert outcome.verdict.cause is not None
    assert (outcome.verdict.cause.rank, outcome.verdict.cause.exit_code) == (1, 7)
    assert [one.rank for one in outcome.verdict.failures if one.is_collateral] == [0]
    assert "train.py failed: rank 1" in outcome.report
    assert house.err.endswith(outcome.report)


def test_a_program_that_is_not_there(house: House) -> None:
    outcome = end(house.start("--no-python", "./missing"))

    assert (outcome.exit_code, outcome.ending) == (127, Ending.FAILED)
    assert "not found" in outcome.report


def test_an_option_that_cannot_be_used_is_one_sentence(house: House) -> None:
    made = changed(house.options("--no-python", "true"), rdzv_conf={"join_timeout": "soon"})
    with open(house.folder / "err", "wb") as err:
        outcome = end(library.start_agent(made, env=house.env, stderr=err))

    assert (outcome.exit_code, outcome.ending, outcome.verdict) == (2, Ending.FAILED, None)
    assert outcome.report == house.err
    assert re.fullmatch(r"phalanx: error: [^\n]*join_timeout[^\n]*soon[^\n]*\n", house.err)


def test_a_value_of_another_type_starts_nothing(house: House) -> None:
    made = changed(house.options("--no-python", "true"), nproc="2")
    with pytest.raises(TypeError, match=r"RunOptions\.nproc is to be int, and is '2', of type str"):
        library.start_agent(made)


def test_a_pipe_that_nobody_reads_is_refused(house: House) -> None:
    with pytest.raises(ValueError, match="PIPE"):
        library.start_agent(house.options("--no-python", "true"), stderr=subprocess.PIPE)


def test_an_agent_that_cannot_be_started_leaves_no_descriptor(house: House) -> None:
    gc.collect()  # garbage of another test may hold some, and must not go meanwhile
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        library.start_agent(house.options("--no-python", "true"), cwd=house.folder / "missing")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_an_interpreter_that_does_not_come_up_is_told_of(house: House) -> None:
    outcome = end(house.start("--no-python", "true", env={**house.env, "PYTHONHOME": "/missing"}))

    assert (outcome.exit_code, outcome.ending) == (1, Ending.FAILED)
    assert outcome.report == (
        "phalanx: the agent of true ended with exit code 1 before it could say why; see its standard error\n"
    )
    assert house.err


def test_a_wait_that_is_too_short_gives_none(house: House) -> None:
    agent = house.start(house.script(WAITS_FOR_GO))
    house.hear("ready")
    assert agent.wait(0) is None
    assert agent.wait(0.01) is None
    assert "running" in repr(agent)
    (house.folder / "go").touch()
    assert end(agent).exit_code == 0
    assert "ended: 0" in repr(agent)


# From wherever the program likes


def test_from_a_thread_that_does_not_outlive_the_start(house: House) -> None:
    """A parent-death signal would follow the thread that forked."""
    started: list[AgentProcess] = []
    outcomes: list[Outcome] = []
    train = house.script(WAITS_FOR_GO)
    for work in (lambda: started.append(house.start(train)), lambda: outcomes.append(end(started[0]))):
        thread = threading.Thread(target=work)
        thread.start()
        if started:
            house.hear("ready")
            (house.folder / "go").touch()
        thread.join()
    assert [one.exit_code for one in outcomes] == [0]


def test_two_at_once_each_with_its_own_end(house: House) -> None:
    """Each waits for the other, so neither can have run alone."""
    source = """
        import os, sys, time
        open(sys.argv[1], "w").close()
        while not os.path.exists(sys.argv[2]):
            time.sleep(0.01)
        sys.exit(int(sys.argv[3]))
        """
    train = house.script(source)
    first, second = house.start(train, "a", "b", 3), house.start(train, "b", "a", 4)
    assert (end(first).exit_code, end(second).exit_code) == (3, 4)


def test_two_nodes_of_one_job(house: House) -> None:
    """They meet with the secret that each was handed, and end with the same cause."""
    train = house.script(
        """
        import os, sys, time
        from telling import tell
        tell("there", world=os.environ["WORLD_SIZE"])
        while not os.path.exists("go"):
            time.sleep(0.01)
        sys.exit(7 if os.environ["RANK"] == "1" else 0)
        """
    )
    words = [
        "--nnodes",
        2,
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"localhost:{two_free_ports()}",
        train,
    ]
    secret = changed(house.options(*words), secret=b"\0\xff", run_id="job")
    agents = [library.start_agent(secret, env=house.env, cwd=house.folder) for _ in range(2)]
    assert {one["world"] for one in house.hear("there", 2)} == {"2"}
    (house.folder / "go").touch()
    outcomes = [end(agent) for agent in agents]
    assert [one.exit_code for one in outcomes] == [7, 7]
    assert [one.verdict.cause.rank for one in outcomes if one.verdict and one.verdict.cause] == [1, 1]


def test_many_threads_may_wait_for_one_agent(house: House) -> None:
    agent = house.start(house.script(WAITS_FOR_GO))
    house.hear("ready")
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(end(agent))) for _ in range(8)]
    for thread in threads:
        thread.start()
    (house.folder / "go").touch()
    for thread in threads:
        thread.join()
    assert [one.exit_code for one in outcomes] == [0] * 8
    assert len({id(one) for one in outcomes}) == 1


def test_a_running_loop_goes_on_ticking(house: House) -> None:
    """The job ends only after the loop has ticked a hundred times since it waits."""

    async def tick() -> None:
        for _ in range(100):
            await asyncio.sleep(0.001)
        (house.folder / "go").touch()

    async def host() -> Outcome:
        async with house.start(house.script(WAITS_FOR_GO)) as agent:
            ticking = asyncio.create_task(tick())
            outcome = await agent.wait_async()
            await ticking
            return outcome

    assert asyncio.run(host()).exit_code == 0


def test_a_cancelled_wait_changes_nothing(house: House) -> None:
    async def host() -> Outcome:
        agent = house.start(house.script(WAITS_FOR_GO))
        waits = [asyncio.create_task(agent.wait_async()) for _ in range(3)]
        await asyncio.to_thread(house.hear, "ready")
        waits[0].cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await agent.wait_async()
        assert waits[0].cancelled()
        (house.folder / "go").touch()
        first, second = await asyncio.gather(*waits[1:])
        assert first is second
        return first

    assert asyncio.run(host()).exit_code == 0


def test_a_cancelled_task_stops_its_job_before_it_is_over(house: House) -> None:
    outcomes = []

    async def host() -> None:
        async with house.start(house.script(GRACEFUL)) as agent:
            try:
                await agent.wait_async()
            finally:
                outcomes.append(agent)

    async def main() -> None:
        task = asyncio.create_task(host())
        await asyncio.to_thread(house.hear, "ready")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not house.survivors()

    asyncio.run(main())
    assert end(outcomes[0]).exit_code == 143
    assert house.hear("asked")


def test_a_task_that_is_cancelled_again_while_it_stops_cuts_the_grace(house: House) -> None:
    async def host() -> None:
        async with house.start("--shutdown-timeout", 3600, house.script(STUBBORN)) as agent:
            await agent.wait_async()

    async def main() -> None:
        task = asyncio.create_task(host())
        await asyncio.to_thread(house.hear, "ready")
        task.cancel()
        await asyncio.to_thread(house.hear, "asked")
        await asyncio.sleep(1)  # sooner than 0.5 s the second would count as the first's double
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


# Ending


def test_a_stop_is_the_commands_own(house: House) -> None:
    agent = house.start("--nproc-per-node", 2, house.script(GRACEFUL))
    house.hear("ready", 2)

    assert agent.stop()

    outcome = end(agent)
    assert (outcome.exit_code, outcome.ending) == (143, Ending.STOPPED)
    assert [one["signal"] for one in house.hear("asked", 2)] == [signal.SIGTERM] * 2
    assert not agent.stop()
    assert not agent.kill()
    assert not agent.send_signal(signal.SIGTERM)


def test_a_stop_at_once_after_the_start_is_not_lost(house: House) -> None:
    agent = house.start(house.script(SLEEPER))
    agent.stop(signal.SIGINT)
    assert end(agent).exit_code == 130


def test_a_second_stop_cuts_the_grace(house: House) -> None:
    agent = house.start("--shutdown-timeout", 3600, house.script(STUBBORN))
    house.hear("ready")
    agent.stop()
    house.hear("asked")
    time.sleep(1)  # sooner than 0.5 s the second would count as the first's double
    agent.stop()
    assert end(agent).exit_code == 143


def test_a_job_that_handles_no_signal_can_be_stopped_all_the_same(house: House) -> None:
    made = changed(house.options(house.script(GRACEFUL)), stop_signals=())
    agent = library.start_agent(made, env=house.env, cwd=house.folder)
    house.hear("ready")
    agent.stop()
    assert end(agent).exit_code == 143
    assert house.hear("asked")


def test_a_signal_is_passed_on_and_stops_nothing(house: House) -> None:
    agent = house.start("--nproc-per-node", 2, house.script(GRACEFUL))
    house.hear("ready", 2)
    assert agent.send_signal(signal.SIGUSR1)
    assert [one["signal"] for one in house.hear("passed", 2)] == [signal.SIGUSR1] * 2
    with pytest.raises(ValueError, match="SIGUSR1 is passed on to the workers, and stops nothing"):
        agent.stop(signal.SIGUSR1)
    agent.send_signal(signal.SIGTERM)
    assert end(agent).exit_code == 143


def test_a_signal_to_an_agent_that_is_still_starting_does_not_kill_it(house: House) -> None:
    agent = house.start(house.script(WAITS_FOR_GO))  # who has ended cannot be sent anything
    assert agent.send_signal(signal.SIGUSR1)
    (house.folder / "go").touch()
    assert end(agent).exit_code == 0


def test_a_real_signal_to_the_agent_does_the_same(house: House) -> None:
    agent = house.start(house.script(GRACEFUL))
    house.hear("ready")
    os.kill(agent.pid, signal.SIGTERM)
    assert end(agent).exit_code == 143
    assert house.hear("asked")


def test_leaving_the_block_stops_the_job_and_waits(house: House) -> None:
    with house.start(house.script(GRACEFUL)) as agent:
        house.hear("ready")
    assert not house.survivors()
    assert end(agent).exit_code == 143


def test_a_keyboard_interrupt_that_leaves_the_block_is_one_for_the_workers(house: House) -> None:
    agent = house.start(house.script(GRACEFUL))
    house.hear("ready")
    with pytest.raises(KeyboardInterrupt), agent:
        raise KeyboardInterrupt
    assert end(agent).exit_code == 130
    assert [one["signal"] for one in house.hear("asked")] == [signal.SIGINT]


def test_a_killed_agent_is_told_of_when_nothing_of_its_job_is_left(house: House) -> None:
    agent = house.start("--nproc-per-node", 4, house.script(SLEEPER))
    house.hear("ready", 4)

    assert agent.kill()
    outcome = end(agent)

    assert not house.survivors()
    assert (outcome.exit_code, outcome.ending, outcome.verdict) == (137, Ending.FAILED, None)
    assert outcome.report == (
        f"phalanx: the agent of {house.folder}/train.py was killed by SIGKILL; "
        "its keeper has ended what was left of the job\n"
    )


def test_the_loop_too_is_told_of_a_killed_agent_when_nothing_is_left(house: House) -> None:
    async def host() -> Outcome:
        agent = house.start("--nproc-per-node", 4, house.script(SLEEPER))
        await asyncio.to_thread(house.hear, "ready", 4)
        agent.kill()
        outcome = await agent.wait_async()
        assert not house.survivors()
        return outcome

    assert asyncio.run(host()).exit_code == 137


def test_an_agent_that_is_killed_as_soon_as_it_is_started(house: House) -> None:
    agent = house.start(house.script(SLEEPER))
    agent.kill()
    assert end(agent).exit_code == 137


def test_who_drops_the_agent_lets_go_of_the_job(house: House) -> None:
    agent = house.start(house.script(GRACEFUL))
    house.hear("ready")
    pid = agent.pid
    pidfd = os.pidfd_open(pid)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del agent
        gc.collect()
    # Garbage of another test may warn, too.
    assert [one.category for one in caught if f"subprocess {pid} " in str(one.message)] == [ResourceWarning]
    house.hear("asked")
    with contextlib.suppress(ChildProcessError):  # it had ended before Popen looked for the last time
        os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
    os.close(pidfd)


# What the program is afterwards


def state_of_this_process() -> dict[str, Any]:
    libc = ctypes.CDLL(None, use_errno=True)
    is_subreaper = ctypes.c_int(-1)
    assert libc.prctl(37, ctypes.byref(is_subreaper), 0, 0, 0) == 0  # PR_GET_CHILD_SUBREAPER
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return {
        "handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "wakeup": wakeup,
        "subreaper": is_subreaper.value,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "session": (os.getsid(0), os.getpgrp()),
    }


def test_the_program_stays_as_it_is(house: House) -> None:
    gc.collect()  # garbage of another test may hold descriptors, and must not go meanwhile
    before = state_of_this_process()
    threads = set(threading.enumerate())  # one of another test may end meanwhile
    descriptors = sorted(os.listdir("/proc/self/fd"))
    with subprocess.Popen(["sh", "-c", "exit 5"]) as ended:
        os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)  # left as a zombie: whose status is taken?
        with subprocess.Popen(["sh", "-c", "read line; exit 6"], stdin=subprocess.PIPE) as running:
            agent = house.start(house.script(WAITS_FOR_GO))
            house.hear("ready")
            during = state_of_this_process()
            assert set(threading.enumerate()) <= threads
            (house.folder / "go").touch()
            outcome = end(agent)
            running.communicate(b"\n")
            assert (outcome.exit_code, running.returncode) == (0, 6)
        assert ended.wait() == 5
    assert before == during == state_of_this_process()
    assert set(threading.enumerate()) <= threads
    assert sorted(os.listdir("/proc/self/fd")) == descriptors


def host(house: House, source: str, *, wrapper: tuple[str, ...] = (), **streams: int) -> Job:
    """A program of its own that hosts an agent: ``agent = begin(*words)`` and what the test adds."""
    program = house.folder / "host.py"
    head = f"""
import os, signal, subprocess, sys, time
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from phalanx.cli.run import run_options
from phalanx.launcher import start_agent
from telling import tell

def begin(*words, **given):
    return start_agent(run_options([*words]), **given)

def report(outcome):
    tell("outcome", code=outcome.exit_code, ending=outcome.ending.value, report=outcome.report)

"""
    house.script(source, "tail.py")
    program.write_text(head + (house.folder / "tail.py").read_text())
    return Job(
        Launcher("host", (sys.executable, str(program))),
        (),
        folder=house.folder / "host",
        env={"PYTHONPATH": house.env["PYTHONPATH"]},
        wrapper=wrapper,
        streams=streams,
    )


@pytest.mark.parametrize(
    "before",
    [
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
        "signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
        "signal.signal(signal.SIGCHLD, lambda *_: os.waitpid(-1, os.WNOHANG))",
        "for fd in (0, 1, 2): os.close(fd)",
        "for fd in (1, 2): os.close(fd)",
    ],
    ids=[
        "ignores SIGCHLD",
        "blocks signals",
        "dies of SIGPIPE",
        "reaps everybody",
        "is a daemon",
        "has no output",
    ],
)
def test_a_program_with_its_own_ways(house: House, before: str) -> None:
    train = house.script(
        """
        import os, signal, sys
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
        sys.exit(7 if os.environ["RANK"] == "1" else 0)
        """
    )
    sleeper = house.script(GRACEFUL, "sleeper.py")
    job = host(
        house,
        f"""
        {before}
        report(begin("--nproc-per-node", "2", {train!r}).wait())
        with begin({sleeper!r}) as agent:
            streams = [os.readlink(f"/proc/{{agent.pid}}/fd/{{fd}}") for fd in (0, 1, 2)]
            tell("started", streams=streams)
            while not os.path.exists("go"):
                time.sleep(0.01)
        report(agent.wait())
        agent = begin("--no-python", "sleep", "1000")
        agent.kill()
        try:
            os.waitid(os.P_PID, agent.pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # somebody in this program has waited for it
        agent.stop()
        agent.wait()
        agent.stop()
        os._exit(0)
        """,
    )
    with job:
        (first,) = job.told("outcome")
        assert first["code"] == 7, first
        assert "failed: rank 1" in first["report"]
        job.told("ready")
        (started,) = job.told("started")
        given = [os.devnull] * 3
        if "os.close" not in before:
            given[1:] = [str(job.folder / name) for name in ("stdout", "stderr")]
        assert started["streams"] == given
        (job.folder / "go").touch()
        assert job.wait() == 0
        assert job.told("asked")
        assert job.told("outcome", 2)[1]["code"] == 143


def test_a_program_without_free_descriptors_is_told_so_and_keeps_none(house: House) -> None:
    """However far the start came: at each limit it works, or leaves no descriptor and no child."""
    # An interpreter without descriptors ends by itself, perhaps before it is killed, and one that has enough does its
    # work. This, in its place, stays: the shell is given its line, and opens no file.
    stays = house.folder / "stays"
    stays.write_text('#!/usr/bin/env -S sh -c "exec sleep 1000"\n')
    stays.chmod(0o755)
    job = host(
        house,
        f"""
        import resource
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        made = run_options(["--no-python", "true"])
        start_agent(made).wait()
        sys.executable = {str(stays)!r}
        before = sorted(os.listdir("/proc/self/fd"))
        codes, errors = [], 0
        for limit in range(len(before) - 1, len(before) + 16):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                agent = start_agent(made)
                agent.kill()
                resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
                codes.append(agent.wait().exit_code)
            except OSError:
                errors += 1
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
            assert sorted(os.listdir("/proc/self/fd")) == before
        try:
            os.waitpid(-1, os.WNOHANG)
            is_alone = False
        except ChildProcessError:
            is_alone = True
        tell("done", codes=codes, errors=errors, is_alone=is_alone)
        """,
    )
    with job:
        assert job.wait() == 0, job.so_far()
        (done,) = job.told("done")
        assert done["is_alone"]
        assert done["errors"] >= 5
        assert set(done["codes"]) == {137}


def test_ctrl_c_in_the_terminal_reaches_the_program_alone(house: House) -> None:
    sleeper = house.script(GRACEFUL)
    job = host(
        house,
        f"""
        signal.signal(signal.SIGINT, lambda *_: tell("interrupted"))
        agent = begin({sleeper!r})
        report(agent.wait())
        """,
    )
    with job:
        job.told("ready")
        job.send_to_group(signal.SIGINT)
        job.told("interrupted")
        assert [event.name for event in job.events] == ["ready", "interrupted"]
        job.send(signal.SIGKILL)
        job.wait()
        job.wait_nobody()
        assert job.until("asked")["signal"] == signal.SIGTERM


# When the program ends


ENDINGS = {
    "is killed": "time.sleep(1000)",
    "ends without a word": "sys.exit(0)",
    "ends without its interpreter": "os._exit(3)",
    "raises": "raise RuntimeError('boo')",
    "becomes another program": "os.execv('/bin/true', ['true'])",
    "is killed, and a forked child lives on": "if os.fork() == 0: signal.pause()\n        time.sleep(1000)",
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("how", ENDINGS.values(), ids=ENDINGS)
def test_the_job_does_not_outlive_its_host(house: House, how: str) -> None:
    """Asked as with SIGTERM, and gone; a deaf grandchild of each worker, too."""
    child = 'subprocess.Popen(["setsid", "sh", "-c", "trap \'\' TERM INT; sleep 1000; sleep 1000"])'
    train = house.script(GRACEFUL.replace('tell("ready")', f'import subprocess; {child}; tell("ready")'))
    job = host(
        house,
        f"""
        agent = begin("--nproc-per-node", "2", {train!r})
        while not os.path.exists("go"):
            time.sleep(0.01)
        tell("going", agent=agent.pid)
        {how}
        """,
    )
    with job:
        job.told("ready", 2)
        (job.folder / "go").touch()
        (going,) = job.told("going")
        forked: frozenset[int] = frozenset()
        if "killed" in how or "sleep" in how:
            if "fork" in how:
                forked = frozenset(children_of(job.process.pid) - {going["agent"]})
            job.send(signal.SIGKILL)
        job.wait()
        job.wait_nobody(but=forked)
        assert [job.until("asked", rank=rank)["signal"] for rank in (0, 1)] == [signal.SIGTERM] * 2


def children_of(pid: int) -> set[int]:
    deadline = time.monotonic() + LIMIT_S
    while len(found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return set(map(int, found))


def test_a_killed_host_and_its_killed_agent_leave_nobody(house: House) -> None:
    sleeper = house.script(STUBBORN)
    job = host(
        house,
        f"""
        agent = begin("--nproc-per-node", "2", {sleeper!r})
        tell("agent", agent=agent.pid)
        agent.wait()
        """,
    )
    with job:
        (agent,) = job.told("agent")
        job.told("ready", 2)
        job.send(signal.SIGKILL)
        os.kill(agent["agent"], signal.SIGKILL)
        job.wait()
        job.wait_nobody()


def test_a_host_that_has_asked_for_the_stop_leaves_the_workers_their_grace(house: House) -> None:
    """Its end is no second signal."""
    slow = house.script(
        """
        import signal, sys, time
        from telling import stay, tell

        def save(*_):
            tell("saving")
            time.sleep(4)
            tell("saved")
            sys.exit(0)

        signal.signal(signal.SIGTERM, save)
        tell("ready")
        stay()
        """
    )
    job = host(
        house,
        f"""
        agent = begin({slow!r})
        while not os.path.exists("go"):
            time.sleep(0.01)
        agent.stop()
        time.sleep(1000)
        """,
    )
    with job:
        job.told("ready")
        (job.folder / "go").touch()
        job.told("saving")
        time.sleep(1)  # sooner than 0.5 s it would be no second signal in any case
        job.send(signal.SIGKILL)
        job.wait()
        job.wait_nobody()
        assert job.until("saved").rank == 0


FULL_PIPES = {
    "its report": ([], "sys.exit(7)", 0),
    "lines of a worker that failed": (["-t", "3"], "sys.stderr.write('x' * 200_000); sys.exit(7)", 1),
    "lines of a worker that was stopped": (
        ["-t", "3"],
        "sys.stderr.write('x' * 200_000); time.sleep(1000)",
        2,
    ),
}


@pytest.mark.parametrize(("flags", "end_of_worker", "children"), FULL_PIPES.values(), ids=FULL_PIPES)
def test_a_console_that_nobody_reads_does_not_hold_an_agent_without_a_host(
    house: House, flags: list[str], end_of_worker: str, children: int
) -> None:
    """We are at the other end of its standard error, and never read; the pipe is full from the beginning."""
    read, write = os.pipe()
    train = house.script(f"import sys, time; from telling import tell; tell('there'); {end_of_worker}")
    job = host(
        house,
        f"""
        os.set_blocking(2, False)
        for size in (65536, 1):
            try:
                while True:
                    os.write(2, b"x" * size)
            except BlockingIOError:
                pass
        os.set_blocking(2, True)
        agent = begin(*{["--shutdown-timeout", "1", *flags, train]!r})
        tell("agent", agent=agent.pid)
        agent.wait()
        """,
        stderr=write,
    )
    try:
        with job:
            (agent,) = job.told("agent")
            job.told("there")
            # Of the keeper and the worker: how many are there yet when the console is what the agent waits for?
            wait_until_it_has_children(agent["agent"], at_most=children)
            job.send(signal.SIGKILL)
            job.wait()
            job.wait_nobody()
    finally:
        os.close(read)
        os.close(write)


def wait_until_it_has_children(pid: int, *, at_most: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while len(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()) > at_most:
        assert time.monotonic() < deadline
        time.sleep(0.01)


# The page

PAGE = (Path(__file__).parents[3] / "docs/library.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    ("example", "train", "code", "printed"),
    [
        (EXAMPLES[0], "raise ValueError('no data')", 1, "rank 0 failed first: ValueError: no data"),
        (EXAMPLES[0], "import sys; assert sys.argv[1:] == ['--lr', '0.1']", 0, ""),
        (EXAMPLES[1], "raise SystemExit(3)", 0, "failed 3"),
        (EXAMPLES[1], "pass", 0, "succeeded 0"),
    ],
)
def test_the_examples_of_the_page_do_as_it_says(
    house: House, example: str, train: str, code: int, printed: str
) -> None:
    # One worker fails, so that it is known which was first.
    house.script(f"import os\nif os.environ['RANK'] == '0':\n    {train}\n")
    house.script(example, "example.py")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=house.folder, env=house.env, capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    assert done.stdout.startswith(printed)


# What crosses the border


def test_workers_and_keeper_hold_nothing_of_the_host(house: House) -> None:
    """A worker or keeper with the host's end would hide the host's death; memory of the order has the secret."""
    train = house.script(
        """
        import os
        from telling import stay, tell

        held = []
        for fd in os.listdir("/proc/self/fd"):
            try:
                held.append(os.readlink(f"/proc/self/fd/{fd}"))
            except OSError:
                continue
        tell("ready", held=held, input=os.readlink("/proc/self/fd/0"))
        stay()
        """
    )
    with house.start(train) as agent:
        (ready,) = house.hear("ready")
        assert ready["input"] == os.devnull
        assert not [
            one for one in ready["held"] if one.startswith(("socket:", "/memfd:phalanx-job", "anon_inode:"))
        ]
        held = list(descriptors_of(keeper_of(agent.pid)).values())
        assert len([one for one in held if one.startswith("socket:")]) == 2  # the agent's, and the witness
        assert not [one for one in held if one.startswith("/memfd:phalanx")]
        assert os.getsid(agent.pid) == agent.pid
        for fd, place in descriptors_of(agent.pid).items():  # whatever a plug-in of the agent may start
            with contextlib.suppress(FileNotFoundError):  # the agent has closed it meanwhile
                info = Path(f"/proc/{agent.pid}/fdinfo/{fd}").read_text()
                flags = re.search(r"^flags:\s+(\d+)$", info, re.MULTILINE)
                assert fd < 3 or (flags and int(flags[1], 8) & os.O_CLOEXEC), place


def keeper_of(agent: int) -> int:
    """The keeper, once it has closed what it is not to hold, which is before it takes its name."""
    children = Path(f"/proc/{agent}/task/{agent}/children")
    deadline = time.monotonic() + LIMIT_S
    keepers: list[str] = []
    while not keepers:
        assert time.monotonic() < deadline, "the agent has no keeper"
        names = {pid: Path(f"/proc/{pid}/comm").read_text() for pid in children.read_text().split()}
        keepers = [pid for pid, name in names.items() if name == "phalanx-keeper\n"]
        time.sleep(0.01)
    (keeper,) = keepers
    return int(keeper)


def descriptors_of(pid: int) -> dict[int, str]:
    """What a live process holds open; it may close something while we look."""
    found = {}
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found[int(one.name)] = os.readlink(one)
    return found


def test_the_secret_reaches_no_worker(house: House) -> None:
    train = house.script("import os; print(os.environ.get('PHALANX_SECRET'))")
    outcome = end(house.start(train, env={**house.env, "PHALANX_SECRET": "hidden"}))
    assert outcome.exit_code == 0
    assert house.out == "None\n"


def test_a_folder_with_modules_named_as_in_the_standard_library_is_no_trap(house: House) -> None:
    for name in ("signal", "asyncio", "json", "phalanx"):
        house.script("raise ImportError('of the user')", f"{name}.py")
    assert end(house.start("--no-python", "true")).exit_code == 0
    assert house.err == ""


def raw_agent(house: House, order: bytes) -> tuple[subprocess.Popen[bytes], socket.socket, NamelessFile]:
    """An agent that is handed this, with no library at the host's end."""
    handover = NamelessFile("test")
    handover.write(order)
    ours, theirs = socket.socketpair()
    root = str(Path(library.__file__).parents[3])
    given = (handover.fd, theirs.fileno())
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", library._PROGRAM, root, *map(str, given), "-1", "-1", "test"],
        pass_fds=given,
        env=house.env,
        cwd=house.folder,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    theirs.close()
    return process, ours, handover


@pytest.mark.parametrize(
    "order", [b"", b"{}", b"\xff" * 1000, b"[" * 100_000, b'{"entrypoint": "tr', b"null"]
)
def test_nonsense_instead_of_options_is_one_sentence(house: House, order: bytes) -> None:
    process, link, handover = raw_agent(house, order)
    with process, link:
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 70
    assert re.fullmatch(
        rb"phalanx: error: the agent cannot read what it is asked to run: RunOptions[^\n]*\n", err
    )
    outcome = from_json(handover.read(), LastWords).outcome
    assert (outcome.exit_code, outcome.report) == (70, err.decode())
    handover.close()


def test_nonsense_instead_of_signals_is_left_out(house: House) -> None:
    made = house.options(house.script(GRACEFUL))
    process, link, handover = raw_agent(house, to_json(made).encode())
    with process, link:
        house.hear("ready")
        link.send(bytes([0, 255, 200]))
        link.send(bytes([signal.SIGUSR1]))
        house.hear("passed")
        link.shutdown(socket.SHUT_WR)  # the host's end, where there is no pidfd to tell of it
        _, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 143
    assert b"SIGTERM" in err
    assert b"Traceback" not in err
    handover.close()


def test_the_program_imports_little_for_it(tmp_path: Path) -> None:
    modules, done = imported_by("-c", "from phalanx.launcher import start_agent", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (
        "phalanx.launcher.hosting.event_pipe" in modules
    )  # library's own line is not there: importlib.import_module has none
    assert not denied(modules) | modules & {"asyncio", "argparse", "logging", "phalanx.agent.node"}


def test_the_agent_imports_what_the_command_does(house: House) -> None:
    end(house.start("--no-python", "true", env={**house.env, "PYTHONPROFILEIMPORTTIME": "1"}))
    modules = set(re.findall(r"^import time: +\d+ \| +\d+ \| *(\S+)$", house.err, re.MULTILINE))
    assert "phalanx.agent.node" in modules
    assert not denied(modules)
    assert not {name for name in modules if name.startswith("phalanx.cli")}


def test_the_page_says_what_is_raised_for_words_that_are_wrong() -> None:
    with pytest.raises(UsageError, match="--nproc-per-node"):
        run_options(["--nproc-per-node", "many", "train.py"])
    assert f"{UsageError.__module__}.{UsageError.__qualname__}" in PAGE
