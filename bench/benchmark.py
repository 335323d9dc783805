"""What a benchmark is: rows of numbers, a way to sample them under any launcher, and a budget for each row."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

from bench.launchers import PHALANX, TORCHRUN, Launcher

Samples = dict[str, list[float]]  # by the key of a row


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """A bound on our median; `is_kept` gets ours and torchrun's."""

    text: str
    is_kept: Callable[[float, float], bool]


def at_most(bound: float, unit: str) -> Budget:
    """Our value is bounded whatever torchrun needs."""
    return Budget(f"≤ {bound:g} {unit}".rstrip(), lambda ours, _theirs: ours <= bound)


def at_most_of_torchrun(parts: float) -> Budget:
    """Ours is at most torchrun's divided by `parts`."""
    return Budget(f"≤ 1/{parts:g} of torchrun's", lambda ours, theirs: ours * parts <= theirs)


def at_least_times_torchrun(times: float) -> Budget:
    """Ours is at least `times` torchrun's."""
    return Budget(f"≥ {times:g} x torchrun's", lambda ours, theirs: ours >= times * theirs)


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    key: str
    title: str
    unit: str
    budget: Budget


@dataclasses.dataclass(frozen=True, slots=True)
class Benchmark:
    """
    `sample(launcher)` runs one job and returns at least one number for each row.

    `runs` and `quick_runs` say how many pairs of jobs are run; `warm_up` that a first pair is thrown away.
    `quick_sample` is a smaller job for a quick look.
    """

    name: str
    rows: tuple[Row, ...]
    sample: Callable[[Launcher], Samples]
    runs: int
    quick_runs: int = 1
    warm_up: bool = True
    quick_sample: Callable[[Launcher], Samples] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A row and all that was measured for it."""

    row: Row
    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def medians(self) -> tuple[float, float]:
        """Ours and torchrun's."""
        return statistics.median(self.ours), statistics.median(self.theirs)

    @property
    def is_kept(self) -> bool:
        """Whether the budget is."""
        return self.row.budget.is_kept(*self.medians)


def measure(benchmark: Benchmark, *, quick: bool, progress: Callable[[str], None]) -> list[Result]:
    """Run pairs of jobs, each pair in the other order than the one before it, so that drift meets both alike."""
    samples: dict[str, Samples] = {launcher.name: {} for launcher in (PHALANX, TORCHRUN)}
    runs = benchmark.quick_runs if quick else benchmark.runs
    run = (quick and benchmark.quick_sample) or benchmark.sample
    for number in range(-1 if benchmark.warm_up else 0, runs):
        pair = (PHALANX, TORCHRUN) if number % 2 == 0 else (TORCHRUN, PHALANX)
        for launcher in pair:
            progress(
                f"{benchmark.name}: {'warm-up' if number < 0 else f'{number + 1} of {runs}'}, {launcher.name}"
            )
            sample = run(launcher)
            if number >= 0:
                for key, values in sample.items():
                    samples[launcher.name].setdefault(key, []).extend(values)
    ours, theirs = samples[PHALANX.name], samples[TORCHRUN.name]
    return [Result(row, ours[row.key], theirs[row.key]) for row in benchmark.rows]
