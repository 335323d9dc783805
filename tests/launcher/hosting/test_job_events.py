"""What a host hears of its job: over the pipe to the last word, whoever reads when, and without holding up anybody."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.launcher.hosting.house import SLEEPER, House
from tests.system.launch import LIMIT_S

from phalanx.agent.verdict.verdict import Ending
from phalanx.events import job
from phalanx.events.lines import from_line
from phalanx.events.status import JobStatus
from phalanx.launcher import AgentProcess, Outcome
from phalanx.launcher.hosting.event_pipe import KEPT_MAX, UNTAKEN_MAX, EventsIn, EventsOut

FAILS_ONCE = """
    import os, sys
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
        sys.exit(7)
"""
# More than a pipe takes, and each is told: checkpoint_done waits a tenth of a second for an agent that stands still,
# and then sends nothing for five. The answer to a question behind them says that the agent has read them all.
CHECKPOINTS = """
    import os
    from phalanx.errors._connection import Connection
    from telling import tell

    agent = Connection(os.environ["PHALANX_AGENT"], {limit_s})
    for step in range({count}):
        agent.send({{"type": "checkpoint", "step": step}}, {limit_s})
    agent.answers([{{"type": "num_keys"}}], {limit_s})
    tell("ready")
"""


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    with House(tmp_path) as house:
        yield house
        assert not house.survivors()


def end(agent: AgentProcess, seen: list[job.JobEvent] | None = None) -> Outcome:
    outcome = agent.wait(LIMIT_S, on_event=None if seen is None else seen.append)
    assert outcome is not None, "the agent did not end"
    return outcome


def names(seen: list[job.JobEvent]) -> list[str]:
    return [type(one).__name__ for one in seen]


def running(agent: AgentProcess) -> JobStatus:
    """How the job stands when the agent has told that its workers run; they may have told us something before."""
    for status in agent.watch(LIMIT_S):
        if status.workers and {one.state for one in status.workers} == {"running"}:
            return status
    raise AssertionError("the job has ended")


@pytest.mark.system
def test_a_wait_hears_of_a_restart_as_it_happens(house: House) -> None:
    seen: list[job.JobEvent] = []
    agent = house.start("--nproc-per-node", 2, "--max-restarts", 1, house.script(FAILS_ONCE))
    assert end(agent, seen).exit_code == 0

    assert names(seen)[:4] == ["JobStarted", "RoundOpened", "RoundSettled", "WorkersStarted"]
    assert names(seen)[-1] == "JobEnded"
    (decided,) = [one for one in seen if isinstance(one, job.RestartDecided)]
    assert (decided.round, decided.is_charged, decided.restart_count, decided.left) == (2, True, 1, 0)
    assert "exit code 7" in decided.reason
    failed = [one for one in seen if isinstance(one, job.WorkerFailed) and not one.is_collateral]
    assert [(one.rank, one.exit_code, one.round) for one in failed] == [(1, 7, 1)]
    pids = {pid for one in seen if isinstance(one, job.WorkersStarted) for pid in one.pids.values()}
    assert {one.pid for one in seen if isinstance(one, job.WorkerEnded)} == pids
    assert [one.at_ns for one in seen] == sorted(one.at_ns for one in seen)
    assert agent.events() == []


@pytest.mark.system
def test_a_loop_hears_the_same(house: House) -> None:
    seen: list[job.JobEvent] = []
    agent = house.start("--nproc-per-node", 2, "--max-restarts", 1, house.script(FAILS_ONCE))
    outcome = asyncio.run(agent.wait_async(on_event=seen.append))
    assert outcome.exit_code == 0
    assert names(seen).count("RoundSettled") == 2
    assert names(seen)[-1] == "JobEnded"


@pytest.mark.system
def test_who_asks_only_when_all_is_over_has_missed_nothing(house: House) -> None:
    agent = house.start("--nproc-per-node", 2, "--max-restarts", 1, house.script(FAILS_ONCE))
    end(agent)
    seen = agent.events()
    assert names(seen)[0] == "JobStarted"
    assert names(seen).count("WorkersStarted") == 2
    assert names(seen)[-1] == "JobEnded"
    assert agent.events() == []
    assert agent.status().phase == "ended"


@pytest.mark.system
def test_what_nobody_reads_holds_up_no_job_and_its_end_is_there(house: House) -> None:
    """The pipe is full long before the job's end; nobody looks until the agent is gone."""
    count = 3000
    agent = house.start(house.script(CHECKPOINTS.format(count=count, limit_s=LIMIT_S)))
    house.hear("ready")
    deadline = time.monotonic() + LIMIT_S
    while Path(f"/proc/{agent.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the agent did not end"
        time.sleep(0.02)

    seen = agent.events()
    dropped = [one.count for one in seen if isinstance(one, job.EventsDropped)]
    told = [one.step for one in seen if isinstance(one, job.CheckpointSaved)]
    assert dropped
    assert len(told) >= KEPT_MAX - 10
    assert told == sorted(told)
    assert told[-1] == count - 1
    assert len(told) + sum(dropped) == count
    assert names(seen)[-3:] == ["WorkerEnded", "RoundEnded", "JobEnded"]
    assert end(agent).exit_code == 0


@pytest.mark.system
def test_the_status_is_there_at_any_time(house: House) -> None:
    agent = house.start("--nproc-per-node", 2, house.script(SLEEPER))
    with agent:
        house.hear("ready", 2)
        running(agent)
        status = agent.status()
        assert (status.phase, status.round, status.world_size, status.restarts) == ("running", 1, 2, 0)
        assert [(one.rank, one.state) for one in status.workers] == [(0, "running"), (1, "running")]
        for one in status.workers:
            os.kill(one.pid, 0)
    status = agent.status()
    assert (status.phase, status.ending, status.exit_code) == ("ended", "stopped", 143)
    assert {one.state for one in status.workers} == {"stopped"}


@pytest.mark.system
def test_the_end_of_a_killed_agent_comes_last_all_the_same(house: House) -> None:
    seen: list[job.JobEvent] = []
    agent = house.start(house.script(SLEEPER))
    house.hear("ready")
    agent.kill()
    assert end(agent, seen).exit_code == 137
    assert names(seen)[0] == "JobStarted"
    last = seen[-1]
    assert isinstance(last, job.JobEnded)
    assert (last.ending, last.exit_code) == ("failed", 137)
    assert "SIGKILL" in last.reason
    assert names(seen).count("JobEnded") == 1


@pytest.mark.system
def test_an_agent_that_never_began_has_an_end_too(house: House) -> None:
    agent = house.start("--no-python", "true", env={**house.env, "PYTHONHOME": "/missing"})
    end(agent)
    assert names(agent.events()) == ["JobEnded"]


@pytest.mark.system
def test_without_observe_there_is_the_end_alone(house: House) -> None:
    agent = house.start("--no-python", "true", observe=False)
    end(agent)
    assert names(agent.events()) == ["JobEnded"]
    assert agent.status().phase == "ended"


@pytest.mark.system
def test_what_a_listener_raises_ends_the_wait_and_not_the_job(house: House) -> None:
    def refuse(_: object) -> None:
        raise LookupError("of the program")

    agent = house.start(house.script(SLEEPER))
    with pytest.raises(LookupError, match="of the program"):
        agent.wait(LIMIT_S, on_event=refuse)
    house.hear("ready")
    assert agent.status().phase == "running"
    agent.stop()
    assert end(agent).exit_code == 143


@pytest.mark.system
def test_each_job_event_is_handed_out_once_to_many_threads(house: House) -> None:
    agent = house.start("--nproc-per-node", 2, "--max-restarts", 1, house.script(FAILS_ONCE))
    seen: list[list[job.JobEvent]] = [[] for _ in range(4)]
    threads = [threading.Thread(target=end, args=(agent, one)) for one in seen]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    together = sorted((job_event for one in seen for job_event in one), key=lambda it: it.at_ns)
    assert names(together).count("RoundSettled") == 2
    assert names(together).count("JobEnded") == 1
    assert len(set(map(id, together))) == len(together)


@pytest.mark.system
def test_a_stop_and_a_passed_signal_are_told(house: House) -> None:
    seen: list[job.JobEvent] = []
    script = """
        import signal
        from telling import stay, tell

        signal.signal(signal.SIGUSR1, lambda number, frame: tell("passed"))
        tell("ready")
        stay()
    """
    agent = house.start(house.script(script))
    house.hear("ready")
    agent.send_signal(signal.SIGUSR1)
    house.hear("passed")
    agent.stop(signal.SIGINT)
    end(agent, seen)
    assert [one.signal for one in seen if isinstance(one, job.SignalPassedOn)] == [signal.SIGUSR1]
    (stopped,) = [one for one in seen if isinstance(one, job.StopBegan)]
    assert (stopped.signal, stopped.grace_s) == (signal.SIGINT, 30.0)
    assert stopped.reason.startswith("SIGINT: asked the worker to stop")
    (ended,) = [one for one in seen if isinstance(one, job.WorkerEnded)]
    assert ended.was_asked


# The page

PAGE = (Path(__file__).parents[3] / "docs/events.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.system
def test_the_examples_of_the_page_do_as_it_says(house: House) -> None:
    house.script(FAILS_ONCE)
    first, second = EXAMPLES
    done = subprocess.run(
        [sys.executable, house.script(first, "first.py")],
        cwd=house.folder,
        env=house.env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "round 1: ranks 0 to 1 are here"
    assert "rank 1 ended: 7" in lines
    assert "again, because rank 1 failed: exit code 7 (restart 1 of 1); 0 more are left" in lines
    assert lines[-1] == "succeeded"
    subprocess.run([sys.executable, house.script(second, "second.py")], cwd=house.folder, check=True)
    assert '"data.ready"' in (house.folder / "events.log").read_text()


def test_the_page_lists_every_job_event_and_its_fields() -> None:
    for kind in vars(job).values():
        if not (isinstance(kind, type) and issubclass(kind, job.JobEvent)) or kind is job.JobEvent:
            continue
        name = re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()
        if kind is job.EventsDropped:  # on the way to a host only
            assert "EventsDropped" in PAGE
            continue
        (row,) = re.findall(rf"^\| `{name}` \|.*$", PAGE, flags=re.MULTILINE)
        missing = [field for field in kind.__struct_fields__ if field != "at_ns" and f"`{field}`" not in row]
        assert missing == [], name


# The two ends of the pipe


def saved(step: int) -> job.CheckpointSaved:
    return job.CheckpointSaved(at_ns=step, step=step)


SUCCEEDED = Outcome(exit_code=0, ending=Ending.SUCCEEDED, report="")


def test_lines_that_the_pipe_does_not_take_come_when_there_is_room() -> None:
    count = KEPT_MAX // 2 + 900  # the pipe takes some 900 of them

    async def write_and_read() -> list[job.JobEvent]:
        reader, writer = os.pipe()
        out, received = EventsOut(writer), EventsIn(reader)
        for step in range(count):
            out.put(saved(step))
        taken: list[job.JobEvent] = []
        async with asyncio.timeout(LIMIT_S):
            while len(taken) < count:
                received.read()
                taken += received.take()
                await asyncio.sleep(0)
        out.left()
        received.close()
        return taken

    assert asyncio.run(write_and_read()) == [saved(step) for step in range(count)]


def test_of_too_many_the_oldest_are_dropped_and_counted_where_they_were() -> None:
    async def write() -> tuple[EventsIn, str]:
        reader, writer = os.pipe()
        out = EventsOut(writer)
        for step in range(10 * KEPT_MAX):
            out.put(saved(step))
        return EventsIn(reader), out.left()

    received, left = asyncio.run(write())
    received.finish(left, SUCCEEDED)
    *taken, end_ = received.take()
    assert isinstance(end_, job.JobEnded)
    (place,) = [place for place, one in enumerate(taken) if isinstance(one, job.EventsDropped)]
    dropped = taken.pop(place)
    assert isinstance(dropped, job.EventsDropped)
    steps = [one.step for one in taken if isinstance(one, job.CheckpointSaved)]
    assert len(steps) == len(taken)
    assert steps[:place] == list(range(place))
    assert steps[place:] == list(range(10 * KEPT_MAX - KEPT_MAX, 10 * KEPT_MAX))
    assert dropped.count == 10 * KEPT_MAX - len(steps)


def test_a_host_that_is_gone_hurts_nobody() -> None:
    async def write() -> str:
        reader, writer = os.pipe()
        os.close(reader)
        out = EventsOut(writer)
        out.put(saved(1))
        out.put(saved(2))
        return out.left()

    assert asyncio.run(write()) == ""


def test_a_line_cut_off_by_death_is_left_out() -> None:
    reader, writer = os.pipe()
    os.write(writer, b'{"event": "checkpoint_saved", "at_ns": 1, "step": 1}\n{"event": "checkp')
    os.close(writer)
    received = EventsIn(reader)
    received.finish("", SUCCEEDED)
    first, last = received.take()
    assert first == saved(1)
    assert isinstance(last, job.JobEnded)


def test_a_host_keeps_a_bounded_number_for_who_never_asks() -> None:
    reader, writer = os.pipe()
    received = EventsIn(reader)
    with contextlib.closing(os.fdopen(writer, "wb")) as pipe:
        for step in range(UNTAKEN_MAX + 5):
            pipe.write(b'{"event": "checkpoint_saved", "at_ns": %d, "step": %d}\n' % (step, step))
            if step % 500 == 0:
                pipe.flush()
                received.read()
    received.read()
    dropped, *kept = received.take()
    assert dropped == job.EventsDropped(at_ns=4, count=5)
    assert len(kept) == UNTAKEN_MAX
    assert received.status.checkpoint == UNTAKEN_MAX + 4


def test_an_end_that_the_agent_told_and_did_not_live_to_see_is_corrected() -> None:
    reader, writer = os.pipe()
    os.write(writer, b'{"event": "job_ended", "at_ns": 1, "ending": "succeeded", "exit_code": 0}\n')
    os.close(writer)
    received = EventsIn(reader)
    received.finish("", Outcome(exit_code=137, ending=Ending.FAILED, report="phalanx: it was killed\n"))
    (end_,) = received.take()
    assert isinstance(end_, job.JobEnded)
    assert (end_.ending, end_.exit_code, end_.reason) == ("failed", 137, "it was killed")


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"event": 3}', '{"event": "checkpoint_saved"}', "{"])
def test_nonsense_is_no_job_event(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 # JSON's own, or ours
        from_line(line)


def test_what_a_newer_agent_tells_is_passed_over() -> None:
    assert from_line('{"event": "moon_landed", "at_ns": 1}') is None
    assert from_line('{"event": "checkpoint_saved", "at_ns": 1, "step": 1, "moon": 2}') == saved(1)
