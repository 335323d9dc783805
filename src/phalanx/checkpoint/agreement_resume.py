"""The step that all ranks resume from: what each sees in its folder, and what becomes of steps that are damaged."""

from __future__ import annotations

import logging
from typing import Any

from phalanx.checkpoint.agreement import BadStep, Check, Finding, Publish, Resumption, resume
from phalanx.checkpoint.exceptions import CannotCheck, CheckpointError, NoGoodStep
from phalanx.checkpoint.peers import Circle
from phalanx.checkpoint.shelf import Shelf

__all__ = ["agreed_step"]

log = logging.getLogger("phalanx.checkpoint")


def agreed_step(
    circle: Circle,
    shelf: Shelf,
    *,
    share: tuple[int, int] | None,
    is_keeper: bool,
    fault: BaseException | None = None,
) -> int | None:
    """The newest step that every rank can read, the same on all ranks; None if there is none.

    ``share``: which part of a step's checksums this rank looks at, with the structure of all. ``is_keeper``: this rank
    sets damaged steps of its folder aside, one for each folder. ``fault``: what this rank must raise instead; all
    others are told. Raises ``CheckpointError``, also ``CannotCheck``.
    """
    identities: dict[int, tuple[int, int] | None] = {}

    def look(request: Check | Publish) -> Finding:
        assert isinstance(request, Check)
        identities[request.step] = shelf.identity(request.step)
        return _finding(shelf, request.step, share)

    steps: list[int] = []
    if fault is None:
        try:
            steps = shelf.steps()
        except OSError as error:
            fault = CheckpointError(f"the steps in {shelf.folder} cannot be listed: {error}")
    said = None if fault is None else str(fault) or type(fault).__name__
    agreed = circle.hold(circle.next_number(), resume(circle.me, steps, said), look)
    if fault is not None:
        raise fault
    if agreed.error is not None:
        kind = CannotCheck if agreed.is_unsure else CheckpointError
        raise kind(f"the ranks have not agreed on a step to resume from: {agreed.error}")
    _name_and_set_aside(circle, shelf, agreed, identities if is_keeper else {})
    return agreed.step


def _finding(shelf: Shelf, step: int, share: tuple[int, int] | None) -> Finding:
    try:
        problems = shelf.check(step, share=share)
    except NoGoodStep as error:  # removed, or replaced, while it was looked at
        return Finding(str(error))
    except CannotCheck as error:
        return Finding(str(error), is_unsure=True)
    except OSError as error:
        return Finding(f"{shelf.folder}: {error}")
    return Finding(str(problems[0]), is_damaged=True) if problems else Finding()


def _name_and_set_aside(circle: Circle, shelf: Shelf, agreed: Resumption, identities: dict[int, Any]) -> None:
    """One rank names each step that was passed over, and in each folder where it is damaged one sets it aside."""
    is_speaker = circle.me.rank == 0
    for bad in agreed.bad:
        aside = None
        if circle.me.place in bad.places and bad.step in identities:
            aside = shelf.set_aside(bad.step, bad.why, identity=identities[bad.step])
        log.log(
            logging.WARNING if is_speaker else logging.INFO,
            "step %d is not used: %s%s (in %s)",
            bad.step,
            _once(bad),
            f"; it is now {aside.name}" if aside else "",
            shelf.folder,
        )
    if agreed.step is None and agreed.seen_by and is_speaker:
        log.error(
            "no step in %s can be read by all %d ranks, and %d of them see some (%s): training starts at its beginning",
            shelf.folder,
            circle.me.world_size,
            agreed.seen_by,
            agreed.example,
        )


def _once(bad: BadStep) -> str:
    """The step's number, which problems begin with, is said already."""
    return bad.why.replace(f"step {bad.step}: ", "").replace(f"step {bad.step} cannot be loaded: ", "")
