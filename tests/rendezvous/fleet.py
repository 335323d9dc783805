"""Several agents over one store in virtual time, in one thread and without a loop: for stories about rounds.

Each agent is the production ``AgentMachine`` with its ``MemberMachine``; the store is the production ``StoreMachine``.
Between them stands a stand-in for the session: requests are answered at once, or held back, lost, or cut off. Workers
are stand-ins too: they run until somebody says how they end, and obey a stop signal after a moment.

    fleet = Fleet(min_nodes=2, max_nodes=2)
    fleet.start("a", "b")
    fleet.run_until_running("a", "b")
    fleet.fail("a")
"""

from __future__ import annotations

import heapq
import itertools
import re
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, ClassVar

from phalanx.agent.events import (
    AnnounceCheckpoint,
    CollectEvidence,
    EvidenceCollected,
    Finish,
    JobBegan,
    PassOn,
    WorkerTold,
)
from phalanx.agent.graces import Graces
from phalanx.agent.group import (
    AnnounceStop,
    DeadlinePassed,
    ExceptionSeen,
    Exit,
    Say,
    SpawnWorkers,
    StopAsked,
    TreeEmptied,
    WorkersExited,
    WorkersSpawned,
)
from phalanx.agent.machine import AgentMachine, AgentState
from phalanx.agent.restarts.leader import leader_policy
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.verdict.verdict import Failure, Verdict
from phalanx.multiprocessing.machine import NameStuck, SignalTree, SignalWorkers
from phalanx.rendezvous import events
from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.machine import MemberMachine
from phalanx.rendezvous.round import Round
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.stored import RoundRecord, decode
from phalanx.store import machine as store
from phalanx.store.port import Get, KeyValue, Operation

TTL_S = 15.0
ATTEMPT_S = 2.0  # a store's own deadline for an answer
AGAIN_S = 0.2
OPEN_AGAIN_S = 0.5
CLOSE_WITHIN_S = 5.0
STEPS_MAX = 2000  # at one instant: more is a loop without end
TERM = 15


class Fleet:
    """All agents, their store, and one clock. Everything here is deterministic."""

    def __init__(self, **settings: Any) -> None:
        self.settings: dict[str, Any] = {
            "run_id": "job",
            "slots": 1,
            "min_nodes": 2,
            "max_nodes": 2,
            "ttl_s": TTL_S,
            **settings,
        }
        self.keys = JobKeys(self.settings["run_id"] or "told")
        self.now = 1000.0
        self.agents: dict[str, Agent] = {}
        self.store = store.StoreMachine()
        self.incarnation = 1
        self.is_store_up = True
        self.transcript: list[str] = []
        self.rounds: dict[tuple[int, int], Round] = {}
        self.places: set[tuple[int, int, int]] = set()
        self._timers: list[tuple[float, int, Agent | None, Callable[[], object]]] = []
        self._counter = itertools.count()

    def __getitem__(self, name: str) -> Agent:
        return self.agents[name]

    # What happens

    def start(self, *names: str, **settings: Any) -> None:
        """Start agents; several by one name are one after the other."""
        for name in names:
            self.agents[name] = self.make(name, {**self.settings, **settings})
            self.agents[name].post(JobBegan())
        self.work()

    def make(self, name: str, settings: dict[str, Any]) -> Agent:
        """One agent."""
        return Agent(self, name, settings)

    def fail(self, name: str, *, summary: str = "ValueError: x", code: int = 1, local_rank: int = 0) -> None:
        """A worker records an exception and ends."""
        agent = self[name]
        agent.summaries[local_rank] = summary
        agent.post(ExceptionSeen(local_rank, self.now, summary))
        agent.end_workers({local_rank: code})
        self.work()

    def finish(self, *names: str) -> None:
        """All workers there succeed."""
        for name in names:
            self[name].end_workers(dict.fromkeys(self[name].alive, 0))
        self.work()

    def leave(self, name: str, signal: int = TERM) -> None:
        """Somebody tells an agent to stop."""
        self[name].post(StopAsked(signal, 30.0))
        self.work()

    def ask_exclusion(self, name: str, reason: str = "GPU 3") -> None:
        """A worker asks that its node be used no more for a while."""
        self[name].post(WorkerTold(events.NodeExcluded(reason)))
        self.work()

    def progress(self, name: str, step: int) -> None:
        """A worker has come so far; the agent keeps it for the end of the round."""
        self[name].step = step

    def checkpoint(self, name: str, step: int = 1) -> None:
        """A worker has finished a checkpoint."""
        self[name].post(WorkerTold(events.CheckpointDone(step)))
        self.work()

    def kill(self, *names: str) -> None:
        """Power loss: nothing there moves any more, and its lease runs out."""
        for name in names:
            agent = self[name]
            agent.is_dead, agent.round = True, None
            agent.alive.clear()
            agent.inbox.clear()

    def cut(self, *names: str) -> None:
        """No message passes between these nodes and the store."""
        for name in names:
            self[name].is_cut = True

    def heal(self, *names: str) -> None:
        """Messages pass again, and what was told meanwhile arrives."""
        for name in names or tuple(self.agents):
            self[name].is_cut = False
            self[name].link.catch_up()
        self.work()

    def freeze(self, *names: str) -> None:
        """The agent is stopped (SIGSTOP); its workers and its keeper are not."""
        for name in names:
            self[name].is_frozen = True

    def thaw(self, *names: str) -> None:
        """The agent goes on: it reads what has arrived, then looks at the clock."""
        for name in names or tuple(self.agents):
            agent = self[name]
            agent.is_frozen = False
            late, agent.late = agent.late, []
            agent.link.catch_up()
            self.work()
            for one in late:
                one()
            self.work()

    def lose_store(self) -> None:
        """Nobody serves the store any more."""
        self.is_store_up = False

    def serve_store(self, *, is_empty: bool = True) -> None:
        """It is served again, by default as another one without data."""
        self.is_store_up = True
        if is_empty:
            self.store = store.StoreMachine()
            self.incarnation += 1
        for agent in self.agents.values():
            agent.link.catch_up()
        self.work()

    # Time

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self._run(seconds, lambda: False)

    def run_until(self, holds: Callable[[], bool], within_s: float = 600.0) -> None:
        """Let time pass until something holds; fails with the transcript if that takes too long."""
        assert self._run(within_s, holds), self.story()

    def run_until_running(self, *names: str, number: int | None = None, within_s: float = 600.0) -> Round:
        """Until exactly these nodes run one round; returns it as the first of them sees it."""

        def holds() -> bool:
            running = {
                one.name: one.round for one in self.agents.values() if one.round is not None and one.alive
            }
            numbers = {one.number for one in running.values()}
            return (
                set(running) == set(names)
                and len(numbers) == 1
                and number in (None, *numbers)
                and not any(self[one].is_stopping for one in running)
            )

        self.run_until(holds, within_s)
        found = self[names[0]].round
        assert found is not None
        return found

    def run_until_over(self, within_s: float = 2000.0) -> set[int]:
        """Until every agent that lives has ended; returns their exit codes."""
        alive = [one for one in self.agents.values() if not one.is_dead]
        self.run_until(lambda: all(one.is_over for one in alive), within_s)
        return {one.verdict.exit_code for one in alive if one.verdict is not None}

    def after(self, seconds: float, agent: Agent | None, do: Callable[[], object]) -> None:
        """Something is to happen later; what a frozen agent does waits until it is thawed."""
        heapq.heappush(self._timers, (self.now + seconds, next(self._counter), agent, do))

    def _run(self, seconds: float, holds: Callable[[], bool]) -> bool:
        end = self.now + seconds
        steps = 0
        while True:
            self.work()
            if holds():
                return True
            at = self._next()
            if at is None or at > end:
                self.now = end
                return False
            steps = steps + 1 if at <= self.now else 0
            assert steps < STEPS_MAX, f"time does not pass\n{self.story()}"
            self.now = max(self.now, at)
            self._fire()

    def _next(self) -> float | None:
        times = [self._timers[0][0]] if self._timers else []
        if self.store.deadline is not None and self.is_store_up:
            times.append(self.store.deadline)
        for agent in self.agents.values():
            if agent.alive and agent.fence_at is not None:
                times.append(agent.fence_at)
            if agent.is_stepping and agent.machine.deadline is not None:
                times.append(agent.machine.deadline)
        return min(times, default=None)

    def _fire(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            agent, do = heapq.heappop(self._timers)[2:]
            if agent is None or agent.is_stepping:
                do()
            elif agent.is_frozen and not agent.is_dead:
                agent.late.append(do)
            self.work()
        for agent in self.agents.values():
            if agent.alive and agent.fence_at is not None and self.now >= agent.fence_at:
                agent.be_fenced()
        if self.is_store_up and self.store.deadline is not None and self.now >= self.store.deadline:
            self.ask(store.DeadlinePassed())
        self.work()
        for agent in self.agents.values():
            deadline = agent.machine.deadline
            if agent.is_stepping and deadline is not None and self.now >= deadline:
                agent.post(DeadlinePassed())
                self.work()

    def work(self) -> None:
        """Take all events that wait, one agent after the other, until there is none."""
        for _ in range(STEPS_MAX):
            busy = [one for one in self.agents.values() if one.inbox and one.is_stepping]
            if not busy:
                return
            for agent in busy:
                agent.take()
        raise AssertionError(f"messages without end\n{self.story()}")

    # The store

    def ask(self, event: object) -> Any:
        """Ask the store's machine; what it tells watches is handed to them."""
        answer = None
        for command in self.store.step(event, self.now):
            if isinstance(command, store.Notify):
                for watch in command.watches:
                    watch.link.hear(watch, command.batch)  # type: ignore[attr-defined]
            elif isinstance(command, store.Answered | store.Failed):
                answer = command
        return answer

    def read(self, key: str) -> KeyValue | None:
        """A key of the store, for who looks from outside."""
        found = self.ask(store.TransactionAsked(None, (), (Get(key),))).answer.results[0]
        return found[0] if found else None

    def write(self, *operations: Operation) -> None:
        """Somebody else writes into the store."""
        self.ask(store.TransactionAsked(None, (), operations))
        self.work()

    @property
    def record(self) -> RoundRecord:
        """The current round, as the store has it."""
        found = self.read(self.keys.round)
        assert found is not None
        return decode(RoundRecord, found.value)

    @property
    def leader(self) -> str | None:
        """Who leads, as the store has it."""
        found = self.read(self.keys.leader)
        return None if found is None else found.value.decode()

    def under(self, prefix: str) -> list[str]:
        """The keys below a prefix."""
        found = self.ask(store.TransactionAsked(None, (), (Get(prefix, is_prefix=True),))).answer.results[0]
        return [one.key for one in found]

    # What must hold whatever happens

    def began(self, agent: Agent, formed: Round) -> None:
        """Workers are about to start."""
        others = [one for one in self.agents.values() if one.alive and one is not agent]
        for one in others:
            assert one.round is not None
            life = (one.formed_in, one.round.number)
            assert life == (agent.link.incarnation, formed.number), (
                f"{agent.name} starts round {formed.number} beside {one.name}'s round {one.round.number}\n"
                f"{self.story()}"
            )
        key = (agent.link.incarnation, formed.number)
        first = self.rounds.setdefault(key, formed)
        for field in (
            "restart_count",
            "reason",
            "group_world_size",
            "world_size",
            "master_addr",
            "master_port",
        ):
            assert getattr(first, field) == getattr(formed, field), f"{field} differs\n{self.story()}"
        assert (*key, formed.group_rank) not in self.places, f"a group rank twice\n{self.story()}"
        self.places.add((*key, formed.group_rank))
        low, high = self.settings["min_nodes"], self.settings["max_nodes"]
        assert low <= formed.group_world_size <= high, self.story()
        assert 0 <= formed.restart_count <= self.settings.get("max_restarts", 0), self.story()

    def story(self) -> str:
        """What has happened, for a test that failed."""
        states = [
            f"{one.name}: {one.machine.state.name} {one.member.state.name} {one.round}"
            for one in self.agents.values()
        ]
        return "\n".join([*self.transcript[-150:], f"now {self.now:.2f}", *states])

    def note(self, name: str, text: str) -> None:
        """Add to the transcript."""
        self.transcript.append(f"{self.now:9.2f} {name}: {text}")


class Watch:
    """A watch of one link."""

    def __init__(self, link: Link, prefix: str) -> None:
        self.link, self.prefix = link, prefix


class Held:
    """Transactions of one purpose that were sent: they have not reached the store, or their answers not the agent."""

    def __init__(self, link: Link, purpose: str, *, has_arrived: bool) -> None:
        self._link, self.purpose = link, purpose
        self._has_arrived = has_arrived
        self.commands: list[tuple[int, events.Transact]] = []
        self._answers: list[Any] = []
        link.holds[purpose] = self

    def add(self, life: int, command: events.Transact) -> None:
        """One more was sent."""
        self.commands.append((life, command))
        if self._has_arrived:
            self._answers.append(self._link.transact_now(command))

    def deliver(self) -> list[bool]:
        """They arrive now, however late; returns whether each was applied. Answers come if anybody still waits."""
        self._link.holds.pop(self.purpose, None)
        applied = []
        for place, (life, command) in enumerate(self.commands):
            answer = self._answers[place] if self._has_arrived else self._link.transact_now(command)
            applied.append(isinstance(answer, store.Answered) and answer.answer.succeeded)  # type: ignore[union-attr]
            if life == self._link.life:
                self._link.answer(command, answer)
        self.commands, self._answers = [], []
        self._link.agent.fleet.work()
        return applied


class Link:
    """What ``Session`` does, for one agent, without a loop."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.fleet = agent.fleet
        self.life = 0  # of the connection: what an earlier one asked is answered to nobody
        self.lease = 0
        self.incarnation = 0
        self.is_open = False
        self.watches: dict[str, Watch] = {}
        self.backlog: list[events.KeyChanged] = []
        self.is_deaf = False
        self.holds: dict[str, Held] = {}
        self.losses: Counter[tuple[str, bool]] = Counter()
        self.held_confirms: list[int] | None = None
        self.renewals = 0
        self.sent: Counter[str] = Counter()
        self.perform: dict[type, Callable[[Any], object]] = {
            events.OpenSession: lambda _: self._open(),
            events.CloseSession: lambda _: self._close(),
            events.RevokeLease: lambda _: self._revoke(),
            events.StartWatch: self._start_watch,
            events.StopWatch: self._stop_watch,
            events.Read: self._read,
            events.Transact: self._transact,
            events.ConfirmLease: self._confirm,
            events.RenewLease: lambda _: self._renew(None),
        }

    # For stories

    def hold(self, purpose: str) -> Held:
        """From now on, keep back transactions of this purpose."""
        return Held(self, purpose, has_arrived=False)

    def hold_answers(self, purpose: str) -> Held:
        """From now on, keep back the answers to transactions of this purpose."""
        return Held(self, purpose, has_arrived=True)

    def lose_answer(self, purpose: str, *, is_applied: bool, times: int = 1) -> None:
        """The next transactions of this purpose get no answer, whether or not they are applied."""
        self.losses[purpose, is_applied] += times

    def confirm(self) -> None:
        """The lease is renewed as ``ConfirmLease`` asked, after it was held back by a list in ``held_confirms``."""
        held, self.held_confirms = self.held_confirms or [], None
        for number in held:
            self._renew(number)
        self.fleet.work()

    def _confirm(self, command: events.ConfirmLease) -> None:
        if self.held_confirms is None:
            self._renew(command.number)
        else:
            self.held_confirms.append(command.number)

    def catch_up(self) -> None:
        """What waited in a cable that was cut, or in the buffers of a frozen process."""
        if not self._is_reachable or not self.is_open or self._is_other_store():
            return
        backlog, self.backlog = self.backlog, []
        for event in backlog:
            self.agent.post(event)

    # The connection

    @property
    def _is_reachable(self) -> bool:
        return self.fleet.is_store_up and not self.agent.is_cut and not self.agent.is_dead

    def _later(self, seconds: float, do: Callable[[], object]) -> None:
        life = self.life
        self.fleet.after(seconds, self.agent, lambda: do() if life == self.life else None)

    def _forget(self) -> None:
        self.life += 1
        self.is_open = False
        for watch in self.watches.values():
            self.fleet.store.step(store.WatchClosed(watch), self.fleet.now)
        self.watches.clear()
        self.backlog.clear()

    def _is_other_store(self) -> bool:
        """Whether another store answers than the one that was opened; told once."""
        if self.incarnation == self.fleet.incarnation:
            return False
        self._forget()
        self.agent.post(events.StoreWasReset())
        return True

    def _open(self) -> None:
        self._forget()
        self._later(0.0, self._try_to_open)

    def _try_to_open(self) -> None:
        if not self._is_reachable:
            self.agent.post(events.StoreNotReached("nobody answers"))
            self._later(OPEN_AGAIN_S, self._try_to_open)
            return
        settings = self.agent.settings
        self.incarnation = self.fleet.incarnation
        self.lease = self.fleet.ask(store.GrantAsked(None, settings["ttl_s"])).answer
        self.is_open = True
        self._later(settings["ttl_s"] / 3, self._keep_alive)
        self.agent.post(
            events.SessionOpened(
                lease=self.lease,
                sent_at=self.fleet.now,
                run_id="told" if not settings["run_id"] else "",
                address=self.agent.address,
                outside_address=self.agent.outside_address,
                is_host=self.agent.is_host,
                is_local=self.agent.is_host,
            )
        )

    def _close(self) -> None:
        was_open = self.is_open
        self._forget()
        is_reachable = self._is_reachable and self.incarnation == self.fleet.incarnation
        if is_reachable:
            self.fleet.ask(store.RevokeAsked(None, self.lease))
        self._later(CLOSE_WITHIN_S if was_open and not is_reachable else 0.0, self._closed)

    def _closed(self) -> None:
        self.agent.post(events.SessionClosed())
        if self.agent.is_host:
            self.fleet.is_store_up = False

    def _revoke(self) -> None:
        lease, self.lease = self.lease, 0
        if self._is_reachable:
            self.fleet.ask(store.RevokeAsked(None, lease))

    # The lease

    def _keep_alive(self) -> None:
        if not self.lease:
            return
        if not self._is_reachable:
            self._later(ATTEMPT_S + AGAIN_S, self._keep_alive)
        elif self._renew(None):
            self._later(self.agent.settings["ttl_s"] / 3, self._keep_alive)

    def _renew(self, number: int | None) -> bool:
        if not self._is_reachable:
            self._later(ATTEMPT_S + AGAIN_S, lambda: self._renew(number))
            return False
        if self._is_other_store():
            return False
        if isinstance(self.fleet.ask(store.RenewAsked(None, self.lease)), store.Failed):
            self._lease_ended()
            return False
        self.renewals += 1
        self.agent.post(events.LeaseRenewed(self.fleet.now, number))
        return True

    def _lease_ended(self) -> None:
        self._forget()
        self.agent.post(events.LeaseEnded())

    # Requests

    def _transact(self, command: events.Transact) -> None:
        purpose = re.sub(r"(?<=report )\d+ ", "", command.purpose)  # stories name no rounds
        self.sent[purpose] += 1
        if purpose in self.holds:
            self.holds[purpose].add(self.life, command)
            return
        for is_applied in (True, False):
            if self.losses[purpose, is_applied] > 0:
                self.losses[purpose, is_applied] -= 1
                if is_applied:
                    self.transact_now(command)
                self._unclear(command)
                return
        if not self._is_reachable:
            self._unclear(command)
        elif not self._is_other_store():
            self.answer(command, self.transact_now(command))

    def _unclear(self, command: events.Transact) -> None:
        self._later(ATTEMPT_S, lambda: self.agent.post(events.TransactionUnclear(command.purpose)))

    def transact_now(self, command: events.Transact) -> Any:
        """Do it at the store."""
        parts = tuple(command.compares), tuple(command.then), tuple(command.otherwise)
        return self.fleet.ask(store.TransactionAsked(None, *parts))

    def answer(self, command: events.Transact, answer: Any) -> None:
        """Tell the agent."""
        if isinstance(answer, store.Failed):
            self._lease_ended()
            return
        got = answer.answer
        self.agent.post(events.Transacted(command.purpose, got.succeeded, got.revision, got.results))

    def _read(self, command: events.Read) -> None:
        if not self._is_reachable:
            self._later(ATTEMPT_S + AGAIN_S, lambda: self._read(command))
        elif not self._is_other_store():
            self.agent.post(events.KeyRead(command.key, self.fleet.read(command.key)))

    def _start_watch(self, command: events.StartWatch) -> None:
        if not self._is_reachable:
            self._later(ATTEMPT_S + AGAIN_S, lambda: self._start_watch(command))
            return
        if self._is_other_store():
            return
        self._stop_watch(events.StopWatch(command.prefix))
        found = self.fleet.ask(
            store.TransactionAsked(None, (), (Get(command.prefix, is_prefix=True),))
        ).answer
        watch = self.watches[command.prefix] = Watch(self, command.prefix)
        self.fleet.store.step(store.WatchAsked(watch, command.prefix, found.revision + 1), self.fleet.now)
        self.agent.post(events.KeysListed(command.prefix, found.revision, found.results[0]))

    def _stop_watch(self, command: events.StopWatch) -> None:
        watch = self.watches.pop(command.prefix, None)
        if watch is not None:
            self.fleet.store.step(store.WatchClosed(watch), self.fleet.now)
        self.backlog = [one for one in self.backlog if one.prefix != command.prefix]

    def hear(self, watch: Watch, batch: Any) -> None:
        """The store notifies a watch."""
        if self.watches.get(watch.prefix) is not watch:
            return
        event = events.KeyChanged(watch.prefix, batch)
        if self._is_reachable and not self.is_deaf:
            self.agent.post(event)
        else:
            self.backlog.append(event)


class Agent:
    """A node: the agent's machine, its link to the store, its workers and its keeper."""

    kind: ClassVar[type[AgentMachine]] = AgentMachine

    def __init__(self, fleet: Fleet, name: str, settings: dict[str, Any]) -> None:
        self.fleet, self.name = fleet, name
        self.address = settings.pop("address", f"10.0.0.{len(fleet.agents) + 1}")
        self.outside_address = settings.pop("outside_address", "")
        self.is_host = settings.pop("is_host", False)
        grace_s = settings.pop("grace_s", 30.0)
        plain = RestartPolicy(max_restarts=settings.pop("max_restarts", 0))
        restarts = settings.pop("restarts", plain)
        stops_all = settings.pop("stops_all", False)
        self.nproc = settings["slots"]
        self.settings = {"node_id": name, "host": name, **settings}
        membership = MembershipSettings(**self.settings)
        self.member = MemberMachine(membership, leader_policy(restarts))
        self.machine = self.kind(
            self.nproc,
            membership=self.member,
            restarts=restarts,
            graces=Graces.alike(grace_s),
            straggler_s=membership.straggler_s,
            stops_all_as=name if stops_all else None,
        )
        self.link = Link(self)
        self.inbox: deque[object] = deque()
        self.late: list[Callable[[], object]] = []
        self.is_cut = self.is_frozen = self.is_dead = False
        self.verdict: Verdict | None = None
        self.said: list[str] = []
        self.passed_on: list[int] = []
        # Workers
        self.round: Round | None = None
        self.formed: list[Round] = []
        self.formed_in = 0
        self.alive: set[int] = set()
        self.is_stopping = False
        self.obeys = True
        self.stop_s = 0.5
        self.stop_code: int | None = None
        self.stop_grace_s: float | None = None
        self.stops: list[AnnounceStop] = []
        self.summaries: dict[int, str] = {}
        self.step: int | None = None
        self.checkpoints_wanted: list[AnnounceCheckpoint] = []
        self._node: dict[type, Callable[[Any], object]] = {
            AnnounceCheckpoint: self.checkpoints_wanted.append,
            AnnounceStop: self._announce,
            CollectEvidence: self._collect,
            Finish: self._finish,
            NameStuck: lambda _: None,
            PassOn: lambda command: self.passed_on.append(command.signal),
            Say: lambda command: self.said.append(command.text),
            SignalTree: self._signal_tree,
            SignalWorkers: self._signal_workers,
            SpawnWorkers: self._spawn,
            events.Fence: self._fence,
            events.HoldPort: self._hold_port,
            events.ReleasePort: self._release_port,
        }
        # Keeper and ports
        self.fence_at: float | None = None
        self.fences: list[float | None] = []
        self.times_fenced = 0
        self.port = 20000 + 100 * len(fleet.agents)
        self.has_port = True
        self.holds_port = False

    @property
    def is_over(self) -> bool:
        """Whether the agent has ended."""
        return self.verdict is not None or self.is_dead

    @property
    def is_stepping(self) -> bool:
        """Whether it takes events now."""
        return not self.is_over and not self.is_frozen

    def post(self, event: object) -> None:
        """An event for its machine."""
        if not self.is_over:
            self.inbox.append(event)

    def take(self) -> None:
        """Take the next event."""
        event = self.inbox.popleft()
        self.fleet.note(self.name, f"{event!r:.300}")
        for command in self.machine.step(event, self.fleet.now):
            self.fleet.note(self.name, f"    {command!r:.300}")
            self._perform(command)

    def _perform(self, command: Any) -> None:
        perform = self.link.perform.get(type(command)) or self._node.get(type(command))
        assert perform is not None, f"nobody performs {command!r}"
        perform(command)

    def _hold_port(self, command: events.HoldPort) -> None:
        self.port += 1
        self.holds_port = self.has_port
        number = command.number
        self.post(
            events.PortHeld(number, self.port)
            if self.has_port
            else events.PortNotHeld(number, "no port is free")
        )

    def _release_port(self, command: events.ReleasePort) -> None:
        self.holds_port = False

    def _fence(self, command: events.Fence) -> None:
        self.fence_at = command.at
        self.fences.append(command.at)

    def _announce(self, command: AnnounceStop) -> None:
        self.is_stopping = True
        self.stops.append(command)
        self.stop_grace_s = command.grace_s

    def _signal_workers(self, command: SignalWorkers) -> None:
        if self.obeys:
            self._obey(-command.signal if self.stop_code is None else self.stop_code)

    def _collect(self, command: CollectEvidence) -> None:
        self.round = None
        self.post(EvidenceCollected(self._evidence(command.exits), self.step))

    def _finish(self, command: Finish) -> None:
        assert not self.alive, f"workers are alive at the end\n{self.fleet.story()}"
        self.verdict = command.verdict
        self.inbox.clear()

    # Workers

    def _spawn(self, command: SpawnWorkers) -> None:
        settled = command.round
        assert not self.alive, f"two rounds on one node\n{self.fleet.story()}"
        self.fleet.began(self, settled)
        self.round = settled
        self.formed.append(settled)
        self.formed_in = self.link.incarnation
        self.alive = set(range(self.nproc))
        self.is_stopping = False
        self.stop_grace_s = None
        self.summaries = {}
        self.step = None
        self.post(WorkersSpawned({one: 100 + one for one in self.alive}))

    def _obey(self, code: int) -> None:
        """Workers end by themselves some time after they were asked, also when the agent is gone by then."""
        settled = self.round

        def end() -> None:
            if self.round is settled and self.alive and not self.is_dead:
                self.end_workers(dict.fromkeys(self.alive, code))

        self.fleet.after(self.stop_s, None, end)

    def end_workers(self, codes: dict[int, int]) -> None:
        """They have ended; the agent hears of it when it runs."""
        if codes:
            self.alive -= set(codes)
            self.post(WorkersExited(codes))

    def be_fenced(self) -> None:
        """The keeper kills what is left, whatever the agent does."""
        self.times_fenced += 1
        self.end_workers(dict.fromkeys(self.alive, -9))

    def _signal_tree(self, command: SignalTree) -> None:
        if command.signal == 9 and self.alive:
            self.end_workers(dict.fromkeys(self.alive, -9))
        if not self.alive:
            self.post(TreeEmptied())

    def _evidence(self, exits: tuple[Exit, ...]) -> tuple[Failure, ...]:
        settled = self.machine.group.round
        assert settled is not None
        return tuple(
            Failure(
                rank=settled.rank(one.local_rank),
                local_rank=one.local_rank,
                pid=100 + one.local_rank,
                exit_code=one.exit_code,
                exited_at=one.at,
                signed_at=one.signed_at,
                stopped_at=None if one.is_straggler else one.stopped_at,
                summary=self.summaries.get(one.local_rank, ""),
                host=self.name,
            )
            for one in exits
            if one.exit_code != 0 or one.is_straggler
        )


__all__ = ["TTL_S", "Agent", "AgentState", "Fleet", "Held", "Link"]
