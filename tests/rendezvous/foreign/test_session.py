"""Our agents, driven by handlers that know only torchelastic's interface. The agents' workers are stand-ins."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.rendezvous.halls import Hall, HallHandler

from phalanx.agent.driver import Driver
from phalanx.agent.events import AnnounceCheckpoint, CollectEvidence, EvidenceCollected, JobBegan, PassOn
from phalanx.agent.graces import Graces
from phalanx.agent.group import (
    AnnounceStop,
    Exit,
    Say,
    SpawnWorkers,
    StopAsked,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.machine import AgentMachine
from phalanx.agent.restarts.leader import leader_policy
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.verdict.verdict import Ending, Failure, Verdict
from phalanx.machine import Void
from phalanx.multiprocessing.machine import NameStuck, SignalTree, SignalWorkers
from phalanx.rendezvous import (
    RendezvousConnectionError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousStoreInfo,
)
from phalanx.rendezvous.events import Fence, HoldPort, LeaveAsked, MeetingBegan, PortHeld, ReleasePort
from phalanx.rendezvous.foreign.events import Meet, Met
from phalanx.rendezvous.foreign.machine import ForeignMachine, ForeignState
from phalanx.rendezvous.foreign.session import ForeignSession
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings

PATIENCE_S = 30.0
HELD_PORT = 4711


class Agent:
    """The production machines and driver of one node; ``end`` says how its workers end, and they obey each signal."""

    def __init__(
        self, name: str, make_handler: Callable[[], RendezvousHandler], *, nproc: int = 1, **settings: Any
    ) -> None:
        restarts = RestartPolicy(max_restarts=settings.pop("max_restarts", 0))
        self.settings = MembershipSettings(
            run_id="job", node_id=name, host=name, slots=nproc, min_nodes=1, max_nodes=9, **settings
        )
        self.lines: list[str] = []
        self.rounds: list[Round] = []
        self.is_running = False
        self._changed = asyncio.Event()
        self.membership = ForeignMachine(self.settings, leader_policy(restarts), backend="hall")
        self.driver = Driver(
            AgentMachine(nproc, membership=self.membership, restarts=restarts, graces=Graces.alike(5.0))
        )
        self.session = ForeignSession(
            make_handler,
            self.driver.post,
            settings=self.settings,
            on_bug=self.driver.found_bug,
            monitor_interval_s=0.01,
        )
        own: dict[type, Callable[[Any], None]] = {
            **dict.fromkeys(
                (AnnounceCheckpoint, AnnounceStop, Fence, NameStuck, PassOn, ReleasePort),
                lambda command: None,
            ),
            CollectEvidence: self._collect,
            HoldPort: lambda command: self.driver.post(PortHeld(command.number, HELD_PORT)),
            Say: lambda command: self.lines.append(command.text),
            SignalTree: lambda command: self.driver.post(TreeEmptied()),
            SignalWorkers: lambda command: self.end(-command.signal),
            SpawnWorkers: self._spawn,
        }
        self.driver.bind(own, self.session.perform)
        self.driver.post(JobBegan())

    async def round(self, count: int) -> Round:
        """Wait until the workers of the round that is the ``count``th for this node run."""
        while len(self.rounds) < count or not self.is_running:
            self._changed.clear()
            async with asyncio.timeout(PATIENCE_S):
                await self._changed.wait()
        return self.rounds[count - 1]

    def end(self, code: int) -> None:
        """All workers end, if they run."""
        if self.is_running:
            self.is_running = False
            self.driver.post(WorkersExited(dict.fromkeys(range(self.settings.slots), code)))

    def stop(self) -> None:
        """As SIGTERM does."""
        self.driver.post(StopAsked(15, 5.0))

    async def verdict(self) -> Verdict:
        async with asyncio.timeout(PATIENCE_S):
            found = await self.driver.ended
        assert self.driver.bug is None, self.driver.bug
        return found

    def _spawn(self, command: SpawnWorkers) -> None:
        self.is_running = True
        self.rounds.append(command.round)
        self.driver.post(WorkersSpawned(dict.fromkeys(range(self.settings.slots), 1)))
        self._changed.set()

    def _collect(self, command: CollectEvidence) -> None:
        self.driver.post(
            EvidenceCollected(tuple(self._failure(end) for end in command.exits if end.exit_code != 0))
        )

    def _failure(self, end: Exit) -> Failure:
        return Failure(
            rank=self.rounds[-1].rank(end.local_rank),
            local_rank=end.local_rank,
            pid=1,
            exit_code=end.exit_code,
            exited_at=end.at,
            stopped_at=end.stopped_at,
            host=self.settings.host,
        )


def told(agent: Agent, words: str) -> bool:
    return any(words in line for line in agent.lines)


async def all_succeed(*agents: Agent) -> None:
    for agent in agents:
        agent.end(0)
    for agent in agents:
        assert (await agent.verdict()).exit_code == 0


async def until(condition: Callable[[], object]) -> None:
    """Wait for what a thread does."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 # a thread of somebody else's code sets no event of ours
            await asyncio.sleep(0.01)


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(4 * PATIENCE_S):
            await story()

    asyncio.run(bounded())


# Stories


def test_two_nodes_meet_run_and_succeed_and_the_last_one_closes_the_rendezvous() -> None:
    async def story() -> None:
        hall = Hall(2)
        a, b = (Agent(name, lambda: HallHandler(hall), nproc=count) for name, count in (("a", 2), ("b", 3)))
        rounds = [await a.round(1), await b.round(1)]
        assert sorted((one.first_rank, one.local_world_size) for one in rounds) in (
            [(0, 2), (2, 3)],
            [(0, 3), (3, 2)],
        )
        assert {one.world_size for one in rounds} == {5}
        assert told(a, "'hall': each node counts its own restarts and speaks its own verdict")
        a.end(0)
        await asyncio.sleep(0.1)
        assert not a.driver.ended.done()  # the early one waits
        assert hall.closings == 0
        b.end(0)
        for agent in (a, b):
            verdict = await agent.verdict()
            assert (verdict.ending, verdict.exit_code) == (Ending.SUCCEEDED, 0)
        assert (hall.is_closed, hall.closings) == (True, 2)

    run(story)


def test_a_node_that_waits_is_taken_in_and_nothing_is_charged() -> None:
    async def story() -> None:
        hall = Hall(1)
        a = Agent("a", lambda: HallHandler(hall))
        assert (await a.round(1)).group_world_size == 1
        hall.size = 2
        b = Agent("b", lambda: HallHandler(hall))
        rounds = [await a.round(2), await b.round(1)]
        assert {(one.number, one.restart_count, one.group_world_size) for one in rounds} == {(2, 0, 2)}
        assert told(a, "1 node waiting for another round")
        await all_succeed(a, b)

    run(story)


def test_a_failure_anywhere_is_another_round_for_all_with_one_restart_count() -> None:
    async def story() -> None:
        hall = Hall(2)
        a, b = (Agent(name, lambda: HallHandler(hall), max_restarts=1) for name in "ab")
        await a.round(1)
        await b.round(1)
        b.end(3)
        rounds = [await a.round(2), await b.round(2)]
        assert {(one.number, one.restart_count) for one in rounds} == {(2, 1)}
        await all_succeed(a, b)

    run(story)


def test_who_has_used_its_restarts_ends_with_its_workers_code_and_closes_the_rendezvous() -> None:
    async def story() -> None:
        hall = Hall(2)
        a, b = (Agent(name, lambda: HallHandler(hall)) for name in "ab")
        await a.round(1)
        await b.round(1)
        b.end(3)
        verdict = await b.verdict()
        assert (verdict.ending, verdict.exit_code) == (Ending.FAILED, 3)
        assert hall.is_closed
        a.end(0)  # its own verdict
        assert (await a.verdict()).exit_code == 0

    run(story)


def test_an_early_finisher_runs_again_when_the_others_need_another_round() -> None:
    async def story() -> None:
        hall = Hall(2)
        a, b = (Agent(name, lambda: HallHandler(hall), max_restarts=1) for name in "ab")
        await a.round(1)
        await b.round(1)
        a.end(0)
        b.end(3)
        rounds = [await a.round(2), await b.round(2)]
        assert {one.restart_count for one in rounds} == {1}
        assert told(a, "others need another round: all run again")
        await all_succeed(a, b)

    run(story)


def test_the_early_finisher_waits_no_longer_than_it_was_told_and_leaves_the_rendezvous_open() -> None:
    async def story() -> None:
        hall = Hall(2)
        a, b = (Agent(name, lambda: HallHandler(hall), exit_barrier_s=0.2) for name in "ab")
        await a.round(1)
        await b.round(1)
        a.end(0)
        assert (await a.verdict()).exit_code == 0
        assert not hall.is_closed
        b.end(0)
        assert (await b.verdict()).exit_code == 0

    run(story)


def test_a_stop_while_the_handler_waits_ends_the_agent_at_once_and_closes_nothing() -> None:
    async def story() -> None:
        hall = Hall(2)
        a = Agent("a", lambda: HallHandler(hall))
        await until(lambda: hall.waiting)
        a.stop()
        verdict = await a.verdict()
        assert (verdict.ending, verdict.exit_code) == (Ending.STOPPED, 143)
        assert not hall.is_closed
        HallHandler(hall).set_closed()  # let the thread go

    run(story)


def test_a_stop_while_workers_run_ends_them_and_the_others_may_go_on() -> None:
    async def story() -> None:
        hall = Hall(2)
        a, b = (Agent(name, lambda: HallHandler(hall)) for name in "ab")
        await a.round(1)
        await b.round(1)
        a.stop()
        assert (await a.verdict()).exit_code == 143
        assert not hall.is_closed
        hall.size = 1
        b.stop()
        assert (await b.verdict()).exit_code == 143

    run(story)


def test_a_second_stop_does_not_wait_for_a_handler_that_does_not_close() -> None:
    async def story() -> None:
        hall, go_on, is_closing = Hall(1), threading.Event(), threading.Event()

        def before_call(name: str) -> None:
            if name == "set_closed":
                is_closing.set()
                go_on.wait()

        a = Agent("a", lambda: HallHandler(hall, before_call=before_call))
        await a.round(1)
        a.end(0)
        await until(is_closing.is_set)
        assert not a.driver.ended.done()
        a.stop()
        await asyncio.sleep(0.6)  # a signal within half a second of another is its double
        a.stop()
        assert (await a.verdict()).exit_code == 0
        go_on.set()

    run(story)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RendezvousConnectionError("no route"), "gave no round: RendezvousConnectionError: no route"),
        (OSError(), "gave no round: OSError"),
        (SystemExit(1), "gave no round: RuntimeError: SystemExit: 1"),
    ],
)
def test_a_handler_that_gives_no_round_is_exit_75_with_its_reason(error: BaseException, words: str) -> None:
    async def story() -> None:
        def before_call(name: str) -> None:
            raise error

        a = Agent("a", lambda: HallHandler(Hall(1), before_call=before_call))
        verdict = await a.verdict()
        assert verdict.exit_code == 75
        assert words in verdict.reason

    run(story)


def test_a_handler_that_cannot_be_made_is_exit_75_with_its_reason() -> None:
    async def story() -> None:
        def make() -> RendezvousHandler:
            raise ValueError("no licence")

        verdict = await Agent("a", make).verdict()
        assert verdict.exit_code == 75
        assert "ValueError: no licence" in verdict.reason

    run(story)


def test_a_closed_rendezvous_is_exit_75_and_says_that_the_job_is_over() -> None:
    async def story() -> None:
        hall = Hall(1)
        hall.is_closed = True
        hall.size = 2
        verdict = await Agent("a", lambda: HallHandler(hall)).verdict()
        assert verdict.exit_code == 75
        assert "the rendezvous is closed, because the job is over" in verdict.reason

    run(story)


class TheirTree:
    """torchelastic's handlers raise errors of its own tree, which have the same names."""

    class RendezvousGracefulExitError(Exception):
        pass


@pytest.mark.parametrize("error", [RendezvousGracefulExitError(), TheirTree.RendezvousGracefulExitError()])
def test_a_spare_that_was_not_needed_ends_well(error: Exception) -> None:
    async def story() -> None:
        def before_call(name: str) -> None:
            if name == "next_rendezvous":
                raise error

        a = Agent("a", lambda: HallHandler(Hall(1), before_call=before_call))
        assert (await a.verdict()).exit_code == 0
        assert told(a, "was a spare and was not needed")

    run(story)


def test_a_handler_that_cannot_say_whether_nodes_wait_does_not_disturb_the_workers() -> None:
    async def story() -> None:
        asked = 0

        def before_call(name: str) -> None:
            nonlocal asked
            if name == "num_nodes_waiting":
                asked += 1
                raise RuntimeError("timed out")

        a = Agent("a", lambda: HallHandler(Hall(1), before_call=before_call))
        await a.round(1)
        await until(lambda: asked >= 3)
        assert a.is_running
        assert len([line for line in a.lines if "RuntimeError: timed out" in line]) == 1
        a.end(0)
        assert (await a.verdict()).exit_code == 0

    run(story)


def test_a_handler_that_cannot_be_closed_changes_no_verdict_and_is_told() -> None:
    async def story() -> None:
        def before_call(name: str) -> None:
            if name == "set_closed":
                raise RendezvousConnectionError("gone")

        a = Agent("a", lambda: HallHandler(Hall(1), before_call=before_call))
        await a.round(1)
        a.end(0)
        assert (await a.verdict()).exit_code == 0
        assert told(a, "the rendezvous was not closed: RendezvousConnectionError: gone")

    run(story)


# Where rank 0 is


@pytest.mark.parametrize(
    ("where", "shares", "settings", "expected"),
    [
        (RendezvousStoreInfo("there", 1), False, {}, ("there", 1)),
        (RendezvousStoreInfo("there", 1), True, {}, ("there", HELD_PORT)),
        (RendezvousStoreInfo("there", 1), False, {"local_addr": "here"}, ("here", 1)),
        (None, False, {"local_addr": "here"}, ("here", HELD_PORT)),
        (RendezvousStoreInfo("there", 1), True, {"master_addr": "m", "master_port": 2}, ("m", 2)),
    ],
)
def test_the_master_is_where_the_handler_says_unless_its_own_store_is_there(
    where: Any, shares: bool, settings: dict[str, Any], expected: tuple[str, int]
) -> None:
    async def story() -> None:
        a = Agent("a", lambda: HallHandler(Hall(1), where=where, use_agent_store=shares), **settings)
        settled = await a.round(1)
        assert (settled.master_addr, settled.master_port) == expected
        a.end(0)
        await a.verdict()

    run(story)


# torchelastic's own


@pytest.mark.torch
def test_torchelastics_own_handler_drives_our_agents() -> None:
    from torch.distributed import HashStore
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
        DynamicRendezvousHandler,
        RendezvousTimeout,
    )

    async def story() -> None:
        store, limits = HashStore(), RendezvousTimeout(last_call=timedelta(seconds=1))
        # Its shared store needs TCP, and finds no port in a HashStore; with this it tells where rank 0 is instead.
        monkeypatch = pytest.MonkeyPatch()
        monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")

        def make() -> Any:
            return DynamicRendezvousHandler.from_backend(
                "job",
                store,
                C10dRendezvousBackend(store, "job"),
                min_nodes=1,
                max_nodes=2,
                local_addr="127.0.0.1",
                timeout=limits,
            )

        try:
            a = Agent("a", make, nproc=2, max_restarts=1)
            assert (await a.round(1)).world_size == 2
            # From here on both are waited for: its nodes look once a second, and would come too late at times.
            limits._set_timeouts(last_call=timedelta(seconds=PATIENCE_S))
            b = Agent("b", make, nproc=1, max_restarts=1)
            rounds = [await a.round(2), await b.round(1)]
            assert {(one.number, one.world_size, one.restart_count) for one in rounds} == {(2, 3, 0)}
            assert {one.master_addr for one in rounds} == {"127.0.0.1"}
            b.end(1)
            rounds = [await a.round(3), await b.round(2)]
            assert {(one.number, one.restart_count) for one in rounds} == {(3, 1)}
            await all_succeed(a, b)
        finally:
            monkeypatch.undo()

    run(story)


# The machine


def machine(**settings: Any) -> ForeignMachine:
    record = MembershipSettings(
        run_id="job", node_id="a", host="a", slots=1, min_nodes=1, max_nodes=2, **settings
    )
    return ForeignMachine(record, leader_policy(RestartPolicy()), backend="hall")


def test_every_void_pair_says_why_and_changes_nothing() -> None:
    for event, row in ForeignMachine.table.items():
        for state, arrow in row.items():
            if isinstance(arrow, Void):
                assert arrow.reason, (event, state)


def test_a_round_that_forms_after_the_agent_has_left_starts_nothing() -> None:
    from phalanx.rendezvous.events import PartEnded

    one = machine()
    one.step(MeetingBegan(), 0.0)
    assert [type(command) for command in one.step(PortHeld(1, 5), 0.0)] == [Meet]
    one.step(LeaveAsked(), 1.0)
    one.step(PartEnded(), 1.0)
    settled = Round(
        number=1,
        restart_count=0,
        reason="",
        group_rank=0,
        group_world_size=1,
        first_rank=0,
        local_world_size=1,
        world_size=1,
        master_addr="a",
        master_port=1,
    )
    assert one.step(Met(settled), 2.0) == []
    assert one.state is ForeignState.CLOSING
    assert one.running is None


def test_a_handler_that_takes_long_is_told_once() -> None:
    from phalanx.rendezvous.events import TimePassed, Told

    one = machine()
    one.step(MeetingBegan(), 0.0)
    one.step(PortHeld(1, 5), 0.0)
    assert one.deadline is not None
    [line] = one.step(TimePassed(), one.deadline)
    assert isinstance(line, Told)
    assert "has not formed a round yet" in line.text
    assert one.deadline is None
