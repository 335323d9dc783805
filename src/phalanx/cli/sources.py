"""Each option's text and where it came from: a flag, else a variable, else the default.

The chain is data, a tuple of sources in the order of their strength; each gives the text that it has for an option, or
nothing. Whoever wants to know which of them won finds it beside the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

from phalanx.cli.options import OPTIONS, Option
from phalanx.cli.words import CommandLine

__all__ = ["Asked", "Source", "Text", "asked"]


class Text(NamedTuple):
    """What somebody wrote for an option; ``text`` is ``None`` only for a default that means "not given"."""

    text: str | None
    origin: str
    """How messages name the place: a flag, a variable, a key of a file with its line. A default goes by its flag."""
    kind: Literal["flag", "variable", "default"]


Source = Callable[[Option], Text | None]


class Asked(NamedTuple):
    """All that was asked for, still as text."""

    texts: Mapping[str, Text]
    """By the option's ``dest``; every option is there."""
    script: str | None
    arguments: tuple[str, ...]
    environ: Mapping[str, str]


def asked(line: CommandLine, environ: Mapping[str, str]) -> Asked:
    """Return each option's text from the strongest source that has one."""
    chain = (_flags(line.given), _variables(environ))
    return Asked({one.dest: _strongest(chain, one) for one in OPTIONS}, line.script, line.arguments, environ)


def _strongest(chain: tuple[Source, ...], option: Option) -> Text:
    for source in chain:
        found = source(option)
        if found is not None:
            return found
    return Text(option.default, option.flag, "default")


def _flags(given: Mapping[str, str]) -> Source:
    def find(option: Option) -> Text | None:
        return Text(given[option.dest], option.flag, "flag") if option.dest in given else None

    return find


def _variables(environ: Mapping[str, str]) -> Source:
    def find(option: Option) -> Text | None:
        for variable in option.variables:
            if environ.get(variable):  # an empty variable counts as not set
                return Text(environ[variable], variable, "variable")
        return None

    return find
