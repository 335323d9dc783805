"""How the ranks of a job agree, without a clock and without input or output: on the step to resume from, and on
whether a sharded save is complete.

A rank's side of a conversation is a generator: it yields requests (count, tell, hear; look at a step, publish) and is
sent the answers. No rank waits for another one but for whoever decides, and that is the rank that comes last, or the
first whose patience ends. All ranks hear the same decision. The number of messages grows linearly with the ranks.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from phalanx.records import Struct

__all__ = [
    "BadStep", "Check", "Count", "Finding", "Hear", "List", "Listing", "Local", "Member", "Number", "Publish",
    "Request", "Resumption", "Tell", "absent", "begin_save", "difference", "finish_save", "leave", "load", "named",
    "resume",
]  # fmt: skip

STEPS_MAX = 64  # the newest ones of each rank that are talked about: no retention keeps more to resume from
_WHY_CHARACTERS = 300  # of each rank's reason: people read what is told, and a round's values have a limit
_FILES_MAX = 256  # that are looked at once more; one that is damaged is enough
_REASONS_MAX = 8  # of a thousand ranks that failed for one reason, a few are enough


class Count(Struct):
    """Add one to a number; the answer is the sum."""

    key: str


class Number(Struct):
    """The answer is the sum so far."""

    key: str


class Tell(Struct):
    """Leave a message."""

    key: str
    message: Mapping[str, Any]


class Hear(Struct):
    """The answer is the message; None if there is none when patience ends, or at once if there is to be none."""

    key: str
    is_patient: bool = True


class Check(Struct):
    """Read this rank's share of a step. The answer is a ``Finding``."""

    step: int


class Finding(Struct):
    """What a rank found in its share of a step: nothing; or why it cannot be used, and whether it is damaged.

    ``is_unsure``: nobody can tell here whether it is good. Then no older step is taken in its stead. ``is_gone``: it
    was removed meanwhile. ``file``: the one that is damaged, for who looks at it once more; empty: the step as a whole.
    """

    why: str | None = None
    is_damaged: bool = False
    is_unsure: bool = False
    is_gone: bool = False
    file: str = ""


class List(Struct):
    """Name the steps of this rank's folder; those of ``wanted``, which another rank sees, may come into view late.

    The answer is a ``Listing``.
    """

    wanted: tuple[int, ...] = ()


class Listing(Struct):
    """The steps whose structure is good here, or why they cannot be told.

    ``sees``: what else is there, steps that were set aside; whoever sees something must not begin anew unknowingly.
    """

    steps: tuple[int, ...] = ()
    sees: str = ""
    fault: str | None = None


class Publish(Struct):
    """Make the step visible. The answer: why that failed, or nothing."""


Local = Check | List | Publish  # what is no matter of the store
Request = Count | Number | Tell | Hear | Local


class Member(Struct):
    """Who talks. ``place`` is the folder that a rank sees: one number for all, or one for each node."""

    rank: int
    world_size: int
    place: int = 0


class BadStep(Struct):
    """A step that all ranks see and some cannot use; in the folders of ``places`` somebody found it damaged.

    ``files``: what they found damaged, by place. ``is_gone``: for some it was not there any more.
    """

    step: int
    why: str
    places: tuple[int, ...]
    files: tuple[tuple[int, str], ...] = ()
    is_gone: bool = False


class Resumption(Struct):
    """What all ranks agreed on: ``bad`` has the steps that somebody cannot use, newest first.

    ``are_alike``: all ranks see the same steps, or all see nothing but steps that were set aside.
    """

    step: int | None
    bad: tuple[BadStep, ...]
    seen_by: int  # how many ranks see any step, also one that was set aside
    example: str  # of what is seen, and by whom not; "" if nobody sees a step
    error: str | None  # why there was no agreement
    is_unsure: bool = False  # because nobody can tell whether a step is good
    are_alike: bool = False


def resume(me: Member, fault: str | None = None) -> Generator[Request, Any, Resumption]:
    """Agree on the newest step, of those whose structure is good, that every rank can read.

    All ranks look at one step at a time, the newest of those that all see, so that a good newest step is the only one
    that is read. ``fault``: why this rank cannot even tell its steps; then nobody resumes, and all hear the reason.
    """
    decided, listing = yield from _come(me, {"do": "resume"}, "resume", fault)
    if decided.get("error") is not None:
        return Resumption(None, (), 0, "", str(decided["error"]), bool(decided.get("unsure")))
    mine = sorted(set(listing.steps), reverse=True)[:STEPS_MAX]
    for step in mine:
        yield Count(f"can/{step}")
    yield Count(f"number/{len(mine)}")
    kind = "steps" if mine else "asides" if listing.sees else "none"
    if (yield Count(f"sees/{kind}")) == 1:
        text = f"step {mine[0]}" if mine else listing.sees or "none"
        yield Tell(f"example/{kind}", {"text": f"rank {me.rank} sees {text}"})
    said: dict[str, Any] = {"do": "list", "fault": _short(listing.fault)}
    same = "listed" if listing.fault is None else None
    decided = listed = yield from _meet(me, "listed/", said, same, _common(me, mine))
    seen_by, example = int(decided.get("seen_by", 0)), str(decided.get("example", ""))
    bad: list[BadStep] = []
    step_taken: int | None = None
    for step in decided.get("common", ()) if decided.get("error") is None else ():
        found: Finding = yield Check(step)
        place = me.place if found.is_damaged else None
        said = {"do": "check", "fault": _short(found.why), "place": place, "unsure": found.is_unsure}
        said |= {"file": found.file} if found.is_damaged else {}
        said |= {"gone": True} if found.is_gone else {}
        decided = yield from _meet(me, f"{step}/", said, "good" if found.why is None else None, _good)
        if decided.get("error") is not None:
            break
        if decided["good"]:
            step_taken = step
            break
        files = tuple((int(place), str(file)) for place, file in decided["files"])
        is_gone = bool(decided["gone"])
        bad.append(BadStep(step, str(decided["why"]), tuple(decided["places"]), files, is_gone))
    is_unsure, are_alike = bool(decided.get("unsure")), bool(listed.get("alike"))
    return Resumption(step_taken, tuple(bad), seen_by, example, decided.get("error"), is_unsure, are_alike)


def load(me: Member, step: int, fault: str | None = None) -> Generator[Request, Any, Resumption]:
    """Look at this very step, all ranks together, each at its share. ``fault``: why this rank cannot."""
    said: dict[str, Any] = {"do": "load", "step": step}
    decided, _ = yield from _come(me, said, f"load {step}", fault, only=step)
    if decided.get("error") is None:
        found: Finding = yield Check(step)
        said |= {"fault": _short(found.why), "unsure": found.is_unsure}
        decided = yield from _meet(me, "checked/", said, "good" if found.why is None else None, _good)
    error = decided.get("error")
    is_unsure = bool(decided.get("unsure"))
    return Resumption(None if error else step, (), 0, "", error, is_unsure)


def begin_save(me: Member, step: int, fault: str | None) -> Generator[Request, Any, str | None]:
    """Say that this rank is about to write its part of ``step``, or why it cannot: for parts whose writers talk to each
    other. Returns None on all ranks when all are, and else why not; then ``finish_save(begun=True)`` follows.
    """
    said = {"do": "begin", "step": step, "fault": _short(fault)}
    decided = yield from _meet(me, "", said, f"begin {step}" if fault is None else None, _good)
    return decided.get("error")


def finish_save(
    me: Member, step: int, fault: str | None, *, begun: bool = False
) -> Generator[Request, Any, str | None]:
    """Say that this rank's part of ``step`` is written, or why not; the rank that comes last publishes.

    Returns None on all ranks when the step is visible, and else why it is not.
    """

    def settle() -> Generator[Request, Any, dict[str, Any]]:
        why = yield Publish()
        return {"error": _short(why) or None}

    said = {"do": "save", "step": step, "fault": _short(fault)}
    phase = "written/" if begun else ""
    decided = yield from _meet(me, phase, said, f"save {step}" if fault is None else None, settle)
    return decided.get("error")


def leave(me: Member, step: int, fault: str, *, begun: bool = False) -> Generator[Request, Any, None]:
    """Say that this rank ends instead of saving ``step``, and wait for nobody. ``begun``: as in ``finish_save``."""
    phase = "written/" if begun else ""
    yield Tell(f"{phase}said/{me.rank}", {"do": "save", "step": step, "fault": _short(fault)})
    if (yield Count(f"{phase}done")) == me.world_size and (yield Count(f"{phase}decider")) == 1:
        decided = yield from _differ(me, phase)
        yield Tell(f"{phase}decided", {**decided, "all": True})


def _come(
    me: Member, said: Mapping[str, Any], same: str, fault: str | None, *, only: int | None = None
) -> Generator[Request, Any, tuple[Mapping[str, Any], Listing]]:
    """Wait until all ranks have come to this load, and then list the steps.

    Who does not write returns from a save at once, and may come here while the step is still being written; who writes
    comes when it is there. On a network file system others may see it later: they are told what rank 0 sees.
    """
    listing = Listing((), "", fault) if fault is not None else (yield List())

    def settle() -> Generator[Request, Any, dict[str, Any]]:
        first = yield Hear("said/0", is_patient=False)
        return {"steps": first["steps"] if first else [], "error": None}

    said = {**said, "fault": _short(listing.fault)}
    if me.rank == 0:  # nobody reads those of the others
        steps = [step for step in sorted(listing.steps)[-STEPS_MAX:] if only is None or step == only]
        said["steps"] = steps
    decided = yield from _meet(me, "", said, same if listing.fault is None else None, settle)
    if decided.get("error") is None:
        listing = yield List(tuple(decided["steps"]) if me.place == 0 else ())
    return decided, listing


def _meet(
    me: Member, phase: str, said: Mapping[str, Any], same: str | None, settle: Any
) -> Generator[Request, Any, Mapping[str, Any]]:
    """Say something and hear what was decided. If all ranks came for the ``same``, ``settle`` decides, else a fault
    is a reason of its own.

    Who decides is counted: the last one to come may meet one whose patience has just ended.
    """
    yield Tell(f"{phase}said/{me.rank}", said)
    if same is not None:
        yield Count(f"{phase}same/{same}")
    come = yield Count(f"{phase}done")
    if come > me.world_size:
        return {"error": f"rank {me.rank} comes a second time: what ranks agree on needs a new round"}
    if come == me.world_size and (yield Count(f"{phase}decider")) == 1:
        are_same = same is not None and (yield Number(f"{phase}same/{same}")) == me.world_size
        decided = yield from (settle() if are_same else _differ(me, phase))
        decided = {**decided, "all": True}
        yield Tell(f"{phase}decided", decided)
        return decided
    decided = yield Hear(f"{phase}decided")
    if decided is None and (yield Count(f"{phase}decider")) == 1:
        all_said = yield from _all_said(me, phase)
        decided = {"error": absent(all_said, me)}
        yield Tell(f"{phase}decided", decided)
    elif decided is None:  # somebody is deciding, which takes long when a step is published
        decided = yield Hear(f"{phase}decided")
    return decided or {
        "error": f"rank {me.rank} was not told what was decided: the rank that does it is gone"
    }


def _all_said(me: Member, phase: str) -> Generator[Request, Any, dict[int, Mapping[str, Any]]]:
    found: dict[int, Mapping[str, Any]] = {}
    for rank in range(me.world_size):
        said = yield Hear(f"{phase}said/{rank}", is_patient=False)
        if said is not None:
            found[rank] = said
    return found


def _differ(me: Member, phase: str) -> Generator[Request, Any, dict[str, Any]]:
    """Not all are of one mind. In a look at a step this is the end of the step, elsewhere that of the conversation."""
    all_said = yield from _all_said(me, phase)
    faults = {rank: str(said["fault"]) for rank, said in all_said.items() if said.get("fault")}
    unsure = {rank: faults[rank] for rank, said in all_said.items() if said.get("unsure")}
    if any(said["do"] != "check" for said in all_said.values()):
        return {"error": difference(all_said), "unsure": bool(unsure)}
    if unsure:
        return {"error": _reasons(unsure), "unsure": True}
    damaged = [said for said in all_said.values() if said.get("place") is not None]
    places = sorted({said["place"] for said in damaged})
    files = sorted({(said["place"], said["file"]) for said in damaged})[:_FILES_MAX]
    is_gone = any(said.get("gone") for said in all_said.values())
    return {"good": False, "why": _reasons(faults), "places": places, "files": files, "gone": is_gone}


def _common(me: Member, mine: Sequence[int]) -> Any:
    def settle() -> Generator[Request, Any, dict[str, Any]]:
        numbers: dict[int, int] = {}
        for step in mine:
            numbers[step] = yield Number(f"can/{step}")
        common = [step for step, number in numbers.items() if number == me.world_size]
        asides, none = (yield Number("sees/asides")), (yield Number("sees/none"))
        seen_by = me.world_size - none
        by_kind = {"steps": seen_by - asides, "asides": asides, "none": none}
        texts = []
        for kind in by_kind if seen_by else ():
            if by_kind[kind]:
                said = yield Hear(f"example/{kind}")
                texts.append(said["text"] if said else "")
        # As many steps as here are seen by so many ranks; if all of these are common, there are no others.
        as_many = yield Number(f"number/{len(mine)}")
        are_alike = as_many == max(by_kind.values()) == me.world_size and len(common) == len(mine)
        example = ", ".join(texts)
        return {"common": common, "seen_by": seen_by, "example": example, "alike": are_alike, "error": None}

    return settle


def _good() -> Generator[Request, Any, dict[str, Any]]:
    yield from ()
    return {"good": True, "error": None}


def difference(all_said: Mapping[int, Mapping[str, Any]]) -> str:
    """Why ranks that came together did not do the same.

    >>> difference({0: {"do": "save", "step": 5}, 1: {"do": "save", "step": 5}, 2: {"do": "save", "step": 6}})
    'ranks 0 and 1 save step 5, rank 2 saves step 6: all ranks must save and load the same steps in the same order'
    >>> difference({0: {"do": "save", "step": 5}, 1: {"do": "save", "step": 5, "fault": "no space left"}})
    'rank 1: no space left'
    """
    faults = {rank: str(said["fault"]) for rank, said in all_said.items() if said.get("fault")}
    if faults:
        return _reasons(faults)
    groups: dict[str, list[int]] = {}
    for rank, said in all_said.items():
        groups.setdefault(_doing(said), []).append(rank)
    does = [
        f"{named(ranks)} {what if len(ranks) > 1 else what.replace(' ', 's ', 1) if ' ' in what else what + 's'}"
        for what, ranks in groups.items()
    ]
    return f"{', '.join(does)}: all ranks must save and load the same steps in the same order"


def _doing(said: Mapping[str, Any]) -> str:
    if said["do"] == "begin":
        return f"save step {said['step']} together with others"
    return f"{said['do']} step {said['step']}" if said["do"] in ("save", "load") else "resume"


def absent(all_said: Mapping[int, Mapping[str, Any]], me: Member) -> str:
    """Who has not come when patience ended, and what the others say that have failed.

    >>> absent({0: {"do": "save"}, 2: {"do": "save"}}, Member(0, 4))
    'rank 0 has waited in vain for ranks 1 and 3'
    """
    missing = [rank for rank in range(me.world_size) if rank not in all_said]
    faults = {rank: str(said["fault"]) for rank, said in all_said.items() if said.get("fault")}
    text = f"rank {me.rank} has waited in vain for {named(missing) if missing else 'the decision'}"
    return f"{text}; {_reasons(faults)}" if faults else text


def _reasons(faults: Mapping[int, str]) -> str:
    """Each reason once, with the ranks that gave it."""
    groups: dict[str, list[int]] = {}
    for rank, why in faults.items():
        groups.setdefault(why, []).append(rank)
    texts = [f"{named(ranks)}: {why}" for why, ranks in groups.items()]
    rest = [f"and {len(texts) - _REASONS_MAX} more reasons"] if len(texts) > _REASONS_MAX else []
    return "; ".join([*texts[:_REASONS_MAX], *rest])


def named(ranks: Sequence[int]) -> str:
    """Ranks, for a sentence."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _REASONS_MAX:
        return f"ranks {', '.join(map(str, ranks[:_REASONS_MAX]))} and {len(ranks) - _REASONS_MAX} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def _short(why: str | None) -> str | None:
    return None if why is None else why[:_WHY_CHARACTERS]
