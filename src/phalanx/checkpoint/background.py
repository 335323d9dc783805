"""Saves that wait their turn in a thread: one after the other, in the order of the calls, so many at most.

The thread lives while there is something to save. It is no daemon: the interpreter waits for it at exit, also after
an exception in the main thread, and needs no hook for that. A forked child has no such thread and none of its saves.
What may change while a save waits was copied before: ``snapshot_of``. What cannot be copied is written before.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.checkpoint.exceptions import CheckpointError, SaveFailed, StillSaving

TYPE_CHECKING = False  # as in phalanx.errors

if TYPE_CHECKING:
    import logging
    import threading

__all__ = ["Background", "is_written_at_once", "snapshot_of"]


class Background:
    """A queue of saves with ``room`` for those that wait, beside the one that is being written.

    An error of a save is raised by the next ``make_room``, ``wait`` or ``raise_error``, once; what nobody asked for is
    logged when the interpreter exits. Safe in threads, and in signal handlers of a thread that waits here.
    """

    def __init__(self, room: int) -> None:
        if room < 1:
            raise ValueError(f"background={room}: at least one save has to have room")
        self._room = room
        self._begin()

    def _begin(self) -> None:
        """Also in a forked child, in which the parent's lock may be held by a thread that is not there."""
        import threading

        self._pid = os.getpid()
        # An RLock within: a signal handler may save while the same thread is in here.
        self._changed = threading.Condition()
        self._waiting: deque[tuple[int, Callable[[], object]]] = deque()
        self._saving: int | None = None
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def _here(self) -> threading.Condition:
        if self._pid != os.getpid():
            self._begin()
        return self._changed

    def make_room(self, *, raise_error: bool = True) -> None:
        """Wait until one more save has room; raises the error of an earlier one.

        Who is called by a save in the background would wait for itself: ``CheckpointError``.
        """
        if self._is_own_thread():
            raise CheckpointError(
                "a writer in the background cannot save by the checkpointer that has called it: it would wait for "
                "itself"
            )
        changed = self._here()
        with changed:
            changed.wait_for(lambda: len(self._waiting) < self._room or (raise_error and self._error))
        if raise_error:
            self.raise_error()

    def put(self, step: int, save: Callable[[], object]) -> None:
        """Have ``save`` called after those that were put before. Does not wait, ``make_room`` does; but where no thread
        can be started (a limit on processes, the end of the interpreter) it is done here and now, with its errors.
        """
        import threading

        with self._here():
            self._waiting.append((step, save))
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._save_all, name="phalanx-checkpoint", daemon=False)
            try:
                self._thread.start()
            except RuntimeError as error:
                self._thread = threading.current_thread()
                why = str(error)
            else:
                return
        _log().warning(
            "no thread for saves in the background (%s): step %d is saved in the foreground", why, step
        )
        self._save_all(is_thread=False)
        self.raise_error()

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until all is saved; raises the error of a save, or ``StillSaving`` when the time is over."""
        if self._is_own_thread():
            raise CheckpointError("a save in the background cannot wait for itself")
        ends_at = None if timeout_s is None else time.monotonic() + timeout_s
        changed = self._here()
        with changed:
            rest_s = None if ends_at is None else max(ends_at - time.monotonic(), 0.0)
            is_done = changed.wait_for(lambda: self._thread is None, rest_s)
            pending = [
                *([] if self._saving is None else [self._saving]),
                *(step for step, _ in self._waiting),
            ]
        self.raise_error()
        if not is_done:
            raise StillSaving(f"not saved after {timeout_s:g} s: {_steps(pending)}; the save goes on")

    def raise_error(self) -> None:
        """Raise the error of a save that nobody has been told of."""
        with self._here():
            error, self._error = self._error, None
            _forget(error)
        if error is not None:
            raise error

    def _is_own_thread(self) -> bool:
        import threading

        return self._thread is not None and threading.current_thread() is self._thread

    def _save_all(self, *, is_thread: bool = True) -> None:
        changed = self._changed
        while True:
            with changed:
                self._saving = None
                if not self._waiting:
                    self._thread = None
                    changed.notify_all()
                    return
                step, save = self._waiting.popleft()
                self._saving = step
                changed.notify_all()
            try:
                save()
            except BaseException as raised:  # noqa: BLE001 # the border: it is raised where the program can see it
                error = _of_thread(step, raised) if is_thread else raised
                with changed:
                    is_first = self._error is None
                    if is_first:
                        self._error = error
                        _remember(error)
                    changed.notify_all()
                if not is_first:
                    _say(error)
            del save  # it holds a copy of the state


def _of_thread(step: int, error: BaseException) -> BaseException:
    """What the program is to hear of. The end of a thread is not that of the program, least of all a good one."""
    if isinstance(error, Exception):
        return error
    failure = SaveFailed(f"step {step} was not saved: its writer, in the background, raised {error!r}")
    failure.__cause__ = error
    return failure


def is_written_at_once(state: object) -> bool:
    """Whether ``state`` is a callable, of which nobody can take a copy: it is called while the program waits.

    >>> is_written_at_once(print), is_written_at_once({"epoch": 1})
    (True, False)
    """
    is_object = callable(getattr(state, "snapshot", None)) or callable(getattr(state, "write", None))
    return callable(state) and not is_object and not isinstance(state, Mapping)


def snapshot_of(state: Any, part: int | None = None) -> Any:
    """What ``save`` can write later, whatever the training does to ``state`` meanwhile.

    A mapping: a copy of its entries. An object: what its ``snapshot()`` returns; of a sharded step, for the rank
    ``part``, ``snapshot_part(part)`` if it has that: no more than this rank writes. Raises ``TypeError`` for an object
    that has ``write`` but no ``snapshot``, and for one that ``is_collective``.

    >>> weights = bytearray(b"1")
    >>> copy = snapshot_of({"weights": weights, "epoch": [1]})
    >>> weights[0] = 50
    >>> copy
    {'weights': b'1', 'epoch': [1]}
    """
    name = type(state).__name__
    if getattr(state, "is_collective", False):
        raise TypeError(
            f"the ranks that write a {name} talk to each other: in the background they would meet the collectives of "
            "the training; save it in the foreground"
        )
    snapshot_part = getattr(state, "snapshot_part", None)
    if part is not None and callable(snapshot_part):
        return snapshot_part(part)
    snapshot = getattr(state, "snapshot", None)
    if callable(snapshot):
        return snapshot()
    if callable(getattr(state, "write", None)):
        raise TypeError(
            f"{name} has write() and no snapshot(): in the background it would be written while it "
            "changes; give it one, or save it in the foreground"
        )
    if isinstance(state, Mapping):
        return {name: _copy(value) for name, value in state.items()}
    return state  # who writes it says what is wrong with it


def _copy(value: Any) -> Any:
    if isinstance(value, bytes | str):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if hasattr(value, "__array_interface__"):
        return value.copy()
    from copy import deepcopy

    return deepcopy(value)


def _steps(steps: list[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"


_unclaimed: dict[int, BaseException] = {}
_unclaimed_of = 0  # the process; 0: nothing is registered


def _remember(error: BaseException) -> None:
    global _unclaimed_of  # noqa: PLW0603 # one per process
    if _unclaimed_of != os.getpid():
        import atexit

        _unclaimed.clear()
        if not _unclaimed_of:
            atexit.register(_say_unclaimed)
        _unclaimed_of = os.getpid()
    _unclaimed[id(error)] = error


def _forget(error: BaseException | None) -> None:
    _unclaimed.pop(id(error), None)


def _say_unclaimed() -> None:
    if _unclaimed_of == os.getpid():
        for error in _unclaimed.values():
            _say(error)


def _say(error: BaseException) -> None:
    _log().error("a save in the background failed: %s", error)


def _log() -> logging.Logger:
    import logging

    return logging.getLogger("phalanx.checkpoint")
