"""A simulated agent: the production driver, machines and session on a loop in virtual time, on a simulated node.

What the world can do to the process of an agent is here: start, signal, freeze and kill it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from phalanx.agent.driver import Driver
from phalanx.agent.events import JobBegan
from phalanx.agent.graces import Graces
from phalanx.agent.group import StopAsked
from phalanx.agent.machine import AgentMachine
from phalanx.agent.observer import JobObserver
from phalanx.agent.observing import Observing
from phalanx.agent.restarts.leader import leader_policy
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.single.machine import SingleAgent
from phalanx.agent.verdict.verdict import EX_UNAVAILABLE, Ending, Verdict
from phalanx.events.job import JobEvent, JobStarted
from phalanx.rendezvous.machine import MemberMachine
from phalanx.rendezvous.session import Session
from phalanx.rendezvous.settings import MembershipSettings
from phalanx.rendezvous.state import MemberState
from phalanx.store.port import Store
from phalanx.testing.checking import has_ended_alone
from phalanx.testing.loop import NodeLoop
from phalanx.testing.nodes import Keeper, Node
from phalanx.testing.processes import SimulatedProcesses
from phalanx.testing.store_client import SimulatedStore
from phalanx.testing.trace import AgentCrashed, AgentEnded, AgentStarted, StopSignalled, Trace
from phalanx.testing.workload import Workload

__all__ = ["SimulatedAgent"]

LAG_S = 0.002  # at most, from being due to running, on a machine that is not slow


class SimulatedAgent:
    """One agent process. ``name`` is ``<node>.<number>``; it marks the processes of the job on the node, too."""

    def __init__(
        self,
        name: str,
        node: Node,
        settings: MembershipSettings,
        open_store: Callable[[SimulatedAgent], Awaitable[SimulatedStore]],
        workload: Workload,
        trace: Trace,
        rng: Random,
        *,
        restarts: RestartPolicy,
        graces: Graces,
        stops_all: bool = False,
        has_single_restarts: bool = False,
        has_keeper: bool = True,
        observe: Callable[[JobEvent], object] | None = None,
    ) -> None:
        self.name = name
        self.node = node
        self.settings = settings
        self.is_frozen = False
        self.is_over = False
        self.verdict: Verdict | None = None
        self.slowness_s = LAG_S
        self.driver: Driver | None = None
        self._open_store = open_store
        self._workload = workload
        self._trace = trace
        self._graces = graces
        self._restarts = restarts
        self._stops_all = stops_all
        self._has_single_restarts = has_single_restarts
        self._observe = observe
        self._is_told_to_stop = False
        self.clients: list[SimulatedStore] = []
        """Every connection that it has made."""
        self.on_over: list[Callable[[], None]] = []
        self.loop = NodeLoop(node.timeline, node.clock, lag_s=lambda: rng.uniform(0.0, self.slowness_s))
        self.loop.set_exception_handler(self._on_loop_error)
        self._keeper = Keeper(node, name, is_gone=not has_keeper)
        self._processes: SimulatedProcesses | None = None
        trace.add(AgentStarted(name))
        self.loop.create_task(self._main())

    @property
    def has_seen_the_end(self) -> bool:
        """Whether it ended because the job did, and not only its own part."""
        verdict = self.verdict
        if verdict is None or has_ended_alone(verdict):
            return False
        if verdict.ending is Ending.STOPPED:
            return not self._is_told_to_stop
        return verdict.exit_code != EX_UNAVAILABLE or verdict.cause is not None

    @property
    def is_opening(self) -> bool:
        """Whether it looks for the store."""
        machine = None if self.driver is None else self.driver.machine
        membership = getattr(machine, "membership", None)
        return isinstance(membership, MemberMachine) and membership.state is MemberState.OPENING

    # What the world does to it

    def stop(self, signal: int) -> None:
        """Send it a stop signal; a frozen one takes it when it goes on."""
        self._is_told_to_stop = True
        self._trace.add(StopSignalled(self.name, signal))
        self.loop.call_soon(self._take_stop, signal)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.is_frozen = True
        self.loop.freeze()

    def thaw(self) -> None:
        """SIGCONT."""
        self.is_frozen = False
        self.loop.thaw()

    def kill(self) -> None:
        """SIGKILL: the kernel closes its connections, and its keeper ends the job here."""
        if self._die():
            for client in self.clients:
                client.abandon()
            self._end_job()

    def lose_power(self) -> None:
        """The node is gone: nobody is told. The node itself ends the processes."""
        self._die()

    def bury(self) -> None:
        """The world is over."""
        self.loop.bury()

    def _die(self) -> bool:
        if self.is_over:
            return False
        self._leave()
        self.loop.kill()
        self._trace.add(AgentCrashed(self.name))
        return True

    def _leave(self) -> None:
        self.is_over = True
        for callback in self.on_over:
            callback()

    def _end_job(self) -> None:
        self._keeper.agent_is_gone()
        for process in self.node.of_job(self.name):
            if process.is_worker and self._keeper.is_gone:
                process.signal(9, "its parent died")

    # Its life

    async def _main(self) -> None:
        settings = self.settings
        kind = SingleAgent if self._has_single_restarts else AgentMachine
        machine = kind(
            settings.slots,
            membership=MemberMachine(settings, leader_policy(self._restarts)),
            restarts=self._restarts,
            graces=self._graces,
            straggler_s=settings.straggler_s,
            stops_all_as=self.node.name if self._stops_all else None,
        )
        observer = None if self._observe is None else self._make_observer(self._observe)
        driver = self.driver = Driver(machine, look_first=self._look_first, observer=observer)
        session = Session(self._open, driver.post, ttl_s=settings.ttl_s, on_bug=driver.found_bug)
        processes = self._processes = SimulatedProcesses(
            self.name,
            self.node,
            self.loop,
            driver,
            self._keeper,
            self._workload,
            self._trace,
            nproc=settings.slots,
            ttl_s=settings.ttl_s,
            has_single_restarts=self._has_single_restarts,
            progressed=(lambda _: None) if observer is None else observer.progressed,
        )
        driver.bind(processes.perform, session.perform)
        driver.post(JobBegan())
        verdict = await driver.ended
        await session.aclose()
        self._end(verdict, "" if driver.bug is None else _traceback(driver.bug))

    def _make_observer(self, observe: Callable[[JobEvent], object]) -> JobObserver:
        settings = self.settings
        started = JobStarted(
            at_ns=0,
            name="train.py",
            entry_point="train.py",
            role=settings.role,
            run_id=settings.run_id,
            host=settings.host,
            backend="simulated",
            nproc=settings.slots,
            pid=1,
        )
        return JobObserver(
            Observing(started, self._restarts),
            observe,
            self._say,
            wall_ns=lambda: int(self.loop.time() * 1e9),
        )

    def _say(self, text: str) -> None:
        assert self._processes is not None
        self._processes.say(text)

    def _end(self, verdict: Verdict, last_words: str) -> None:
        assert self._processes is not None
        is_orderly = self._processes.is_empty
        self.verdict = verdict
        self._leave()
        for client in self.clients:
            client.abandon()
        self._trace.add(AgentEnded(self.name, verdict.exit_code, verdict, last_words, is_orderly))
        if is_orderly:
            self._keeper.done()
        else:
            self._end_job()

    def _look_first(self) -> list[object]:
        return [] if self._processes is None else self._processes.look_at_the_clocks()

    async def _open(self) -> Store:
        return await self._open_store(self)

    def _take_stop(self, signal: int) -> None:
        if self.driver is not None:
            self.driver.post(StopAsked(signal, self._graces.stop_s))
        else:
            self.kill()  # the default action: it has no handler yet

    def _on_loop_error(self, _loop: object, context: dict[str, Any]) -> None:
        assert self.driver is not None
        self.driver.found_bug(context["exception"], context["message"])


def _traceback(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))
