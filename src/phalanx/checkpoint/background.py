"""Saves that wait their turn in a thread: one after the other, in the order of the calls, so many at most.

The thread lives while there is something to save. It is no daemon: the interpreter waits for it at exit, also after
an exception in the main thread, and needs no hook for that. A forked child has no such thread and none of its saves.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from phalanx.checkpoint.exceptions import CheckpointError, SaveFailed, StillSaving

TYPE_CHECKING = False  # as in phalanx.errors

if TYPE_CHECKING:
    import logging
    import threading

__all__ = ["Background"]


class Background:
    """A queue of saves with ``room`` for those that wait, beside the one that is being written.

    An error of a save is logged when it happens, and raised by the next ``wait`` or ``raise_error``, once; of several
    the last one, with notes of the others. Safe in threads, and in signal handlers of a thread that waits here.
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
        self._errors: list[tuple[int, BaseException]] = []

    def _here(self) -> threading.Condition:
        if self._pid != os.getpid():
            self._begin()
        return self._changed

    def make_room(self) -> None:
        """Wait until one more save has room. Raises no error of an earlier one: it is no reason not to take this one.

        Who is called by a save in the background would wait for itself: ``CheckpointError``.
        """
        if self._is_own_thread():
            raise CheckpointError(
                "a writer in the background cannot save by the checkpointer that has called it: it would wait for "
                "itself"
            )
        changed = self._here()
        with changed:
            changed.wait_for(lambda: len(self._waiting) < self._room)

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
        """Raise the error of a save that nobody has been told of, with notes of the others."""
        with self._here():
            errors, self._errors = self._errors, []
        if not errors:
            return
        *others, (_, error) = errors
        for step, other in others:
            error.add_note(f"also, {_said(step, other)}")
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
                # Now, not when it is raised: that may be in an hour, or never, and then this line is all there is.
                # What a filter raises, say, is less than a wait for a thread that is gone.
                with suppress(Exception):
                    _log().error("%s; the next call raises it, if there is one", _said(step, error))
                with changed:
                    self._errors.append((step, error))
                    changed.notify_all()
            del save  # it holds a copy of the state


def _of_thread(step: int, error: BaseException) -> BaseException:
    """What the program is to hear of. The end of a thread is not that of the program, least of all a good one."""
    if isinstance(error, Exception):
        return error
    failure = SaveFailed(f"step {step} was not saved: its writer, in the background, raised {error!r}")
    failure.__cause__ = error
    return failure


def _said(step: int, error: BaseException) -> str:
    begin = f"step {step} was not saved: "
    text = str(error)
    return text if text.startswith(begin) else f"{begin}{type(error).__name__}: {text}".removesuffix(": ")


def _steps(steps: list[int]) -> str:
    return f"step{'s' if len(steps) > 1 else ''} {', '.join(map(str, steps))}"


def _log() -> logging.Logger:
    from phalanx.checkpoint.origin import log  # with logging comes threading

    return log
