"""Variables that look like one of ours, and are none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from phalanx.cli.mistakes import nearest_name
from phalanx.cli.options import OPTIONS

__all__ = ["slips"]

PREFIX = "PET_"
LIKENESS = 0.8


def slips(environ: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each ``PET_`` variable that no option reads and that is nearly the name of one.

    The prefix alone is no proof: the service ``pet-store`` of Kubernetes gives each pod a ``PET_STORE_SERVICE_HOST``.
    """
    known = {name for option in OPTIONS for name in option.variables}
    bare = sorted(name.removeprefix(PREFIX) for name in known if name.startswith(PREFIX))
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            near = nearest_name(name.removeprefix(PREFIX), bare, cutoff=LIKENESS)
            if near is not None:
                yield f"{name} has no effect: no option reads it; did you mean {PREFIX}{near}?"
