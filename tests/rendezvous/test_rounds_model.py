"""The round machine under every order of events that hypothesis can think of: members, leader and store, all pure.

Nothing here has a loop: each step moves one message, passes some time, or does some harm. After every step no worker
of an old round may be alive beside one of a newer; after the last one all is healed, and progress is demanded.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from phalanx.rendezvous.events import (
    CloseSession,
    ConfirmLease,
    Fence,
    HoldPort,
    JobDecided,
    KeyChanged,
    KeyRead,
    KeysListed,
    LeaseEnded,
    LeaseRenewed,
    LeaveAsked,
    MeetingBegan,
    MeetingFailed,
    OpenSession,
    PartEnded,
    PortHeld,
    Read,
    ReleasePort,
    RevokeLease,
    RoundFormed,
    SessionClosed,
    SessionOpened,
    StartWatch,
    StopRound,
    StopWatch,
    StoreWasReset,
    TimePassed,
    Told,
    Transact,
    Transacted,
    TransactionUnclear,
    WorkerFailed,
    WorkersGone,
)
from phalanx.rendezvous.machine import MemberMachine
from phalanx.rendezvous.policy import EndJob, NextRound, Policy, RoundReports
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.state import MemberState
from phalanx.rendezvous.stored import Outcome, Report
from phalanx.store.machine import (
    Answered,
    DeadlinePassed,
    Failed,
    GrantAsked,
    Notify,
    RenewAsked,
    RevokeAsked,
    StoreMachine,
    TransactionAsked,
    WatchAsked,
    WatchClosed,
)
from phalanx.store.port import Get

TTL_S, LAST_CALL_S, RESTARTS_MAX = 15.0, 20.0, 2
MIN_NODES, MAX_NODES, NODES_MAX = 2, 3, 6
STOP_S = 1.0  # what workers need to end when they are asked


def _decide(reports: RoundReports) -> NextRound | EndJob:
    count = reports.round.restart_count + 1
    if count > RESTARTS_MAX:
        return EndJob("failed")
    return NextRound(restart_count=count, policy_state="", reason=f"restart {count}")


POLICY = Policy(_decide, lambda _: "", lambda _: "succeeded", lambda reason, _: f"not formed: {reason}")


class Connection:
    """What travels between a node and the store, in order; each direction moves when it is told to."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.store: StoreMachine | None = None
        self.up: deque[Any] = deque()
        self.down: deque[Any] = deque()
        self.lease = 0
        self.watches: dict[str, object] = {}


class Node:
    """A member's machine, with a stand-in for the agent, its workers and its keeper."""

    def __init__(self, hall: Hall, name: str) -> None:
        self.hall = hall
        self.name = name
        self.machine = MemberMachine(
            MembershipSettings(
                run_id="job",
                node_id=name,
                host=name,
                slots=1,
                min_nodes=MIN_NODES,
                max_nodes=MAX_NODES,
                ttl_s=TTL_S,
                last_call_s=LAST_CALL_S,
                join_timeout_s=1e6,
                store_timeout_s=1e5,
                drain_s=5.0,
            ),
            POLICY,
        )
        self.connection = Connection(self)
        self.workers: Round | None = None
        self.life = 0  # of the store in which that round was settled
        self.workers_end_at: float | None = None
        self.outcome = Outcome.STOPPED
        self.fence_at: float | None = None
        self.next_renewal: float | None = None
        self.is_frozen = False
        self.is_dead = False
        self.is_leaving = False
        self.verdict = ""
        self.step(MeetingBegan())

    @property
    def is_over(self) -> bool:
        return self.is_dead or self.machine.state is MemberState.CLOSED

    def step(self, event: object) -> None:
        for command in self.machine.step(event, self.hall.now):
            self._perform(command)

    def _perform(self, command: Any) -> None:
        match command:
            case OpenSession():
                self.connection = Connection(self)
                self._send("open", self.hall.now)
            case CloseSession():
                self._send("revoke", None)
                self._send("close", None)
            case RevokeLease():
                self._send("revoke", None)
            case StartWatch(prefix):
                self._send("watch", prefix)
            case StopWatch(prefix):
                self._send("stop watch", prefix)
            case Read(key):
                self._send("read", key)
            case Transact():
                self._send("transact", command)
            case ConfirmLease(number):
                self._send("renew", (self.hall.now, number))
            case _:
                self._perform_here(command)

    def _send(self, what: str, content: Any) -> None:
        self.connection.up.append((what, content))
        if what == "revoke":
            self.next_renewal = None

    def _perform_here(self, command: Any) -> None:
        match command:
            case HoldPort(number):
                self.step(PortHeld(number, 1000 + number))
            case Fence(at):
                self.fence_at = at
            case RoundFormed(settled):
                assert self.workers is None, "two rounds on one node"
                self.workers, self.outcome = settled, Outcome.STOPPED
                self.hall.began(self)
            case StopRound(_, grace_s):
                if self.workers is not None:
                    delay_s = STOP_S if grace_s is None else min(STOP_S, grace_s)
                    self.workers_end_at = min(self.workers_end_at or 1e9, self.hall.now + delay_s)
            case JobDecided(text):
                self.verdict = text
                self._end_part()
            case MeetingFailed(reason):
                raise AssertionError(f"{self.name}: {reason}")
            case Told() | ReleasePort():
                pass
            case _:
                raise AssertionError(f"nobody performs {command!r}")

    def _end_part(self) -> None:
        if self.workers is None:
            self.step(PartEnded())
        elif self.workers_end_at is None:
            self.workers_end_at = self.hall.now + STOP_S

    def workers_are_gone(self) -> None:
        assert self.workers is not None
        self.workers = self.workers_end_at = None
        if not self.is_dead and not self.is_frozen:
            self.tell_gone()

    def tell_gone(self) -> None:
        self.step(WorkersGone(Report(outcome=self.outcome)))
        if self.verdict or self.is_leaving:
            self.step(PartEnded())

    def catch_up(self, now: float) -> None:
        """Timers of the agent, if it runs at all."""
        if self.next_renewal is not None and now >= self.next_renewal:
            self.next_renewal = now + TTL_S / 3
            self.connection.up.append(("renew", (now, None)))
        if self.machine.deadline is not None and now >= self.machine.deadline:
            self.step(TimePassed())


class Hall:
    """Everybody, and one clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.store = StoreMachine()
        self.stores = [self.store]
        self.nodes: list[Node] = []
        self.rounds: dict[tuple[int, int], Round] = {}  # by the store's life, and the number
        self.started: set[tuple[int, int, int]] = set()
        self.failures = 0

    def add_node(self) -> Node:
        node = Node(self, f"n{len(self.nodes)}")
        self.nodes.append(node)
        return node

    def began(self, node: Node) -> None:
        settled = node.workers
        assert settled is not None
        assert node.connection.store is not None
        node.life = id(node.connection.store)
        first = self.rounds.setdefault((node.life, settled.number), settled)
        for what in ("world_size", "restart_count", "reason", "master_addr", "master_port"):
            assert getattr(first, what) == getattr(settled, what), f"{what} differs"
        place = (node.life, settled.number, settled.group_rank)
        assert place not in self.started, "a group rank twice"
        self.started.add(place)
        assert MIN_NODES <= settled.group_world_size <= MAX_NODES
        assert settled.restart_count <= min(RESTARTS_MAX, self.failures), "charged for nothing"
        self.look()

    def look(self) -> None:
        running = {
            (node.life, node.workers.number): node.workers for node in self.nodes if node.workers is not None
        }
        lives = [id(store) for store in self.stores]
        *old, newest = sorted(running, key=lambda one: lives.index(one[0])) or [(0, 0)]
        if not old:
            return
        # docs/machines.md: newcomers who fill MAX at an empty store do not wait for survivors whom nobody there knows.
        assert newest[0] not in {life for life, _ in old}, f"workers of two rounds: {running}"
        assert running[newest].group_world_size == MAX_NODES, f"workers of two rounds: {running}"

    # The store

    def store_takes(self, node: Node, *, is_answered: bool = True) -> None:
        """Take a node's next request; without an answer the node is told that it is unclear."""
        connection = node.connection
        what, content = connection.up.popleft()
        if what == "open":
            connection.store = self.store
        if connection.store is not self.store:
            if not any(isinstance(one, StoreWasReset) for one in connection.down):
                connection.down.append(StoreWasReset())
            return
        take = getattr(self, "_" + what.replace(" ", "_"))
        answer = take(connection, content)
        if is_answered or what not in ("transact", "renew"):
            connection.down.extend(answer)
        elif what == "transact":
            connection.down.append(TransactionUnclear(content.purpose))
        elif content[1] is not None:  # the session asks again until it is answered
            connection.up.append(("renew", content))

    def ask(self, event: object) -> Any:
        commands = self.store.step(event, self.now)
        answer = None
        for command in commands:
            if isinstance(command, Notify):
                watches: Any = command.watches
                for connection, prefix in watches:
                    connection.down.append(KeyChanged(prefix, command.batch))
            elif isinstance(command, Answered | Failed):
                answer = command
        return answer

    def _open(self, connection: Connection, sent_at: float) -> list[object]:
        connection.lease = self.ask(GrantAsked(None, TTL_S)).answer
        connection.node.next_renewal = self.now + TTL_S / 3
        opened = SessionOpened(
            lease=connection.lease, sent_at=sent_at, address="10.0.0.1", outside_address="", is_host=False
        )
        return [opened]

    def _watch(self, connection: Connection, prefix: str) -> list[object]:
        self._stop_watch(connection, prefix)
        answer = self.ask(TransactionAsked(None, (), (Get(prefix, is_prefix=True),))).answer
        name = connection.watches[prefix] = (connection, prefix)
        self.ask(WatchAsked(name, prefix, answer.revision + 1))
        return [KeysListed(prefix, answer.revision, answer.results[0])]

    def _stop_watch(self, connection: Connection, prefix: str) -> list[object]:
        if prefix in connection.watches:
            self.ask(WatchClosed(connection.watches.pop(prefix)))
        return []

    def _read(self, connection: Connection, key: str) -> list[object]:
        found = self.ask(TransactionAsked(None, (), (Get(key),))).answer.results[0]
        return [KeyRead(key, found[0] if found else None)]

    def _transact(self, connection: Connection, command: Transact) -> list[object]:
        parts = tuple(command.compares), tuple(command.then), tuple(command.otherwise)
        answer = self.ask(TransactionAsked(None, *parts))
        if isinstance(answer, Failed):
            return [LeaseEnded()]
        got = answer.answer
        return [Transacted(command.purpose, got.succeeded, got.revision, got.results)]

    def _renew(self, connection: Connection, content: tuple[float, int | None]) -> list[object]:
        answer = self.ask(RenewAsked(None, connection.lease))
        return [LeaseEnded()] if isinstance(answer, Failed) else [LeaseRenewed(*content)]

    def _revoke(self, connection: Connection, _: None) -> list[object]:
        self.ask(RevokeAsked(None, connection.lease))
        return []

    def _close(self, connection: Connection, _: None) -> list[object]:
        return [SessionClosed()]

    # Nodes

    def node_takes(self, node: Node) -> None:
        event = node.connection.down.popleft()
        if isinstance(event, LeaseEnded | StoreWasReset):
            node.connection.down.clear()  # the session cancels whoever else waits
            node.connection.up.clear()
            node.next_renewal = None
        node.step(event)

    def pass_time(self, seconds: float) -> None:
        """In steps so small that no fence, lease or timer is late by more than one."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + 0.5)
            for node in self.nodes:
                if node.fence_at is not None and self.now >= node.fence_at and node.workers is not None:
                    node.workers_are_gone()
                if node.workers_end_at is not None and self.now >= node.workers_end_at:
                    node.workers_are_gone()
                if not node.is_over and not node.is_frozen:
                    node.catch_up(self.now)
            if self.store.deadline is not None and self.now >= self.store.deadline:
                self.ask(DeadlinePassed())

    def deliver_all(self) -> None:
        for _ in range(10_000):
            busy = False
            for node in self.nodes:
                if node.is_over or node.is_frozen:
                    continue
                if node.connection.up:
                    self.store_takes(node)
                    busy = True
                if node.connection.down:
                    self.node_takes(node)
                    busy = True
            if not busy:
                return
        raise AssertionError("messages without end")


class Rounds(RuleBasedStateMachine):
    """One rule per thing that can happen."""

    def __init__(self) -> None:
        super().__init__()
        self.hall = Hall()

    def pick(self, number: int) -> Node | None:
        """Of the nodes that are still there; frozen ones too."""
        alive = [node for node in self.hall.nodes if not node.is_over]
        return alive[number % len(alive)] if alive else None

    numbers = st.integers(0, NODES_MAX - 1)

    @initialize(count=st.integers(1, 4), is_running=st.booleans())
    def begin(self, count: int, is_running: bool) -> None:
        for _ in range(count):
            self.hall.add_node()
        if is_running:
            self.calm(LAST_CALL_S + 5.0)

    @rule()
    def one_more_node(self) -> None:
        if len(self.hall.nodes) < NODES_MAX:
            self.hall.add_node()

    @rule(number=numbers, many=st.integers(1, 6), is_answered=st.booleans())
    def store_takes(self, number: int, many: int, is_answered: bool) -> None:
        node = self.pick(number)
        for _ in range(many):
            if node is not None and node.connection.up:
                self.hall.store_takes(node, is_answered=is_answered)

    @rule(number=numbers, many=st.integers(1, 6))
    def node_takes(self, number: int, many: int) -> None:
        node = self.pick(number)
        for _ in range(many):
            if node is not None and not node.is_frozen and not node.is_over and node.connection.down:
                self.hall.node_takes(node)

    @rule(seconds=st.sampled_from((0.5, 2.0, 5.0)))
    def time_passes(self, seconds: float) -> None:
        self.hall.pass_time(seconds)

    @rule(seconds=st.sampled_from((0.5, 3.0, 25.0)))
    def calm(self, seconds: float) -> None:
        """Everybody hears everybody for a while."""
        end = self.hall.now + seconds
        while self.hall.now < end:
            self.hall.deliver_all()
            self.hall.pass_time(0.5)

    @rule(number=numbers)
    def freeze(self, number: int) -> None:
        node = self.pick(number)
        if node is not None:
            node.is_frozen = True

    @rule()
    def thaw(self) -> None:
        for node in self.hall.nodes:
            if node.is_frozen:
                node.is_frozen = False
                if not node.is_over:
                    if node.machine.running is not None and node.workers is None:
                        node.tell_gone()
                    node.catch_up(self.hall.now)

    @rule()
    def lose_the_store(self) -> None:
        """Another one answers, without data."""
        self.hall.store = StoreMachine()
        self.hall.stores.append(self.hall.store)  # kept, so that each has an id of its own

    @rule(number=numbers)
    def crash(self, number: int) -> None:
        node = self.pick(number)
        if node is not None:
            node.is_dead = True
            node.workers = node.workers_end_at = None  # the keeper

    @rule(number=numbers)
    def leave(self, number: int) -> None:
        node = self.pick(number)
        if node is None or node.is_frozen or node.is_leaving:
            return
        node.is_leaving = True
        node.step(LeaveAsked())
        if node.workers is None:
            node.step(PartEnded())
        elif node.workers_end_at is None:
            node.workers_end_at = self.hall.now + STOP_S

    @rule(number=numbers)
    def worker_fails(self, number: int) -> None:
        node = self.pick(number)
        if node is None or node.is_frozen or node.workers is None or node.workers_end_at is not None:
            return
        self.hall.failures += 1
        node.outcome = Outcome.FAILED
        node.step(WorkerFailed())
        node.workers_end_at = self.hall.now + STOP_S

    @invariant()
    def one_round_at_a_time(self) -> None:
        self.hall.look()

    def teardown(self) -> None:
        """Heal, and demand that everybody who is there comes to run in one round, or hears one verdict."""
        self.thaw()
        while sum(not node.is_over and not node.is_leaving for node in self.hall.nodes) < MIN_NODES:
            self.hall.add_node()
        self.calm(4 * TTL_S + 2 * LAST_CALL_S)
        staying = [node for node in self.hall.nodes if not node.is_dead and not node.is_leaving]
        verdicts = {node.verdict for node in staying}
        states = {node.name: (node.machine.state.name, node.workers) for node in self.hall.nodes}
        assert len(verdicts) == 1, (verdicts, states)
        if verdicts == {""}:
            running = [node for node in staying if node.workers is not None]
            assert len(running) == min(len(staying), MAX_NODES), states


def test_every_order_of_events_keeps_rounds_apart_and_then_makes_progress() -> None:
    run_state_machine_as_test(
        Rounds,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
