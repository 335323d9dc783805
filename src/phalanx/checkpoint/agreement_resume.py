"""The step that all ranks resume from: what each sees in its folder, and what becomes of steps that are damaged."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from phalanx.checkpoint import naming
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
from phalanx.checkpoint.directory import StepDirectory
from phalanx.checkpoint.exceptions import CannotCheck, CheckpointError, NoGoodStep
from phalanx.checkpoint.peers import RankGroup
from phalanx.checkpoint.verification import Damaged, checksum_problems, missing_problems, read_manifest

__all__ = ["agreed_load", "agreed_step"]

log = logging.getLogger("phalanx.checkpoint")

_LATE_S = (
    30.0  # network file systems show another node's new folder within seconds: NFS caches names for up to 30
)
_ASK_RANKS = "Is it one folder for all ranks? If each node has its own, per_node=True says so. "
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
) -> int | None:
    """The newest step that every rank can read, the same on all ranks; None if no rank sees any.

    ``share``: which part of a step's checksums this rank looks at, with the structure of all. ``is_keeper``: this rank
    sets damaged steps of its folder aside, once it has seen the damage itself: one for each folder. ``fault``: what
    this rank must raise instead; all others are told. Raises ``CheckpointError``, also ``CannotCheck``, and
    ``NoGoodStep`` if there are steps, also ones that were set aside, and none that all can use: whether to begin anew
    is never decided here.
    """
    identities: dict[int, tuple[int, int] | None] = {}
    listing = Listing()

    def look(request: Local) -> Finding | Listing:
        nonlocal listing
        if isinstance(request, List):
            listing = _listing(directory, request.wanted, rank_group.timeout_s)
            return listing
        assert isinstance(request, Check)
        identities[request.step] = directory.identity(request.step)
        return _finding(directory, request.step, share)

    said = None if fault is None else str(fault) or type(fault).__name__
    agreed = rank_group.hold(rank_group.next_number(), resume(rank_group.me, said), look)
    if fault is not None:
        raise fault
    if listing.fault is not None:
        raise CheckpointError(listing.fault)
    if agreed.error is not None:
        kind = CannotCheck if agreed.is_unsure else CheckpointError
        raise kind(f"the ranks have not agreed on a step to resume from: {agreed.error}")
    _name_and_set_aside(rank_group, directory, agreed, identities if is_keeper else {})
    if agreed.step is None and agreed.seen_by:
        reasons = "".join(
            f"; step {bad.step}: {_without_number(bad.step, bad.why)}" for bad in agreed.bad[:3]
        )
        one, all_ranks = ("this process", "") if rank_group.me.world_size == 1 else ("all ranks", _ASK_RANKS)
        raise NoGoodStep(
            f"no step in {directory.folder} can be used by {one}: {agreed.example}{reasons}. {all_ranks}To begin anew, "
            "remove the folder, or give another one"
        )
    return agreed.step


def _listing(directory: StepDirectory, wanted: tuple[int, ...], timeout_s: float) -> Listing:
    """The steps in the folder; looks again for a while if the newest one that another rank sees is not among them."""
    ends_at = time.monotonic() + min(_LATE_S, timeout_s / 2)  # the others wait for this rank
    try:
        while True:
            steps = directory.steps()
            if not wanted or max(wanted) in steps or time.monotonic() > ends_at:
                return Listing(tuple(steps), "" if steps else _set_aside(directory))
            time.sleep(0.1)
    except OSError as error:
        return Listing(fault=f"the steps in {directory.folder} cannot be listed: {error}")


def _set_aside(directory: StepDirectory) -> str:
    """The newest step that was set aside; "" if there is none."""
    try:
        names = os.listdir(directory.folder)
    except FileNotFoundError:
        return ""
    return max((name for name in names if naming.is_aside(name)), default="")


def agreed_load(
    rank_group: RankGroup,
    directory: StepDirectory,
    step: int,
    *,
    share: tuple[int, int] | None,
    fault: BaseException | None = None,
) -> None:
    """Return on all ranks if each of them found its share of ``step`` good. Raises ``CheckpointError`` on all else.

    ``fault``: what this rank must raise instead; all others are told.
    """

    def look(request: Local) -> Finding | Listing:
        if isinstance(request, List):
            return _listing(directory, request.wanted, rank_group.timeout_s)
        return _finding(directory, step, share)

    said = None if fault is None else str(fault) or type(fault).__name__
    agreed = rank_group.hold(rank_group.next_number(), load(rank_group.me, step, said), look)
    if fault is not None:
        raise fault
    if agreed.error is not None:
        kind = CannotCheck if agreed.is_unsure else NoGoodStep
        raise kind(
            f"step {step} cannot be loaded: {_without_number(step, agreed.error)} (in {directory.folder})"
        )


def _finding(directory: StepDirectory, step: int, share: tuple[int, int] | None) -> Finding:
    try:
        problems = directory.check(step, share=share)
    except NoGoodStep as error:  # removed, or replaced, while it was looked at
        return Finding(str(error))
    except CannotCheck as error:
        return Finding(str(error), is_unsure=True)
    except OSError as error:
        return Finding(f"{directory.folder}: {error}")
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
    rank_group: RankGroup, directory: StepDirectory, agreed: Resumption, identities: dict[int, Any]
) -> None:
    """One rank names each step that was passed over, and in each folder where it is damaged one sets it aside."""
    is_speaker = rank_group.me.rank == 0
    for bad in agreed.bad:
        aside = None
        is_asked = rank_group.me.place in bad.places and bad.step in identities
        is_elsewhere = is_asked and not _is_damaged_here(directory, bad, rank_group.me.place)
        if is_asked and not is_elsewhere:
            aside = directory.set_aside(bad.step, bad.why, identity=identities[bad.step])
        log.log(
            logging.WARNING if is_speaker else logging.INFO,
            "step %d is not used: %s%s (in %s)",
            bad.step,
            _without_number(bad.step, bad.why),
            f"; it is now {aside.name}" if aside else _GOOD_HERE if is_elsewhere else "",
            directory.folder,
        )


def _without_number(step: int, why: str) -> str:
    """Problems begin with the step's number, which is said already."""
    return why.replace(f": step {step}: ", ": ").replace(f": step {step} cannot be loaded: ", ": ")
