"""``Checkpointer``: what a training script calls. The work is done elsewhere."""

from __future__ import annotations

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping
    from typing import Any, Self

    from phalanx.checkpoint.locks import Hold
    from phalanx.checkpoint.saved import Loaded, Problem

__all__ = ["Checkpointer"]


class Checkpointer:
    """Saves the steps of a training, and finds the newest good one again.

    ``folder`` holds the steps, the newest ``keep`` of which are kept. Rank 0 writes one copy, into a folder that all
    see; with ``sharded`` each rank writes its part, into a folder that all see; with ``per_node`` local rank 0 of each
    node writes a full copy into the node's own folder. ``background``: True, or how many saves may wait while training
    goes on; without it ``save`` returns when the step is on the disk. ``checksum``: ``"xxh3_128"`` or ``"sha256"``; by
    default the first if the package xxhash is there. Ranks and world size are by default those of the environment, or
    of ``torch.distributed``. ``store``: what ranks agree through, by default the round's values; ``timeout_s``: how
    long they wait for each other.

    What goes where: ``state`` is what the training goes on with, and ``meta`` what people and other programs want to
    know about a step without loading it; ``phalanx checkpoints --json`` shows it.

    >>> import tempfile
    >>> with Checkpointer(tempfile.mkdtemp()) as checkpointer:
    ...     checkpointer.save(100, lambda folder: (folder / "weights").write_bytes(b"1234"), {"loss": 0.5})
    ...     loaded = checkpointer.load_latest(lambda saved: (saved.folder / "weights").read_bytes())
    ...     loaded.step, loaded.meta, loaded.value
    (100, {'loss': 0.5}, b'1234')
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 3,
        *,
        sharded: bool = False,
        per_node: bool = False,
        background: bool | int = False,
        checksum: str | None = None,
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        store: Any = None,
        timeout_s: float = 1800.0,
    ) -> None:
        from phalanx.checkpoint.saving import Saves  # whoever imports this class may never make one
        from phalanx.checkpoint.settings import settings_of

        self._settings = settings_of(
            folder,
            keep=keep,
            sharded=sharded,
            per_node=per_node,
            background=background,
            checksum=checksum,
            rank=rank,
            local_rank=local_rank,
            world_size=world_size,
            store=store,
            timeout_s=timeout_s,
        )
        self._saves = Saves(self._settings)

    def save(self, step: int, state: Any, meta: Mapping[str, Any] | None = None) -> None:
        """Save ``state`` as ``step``, with ``meta``, a JSON object. Ranks that write nothing return at once.

        ``state`` is a mapping of names to bytes, numpy arrays or JSON values, a callable that takes a folder to write
        into, or an object with ``write(folder)``. A step that is there already is replaced. One that is older than what
        the folder holds is refused if nothing was loaded before. Raises ``SaveFailed``, and ``ValueError`` or
        ``TypeError`` for arguments that cannot be saved. In the background, the error of an earlier step, once, when
        this one is taken.
        """
        self._saves.save(checked_step(step), state, meta)

    def load_latest(self, reader: Any = None) -> Loaded | None:
        """The newest good step, read by ``reader``; None if there is no step at all. Damaged ones are set aside.

        With more than one rank, all call this, and all get the same step: the newest that every rank can read. Raises
        ``NoGoodStep`` if there are steps, or were, and none can be used; newer ones that are passed over are set aside
        by the next ``save``, as after ``load``.
        """
        from phalanx.checkpoint.directory import Gone
        from phalanx.checkpoint.locks import TRIES

        gone: Gone | None = None
        for _ in range(TRIES):
            found = self._saves.agreed_step()
            if found is None:
                break
            try:
                return self._read(*found, reader)
            except Gone as error:
                # Another job has removed it since; one of several ranks cannot look again alone.
                if self._settings.world_size > 1:
                    raise
                gone = error
        if gone is not None:
            raise gone
        self._saves.has_loaded(None)
        return None

    def load(self, step: int, reader: Any = None) -> Loaded:
        """This very step. Raises ``NoGoodStep`` if it is not there or damaged; other steps are not looked at.

        Training goes on from it: the next ``save`` renames those that are newer now to ``step-….superseded``. Whoever
        only wants to look at a step loads it with another checkpointer.
        With more than one rank, all call this, each checks its share of the files, and all get it or none.
        """
        step = checked_step(step)
        return self._read(step, self._saves.good(step), reader)

    def steps(self) -> list[int]:
        """The steps that are there, ascending. No file is read: a damaged one is among them."""
        return self._settings.directory.steps()

    def verify(self, step: int | None = None) -> list[Problem]:
        """What is wrong with a step, or with all that are there to the end. Reads every file, changes nothing.

        Raises ``CannotCheck``, and for a ``step`` that is not there ``NoGoodStep``.
        """
        from contextlib import suppress

        from phalanx.checkpoint.directory import Gone

        directory = self._settings.directory
        if step is not None:
            return directory.check(checked_step(step))
        found: list[Problem] = []
        for each in directory.steps():
            with suppress(Gone):  # the training has removed it meanwhile
                found += directory.check(each)
        return found

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when all background saves are on the disk. Raises what went wrong with one, once.

        After ``timeout_s`` raises ``StillSaving``, a ``TimeoutError``; the saves go on.
        """
        self._saves.wait(timeout_s)

    def close(self) -> None:
        """``wait`` for the last time; no save is taken after that.

        Without it the interpreter waits, too, but nobody hears of a failure in time.
        """
        self._saves.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.close()
            return
        try:  # not waiting: whoever restarts this job has to hear of the error now
            self._saves.refuse_more()
        except Exception as late:  # noqa: BLE001 # the first error is the one to act on
            for text in (str(late), *getattr(late, "__notes__", ())):
                error.add_note(f"also, a save in the background failed: {text.removeprefix('also, ')}")

    def _read(self, step: int, hold: Hold, reader: Any) -> Loaded:
        from phalanx.checkpoint.reading import read

        settings = self._settings
        loaded = read(settings.directory, step, hold, reader, settings.rank, settings.world_size)
        self._saves.has_loaded(step)
        return loaded


def checked_step(step: object) -> int:
    """``step`` as a number that a folder's name can hold. Raises ``TypeError`` or ``ValueError``.

    >>> checked_step(True)
    Traceback (most recent call last):
    TypeError: a step is an int, not True
    """
    if isinstance(step, bool) or not hasattr(step, "__index__"):
        raise TypeError(f"a step is an int, not {step!r}")
    number = int(step.__index__())
    if not 0 <= number < 2**63:  # naming.STEP_MAX
        raise ValueError(f"a step is from 0 to 2**63 - 1, not {number}")
    return number
