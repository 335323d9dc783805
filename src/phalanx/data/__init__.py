"""Data loading in jobs whose size changes: where to go on in an epoch, and how to go through several.

torchelastic's names. Each loads when it is used; ``ElasticDistributedSampler`` needs torch.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.data.cycling import CyclingIterator
    from phalanx.data.torch_sampler import ElasticDistributedSampler

__all__ = ["CyclingIterator", "ElasticDistributedSampler"]

_MODULES = {"CyclingIterator": "cycling", "ElasticDistributedSampler": "torch_sampler"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    found: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
