"""A whole job in virtual time: nodes, agents, a store and a network, the harm done to them, and what must hold.

First safety while faults happen, then all is healed and progress is demanded: everybody who is there works in one
round, comes to the normal end, and says the same. One seed gives one world, always the same.
"""

from __future__ import annotations

from random import Random

from phalanx.rendezvous.settings import Growth, MembershipSettings
from phalanx.testing.agents import LAG_S, SimulatedAgent
from phalanx.testing.checkers import all_checkers
from phalanx.testing.checking import Checker, Violation
from phalanx.testing.faults import Faults
from phalanx.testing.job_events import JobEventsAreCoherent
from phalanx.testing.network import Network
from phalanx.testing.nodes import Node
from phalanx.testing.observer import Observer
from phalanx.testing.scenario import Scenario
from phalanx.testing.store_client import SimulatedStore
from phalanx.testing.store_server import StorePlace
from phalanx.testing.timeline import NodeClock, Timeline
from phalanx.testing.trace import Happened, Resumed, StoreLost, Suspended, Trace
from phalanx.testing.workload import Workload

__all__ = ["World"]

OPEN_WITHIN_S = 5.0  # as the openers of the launcher
JOIN_TIMEOUT_S = (
    3600.0  # no world lasts so long: a job that waits for nodes is one that must come to work again
)
CLOCK_OFFSET_MAX_S = 1e6
SIGINT = 2
LOOK_EVERY_S = 0.5
RUN_ID = "job"
SETTLED_FOR_S = (
    10.0  # echoes of the last fault have come by then: a peer that is gone, an answer that was late
)


class World:
    """One simulated job. ``run()`` raises ``Violation`` when something happened that must not.

    >>> World(7).run().messages > 0
    True
    """

    lag_s = LAG_S

    def __init__(
        self,
        seed: int,
        scenario: Scenario | None = None,
        *,
        checkers: list[Checker] | None = None,
        observes: bool = False,
    ) -> None:
        """``observes``: what agents tell who looks on is in the trace, and checked."""
        self.seed = seed
        self.scenario = scenario or Scenario.drawn(seed)
        self.rng = Random(seed)
        self.timeline = Timeline()
        self.trace = Trace(lambda: self.timeline.now, on_error=self.timeline.stop)
        self.network = Network(self.timeline, self._stream("network"))
        self.workload = Workload(self.timeline, self._stream("workers"), self.trace, self.scenario.habits)
        self.nodes = [self._make_node(number) for number in range(self.scenario.nodes)]
        self.agents: list[SimulatedAgent] = []
        self._stopped: list[SimulatedAgent] = []
        self._slots = {node.name: self._draw_slots() for node in self.nodes}
        self.store_clock = self._make_clock() if not self.scenario.is_hosted else self.nodes[0].clock
        name = self.nodes[0].name if self.scenario.is_hosted else "store"
        self.place = StorePlace(self.network, name, self._stream("store"))
        self.observer = Observer(RUN_ID, self.trace)
        self.place.observe = self.observer.see
        if not self.scenario.is_hosted:
            self.place.start(self.store_clock, keeps_data=True)
        self._faults = Faults(self, self._stream("faults"))
        self.checkers = all_checkers(self.scenario.limits) if checkers is None else checkers
        self._observes = observes
        if observes:
            self.checkers = [*self.checkers, JobEventsAreCoherent()]
        for checker in self.checkers:
            self.trace.listen(checker.see)

    @property
    def messages(self) -> int:
        """How many travelled between agents and store."""
        return self.network.messages

    # Running

    def run(self) -> World:
        """Run to the end. Raises ``Violation``, with the seed, how to repeat it, and the last observations."""
        try:
            self._begin()
            self._faults.begin()
            self._pass_time(self.scenario.faults_until_s)
            self._faults.heal()
            for part in (self._demand_progress, self._demand_calm, self._finish):
                if not self._has_ended():
                    part()
            self._demand_end()
            for checker in self.checkers:
                checker.finish()
        except Exception as error:
            raise Violation(self._report(error)) from error
        finally:
            self._bury()
        return self

    def _pass_time(self, until: float) -> None:
        """Until a moment, or until every agent has ended and the job with one of them."""
        while self.timeline.run(until):
            if self.trace.error is not None:
                raise self.trace.error
            if self._is_over():
                return

    def _begin(self) -> None:
        for node in self.nodes[: self.scenario.first_nodes]:
            self.timeline.at(self.rng.uniform(0.0, self.scenario.first_within_s), self.start_agent, node)

    def _demand_progress(self) -> None:
        """Everybody comes to work in one round, and stays there."""
        patience_s = self.scenario.patience_s + self._longest_exclusion_s()
        until = self.timeline.now + patience_s
        since = None
        while not self._has_ended():
            if not self._all_work():
                since = None
            elif since is None:
                since = self.timeline.now
            elif self.timeline.now >= since + SETTLED_FOR_S + self.scenario.longest_grace_s:
                return
            if self.timeline.now >= until:
                raise Violation(f"{patience_s:g} s after all was healed: {self._who_works()}")
            self._pass_time(self.timeline.now + LOOK_EVERY_S)

    def _longest_exclusion_s(self) -> float:
        """How long a node that is excluded now stays so: each exclusion of it lasts twice as long as the one before."""
        counts = [self.observer.exclusions[agent] for agent in self.observer.excluded]
        return (
            self.scenario.exclude_for_s * 2.0 ** max(counts) / self.scenario.clock_rates[0] if counts else 0.0
        )

    def _demand_calm(self) -> None:
        """A job in which everybody works, and nothing happens, goes on as it is."""
        before = list(self.workload.workers)
        self._pass_time(max(self.timeline.now + 1.0, self.scenario.calm_until_s))
        if not self._has_ended() and list(self.workload.workers) != before:
            raise Violation(f"nothing happened, and round {before} was given up: {self._who_works()}")

    def _finish(self) -> None:
        if not self.scenario.is_stopped:
            self.workload.finish()
            return
        self._stopped = [agent for agent in self.agents if not agent.is_over]
        for agent in self._stopped:
            agent.stop(SIGINT)

    def _demand_end(self) -> None:
        habits, scenario = self.scenario.habits, self.scenario
        last_s = habits.ends_within_s + scenario.longest_grace_s + 60.0 + scenario.patience_s
        if not self._is_over():
            self._pass_time(self.timeline.now + last_s)
        if not self._is_over() and self._only_wait_for_a_store():
            self._pass_time(self.timeline.now + JOIN_TIMEOUT_S / min(scenario.clock_rates))
        self.timeline.run(self.timeline.now + 1.0)  # keepers clear up
        if self.trace.error is not None:
            raise self.trace.error
        for agent in self._stopped:
            if agent.verdict is not None and agent.verdict.exit_code != 128 + SIGINT:
                raise Violation(f"{agent.name} was told to stop and ended with {agent.verdict!r}")

    def _is_over(self) -> bool:
        return self._has_ended() and all(agent.is_over for agent in self.agents)

    def _has_ended(self) -> bool:
        """Whether some agent has come to the end of the job, and not only to its own."""
        return any(agent.has_seen_the_end for agent in self.agents) and not self.observer.has_begun_anew

    def _only_wait_for_a_store(self) -> bool:
        """Whoever came when the job had just ended, and its store with it, waits for one as long as it was told to."""
        return all(agent.is_opening for agent in self.agents if not agent.is_over)

    def _all_work(self) -> bool:
        staying = [agent for agent in self.agents if not agent.is_over]
        if len(self.workload.workers) != 1 or self.observer.excluded:
            return False
        workers = self.workload.live
        working = {worker.employer.agent for worker in workers if worker.is_healthy}
        if self.scenario.growth is not Growth.NEVER:
            return len(working) == min(len(staying), self.scenario.max_nodes)
        return len(working) == workers[0].round.group_world_size

    def _who_works(self) -> str:
        rounds = {
            number: sorted({worker.employer.agent for worker in workers})
            for number, workers in self.workload.workers.items()
        }
        states = {
            agent.name: agent.driver.machine.membership.state.name  # type: ignore[attr-defined]
            for agent in self.agents
            if not agent.is_over and agent.driver is not None
        }
        return f"round → agents that work: {rounds}; agents: {states}"

    def _report(self, error: Exception) -> str:
        what = f"{type(error).__name__}: " if not isinstance(error, Violation) else ""
        again = f"python -m phalanx.testing --seed {self.seed} --trace"
        return (
            f"seed {self.seed}: {what}{error}\n(again: {again})\n{self.scenario!r}\n"
            f"the last observations:\n{self.trace.text(60)}"
        )

    def _bury(self) -> None:
        for agent in self.agents:
            agent.bury()

    # Parts

    def _stream(self, name: str) -> Random:
        """A stream of its own for each part: another fault moves no latency."""
        return Random(f"{self.seed} {name}")

    def _make_clock(self) -> NodeClock:
        rate = self.rng.uniform(*self.scenario.clock_rates)
        return NodeClock(self.timeline, rate=rate, offset=self.rng.uniform(0.0, CLOCK_OFFSET_MAX_S))

    def _make_node(self, number: int) -> Node:
        name = f"n{number}"
        return Node(self.timeline, name, self._stream(name), self._make_clock())

    def _draw_slots(self) -> int:
        return self.rng.randint(*self.scenario.slots)

    def agent_on(self, node: Node) -> SimulatedAgent | None:
        """The agent that runs there."""
        return next((one for one in reversed(self.agents) if one.node is node and not one.is_over), None)

    def start_agent(self, node: Node) -> None:
        """Start an agent, if the node can have one and the job is not over."""
        if node.is_off or node.is_suspended or self.agent_on(node) is not None or self._has_ended():
            return
        scenario = self.scenario
        name = f"{node.name}.{1 + sum(agent.node is node for agent in self.agents)}"
        settings = MembershipSettings(
            run_id=RUN_ID,
            node_id=name,
            host=node.name,
            slots=self._slots[node.name],
            min_nodes=scenario.min_nodes,
            max_nodes=scenario.max_nodes,
            boot_id=node.boot_id,
            ttl_s=scenario.ttl_s,
            last_call_s=scenario.last_call_s,
            join_timeout_s=JOIN_TIMEOUT_S,
            store_timeout_s=scenario.store_timeout_s,
            growth=scenario.growth,
            exclude_for_s=scenario.exclude_for_s,
        )
        agent = SimulatedAgent(
            name,
            node,
            settings,
            self._open_store,
            self.workload,
            self.trace,
            self._stream(name),
            restarts=scenario.restarts,
            graces=scenario.graces,
            stops_all=scenario.stops_all,
            has_single_restarts=scenario.has_single_restarts,
            has_keeper=scenario.has_keepers,
            observe=(lambda it: self.trace.add(Happened(name, it))) if self._observes else None,
        )
        agent.on_over.append(self.timeline.stop)
        self.agents.append(agent)

    async def _open_store(self, agent: SimulatedAgent) -> SimulatedStore:
        is_host = self.scenario.is_hosted and agent.node is self.nodes[0]
        if is_host and self.place.server is None:
            self.place.start(agent.node.clock, keeps_data=False)
            agent.on_over.append(self._lose_store)
        client = SimulatedStore(
            self.place,
            agent.node.name,
            self._stream(f"client of {agent.name} {len(agent.clients)}"),
            source_address=f"10.0.0.{1 + self.nodes.index(agent.node)}",
            is_host=is_host,
        )
        agent.clients.append(client)
        await client.wait_connected(OPEN_WITHIN_S)
        return client

    def _lose_store(self) -> None:
        self.place.stop()
        self.trace.add(StoreLost())

    # What faults do

    def thaw(self, agent: SimulatedAgent) -> None:
        """Let a frozen agent go on, at once or when its machine does."""
        agent.is_frozen = False
        if not agent.is_over and not agent.node.is_suspended:
            agent.thaw()

    def suspend(self, node: Node) -> None:
        """Stop a whole machine."""
        self.trace.add(Suspended(node.name))
        node.suspend()
        agent = self.agent_on(node)
        if agent is not None:
            agent.loop.freeze()
        self._freeze_hosted(node)

    def resume(self, node: Node) -> None:
        """Let it go on."""
        self.trace.add(Resumed(node.name))
        node.resume()
        agent = self.agent_on(node)
        if agent is not None and not agent.is_frozen:
            agent.loop.thaw()
        if self.place.name == node.name and self.place.server is not None:
            self.place.server.thaw()

    def lose_power(self, node: Node) -> None:
        """Switch a machine off."""
        agent = self.agent_on(node)
        node.lose_power()
        if agent is not None:
            agent.lose_power()

    def power_on(self, node: Node) -> None:
        """Switch it on again; nothing runs there."""
        node.power_on()

    def _freeze_hosted(self, node: Node) -> None:
        if self.place.name == node.name and self.place.server is not None:
            self.place.server.freeze()
