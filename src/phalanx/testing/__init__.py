"""Simulated jobs in virtual time: many agents, the production driver and machines, seeded faults, and checkers.

    from phalanx.testing import World
    World(seed=7).run()

Nothing here is imported by the rest of the package.
"""
