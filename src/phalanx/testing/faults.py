"""Harm, drawn from the seed: who is killed, frozen, cut off or slowed down, when, and for how long."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from phalanx.testing.trace import ExclusionAsked, Fault, Healed, LetGo, Stuck
from phalanx.testing.workload import PORT_TAKEN

if TYPE_CHECKING:
    from phalanx.testing.nodes import Node, Process
    from phalanx.testing.world import World

__all__ = ["Faults"]

SIGTERM = 15
EXCLUSIONS_MAX = 2  # of one agent; each lasts twice as long as the one before


class Faults:
    """Does harm to a world at random moments until ``heal``."""

    def __init__(self, world: World, rng: Random) -> None:
        self._world = world
        self._rng = rng
        self._scenario = world.scenario
        self._is_over = False
        self._kinds = {
            "worker fails": self._worker_fails,
            "agent is killed": self._agent_is_killed,
            "node loses power": self._node_loses_power,
            "agent is frozen": self._agent_is_frozen,
            "node is suspended": self._node_is_suspended,
            "node is cut off": lambda: self._cut(both=True),
            "requests are lost": lambda: self._cut(up=True),
            "answers are lost": lambda: self._cut(down=True),
            "node is slow": self._node_is_slow,
            "store is killed": self._store_is_killed,
            "store is frozen": self._store_is_frozen,
            "node leaves": self._node_leaves,
            "node joins": self._node_joins,
            "module is missing": self._module_is_missing,
            "port is taken": self._port_is_taken,
            "process is stuck": self._process_is_stuck,
            "node is to be excluded": self._node_is_to_be_excluded,
        }
        self._exclusions: dict[str, int] = {}
        self._stuck: list[Process] = []

    def begin(self) -> None:
        """Plan the first one, if there is to be any."""
        if not self._scenario.faults:
            return
        self._world.timeline.at(self._scenario.faults_from_s, self._next)

    def heal(self) -> None:
        """Undo all of it; from now on nothing more happens."""
        self._is_over = True
        world = self._world
        world.network.heal_all()
        for node in world.nodes:
            self._resume(node)
            self._power_on(node)
        for agent in world.agents:
            agent.slowness_s = world.lag_s
            if not agent.is_over:
                agent.thaw()
        self._store_goes_on()
        self._module_is_there()
        for process in list(self._stuck):
            self._let_go(process)
        world.trace.add(Healed())
        for node in world.nodes if self._scenario.all_return else ():
            world.start_agent(node)

    def _next(self) -> None:
        if self._is_over:
            return
        kinds = [kind for kind, _ in self._scenario.faults]
        weights = [weight for _, weight in self._scenario.faults]
        self._kinds[self._rng.choices(kinds, weights)[0]]()
        self._world.timeline.after(self._rng.expovariate(1 / self._scenario.fault_every_s), self._next)

    # Whom, and for how long

    def _node(self) -> Node:
        return self._rng.choice(self._world.nodes)

    def _for_a_while_s(self) -> float:
        """From a moment to some leases, and less than what the job waits for a store."""
        longest = min(3 * self._scenario.ttl_s, self._scenario.store_timeout_s / 2)
        return self._rng.choice((0.3, 1.0)) * self._rng.uniform(0.0, longest)

    def _tell(self, kind: str, target: str) -> None:
        self._world.trace.add(Fault(kind, target))

    def _later(self, delay_s: float, undo: object, *args: object) -> None:
        def unless_healed() -> None:
            if not self._is_over:
                undo(*args)  # type: ignore[operator]

        self._world.timeline.after(delay_s, unless_healed)

    # The kinds

    def _worker_fails(self) -> None:
        healthy = [one for one in self._world.workload.live if one.is_healthy]
        if not healthy:
            return
        worker, rng = self._rng.choice(healthy), self._rng
        kind = rng.choice(("exception", "exit", "signal"))
        if kind == "exception" and self._scenario.same_exit_code is None:
            self._world.workload.tell_fault("worker fails", worker)
            message = f"ValueError: bad batch {rng.randrange(100)}"
            worker.fail(1, message=message, exit_after_s=rng.uniform(0.0, 3.0))
        else:
            code = rng.randint(2, 99) if kind == "exit" else -rng.choice((6, 9, 11))
            code = self._scenario.same_exit_code or code
            self._world.workload.tell_fault("worker fails", worker, exit_code=code)
            worker.fail(code)

    def _module_is_missing(self) -> None:
        """A file system goes, and comes back or does not: whatever is started meanwhile fails at once."""
        workload = self._world.workload
        workload.is_broken = True
        self._tell("a module is missing", "everywhere")
        if healthy := [one for one in workload.live if one.is_healthy]:
            self._rng.choice(healthy).miss_module()
        self._later(self._for_a_while_s(), self._module_is_there)

    def _module_is_there(self) -> None:
        self._world.workload.is_broken = False

    def _port_is_taken(self) -> None:
        """Somebody else has bound the port that rank 0 was given."""
        for worker in [one for one in self._world.workload.live if one.is_healthy and one.rank == 0][:1]:
            self._world.workload.tell_fault("port is taken", worker)
            worker.fail(1, message=PORT_TAKEN)

    def _process_is_stuck(self) -> None:
        """On the host of the store it would be the end of the job: that agent gives up its place, and the store."""
        world = self._world
        is_possible = [
            one
            for one in world.workload.live
            if one.is_healthy and not (self._scenario.is_hosted and one.process.node is world.nodes[0])
        ]
        if is_possible:
            process = self._rng.choice(is_possible).process
            self._tell("process is stuck", f"{process.job} pid {process.pid}")
            world.trace.add(Stuck(process.job, process.pid))
            process.is_stuck = True
            self._stuck.append(process)
            self._later(self._for_a_while_s(), self._let_go, process)

    def _let_go(self, process: Process) -> None:
        if process in self._stuck:
            self._stuck.remove(process)
            self._world.trace.add(LetGo(process.job, process.pid))
            process.let_go()

    def _node_is_to_be_excluded(self) -> None:
        healthy = [
            one
            for one in self._world.workload.live
            if one.is_healthy and self._exclusions.get(one.employer.agent, 0) < EXCLUSIONS_MAX
        ]
        if not healthy:
            return
        worker = self._rng.choice(healthy)
        agent = worker.employer.agent
        self._exclusions[agent] = self._exclusions.get(agent, 0) + 1
        self._tell("asks to be excluded", agent)
        self._world.trace.add(ExclusionAsked(agent))
        worker.employer.exclude(worker)
        if self._rng.random() < 0.5:
            self._world.workload.tell_fault("worker fails", worker)
            worker.fail(1, message="RuntimeError: CUDA error: an illegal memory access was encountered")

    def _agent_is_killed(self) -> None:
        node = self._node()
        agent = self._world.agent_on(node)
        if agent is not None:
            self._tell("agent is killed", agent.name)
            agent.kill()
            self._later(self._for_a_while_s(), self._world.start_agent, node)

    def _node_loses_power(self) -> None:
        node = self._node()
        if node.is_off:
            return
        self._tell("node loses power", node.name)
        self._world.lose_power(node)
        self._later(self._for_a_while_s(), self._power_on, node)

    def _power_on(self, node: Node) -> None:
        if node.is_off:
            self._world.power_on(node)
            self._later(self._rng.uniform(0.0, 5.0), self._world.start_agent, node)

    def _agent_is_frozen(self) -> None:
        node = self._node()
        agent = self._world.agent_on(node)
        if agent is not None and not agent.is_frozen:
            self._tell("agent is frozen", agent.name)
            agent.freeze()
            self._later(self._for_a_while_s(), self._world.thaw, agent)

    def _node_is_suspended(self) -> None:
        node = self._node()
        if not node.is_suspended and not node.is_off:
            self._world.suspend(node)
            self._later(self._for_a_while_s(), self._resume, node)

    def _resume(self, node: Node) -> None:
        if node.is_suspended:
            self._world.resume(node)

    def _cut(self, *, both: bool = False, up: bool = False, down: bool = False) -> None:
        node, network, store = self._node(), self._world.network, self._world.place.name
        if node.name == store:
            return
        self._tell(
            "cut" + " both ways" * both + " towards the store" * up + " from the store" * down, node.name
        )
        directions = [(node.name, store)] * (both or up) + [(store, node.name)] * (both or down)
        duration_s = self._for_a_while_s()
        for source, target in directions:
            network.cut(source, target)
            self._later(duration_s, network.heal, source, target)

    def _node_is_slow(self) -> None:
        node = self._node()
        agent = self._world.agent_on(node)
        self._tell("slow", node.name)
        self._world.network.slow_down(node.name, self._rng.uniform(0.0, 1.0))
        self._later(self._for_a_while_s(), self._world.network.slow_down, node.name, 0.0)
        if agent is not None:
            agent.slowness_s = self._rng.uniform(0.0, 0.5)

    def _store_is_killed(self) -> None:
        world = self._world
        if self._scenario.is_hosted:
            host = world.agent_on(world.nodes[0])
            if host is not None:
                self._tell("the store's host is killed", host.name)
                host.kill()
                self._later(self._for_a_while_s(), world.start_agent, world.nodes[0])
        elif world.place.server is not None:
            self._tell("store is killed", world.place.name)
            world.place.stop()
            self._later(self._for_a_while_s(), self._store_goes_on)

    def _store_is_frozen(self) -> None:
        server = self._world.place.server
        if server is not None and not self._scenario.is_hosted:
            self._tell("store is frozen", self._world.place.name)
            server.freeze()
            self._later(self._for_a_while_s(), self._store_goes_on)

    def _store_goes_on(self) -> None:
        world = self._world
        if world.place.server is not None:
            if not self._scenario.is_hosted:
                world.place.server.thaw()
        elif not self._scenario.is_hosted:
            world.place.start(world.store_clock, keeps_data=True)

    def _node_leaves(self) -> None:
        node = self._node()
        agent = self._world.agent_on(node)
        if agent is None or (self._scenario.is_hosted and node is self._world.nodes[0]):
            return
        self._tell("told to leave", agent.name)
        agent.stop(SIGTERM)

    def _node_joins(self) -> None:
        node = self._node()
        if not node.is_off and not node.is_suspended and self._world.agent_on(node) is None:
            self._tell("joins", node.name)
            self._world.start_agent(node)
