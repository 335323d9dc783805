"""What can go wrong with a checkpoint: one tree.

``CheckpointError`` ⊃ ``SaveFailed`` (this step was not saved; earlier ones are as they were), ``NoGoodStep`` (the step
that was asked for is not there, or is damaged), ``CannotCheck`` (nobody can say here whether a step is good),
``NoPeers`` (ranks must agree and cannot reach each other), ``StillSaving`` (a wait was not long enough).
"""

from __future__ import annotations

__all__ = ["CannotCheck", "CheckpointError", "NoGoodStep", "NoPeers", "SaveFailed", "StillSaving"]


class CheckpointError(Exception):
    """A checkpoint could not be saved, loaded or checked; the message says which, why, and what to do.

    >>> issubclass(SaveFailed, CheckpointError) and issubclass(NoGoodStep, CheckpointError)
    True
    """


class SaveFailed(CheckpointError):
    """A step was not saved. All steps that were there before are there still.

    >>> import tempfile
    >>> from phalanx.checkpoint import Checkpointer
    >>> try:
    ...     Checkpointer(tempfile.mkdtemp()).save(100, lambda folder: None)
    ... except SaveFailed as error:
    ...     print(error)
    step 100 was not saved: the writer wrote no file
    """


class NoGoodStep(CheckpointError):
    """The step that was asked for, or any, is not there or is damaged: the message names the file and what is wrong.

    A traceback may call one that is not there ``Gone``, a kind of this.

    >>> import tempfile
    >>> from phalanx.checkpoint import Checkpointer
    >>> try:
    ...     Checkpointer(tempfile.mkdtemp()).load(100)
    ... except NoGoodStep as error:
    ...     print(str(error).partition(":")[0])
    step 100 cannot be loaded
    """


class CannotCheck(CheckpointError):
    """Whether a step is good cannot be told here: a newer phalanx wrote it, xxhash is not installed, no permission.

    Such a step is not taken for a damaged one: it is not set aside, and no older step is loaded in its stead.

    >>> issubclass(CannotCheck, CheckpointError)
    True
    """


class NoPeers(CheckpointError):
    """Ranks have to agree, and have no way to each other, or have lost it: their round is over, say.

    >>> import tempfile
    >>> from phalanx.checkpoint import Checkpointer
    >>> try:
    ...     Checkpointer(tempfile.mkdtemp(), rank=0, world_size=4).load_latest()
    ... except NoPeers as error:
    ...     print(str(error).partition(":")[0])
    4 ranks have to agree and have no store in common
    """


class StillSaving(CheckpointError, TimeoutError):
    """``wait`` was told to wait so long, and a save is not done. It goes on.

    >>> issubclass(StillSaving, TimeoutError)
    True
    """
