"""Data loading in jobs whose size changes: where to go on in an epoch, and how to go through several.

Nothing here needs torch. torchelastic's sampler of the same name, which does, is ``phalanx.data.torch_sampler``.
"""

from __future__ import annotations

from phalanx import lazy

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from phalanx.data.cycling import CyclingIterator as CyclingIterator
    from phalanx.data.elastic_sampler import ElasticDistributedSampler as ElasticDistributedSampler

__getattr__, __dir__, __all__ = lazy.names(
    __name__,
    {
        "phalanx.data.cycling": "CyclingIterator",
        "phalanx.data.elastic_sampler": "ElasticDistributedSampler",
    },
)
