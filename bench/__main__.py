"""`python -m bench [--quick] [name …]`: measure, and print the table. The exit code is 1 if a budget is not kept."""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import os
import platform
import sys
from collections.abc import Sequence

from bench import detection, group_restart, idle, many_workers, memory, start, tee
from bench.benchmark import Result, measure

MODULES = (start, memory, idle, detection, group_restart, tee, many_workers)
BENCHMARKS = {module.BENCHMARK.name: module.BENCHMARK for module in MODULES}


def machine() -> str:
    """What the numbers were measured on, without its name."""
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{dt.datetime.now(dt.UTC):%Y-%m-%d}, {platform.system()} {platform.machine()}, "
        f"{os.cpu_count()} cores, {memory_gib:.0f} GiB, Python {platform.python_version()}"
    )


def number(value: float) -> str:
    """Three digits, or a whole number."""
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def spread(values: Sequence[float], median: float, unit: str) -> str:
    """The median, and the least and the greatest if there are several."""
    text = f"{number(median)} {unit}"
    return (
        f"{text} ({number(min(values))} to {number(max(values))}, n={len(values)})"
        if len(values) > 1
        else text
    )


def ratio(ours: float, theirs: float) -> str:
    """How many times the other; a ratio with nothing is none."""
    if not ours or not theirs:
        return "-"
    return f"1/{theirs / ours:.3g}" if theirs > ours else f"{ours / theirs:.3g} x"


def line(result: Result) -> str:
    """One line of the Markdown table."""
    ours, theirs = result.medians
    row = result.row
    cells = (
        row.title,
        spread(result.ours, ours, row.unit),
        spread(result.theirs, theirs, row.unit),
        ratio(ours, theirs),
        row.budget.text,
        "kept" if result.is_kept else "**MISSED**",
    )
    return f"| {' | '.join(cells)} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__.splitlines()[0] if __doc__ else None
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument(
        "--quick", action="store_true", help="few runs and less data: a look, not a measurement"
    )
    options = parser.parse_args()
    if unknown := set(options.names) - BENCHMARKS.keys():
        parser.error(
            f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}"
        )
    if importlib.util.find_spec("torch") is None:
        parser.error("torchrun is measured too: install torch first (make test does)")

    def progress(text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)

    print(f"{machine()}{', quick' if options.quick else ''}; median (least to greatest, number of samples)\n")
    print("| what | Phalanx | torchrun | ratio | budget | |\n|---|---|---|---|---|---|", flush=True)
    is_kept = True
    for name in options.names or BENCHMARKS:
        for result in measure(BENCHMARKS[name], quick=options.quick, progress=progress):
            progress("")
            print(line(result), flush=True)
            is_kept = is_kept and result.is_kept
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
