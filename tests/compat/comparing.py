"""How one of our names differs from torch's of that name, by what ``describe`` says of both."""

from __future__ import annotations

from typing import Any

Parameter = list[Any]  # name, kind, default as text


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """What a program that uses torch's name would miss in ours; empty when it misses nothing."""
    if ours["kind"] != theirs["kind"]:
        return [f"it is a {theirs['kind']}, and here a {ours['kind']} ({ours.get('reason', '')})"]
    found = [
        f"its {aspect} are {theirs[aspect]}, and here {ours[aspect]}"
        for aspect in ("members", "bases", "value")
        if aspect in theirs and theirs[aspect] != ours[aspect]
    ]
    found += _in_signature("", theirs.get("signature"), ours.get("signature"))
    methods = ours.get("methods", {})
    for name, theirs_of in theirs.get("methods", {}).items():
        if name not in methods:
            found.append(f"{name} is missing")
        elif "property" in (theirs_of, methods[name]):
            if theirs_of != methods[name]:
                found.append(f"{name} is a property in one only")
        else:
            found += _in_signature(f"{name}: ", theirs_of, methods[name])
    return found


def _in_signature(where: str, theirs: list[Parameter] | None, ours: list[Parameter] | None) -> list[str]:
    """Parameters that differ: names, order, kinds and defaults. Further ones of ours are by keyword only."""
    theirs, ours = theirs or [], ours or []
    wanted = {parameter[0] for parameter in theirs}
    rest = [each for each in ours if each[0] in wanted or each[1] != "KEYWORD_ONLY"]
    found = []
    if [each[:2] for each in rest] != [each[:2] for each in theirs]:
        found.append(f"{where}parameters are {_names(theirs)}, and here {_names(rest)}")
    else:
        for mine, their in zip(rest, theirs, strict=True):
            if their[2] is not None and mine[2] != their[2] and not their[2].startswith("<function"):
                found.append(f"{where}the default of {their[0]} is {their[2]}, and here {mine[2]}")
    further = [each for each in ours if each not in rest and each[2] is None]
    if further:
        found.append(f"{where}{_names(further)} must be given here")
    return found


def additions(theirs: dict[str, Any], ours: dict[str, Any]) -> set[str]:
    """Parameters that ours takes beside torch's, and those that may be left out here."""
    known = {each[0]: each[2] for each in theirs.get("signature") or []}
    return {
        each[0]
        for each in ours.get("signature") or []
        if each[0] not in known or (known[each[0]] is None and each[2] is not None)
    }


def _names(parameters: list[Parameter]) -> str:
    return ", ".join(f"{name} ({kind.lower()})" for name, kind, _ in parameters) or "none"
