"""``python -m phalanx.testing --seeds 0:1000``: simulate, and print each seed that shows a violation."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from phalanx.testing.checking import Violation
from phalanx.testing.scenario import Scenario
from phalanx.testing.world import World


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 if any seed failed."""
    parser = argparse.ArgumentParser(prog="python -m phalanx.testing", description=__doc__)
    parser.add_argument("--seeds", default="0:100", metavar="FIRST:END", help="without END (default: 0:100)")
    parser.add_argument("--seed", type=int, help="one world")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument(
        "--failures", type=int, default=20, metavar="N", help="stop after so many (default: 20)"
    )
    parser.add_argument("--observe", action="store_true", help="check what agents tell who looks on, too")
    parser.add_argument("--trace", action="store_true", help="print every observation, with --seed")
    options = parser.parse_args(argv)
    first, _, end = options.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1)) if options.seed is None else [options.seed]
    failed: list[int] = []
    count, began = 0, time.monotonic()
    for seed in seeds:
        if len(failed) >= options.failures:
            break
        count += 1
        world = World(seed, Scenario.drawn(seed, nodes=options.nodes), observes=options.observe)
        try:
            world.run()
        except Violation as error:
            failed.append(seed)
            print(
                str(error).splitlines()[0] if not options.trace else f"{world.trace.text()}\n{error}",
                flush=True,
            )
        else:
            if options.trace:
                print(world.trace.text())
    took_s = time.monotonic() - began
    print(f"{count} worlds of {options.nodes} nodes in {took_s:.1f} s; failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
