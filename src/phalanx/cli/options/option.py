"""What an option is: one row of the table, from which flags, variables, conversion, defaults and help follow."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.cli import convert
from phalanx.records import Struct

__all__ = ["Option", "switch"]


class Option(Struct, kw_only=True):
    """One option. ``read`` turns text into a value; an option without ``metavar`` is a switch and takes no text.

    ``default`` is text as a user would write it, or ``None`` where "not given" means something else than any value.
    ``also`` names further variables that are asked after ``PET_<DEST>``. ``later`` is set for an option of torchrun
    that this version cannot honour: it is the sentence that refuses it.
    """

    name: str
    group: str
    help: str
    read: Callable[[str], object] = convert.text
    metavar: str | None = None
    short: str | None = None
    default: str | None = None
    also: tuple[str, ...] = ()
    has_variable: bool = True
    torchrun: bool = True
    later: str | None = None
    field: str | None = None
    """Of ``RunOptions``, ``restarts.…`` for one of its policy; None: it has the name of ``dest``."""
    section: str | None = None
    """Of a configuration file; None: that of the group, and empty: it is no key of a file."""

    @property
    def flag(self) -> str:
        """The spelling that messages use, such as ``--nproc-per-node``."""
        return f"--{self.name}"

    @property
    def spellings(self) -> tuple[str, ...]:
        """Both long spellings, the one with ``-`` first; one if the name has a single word."""
        return tuple(dict.fromkeys((self.flag, "--" + self.dest)))

    @property
    def dest(self) -> str:
        """The name as a Python identifier."""
        return self.name.replace("-", "_")

    @property
    def variables(self) -> tuple[str, ...]:
        """The environment variables that give a value when no flag does, the strongest first."""
        return (f"PET_{self.dest.upper()}", *self.also) if self.has_variable else ()

    @property
    def is_switch(self) -> bool:
        """Whether the flag stands alone."""
        return self.metavar is None


def switch(
    name: str,
    group: str,
    help_text: str,
    *,
    short: str | None = None,
    later: str | None = None,
    torchrun: bool = True,
    section: str | None = None,
) -> Option:
    """A row for a switch: a flag that stands alone, off unless it is given."""
    return Option(
        name=name,
        group=group,
        help=help_text,
        read=convert.switch,
        default="0",
        short=short,
        later=later,
        torchrun=torchrun,
        section=section,
    )
