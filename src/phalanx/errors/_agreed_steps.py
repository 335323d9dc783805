"""What should_stop and should_checkpoint do with a step: the questions of ``_step_agreement``, asked of the agent.

Nothing raises, and nothing waits for another rank. A question waits for the own agent and the job's store, together
up to ten seconds in one call, one second after a call in which it did so in vain, and up to a minute where going on
could split the ranks.
"""

from __future__ import annotations

import os
import time

from ._channel_protocol import AGREEMENTS, CAUSES_WITHOUT_A_STEP, STOP
from ._connection import Connection, value_of
from ._step_agreement import COMPARE_SET, COUNT, StepAgreement

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from typing import Any

    from . import channel
    from .ranks import Ranks

__all__ = ["AgreedSteps"]

# Of a store that is out of reach: what a call waits for answers, and what one waits after a call that had none. A rank
# that goes on without an answer may pass the step on which the others agree, and then they act without it. So where
# that can be, it asks again for as long as a node can live without the store, while it is not told to stop.
_CALL_S = 10.0
_AGAIN_S = 1.0
_PATIENCE_S = 60.0


class AgreedSteps:
    """Two agreements: on a step to stop at, and on steps for checkpoints. ``path`` is the agent's socket."""

    def __init__(self, client: channel._Client, path: str, ranks: Ranks) -> None:
        import _thread

        self._client = client
        self._path = path
        self._lock = _thread.RLock()
        self._is_asking = False  # within the lock
        # At which step it was True last, and in which thread.
        self._acted: dict[StepAgreement, tuple[int, int]] = {}
        self._connection: Connection | None = None
        self._rank = ranks.rank
        who = ranks.world_size, ranks.rank, _new_name()
        self._stop = StepAgreement(f"{AGREEMENTS}{STOP}", *who)
        self._checkpoint = StepAgreement(f"{AGREEMENTS}checkpoint", *who)
        self._is_stopped = False
        self._stops_at: float | None = None  # if the ranks do not agree before
        self._timed: dict[str, Any] | None = None  # the stop that this time is of
        self._has_values = True
        self._was_silent = False
        self._said: set[str] = set()

    @property
    def is_open(self) -> bool:
        """Whether something is to be asked about checkpoints."""
        return self._checkpoint.is_open

    def should_stop(self, step: int, margin: int) -> bool:
        """Whether the agreed step has come; the agent has told of a stop before."""
        if not self._is_stopped:
            self._stop.hear(STOP)
            # The time is looked at first, and bounds the question: it may be the store's silence that ends this worker.
            if self._has_no_time() or self._at(self._stop, step, margin) or self._has_no_time():
                self._is_stopped = True  # in whichever thread
        return self._is_stopped

    def should_checkpoint(self, step: int, margin: int) -> bool:
        """Whether the agreed step has come, of a checkpoint or of a stop."""
        client = self._client
        if client.stop is not None and self.should_stop(step, margin):
            return True
        try:
            while True:  # not as long as there are some: another thread may take the last one
                self._checkpoint.hear(client.requests.popitem()[0])
        except KeyError:
            pass
        if not self._at(self._checkpoint, step, margin):
            return False
        client.acted_at = step
        client.wanted &= self._checkpoint.open
        return True

    def close(self) -> None:
        """Without a word to the agent."""
        if self._connection is not None:
            self._connection.socket.close()
            self._connection = None

    def _has_no_time(self) -> bool:
        stop = self._client.stop
        assert stop is not None, "the agent told of it"
        if stop.get("cause") in CAUSES_WITHOUT_A_STEP or not self._has_values or self._stop.missed:
            return True
        if self._stops_at is None or stop is not self._timed:  # told again, because less time is left
            said_at, grace_s = stop.get("monotonic_ns"), stop.get("grace_s")
            now = time.monotonic()
            begun = min(said_at / 1e9, now) if isinstance(said_at, int) else now
            at = begun + (grace_s / 2 if isinstance(grace_s, int | float) else 0.0)
            self._stops_at = at if self._stops_at is None else min(self._stops_at, at)
            self._timed = stop
        return time.monotonic() >= self._stops_at

    def _at(self, agreed: StepAgreement, step: int, margin: int) -> bool:
        """Whether the step has come: for one step the same in all threads, or some would act one step late.

        In a signal handler that interrupts a call it is False: the question has an answer already under way.
        """
        if not self._has_values or not self._is_my_turn(agreed):
            return False
        try:
            if self._is_asking:
                return False
            at, thread = self._acted.get(agreed, (None, 0))
            if at is not None and (agreed is self._stop or (at == step and thread != _this_thread())):
                return True
            self._is_asking = True
            try:
                has_come = agreed.is_open and self._ask_patiently(agreed, step, margin)
                if has_come:
                    self._acted[agreed] = step, _this_thread()
            except BaseException:
                # Of a handler of the script: an answer may be under way, and is not the next one's.
                self.close()
                raise
            finally:
                self._is_asking = False
            return has_come
        finally:
            self._lock.release()

    def _is_my_turn(self, agreed: StepAgreement) -> bool:
        """Take the lock; its thread may ask as patiently as we would, and its answer is ours, too."""
        give_up_at = time.monotonic() + _PATIENCE_S + _CALL_S
        wait_s = _CALL_S
        while not self._lock.acquire(timeout=wait_s):
            if time.monotonic() >= give_up_at or self._has_other_cares(agreed):
                return False
            wait_s = _AGAIN_S
        return True

    def _ask_patiently(self, agreed: StepAgreement, step: int, margin: int) -> bool:
        patient_until = time.monotonic() + _PATIENCE_S
        try:
            while True:
                try:
                    return self._ask(agreed, int(step), int(margin))
                except OSError as reason:  # NoAgent is one
                    self._was_silent = True
                    self.close()
                    self._say(f"cannot ask at which step all ranks act, and goes on to try: {reason}")
                    is_harmless = agreed.may_pass(step) or not isinstance(reason, TimeoutError)
                    if is_harmless or time.monotonic() >= patient_until or self._has_other_cares(agreed):
                        return False
        except ValueError as reason:
            self._has_values = False
            self._say(f"cannot agree with the other ranks on a step: {reason}")
        except Exception as reason:  # noqa: BLE001 # a border: training goes on whatever is wrong with the channel
            self.close()
            self._say(f"could not agree with the other ranks on a step: {type(reason).__name__}: {reason}")
        return False

    def _has_other_cares(self, agreed: StepAgreement) -> bool:
        """Whether a stop ends the wait of a rank that may not pass its step: told meanwhile, or with no time left."""
        return self._client.is_told_to_stop() and (agreed is not self._stop or self._has_no_time())

    def _ask(self, agreed: StepAgreement, step: int, margin: int) -> bool:
        is_brief = self._was_silent and agreed.may_pass(step)
        ends_at = time.monotonic() + (_AGAIN_S if is_brief else _CALL_S)
        if self._stops_at is not None:
            ends_at = min(ends_at, self._stops_at)
        call, answer = agreed.at(step, margin), None
        try:
            while True:
                answer = self._answer(call.send(answer), ends_at)
                self._was_silent = False
        except StopIteration as end:
            if agreed.missed:
                at, here = agreed.missed
                self._say(
                    f"came to step {here} before it heard that all ranks were to act at step {at}, and does not: "
                    "the job's store did not answer in time (a larger margin of should_stop and should_checkpoint "
                    "outlasts a longer silence), or this process began after the others had agreed"
                )
            return bool(end.value)

    def _answer(self, question: tuple[Any, ...], ends_at: float) -> Any:
        kind, key, *texts = question
        request: dict[str, Any] = {"type": kind, "key": key}
        if kind == COUNT:
            request["amount"] = 1
        elif kind == COMPARE_SET:
            request["expected"], request["desired"] = map(_packed, texts)
        else:
            request["wait_s"] = 0.0
        rest_s = max(ends_at - time.monotonic(), 0.001)
        if self._connection is None:
            self._connection = Connection(self._path, rest_s)
        answer = value_of(self._connection.answers([request], rest_s, rest_s)[0])
        return answer if kind == COUNT or answer is None else _unpacked(answer)

    def _say(self, sentence: str) -> None:
        kind = sentence[:20]
        if kind not in self._said:
            self._said.add(kind)
            import logging

            logging.getLogger("phalanx").warning("rank %d %s", self._rank, sentence)


def _this_thread() -> int:
    from _thread import get_ident

    return get_ident()


def _new_name() -> str:
    """No other process of this rank has it, nor had one that has ended."""
    return f"{os.getpid()} {os.urandom(4).hex()}"


def _packed(text: str | None) -> str | None:
    from ._values import _base64

    return None if text is None else _base64(text)


def _unpacked(value: str) -> str:
    from ._values import _bytes_of

    return (_bytes_of(value) or b"").decode()
