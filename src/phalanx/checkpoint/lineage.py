"""From which step a training goes on, and what in the folder is newer: that is in the way of what it saves next.

Those steps are set aside in the moment when the first one of this training is published, and by nobody later: what has
one of their names, or numbers on the disk, after that is the training's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from phalanx.checkpoint.directory import StepDirectory
from phalanx.checkpoint.exceptions import SaveFailed
from phalanx.checkpoint.listing import own_steps
from phalanx.checkpoint.locks import Mark, mark_of
from phalanx.checkpoint.verification import problem_of

__all__ = ["Lineage"]


class Lineage:
    """What one checkpointer has loaded, and what was newer then."""

    def __init__(self, directory: StepDirectory) -> None:
        self._directory = directory
        self._has_loaded = False
        self._newer: dict[int, Mark] = {}

    @property
    def superseded(self) -> Mapping[int, Mark]:
        """The steps that make way for the next one: the very ones that were there at the load."""
        return self._newer

    def goes_on_from(self, step: int | None, *, writes: bool) -> None:
        """This step was loaded; None: there was none. ``writes``: this rank is one that may publish.

        Raises ``CannotCheck`` if what is newer cannot be told: the next load would take it.
        """
        self._has_loaded = True
        self._newer = {}
        newer: dict[int, str] = {}
        if step is not None and writes:
            with suppress(OSError):  # a folder that may not be listed; load_latest has said so
                newer = {
                    each: name for each, name in own_steps(self._directory.folder).items() if each > step
                }
        for each, name in newer.items():
            try:
                self._newer[each] = mark_of(self._directory.folder / name)
            except OSError as error:
                # Raises, or else it is gone, or the disk cannot read it, and it stays as it is.
                problem_of(each, "", error)

    def has_published(self) -> None:
        """A step of this training is there, and what was newer has made way."""
        self._newer = {}

    def refuse_below(self, step: int) -> None:
        """Before anything was loaded, a step below those of the folder is not saved: ``SaveFailed``.

        Retention would remove it first, and the next load would take the newer one of another training.
        """
        if self._has_loaded:
            return
        try:
            newest = max(own_steps(self._directory.folder), default=step)
        except OSError:
            return  # who writes there says what is wrong
        if newest > step:
            raise SaveFailed(
                f"step {step} was not saved: {self._directory.folder} holds step {newest}; load it first, or use "
                "another folder"
            )
