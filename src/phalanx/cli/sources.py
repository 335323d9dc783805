"""Each option's text and where it came from: a flag, else a variable, else the configuration file, else the default.

The chain is data, a tuple of sources in the order of their strength; each gives the text that it has for an option, or
nothing. Whoever wants to know which of them won finds it beside the text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from phalanx.cli.mistakes import UsageError
from phalanx.cli.options import OPTIONS, Option
from phalanx.cli.words import CommandLine
from phalanx.records import Struct

__all__ = ["Asked", "JobFile", "PartlyRead", "Program", "Source", "Text", "asked"]


class Text(Struct):
    """What somebody wrote for an option; ``text`` is ``None`` only for a default that means "not given"."""

    text: str | None
    origin: str
    """How messages name the place: a flag, a variable, a key of a file with its line. A default goes by its flag."""
    kind: Literal["flag", "variable", "file", "default"]


class Program(Struct):
    """What to run. ``switch`` is the option that says of which kind it is; ``None``: the words have said it."""

    name: str
    arguments: tuple[str, ...]
    switch: str | None = None
    origin: str = ""


class JobFile(Struct):
    """What a configuration file says. ``texts`` are by the option's ``dest``, ``env`` by the variable's name."""

    path: str
    texts: Mapping[str, Text]
    program: Program | None
    env: Mapping[str, Text]
    unread: frozenset[str] = frozenset()
    """Options that it seems to be about, and whose value could not be read."""


class PartlyRead(UsageError):
    """There are mistakes in a file; ``file`` is what is right in it."""

    def __init__(self, mistakes: str, file: JobFile) -> None:
        super().__init__(mistakes)
        self.file = file


Source = Callable[[Option], Text | None]


class Asked(Struct):
    """All that was asked for, still as text."""

    texts: Mapping[str, Text]
    """By the option's ``dest``; every option is there."""
    program: Program | None
    environ: Mapping[str, str]
    env: Mapping[str, Text] = MappingProxyType({})
    """Variables for the workers."""
    mistakes: str = ""
    """What is wrong with the configuration file, a line for each; ``unread`` are the options that it is about."""
    unread: frozenset[str] = frozenset()


_KINDS_OF_PROGRAM = ("module", "no_python", "run_path")


def asked(line: CommandLine, environ: Mapping[str, str]) -> Asked:
    """Return each option's text from the strongest source that has one.

    Raises ``UsageError`` if a configuration file is named and is none. Smaller mistakes in it are told with those of
    flags and variables, by who reads the texts.
    """
    chain: tuple[Source, ...] = (_flags(line.given), _variables(environ))
    texts = {one.dest: found for one in OPTIONS if (found := _strongest(chain, one)) is not None}
    program = None if line.script is None else Program(line.script, line.arguments)
    env: Mapping[str, Text] = MappingProxyType({})
    mistakes = ""
    unread: frozenset[str] = frozenset()
    if "config" in texts and texts["config"].text:
        from phalanx.cli.config import read_job_file

        try:
            file = read_job_file(
                texts["config"].text, environ, overruled=texts.keys(), names_program=program is None
            )
        except PartlyRead as partly:
            file, mistakes = partly.file, str(partly)
            unread = file.unread - texts.keys()
        if program is None and file.program is not None:
            program = file.program
            texts.update(_kind_of(program, line.given))
        env = file.env
        texts = {**file.texts, **texts}
    defaults = {one.dest: Text(one.default, one.flag, "default") for one in OPTIONS if one.dest not in texts}
    return Asked({**defaults, **texts}, program, environ, env, mistakes, unread)


def _strongest(chain: tuple[Source, ...], option: Option) -> Text | None:
    for source in chain:
        found = source(option)
        if found is not None:
            return found
    return None


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


def _kind_of(program: Program, given: Mapping[str, str]) -> dict[str, Text]:
    """Return what a file's program is, for the switches that would say it: who names it knows its kind."""
    for dest in _KINDS_OF_PROGRAM:
        if dest in given:
            flag = "--" + dest.replace("_", "-")
            raise UsageError(
                f"{flag} is about a program that the command line names, and {program.origin} names this one"
            )
    return {
        dest: Text("1" if dest == program.switch else "0", program.origin, "file")
        for dest in _KINDS_OF_PROGRAM
    }
