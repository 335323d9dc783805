"""Which items of a dataset each rank takes, in a job whose number of ranks changes in the middle of an epoch.

An epoch is one order (``order.py``), dealt out in turn from a position on that the training loop tells. Whatever
the number of ranks, together they take the next items of that order. Needs no torch; torch's ``DataLoader`` takes it
as its ``sampler``.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sized
from operator import index

from phalanx.data.order import Order

TYPE_CHECKING = False  # typing costs 15 ms; type checkers take this for typing's own

if TYPE_CHECKING:
    from typing import Any, Literal

    Even = Literal["pad", "drop", "none"]

__all__ = ["ElasticDistributedSampler"]

_VERSION = 1  # of the state, and with it of the order that the position was counted in
_KEYS = {"version", "epoch", "position", "length", "seed", "shuffle"}
_SEEDS = 1 << 64
_LENGTHS = 1 << 48  # what Order mixes well; at one byte an item, 256 TiB
_PASSES = 3  # from one place, without a step; who looks at a batch before the loop begins has one or two


class ElasticDistributedSampler:
    """Deals the items of a dataset to ``num_replicas`` ranks, of which this one is ``rank``; by default the job's.

    ``dataset_or_length`` is a dataset with a length, or the length itself. The order is a function of ``seed``, epoch
    and length alone (or ``range(length)`` without ``shuffle``). Rank r of W takes what stands at ``position`` + r,
    + r + W, + r + 2 W…, so that in each step all ranks together take the next items of the order, for any W.

    ``position`` is how many items all ranks together have trained on in this epoch. The training loop tells it with
    ``advance``, after each step, because loaders read ahead; ``start_index`` is the one to begin with, of all ranks,
    too. ``state_dict`` has it, and is the same on all ranks; it warns (``RuntimeWarning``, once) if items were taken
    and ``advance`` was never called.

    At the end of an epoch up to W - 1 items may not suffice for all ranks. ``even="pad"`` fills up from the beginning
    of the epoch, ``"drop"`` leaves these items out, ``"none"`` gives them to some ranks only: then ranks may differ by
    one item, and a collective operation in each step would wait for ever. ``drop_last=True``, torch's word, is
    ``even="drop"``.

    This is not torchelastic's sampler of the same name (``phalanx.data.torch_sampler``): the order is another one, and
    what comes behind ``start_index`` is not shuffled anew.

    Raises ``ValueError`` for values out of range, ``TypeError`` for what has no length or is no whole number.

    >>> sampler = ElasticDistributedSampler(10, num_replicas=2, rank=0, shuffle=False)
    >>> sampler.advance(4)  # two steps of two items
    >>> list(sampler), len(sampler)
    ([4, 6, 8], 3)
    >>> grown = ElasticDistributedSampler(10, num_replicas=3, rank=2, shuffle=False)
    >>> grown.load_state_dict(sampler.state_dict())
    >>> list(grown)
    [6, 9]
    """

    def __init__(
        self,
        dataset_or_length: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        start_index: int = 0,
        *,
        shuffle: bool = True,
        seed: int = 0,
        even: Even = "pad",
        drop_last: bool = False,
    ) -> None:
        self.length = _length(dataset_or_length)
        self.num_replicas, self.rank = _place(num_replicas, rank)
        start_index, seed = _whole(start_index, "start_index"), _whole(seed, "seed")
        if not 0 <= start_index <= self.length:
            raise ValueError(
                f"start_index {start_index} is no place in a dataset of {self.length}; write 0 to {self.length}"
            )
        if not 0 <= seed < _SEEDS:
            raise ValueError(f"seed {seed} is out of range; write 0 to 2^64 - 1")
        if even not in ("pad", "drop", "none"):
            raise ValueError(f'even {even!r} is not known; write "pad", "drop" or "none"')
        if drop_last and even == "none":
            raise ValueError('drop_last=True and even="none" say two things; give one of them')
        self.shuffle = shuffle
        self.seed = seed
        self.even: Even = "drop" if drop_last else even
        self._epoch = 0
        self._position = start_index
        self._taken = 0  # of the items that this rank's iterators gave, until the loop first tells a position
        self._is_told = False
        self._is_warned = False
        # By this process: an epoch that was loaded at its end is not asked for by mistake.
        self._used_up = False
        self._passes = 0  # that this rank has gone through from this position, where they say something

    @property
    def epoch(self) -> int:
        """The epoch that is being gone through; after ``load_state_dict`` the one to go on with."""
        return self._epoch

    @property
    def position(self) -> int:
        """How many items of this epoch all ranks together have trained on."""
        return self._position

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``; to be called before each pass, on every rank.

        The epoch in which the sampler already is goes on from its position, so that a loop may begin with ``epoch``
        after a state was loaded, and an interrupted pass is taken up. When this process has gone through all of it,
        the same epoch begins again.
        """
        epoch = _whole(epoch, "an epoch")
        if not 0 <= epoch < _SEEDS:
            raise ValueError(f"epoch {epoch} is out of range; write 0 or more")
        if epoch != self._epoch or self._used_up:
            self._position = self._passes = 0
        self._epoch = epoch
        self._used_up = False

    def advance(self, samples: int) -> None:
        """All ranks together have trained on ``samples`` more items: the global batch, also in the epoch's last step.

        What goes beyond the end of the epoch does not count. Iterators that are under way are not changed.
        """
        samples = _whole(samples, "a number of samples")
        if samples < 0:
            raise ValueError(f"advance({samples}) goes back; load_state_dict does that")
        self._is_told = True
        if samples:
            self._position = min(self.length, self._position + samples)
            self._passes = 0
            self._used_up = self._is_at_end()

    def __len__(self) -> int:
        """How many items this rank takes, from the position to the end of the epoch."""
        left = self.length - self._position
        if self.even == "pad":
            return (left + self.num_replicas - 1) // self.num_replicas
        if self.even == "drop":
            return left // self.num_replicas
        return max(0, left + self.num_replicas - 1 - self.rank) // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """This rank's items, from the position to the end of the epoch.

        Raises ``RuntimeError`` if ``advance`` has reached the end and nobody has begun another epoch since: a pass over
        nothing would look like an epoch. Where only the loader knows that too little is left (its own ``drop_last``),
        some passes are empty before that is seen, and never where no step was told since a state was loaded.
        """
        if self._used_up or self._is_in_vain():
            what = "no items left" if self._is_at_end() else f"got no further in {self._passes} passes"
            used = "all" if self._position == self.length else f"{self._position} of"
            raise RuntimeError(
                f"epoch {self._epoch} has {what}, {used} {self.length} are used; call set_epoch({self._epoch + 1})"
                f" before the next pass"
            )
        # Not a generator itself: the state counts as it is now, not as it is when the first item is asked for.
        return self._dealt(
            Order(self.seed, self._epoch, self.length) if self.shuffle else None,
            range(
                self._position + self.rank,
                self._position + self.rank + len(self) * self.num_replicas,
                self.num_replicas,
            ),
            (self._epoch, self._position),
        )

    def _is_at_end(self) -> bool:
        """Whether too little is left for each rank to get an item."""
        left = self.length - self._position
        return left < (self.num_replicas if self.even == "drop" else 1)

    def _is_in_vain(self) -> bool:
        """Whether one more pass from this position would train on nothing, as those before it: a loader that drops its
        last batch leaves a rest that no step takes, and does not tell. Who never tells a position has whole passes.
        """
        return self._position > 0 and self._passes >= _PASSES

    def _dealt(self, order: Order | None, places: range, began: tuple[int, int]) -> Iterator[int]:
        for place in places:
            # Beyond the end there is padding: the epoch's own beginning, as often as it takes.
            within = place if place < self.length else place % self.length
            self._taken += 1
            yield within if order is None else order.at(within)
        self._passes += began == (self._epoch, self._position) and (self._is_told or not places)

    def state_dict(self) -> dict[str, Any]:
        """Epoch and position, and what they were counted in: numbers only, for JSON. The same for all ranks."""
        if self._taken and not self._is_told and not self._is_warned:
            self._is_warned = True
            warnings.warn(
                f"the sampler's state is saved with position {self._position}, though {self._taken} items were taken on"
                " this rank and advance() was never called: a job that is resumed from it would train on them again;"
                " call sampler.advance(global_batch) after each step, on every rank",
                RuntimeWarning,
                stacklevel=2,
            )
        return {
            "version": _VERSION,
            "epoch": self._epoch,
            "position": self._position,
            "length": self.length,
            "seed": self.seed,
            "shuffle": self.shuffle,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned, in a job of any number of ranks.

        Raises ``ValueError`` if that was over a dataset of another length or in another order: its position would
        mean other items here. The sampler is then as before.
        """
        version = state.get("version")
        if version != _VERSION:
            raise ValueError(
                f"a sampler's state of version {version!r} is not known here, only {_VERSION}; it was not saved by"
                f" this class, or by a later release"
            )
        if lacking := _KEYS - state.keys():
            raise ValueError(
                f"the sampler's state has no {', '.join(sorted(lacking))}; it is not a whole one"
            )
        for name, mine in (("length", self.length), ("seed", self.seed), ("shuffle", self.shuffle)):
            if state[name] != mine:
                raise ValueError(
                    f"the sampler's state was saved with {name} {state[name]!r}, and here {name} is {mine!r}: its"
                    f" position {state['position']} would mean other items; make the sampler as it was,"
                    f" or begin an epoch without the state"
                )
        epoch, position = state["epoch"], state["position"]
        if not (_is_place(epoch, _SEEDS - 1) and _is_place(position, self.length)):
            raise ValueError(
                f"the sampler's state has epoch {epoch} and position {position}, which are no places"
            )
        self._epoch, self._position, self._used_up, self._passes = epoch, position, False, 0


def _length(given: Sized | int) -> int:
    if hasattr(given, "__index__") and not hasattr(given, "__len__"):  # tensors have both
        length = _whole(given, "the number of items")
    else:
        try:
            length = len(given)
        except TypeError:
            raise TypeError(
                f"{type(given).__name__} has no length, so its items cannot be dealt to ranks; give the number of items"
            ) from None
    if not 0 <= length < _LENGTHS:
        raise ValueError(f"a dataset of {length} items is out of range; write 0 to 2^48 - 1")
    return length


def _whole(value: Any, what: str) -> int:
    """``value`` as an ``int``, which numpy's numbers are not: its own overflow, and JSON does not take them."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} is a whole number, not {value!r}")
    return index(value)


def _is_place(value: object, last: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= last


def _place(num_replicas: int | None, rank: int | None) -> tuple[int, int]:
    """How many ranks there are, and which of them this is: as given, as the launcher says, as torch says, or alone."""
    if num_replicas is None or rank is None:
        from phalanx.errors.ranks import own_ranks

        own = own_ranks()
        num_replicas = own.world_size if num_replicas is None else num_replicas
        rank = own.rank if rank is None else rank
    num_replicas, rank = _whole(num_replicas, "num_replicas"), _whole(rank, "rank")
    if num_replicas < 1 or not 0 <= rank < num_replicas:
        raise ValueError(f"rank {rank} is none of {num_replicas}; ranks are 0 to num_replicas - 1")
    return num_replicas, rank
