"""An agent's machine and driver with somebody who looks on, without processes and without a store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

from phalanx.agent.driver import Driver
from phalanx.agent.graces import Graces
from phalanx.agent.group import Say
from phalanx.agent.machine import AgentMachine
from phalanx.agent.observer import JobObserver
from phalanx.agent.observing import Observing
from phalanx.agent.restarts.leader import leader_policy
from phalanx.agent.restarts.policy import RestartPolicy
from phalanx.agent.verdict.verdict import EX_BUG, Ending, Verdict
from phalanx.events.job import JobEvent, JobStarted
from phalanx.rendezvous.machine import MemberMachine
from phalanx.rendezvous.settings import MembershipSettings


def observed() -> Observing:
    started = JobStarted(
        at_ns=0,
        name="t.py",
        entry_point="python",
        role="r",
        run_id="7",
        host="h",
        backend="c10d",
        nproc=1,
        pid=4,
    )
    return Observing(started, RestartPolicy())


class AgentMachineOf:
    """Make it in a running loop; `said` are the lines for people."""

    FAILED: ClassVar[Verdict] = Verdict(ending=Ending.FAILED, exit_code=EX_BUG)

    def __init__(self, observe: Callable[[JobEvent], object]) -> None:
        self.said: list[str] = []
        self.observer = JobObserver(observed(), observe, self.said.append)
        settings = MembershipSettings(run_id="7", node_id="n", host="h", slots=1, min_nodes=1, max_nodes=1)
        machine = AgentMachine(
            1,
            membership=MemberMachine(settings, leader_policy(RestartPolicy())),
            restarts=RestartPolicy(),
            graces=Graces.alike(30.0),
        )
        self.driver = Driver(machine, observer=self.observer)
        say: dict[type, Callable[[Any], None]] = {Say: lambda command: self.said.append(command.text)}
        self.driver.bind(say)
        assert asyncio.get_running_loop().is_running()
