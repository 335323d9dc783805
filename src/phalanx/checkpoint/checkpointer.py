"""``Checkpointer``: what a training script calls. Which process writes, in what order; the work is done elsewhere."""

from __future__ import annotations

import os

from phalanx.errors.channel import checkpoint_done

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Literal, Self

    from phalanx.checkpoint.saved import Loaded, Problem
    from phalanx.checkpoint.saving import Saves

__all__ = ["Checkpointer"]


class Checkpointer:
    """Saves the steps of a training, and finds the newest good one again.

    ``folder`` holds the steps, the newest ``keep`` of which are kept. ``writer``: who writes. ``"job"``: rank 0, one
    copy, in a folder that all see; ``"node"``: local rank 0 of each node, a full copy in the node's own folder;
    ``"rank"``: each rank its part, in a folder that all see. ``background``: how many saves may wait while training
    goes on; 0: ``save`` returns when the step is on the disk. ``strong``: sha256 also where xxhash is installed. Ranks
    and world size are by default those of the environment. ``store``: what ranks agree through, by default the round's
    values; ``timeout_s``: how long they wait for each other.

    >>> import tempfile
    >>> with Checkpointer(tempfile.mkdtemp()) as checkpointer:
    ...     checkpointer.save(100, lambda folder: (folder / "weights").write_bytes(b"1234"), {"epoch": 3})
    ...     loaded = checkpointer.load_latest(lambda saved: (saved.folder / "weights").read_bytes())
    ...     loaded.step, loaded.meta, loaded.value
    True
    (100, {'epoch': 3}, b'1234')
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        keep: int = 3,
        *,
        writer: Literal["job", "node", "rank"] = "job",
        background: int = 0,
        strong: bool = False,
        rank: int | None = None,
        local_rank: int | None = None,
        world_size: int | None = None,
        store: Any = None,
        timeout_s: float = 1800.0,
    ) -> None:
        if writer not in ("job", "node", "rank"):
            raise ValueError(f"writer is 'job', 'node' or 'rank', not {writer!r}")
        if isinstance(keep, bool) or keep < 1:
            raise ValueError(f"keep is the number of steps to keep, at least 1, not {keep!r}")
        if isinstance(background, bool) or background < 0:
            raise ValueError(f"background is the number of saves that may wait, not {background!r}")
        from phalanx.checkpoint.shelf import Shelf  # whoever imports this class may never make one

        self.shelf = Shelf(folder)
        self.keep = keep
        self.writer = writer
        self.background = background
        self.strong = strong
        self.rank = _number("RANK", 0) if rank is None else rank
        self.local_rank = _number("LOCAL_RANK", self.rank) if local_rank is None else local_rank
        self.world_size = _number("WORLD_SIZE", 1) if world_size is None else world_size
        self.store = store
        self.timeout_s = timeout_s
        self.run_id = os.environ.get("TORCHELASTIC_RUN_ID", "")
        self.round = _number("PHALANX_ROUND", 0)
        self._saves_begun: Saves | None = None

    def save(self, step: int, state: Any, meta: Mapping[str, Any] | None = None) -> bool:
        """Save ``state`` as ``step``, with ``meta``, a JSON object. True: this call wrote it, or part of it.

        ``state`` is a mapping of names to bytes, numpy arrays or JSON values, a callable that takes a folder to write
        into, or an object with ``write(folder)``. A step that is there already is replaced. Raises ``SaveFailed``, and
        ``ValueError`` or ``TypeError`` for arguments that cannot be saved.
        """
        from phalanx.checkpoint.manifest import json_value

        step = checked_step(step)

        def check() -> dict[str, Any]:
            kept: dict[str, Any] = json_value({} if meta is None else meta, "meta")
            return kept

        if self.writer != "rank" and (self.rank if self.writer == "job" else self.local_rank) != 0:
            check()  # a mistake is one on all ranks
            return False
        self._saves().save(step, state, check)
        return True

    def load_latest(self, reader: Any = None) -> Loaded | None:
        """The newest good step, read by ``reader``; None if there is none. Damaged ones are named and set aside.

        With more than one rank, all call this, and all get the same step: the newest that every rank can read.
        """
        from phalanx.checkpoint.exceptions import NoGoodStep
        from phalanx.checkpoint.shelf import log

        if self.world_size > 1:
            agreed = self._saves().agreed_step()
            return None if agreed is None else self._read(agreed, reader)
        self.wait()
        damaged: list[int] = []
        while True:
            step = max((each for each in self.shelf.steps() if each not in damaged), default=None)
            if step is None:
                break
            identity = self.shelf.identity(step)
            try:
                problems = self.shelf.check(step)
            except NoGoodStep:
                continue  # another process has just removed it
            if not problems:
                return self._read(step, reader)
            damaged.append(step)
            self.set_aside(step, problems, identity)
        if damaged:
            log.error("no step in %s is good: training starts at its beginning", self.shelf.folder)
        return None

    def load(self, step: int, reader: Any = None) -> Loaded:
        """This very step. Raises ``NoGoodStep`` if it is not there or damaged; other steps are not looked at."""
        from phalanx.checkpoint.shelf import refused

        step = checked_step(step)
        folder = self.shelf.place(step)
        problems = self.shelf.check(step)
        if problems:
            raise refused(folder, problems)
        return self._read(step, reader)

    def steps(self) -> list[int]:
        """The steps that are there, ascending. No file is read: a damaged one is among them."""
        return self.shelf.steps()

    def verify(self, step: int | None = None) -> list[Problem]:
        """What is wrong with a step, or with all. Reads every file, changes nothing. Raises ``CannotCheck``."""
        wanted = self.shelf.steps() if step is None else [checked_step(step)]
        return [problem for each in wanted for problem in self.shelf.check(each)]

    def wait(self, timeout_s: float | None = None) -> None:
        """Return when all background saves are on the disk. Raises what went wrong with one, once.

        After ``timeout_s`` raises ``StillSaving``, a ``TimeoutError``; the saves go on.
        """
        if self._saves_begun is not None:
            self._saves_begun.wait(timeout_s)

    def close(self) -> None:
        """``wait`` for the last time. Without it the interpreter waits, too, but nobody hears of a failure in time."""
        self.wait()

    @property
    def last_stall_s(self) -> float:
        """How long the last ``save`` here has kept its caller, in seconds."""
        return 0.0 if self._saves_begun is None else self._saves_begun.last_stall_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            self.close()
        except Exception as late:
            if error is None:
                raise
            error.add_note(f"also, a save in the background failed: {late}")

    def set_aside(self, step: int, problems: list[Problem], identity: tuple[int, int] | None = None) -> None:
        """Name a damaged step, once, and give it another name."""
        from phalanx.checkpoint.shelf import log

        aside = self.shelf.set_aside(step, str(problems[0]), identity=identity)
        log.warning(
            "%s; it is not used%s (in %s)",
            problems[0],
            f", and is now {aside.name}" if aside else "",
            self.shelf.folder,
        )

    def published(self, step: int) -> None:
        """What follows a publication: the agent is told, and old steps are removed."""
        checkpoint_done(step)
        self.shelf.retain(self.keep, just=step)

    def tidy(self) -> None:
        """What comes before a save: what interrupted ones have left is removed."""
        self.shelf.tidy(run_id=self.run_id, round_number=self.round)

    def _saves(self) -> Saves:
        from phalanx.checkpoint.saving import Saves

        if self._saves_begun is None:
            self._saves_begun = Saves(self)
        return self._saves_begun

    def _read(self, step: int, reader: Any) -> Loaded:
        from phalanx.checkpoint.saved import Loaded, read_by

        saved = self.shelf.saved(step, self.shelf.look(step))
        return Loaded(step, saved.meta, read_by(reader, saved), saved)


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


def _number(variable: str, default: int) -> int:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return default
