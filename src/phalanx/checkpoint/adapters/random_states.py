"""The random states of a rank: Python's, numpy's, torch's on the CPU and on the rank's own device."""

from __future__ import annotations

import random
import sys
from typing import Any

from phalanx.errors.ranks import own_ranks

__all__ = ["get", "is_own", "put", "put_derived"]


def get() -> dict[str, Any]:
    """The states as they are now, and whose they are, in what ``torch.load(weights_only=True)`` takes.

    numpy's is its old global one (``numpy.random.seed``), if numpy is imported; generators that a program made itself
    are its own to save.
    """
    import torch

    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    states["rank"] = own_ranks().rank
    if "numpy" in sys.modules:
        import numpy as np

        states["numpy"] = _without_arrays(np.random.get_state(legacy=False))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()  # of the current device alone: others are other ranks'
    return states


def is_own(states: dict[str, Any], rank: int) -> bool:
    """Whether they are those of ``rank``, which this process is, also by what its launcher says."""
    return states.get("rank") == rank == own_ranks().rank


def put(states: dict[str, Any]) -> None:
    """Make them the states of this process. What is not there (another machine's device) is left out."""
    import torch

    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    torch.set_rng_state(states["torch"])
    if "numpy" in states and _has_numpy():
        import numpy as np

        np.random.set_state(_with_arrays(states["numpy"]))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def put_derived(states: dict[str, Any], rank: int) -> None:
    """Begin new streams of random numbers, which follow from another rank's ``states`` and from ``rank``.

    For a rank whose own states nobody saved. Another rank's, as they are, would make both of them draw the same dropout
    masks and augmentations; fresh ones would make two resumes of the same step differ; a fixed seed would give each
    resume the same numbers again.
    """
    import hashlib

    import torch

    digest = hashlib.sha256(f"phalanx random states of rank {rank}:".encode())
    digest.update(repr(states["python"]).encode())
    digest.update(bytes(states["torch"].tolist()))
    seed = digest.digest()
    random.seed(int.from_bytes(seed, "little"))
    torch.manual_seed(
        int.from_bytes(seed[:8], "little") >> 1
    )  # torch takes 63 bits everywhere; CUDA's is seeded, too
    if "numpy" in states and _has_numpy():
        import numpy as np

        np.random.seed([int.from_bytes(seed[at : at + 4], "little") for at in range(8, 32, 4)])


def _has_numpy() -> bool:
    from importlib.util import find_spec

    return "numpy" in sys.modules or find_spec("numpy") is not None


def _without_arrays(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _without_arrays(value) for key, value in state.items()}
    # The Mersenne twister's key, and what else a bit generator of numpy's keeps in an array.
    return {"array": state.tolist(), "dtype": state.dtype.str} if hasattr(state, "tolist") else state


def _with_arrays(state: Any) -> Any:
    if not isinstance(state, dict):
        return state
    if state.keys() == {"array", "dtype"}:
        import numpy as np

        return np.array(state["array"], dtype=state["dtype"])
    return {key: _with_arrays(value) for key, value in state.items()}
