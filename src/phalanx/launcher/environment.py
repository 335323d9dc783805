"""What a launcher decides of its workers' environment: the user's variables, and a number of threads."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.agent.environment import OMP

__all__ = ["check_env", "leaves_omp_to_us"]


def leaves_omp_to_us(known: Mapping[str, str], nproc: int) -> bool:
    """Whether ``OMP_NUM_THREADS`` is ours to set: several workers would each take all CPUs for themselves."""
    return nproc > 1 and OMP not in known


def check_env(env: Mapping[str, str]) -> None:
    """Raise ``ValueError``, with a sentence, for a variable that no environment can hold."""
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            raise ValueError(
                f"env: {name[:60]!r} is no name of a variable; it is not empty, and has no = and no NUL"
            )
        if "\0" in value:
            raise ValueError(f"env: the value of {name[:60]} has a NUL in it, which no environment can hold")
