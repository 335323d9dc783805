"""How far the workers of a round have come, as they tell it. Pure."""

from __future__ import annotations

__all__ = ["Progress"]


class Progress:
    """The furthest of all workers of this node in one round; None: nobody has told."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.checkpoint: int | None = None

    def made(self, step: int) -> None:
        """A worker has come to this step."""
        self.step = step if self.step is None else max(step, self.step)

    def checkpoint_done(self, step: int) -> None:
        """A checkpoint of this step is complete."""
        self.checkpoint = step if self.checkpoint is None else max(step, self.checkpoint)
