"""At which step all ranks of a round do the same: one rank's part in the agreements of one kind. Pure.

It is what ``should_stop(step)`` and ``should_checkpoint(step)`` decide by. Each call of ``at`` is a generator of
questions to the values of the round (``phalanx.values``), named as in ``checkpoint/agreement.py``; no call waits for
another rank. Why it is right however far ranks are apart, and what breaks it: decision 0026.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable
    from typing import Any

__all__ = ["COMPARE_SET", "COUNT", "HEAR", "NOW", "StepAgreement", "first_line_of", "stopped_now"]

COUNT, COMPARE_SET, HEAR = "add", "compare_set", "get"
"""Questions. ``(COUNT, key)`` adds one and has the sum; ``(COMPARE_SET, key, expected, desired)`` and ``(HEAR, key)``
have the text that is there then, or None."""

NOW = -math.inf
"""Stands for the step where no rank is to wait for another any more: one of them has ended."""

_OPEN, _AT, _NOW = "open", "at", "now"


class StepAgreement:
    """Requests are known by ids that are the same on all ranks; ids that come in any order, or twice, do no harm.

    Agreements follow each other: number ``k`` is under ``<prefix>/<k>``. Its ``line`` is ``open <step>`` until there is
    a decision, and then ``at <step>`` for ever, each with the requests that it is about. The step of an open line only
    grows. No rank that has joined passes a step beyond it, so the decision, a later step, is ahead of all. Steps are
    any whole numbers that grow.

    ``process`` is the name of this process: a second one with the same ``rank`` takes part, and is not counted.
    """

    def __init__(self, prefix: str, world_size: int, rank: int = 0, process: str = "") -> None:
        self._prefix = prefix
        self._world_size = world_size
        self._rank = rank
        self._process = process
        self._number = 0
        self._open: dict[str, None] = {}  # requests that are not covered, as they were heard
        self._covered: set[str] = set()
        self._line: str | None = None  # as it was last seen
        self._joined = False
        self._may_be_last = False  # the last to join; or an answer that was lost may have said so
        self._last: int | None = None  # the step of the last call since we joined
        self._before = 0  # and the step before that
        self._decided: float | None = None
        self.missed: tuple[float, int] | None = None
        """(agreed, own): this rank went on without an answer, and the agreed step was past."""

    @property
    def is_open(self) -> bool:
        """A request is known that no agreement has covered yet, or one that does has not come to its step."""
        return bool(self._open) or self._joined

    @property
    def open(self) -> set[str]:
        """The requests that no agreement has covered yet."""
        return set(self._open)

    def may_pass(self, step: int) -> bool:
        """Whether this rank may go on from ``step`` without an answer: no decision can be at it, or before it."""
        return not self._joined or step <= _read(self._line)[1]

    def hear(self, request: str) -> None:
        """The agent of this rank told of a request."""
        if request not in self._covered:
            self._open[request] = None

    def at(self, step: int, margin: int) -> Generator[tuple[Any, ...], Any, bool]:
        """Whether ``step``, where this rank is, is the first one at or after the step that was agreed on.

        One question per call; a few in the call that joins. An exception that is thrown in ends the call, not the
        agreement: who does not hear the sum counts as having joined, because a second time would count twice.
        """
        while self.is_open:
            if self._world_size == 1:
                self._next(self._open)
                return True
            # Who joins in this call has passed nothing: an agreement of this step or an earlier one is not its own.
            if step != self._last:  # else it is asked again, and has not passed it
                self._before, self._last = (step if self._last is None else self._last), step
            if self._decided is None:
                yield from self._ask(_key(self._prefix, self._number), step, step + max(margin, 1) - 1)
            if self._decided is None or step < self._decided:
                return False
            agreed, before = self._decided, self._before
            self._next(())
            if agreed == NOW or before < agreed:
                return True
            self.missed = (agreed, step)
        return False

    def _ask(self, key: str, step: int, ahead: int) -> Generator[tuple[Any, ...], Any, None]:
        """Learn the decision, or see to it that it will be later than ``step``; ``ahead``: write so many at once."""
        is_heard = False
        while True:  # others write at the same time; each turn of it is somebody's success
            decided, furthest, requests = _read(self._line)
            if decided:
                return self._take()
            wanted = _line(_OPEN, furthest if step <= furthest else ahead, [*requests, *self._open])
            if wanted == self._line and is_heard:
                break
            same = wanted == self._line
            self._line = yield (
                (HEAR, _line_of(key)) if same else (COMPARE_SET, _line_of(key), self._line, wanted)
            )
            is_heard = True
        if not self._joined:
            counted = yield (COMPARE_SET, f"{key}/ranks/{self._rank}", None, self._process)
            self._joined = True
            if counted == self._process:  # no other process stands for this rank
                self._may_be_last = True  # unless the sum says that others are to come
                self._may_be_last = (yield (COUNT, f"{key}/ranks")) >= self._world_size
        elif self._may_be_last and int((yield (HEAR, f"{key}/ranks")) or 0) < self._world_size:
            return
        if self._may_be_last:
            yield from self._decide(key, ahead)

    def _decide(self, key: str, ahead: int) -> Generator[tuple[Any, ...], Any, None]:
        """All have joined, and so look at the line before they pass what it says: it can be the decision."""
        while not _read(self._line)[0]:
            _, furthest, requests = _read(self._line)
            wanted = _line(_AT, max(furthest, ahead) + 1, requests)
            self._line = yield (COMPARE_SET, _line_of(key), self._line, wanted)
        self._take()

    def _take(self) -> None:
        _, self._decided, requests = _read(self._line)
        self._cover(requests)

    def _cover(self, requests: Iterable[str]) -> None:
        for one in list(requests):
            self._covered.add(one)
            self._open.pop(one, None)

    def _next(self, requests: Iterable[str]) -> None:
        self._cover(requests)
        self._number += 1
        self._joined = self._may_be_last = False
        self._line = self._decided = self._last = None


def first_line_of(prefix: str) -> str:
    """The key of the line of the first agreement: of the only one, where there is one request."""
    return _line_of(_key(prefix, 0))


def stopped_now(line: str | None, request: str) -> str | None:
    r"""What is to replace the line where some rank comes to no step any more; None: there is a decision.

    >>> stopped_now(None, "stop"), stopped_now("open 7", "stop"), stopped_now("at 9", "stop")
    ('at now\nstop', 'at now\nstop', None)
    """
    return None if _read(line)[0] else _line(_AT, _NOW, [request])


def _key(prefix: str, number: int) -> str:
    return f"{prefix}/{number}"


def _line_of(key: str) -> str:
    return f"{key}/line"


def _read(line: str | None) -> tuple[bool, float, list[str]]:
    """Whether it is decided, the step, and the requests."""
    if line is None:
        return False, NOW, []
    first, *requests = line.split("\n")
    word, _, step = first.partition(" ")
    return word == _AT, NOW if step == _NOW else int(step), requests


def _line(word: str, step: float | str, requests: Iterable[str]) -> str:
    return "\n".join((f"{word} {step}", *dict.fromkeys(requests)))
