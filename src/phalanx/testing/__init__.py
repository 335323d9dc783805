"""Simulated jobs in virtual time: many agents, the production driver and machines, seeded faults, and checkers.

    from phalanx.testing import Scenario, World
    World(seed=7, scenario=Scenario(nodes=4, min_nodes=2, max_nodes=4)).run()

Nothing here is imported by the rest of the package.
"""

from __future__ import annotations

from phalanx.testing.checking import Checker, Violation
from phalanx.testing.scenario import Scenario
from phalanx.testing.world import World

__all__ = ["Checker", "Scenario", "Violation", "World"]
