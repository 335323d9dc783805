"""The step that all ranks resume from: what each sees in its folder, and what becomes of steps that are damaged."""

from __future__ import annotations

import logging
import time

from phalanx.checkpoint.agreement import (
    BadStep,
    Check,
    Finding,
    List,
    Listing,
    Local,
    Resumption,
    load,
    resume,
)
from phalanx.checkpoint.directory import Gone, StepDirectory
from phalanx.checkpoint.exceptions import CannotCheck, CheckpointError, NoGoodStep
from phalanx.checkpoint.listing import asides
from phalanx.checkpoint.locks import TRIES, Hold
from phalanx.checkpoint.origin import log
from phalanx.checkpoint.peers import RankGroup
from phalanx.checkpoint.verification import Damaged, checksum_problems, missing_problems, read_manifest

__all__ = ["agreed_load", "agreed_step"]

_LATE_S = (
    30.0  # network file systems show another node's new folder within seconds: NFS caches names for up to 30
)
_ASK_RANKS = "Is it one folder for all ranks? If each node has its own, per_node=True says so. "
_NAMED_MAX = 4  # of the steps that were set aside, or are damaged
_GOOD_HERE = (
    "; the rank that looked once more saw no damage, and left it: look at the machine of the one that did"
)


def agreed_step(
    rank_group: RankGroup,
    directory: StepDirectory,
    *,
    share: tuple[int, int] | None,
    is_keeper: bool,
    fault: BaseException | None = None,
) -> tuple[int, Hold] | None:
    """The newest step that every rank can read, the same on all ranks, and its folder; None if no rank sees any.

    ``share``: which part of a step's checksums this rank looks at, with the structure of all. ``is_keeper``: this rank
    sets damaged steps of its folder aside, once it has seen the damage itself: one for each folder. ``fault``: what
    this rank must raise instead; all others are told. Raises ``CheckpointError``, also ``CannotCheck``, and
    ``NoGoodStep`` if there are steps, also ones that were set aside, and none that all can use: whether to begin anew
    is never decided here.
    """
    agreed, holds = _agreed(rank_group, directory, share, fault)
    for _ in range(TRIES):
        if agreed.step is not None or not any(bad.is_gone for bad in agreed.bad):
            break
        # Another job that saves has removed all that could be used, and has newer ones. All ranks know that, and look
        # again. If there is nothing at all now, somebody has removed the folder, and has to say what that means.
        now, holds = _agreed(rank_group, directory, share, fault)
        if not now.seen_by:
            break
        agreed = now
    _name_and_set_aside(rank_group, directory, agreed, holds if is_keeper else {})
    if agreed.step is None and agreed.seen_by:
        raise NoGoodStep(_none_to_use(directory, agreed))
    return None if agreed.step is None else (agreed.step, holds[agreed.step])


def _none_to_use(directory: StepDirectory, agreed: Resumption) -> str:
    """Why no step can be used, and what to do: another thing where ranks see different folders."""
    where = f"no step in {directory.folder} can be used"
    reasons = [f"step {bad.step}: {_without_number(bad.step, bad.why)}" for bad in agreed.bad[:_NAMED_MAX]]
    if (more := len(agreed.bad) - _NAMED_MAX) > 0:
        reasons.append(f"and {more} more")
    anew = "To begin anew, remove the folder, or give another one"
    if not agreed.are_alike:
        return f"{where} by all ranks: {'; '.join([agreed.example, *reasons])}. {_ASK_RANKS}{anew}"
    if not reasons:
        aside = agreed.example.partition(" sees ")[2]
        return (
            f"{where}: all were set aside, by this run or one before it: {aside}. Rename one that is good, or "
            f"restore one from a copy, without what follows the number. {anew}"
        )
    kept = " What is damaged is kept, as step-….bad." if any(bad.places for bad in agreed.bad) else ""
    return f"{where}: {'; '.join(reasons)}.{kept} Mend what is named, or restore a step from a copy. {anew}"


def _agreed(
    rank_group: RankGroup,
    directory: StepDirectory,
    share: tuple[int, int] | None,
    fault: BaseException | None,
    step: int | None = None,
) -> tuple[Resumption, dict[int, Hold]]:
    """What all ranks agree on when they look once, and the folders that this one looked at; of ``step`` alone."""
    holds: dict[int, Hold] = {}
    looks = _Looks(directory, rank_group.timeout_s)

    def look(request: Local) -> Finding | Listing:
        if isinstance(request, List):
            return looks.listing(request.wanted)
        assert isinstance(request, Check)
        return _finding(directory, request.step, share, holds)

    said = None if fault is None else str(fault) or type(fault).__name__
    me = rank_group.me
    words = resume(me, said) if step is None else load(me, step, said)
    agreed = rank_group.hold(rank_group.next_number(), words, look)
    if fault is not None:
        raise fault
    if looks.fault is not None:
        raise CheckpointError(looks.fault)
    if agreed.error is None:
        return agreed, holds
    why = f"the ranks have not agreed on a step to resume from: {agreed.error}"
    if step is not None:
        why = f"step {step} cannot be loaded: {_without_number(step, agreed.error)} (in {directory.folder})"
    raise (CannotCheck if agreed.is_unsure else CheckpointError if step is None else NoGoodStep)(why)


class _Looks:
    """What this rank sees of the folder, look by look."""

    def __init__(self, directory: StepDirectory, timeout_s: float) -> None:
        self._directory = directory
        self._patience_s = min(_LATE_S, timeout_s / 2)  # the others wait for this rank
        self._first: set[int] | None = None
        self.fault: str | None = None

    def listing(self, wanted: tuple[int, ...]) -> Listing:
        """The steps in the folder; looks again for a while if the newest one of ``wanted`` may come into view late."""
        ends_at = time.monotonic() + self._patience_s
        try:
            while True:
                steps = self._directory.steps()
                if self._first is None:
                    self._first = set(steps)
                if not wanted or not self._is_late(max(wanted), steps) or time.monotonic() > ends_at:
                    aside = [] if steps else asides(self._directory.folder)
                    return Listing(tuple(steps), _named(aside))
                time.sleep(0.1)
        except OSError as error:
            self.fault = f"the steps in {self._directory.folder} cannot be listed: {error}"
            return Listing(fault=self.fault)

    def _is_late(self, step: int, steps: list[int]) -> bool:
        """Whether ``step`` is not in view yet. What was seen before was removed, and so was what a newer one follows.

        A newer one that was there at the first look says nothing: an old view has what was set aside since.
        """
        seen = self._first or set()
        has_followed = any(each > step and each not in seen for each in steps)
        return step not in steps and step not in seen and not has_followed


def agreed_load(
    rank_group: RankGroup,
    directory: StepDirectory,
    step: int,
    *,
    share: tuple[int, int] | None,
    fault: BaseException | None = None,
) -> Hold:
    """The folder of ``step``, on all ranks if each found its share of it good. Raises ``CheckpointError`` on all else.

    ``fault``: what this rank must raise instead; all others are told.
    """
    _, holds = _agreed(rank_group, directory, share, fault, step)
    return holds[step]


def _finding(
    directory: StepDirectory, step: int, share: tuple[int, int] | None, holds: dict[int, Hold]
) -> Finding:
    """What this rank finds in its share of a step; the folder that it looked at is put into ``holds``."""
    try:
        checked = directory.checked(step, share=share)
    except NoGoodStep as error:  # removed, or replaced, while it was looked at
        return Finding(str(error), is_gone=isinstance(error, Gone))
    except CannotCheck as error:
        return Finding(str(error), is_unsure=True)
    if checked.hold is not None:
        holds[step] = checked.hold
    problems = checked.problems
    if not problems:
        return Finding()
    worst = next((problem for problem in problems if problem.is_damage), None)
    return Finding(str(worst or problems[0]), is_damaged=worst is not None, file=worst.file if worst else "")


def _is_damaged_here(directory: StepDirectory, bad: BadStep, place: int) -> bool:
    """Whether this rank sees the damage, too. Others may have bad memory, or a view of the folder of long ago."""
    named = {file for found_in, file in bad.files if found_in == place}
    try:
        folder = directory.folder_of(bad.step)
        manifest = read_manifest(folder, bad.step, directory.files)
        problems = missing_problems(folder, manifest)
        names = [
            name for name in named & set(manifest.files) if not any(each.file == name for each in problems)
        ]
        problems += checksum_problems(folder, manifest, names, directory.files)
    except Damaged as damage:
        return damage.problem.is_damage
    except (CheckpointError, OSError):
        return False
    return any(problem.is_damage for problem in problems)


def _name_and_set_aside(
    rank_group: RankGroup, directory: StepDirectory, agreed: Resumption, holds: dict[int, Hold]
) -> None:
    """One rank names each step that was passed over, and in each folder where it is damaged one sets it aside."""
    is_speaker = rank_group.me.rank == 0
    for bad in agreed.bad:
        aside = None
        is_asked = rank_group.me.place in bad.places and bad.step in holds
        is_elsewhere = is_asked and not _is_damaged_here(directory, bad, rank_group.me.place)
        if is_asked and not is_elsewhere:
            aside = directory.set_aside(bad.step, bad.why, holds[bad.step])
        log.log(
            logging.WARNING if is_speaker else logging.INFO,
            "step %d is not used: %s%s (in %s)",
            bad.step,
            _without_number(bad.step, bad.why),
            f"; it is now {aside.name}" if aside else _GOOD_HERE if is_elsewhere else "",
            directory.folder,
        )


def _named(asides: list[str]) -> str:
    """The newest ones, and how many more there are."""
    rest = len(asides) - _NAMED_MAX
    return ", ".join(asides[: -_NAMED_MAX - 1 : -1]) + (f" and {rest} more" if rest > 0 else "")


def _without_number(step: int, why: str) -> str:
    """Problems begin with the step's number, which is said already."""
    return why.replace(f": step {step}: ", ": ").replace(f": step {step} cannot be loaded: ", ": ")
