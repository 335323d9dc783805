"""How far a job is, from the file that its agents append their job events to (``--events-file``)."""

from __future__ import annotations

import contextlib
import json

__all__ = ["Progress"]


class Progress:
    """The furthest step that workers have told of, as the file says it; 0 until one did.

    Read when asked: agents write at most one such line a second. A file that is not there yet is empty. Of several jobs
    in it the last one counts; ``only_new``: that one is yet to begin.
    """

    def __init__(self, path: str, *, only_new: bool) -> None:
        self.step = 0
        self._path = path
        self._half = b""
        self._at = 0
        self._error: OSError | None = None
        if only_new:
            with contextlib.suppress(OSError), open(path, "rb") as file:
                self._at = file.seek(0, 2)

    def look(self) -> int:
        """Read what is new, and return the step."""
        self._error = None
        try:
            with open(self._path, "rb") as file:
                file.seek(self._at)
                new = file.read()
        except OSError as error:
            self._error = error
            return self.step
        self._at += len(new)
        *lines, self._half = (self._half + new).split(b"\n")
        for line in lines:
            self._take(line)
        return self.step

    def __str__(self) -> str:
        """How far that is, or what keeps it from being known."""
        if self._error is not None:
            return f"{self._path}: {self._error.strerror}"
        return f"the last one is {self.step}" if self.step else f"{self._path} has none"

    def _take(self, line: bytes) -> None:
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            match event:
                case {"event": "job_started"}:
                    self.step = 0
                case {"event": "worker_progress", "step": int(step)}:
                    self.step = max(self.step, step)
