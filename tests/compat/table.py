"""Prints docs/compatibility.md, made from the marks of all tests: ``python -m tests.compat.table > the page``.

Everything that is collected is in the page and nothing else; tests/repository/test_compatibility.py says what has to
be in it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping

from tests.compat.marks import OBJECTS, VERDICTS, BadMarks, Item, collect

HEAD = """\
# What is compatible with torchrun

Made from the tests by `python -m tests.compat.table`: each line is an item that at least one test shows. *Same* means
that what it does is tested, and that a program or a person who knows torchrun 2.13 sees no difference; *better* says
what the difference is; *not offered* says why. *Same signature* is less: the name is there by signature and members
alone, compared with torch's, and no test shows what it does. A name that has several paths is one object, and the same
at each of them; a variable `PET_…` is as its flag. How programs that import torch's own names run on Phalanx is on the
page [torch's own names](torch-names.md); what commands do differently is in
[coming from torchrun](from-torchrun.md).
"""

SECTIONS = {
    "flag": ("Flags", "Flag of `torchrun` and of `python -m torch.distributed.launch`"),
    "variable": ("Variables", "Environment variable"),
    "extension": ("Extension points", "Extension point"),
}


def page(items: Mapping[str, Item]) -> str:
    """The whole page."""
    parts = [HEAD, _count(items.values())]
    for kind, (title, column) in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts.append(_table(column, {item.title: item for item in items.values() if item.kind == kind}))
    parts.append("## Public names\n")
    for module, names in sorted(_by_module(items.values()).items()):
        parts.append(f"### `{module}`\n")
        parts.append(_table("Name", names))
    return "\n".join(parts)


def _count(items: Iterable[Item]) -> str:
    things = {
        OBJECTS.get(item.name, item.name): item.verdict for item in items
    }  # an object with many paths is one
    verdicts = list(things.values())
    counted = [f"{verdicts.count(verdict)} {verdict}" for verdict in (*VERDICTS[1:], VERDICTS[0])]
    return f"{len(verdicts)} items: {', '.join(counted)}.\n"


def _by_module(items: Iterable[Item]) -> dict[str, dict[str, Item]]:
    modules: dict[str, dict[str, Item]] = {}
    for item in items:
        if item.kind == "name":
            module, _, name = item.title.rpartition(".")
            modules.setdefault(module, {})[name] = item
    return modules


def _table(column: str, items: Mapping[str, Item]) -> str:
    lines = [f"| {column} | Compared with torchrun |", "|---|---|"]
    for title, item in sorted(items.items()):
        how = "; ".join(sorted(item.hows)).replace("|", "\\|")
        lines.append(f"| `{title}` | {item.verdict}{f': {how}' if how else ''} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Print the page; 1 and what is wrong with the marks if something is."""
    try:
        items = collect(*sys.argv[1:])
    except (BadMarks, RuntimeError) as problem:
        print(problem, file=sys.stderr)
        return 1
    sys.stdout.write(page(items))
    return 0


if __name__ == "__main__":
    sys.exit(main())
