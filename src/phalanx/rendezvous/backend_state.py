"""The state of a store that lives in somebody else's value: read, tried out on a copy, and written as JSON. Pure.

There are two machines. ``machine`` is the state as it was last seen, and has this client's watches. The other one, its
twin without watches, is where requests are tried: if what comes of it can be put into the backend, ``commit`` repeats
them on the first; if not, both take over what is there instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.records import Struct
from phalanx.store.machine import Answered, Failed, RevokeAsked, SnapshotLoaded, StoreMachine

__all__ = ["HISTORY_MAX", "BackendState", "Damaged", "Trial"]

VERSION = 1
# Every write carries the history along. 256 revisions in the half second between two looks are more than a backend
# takes; whoever falls behind further lists anew.
HISTORY_MAX = 256
STATE_BYTES_MAX = 64 * 1024 * 1024


class Damaged(ValueError):
    """The backend holds something that is no store of ours."""


class Trial(Struct):
    """What some requests would do to the state."""

    events: tuple[Any, ...]
    answers: tuple[Answered | Failed, ...]
    """Right only if the state becomes so."""
    nonce: str
    state: bytes | None
    """What is to be written; None: the requests change nothing."""


class BackendState:
    """``incarnation`` is random, of the first who wrote; empty while nothing was read or written."""

    def __init__(self) -> None:
        self.machine = StoreMachine(history_max=HISTORY_MAX)
        self.incarnation = ""
        self._twin = StoreMachine(history_max=HISTORY_MAX)
        self._bits: bytes | None = None
        self._is_twin_ahead = False

    def load(self, bits: bytes, now: float) -> list[Any]:
        """Take over what the backend holds, and return what watches are to be told.

        Raises ``Damaged`` if that is no state, ``LookupError`` if it is that of another store.
        """
        if bits == self._bits and not self._is_twin_ahead:
            return []
        incarnation, snapshot = _decode(bits)
        if self.incarnation not in ("", incarnation):
            raise LookupError(incarnation)
        try:
            self._twin.step(
                SnapshotLoaded(snapshot), 0.0
            )  # nothing ends in it by time: its clock stands still
        except ValueError as error:
            raise Damaged(str(error)) from None
        self._is_twin_ahead = False
        self.incarnation = incarnation
        if bits == self._bits:
            return []
        self._bits = bits
        return list(self.machine.step(SnapshotLoaded(snapshot), now))

    def found_nothing(self) -> None:
        """The backend holds nothing yet: what was tried has come to nothing."""
        self._twin = StoreMachine(history_max=HISTORY_MAX)
        self._is_twin_ahead = False

    def attempt(self, requests: Sequence[Any], silent: Mapping[int, int], nonce: str) -> Trial:
        """Do the requests on the twin, after the end of the ``silent`` leases: lease → renewals when it fell silent.

        ``nonce`` is random. Two clients that ask for the same at the same time must not write the same bytes: a
        backend that compares values would tell both of them that theirs was written, and both got one lease.

        Each request is answered once, under its ``caller``. After a trial with a state, ``commit`` follows, or
        ``load``, or ``found_nothing``.
        """
        leases = self._twin.leases
        ends = [
            RevokeAsked(None, number)
            for number, renewals in silent.items()
            if number in leases and leases[number].renewals == renewals
        ]
        before = _mark(self._twin)
        for event in ends:
            self._twin.step(event, 0.0)
        answers: list[Answered | Failed] = []
        for event in requests:
            commands = self._twin.step(event, 0.0)
            answers += [command for command in commands if isinstance(command, Answered | Failed)]
        state = None
        if _mark(self._twin) != before:
            self._is_twin_ahead = True
            state = _encode(self.incarnation or nonce, nonce, self._twin.snapshot())
        return Trial((*ends, *requests), tuple(answers), nonce, state)

    def commit(self, trial: Trial, now: float) -> list[Any]:
        """The backend holds the trial's state now; return what watches are to be told."""
        self.incarnation = self.incarnation or trial.nonce
        self._bits = trial.state
        self._is_twin_ahead = False
        commands = [command for event in trial.events for command in self.machine.step(event, now)]
        return [command for command in commands if not isinstance(command, Answered | Failed)]


def _mark(machine: StoreMachine) -> tuple[int, dict[int, int]]:
    """Two states of one machine with the same mark are the same."""
    return machine.revision, {number: lease.renewals for number, lease in machine.leases.items()}


def _encode(incarnation: str, nonce: str, snapshot: Mapping[str, Any]) -> bytes:
    state = {"phalanx": VERSION, "incarnation": incarnation, "write": nonce, "store": snapshot}
    return json.dumps(state, separators=(",", ":")).encode()


def _decode(bits: bytes) -> tuple[str, Mapping[str, Any]]:
    if len(bits) > STATE_BYTES_MAX:
        raise Damaged(f"{len(bits)} bytes, which is more than any job needs")
    try:
        state = json.loads(bits)
    except (ValueError, RecursionError):
        raise Damaged(
            "its value is no JSON; agents of torchrun and of Phalanx cannot be in one job"
        ) from None
    if not isinstance(state, dict) or state.get("phalanx") != VERSION:
        raise Damaged("its value was written by another program, or by another version of this one")
    incarnation, store = state.get("incarnation"), state.get("store")
    if not isinstance(incarnation, str) or not incarnation or not isinstance(store, dict):
        raise Damaged("its value is not whole")
    return incarnation, store
