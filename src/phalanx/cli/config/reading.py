"""What both kinds of file are read with: one option, one variable, the program, each from its place.

What a flag or a variable overrules is not read any further, as a variable is not that a flag overrules.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from phalanx.cli.config.document import Entries, Entry, Items, Mistakes, Node, Scalar
from phalanx.cli.config.expansion import expanded
from phalanx.cli.config.shapes import plain_text, text_of
from phalanx.cli.options import OPTIONS, Option, section_of
from phalanx.cli.sources import Program, Text
from phalanx.cli.values import check_script

__all__ = ["PROGRAMS", "FileReader", "read_arguments"]

# How a program is named in the file, and which switch of the command line says the same.
PROGRAMS: dict[str, str | None] = {"path": None, "module": "module", "command": "no_python"}


class FileReader:
    """What was found so far, and how one option, one variable or the program is read from its place."""

    def __init__(
        self,
        mistakes: Mistakes,
        environ: Mapping[str, str],
        *,
        overruled: Collection[str] = (),
        names_program: bool = True,
    ) -> None:
        self.texts: dict[str, Text] = {}
        self.program: Program | None = None
        self.env: dict[str, Text] = {}
        self.unread: set[str] = set()
        """Options that a mistake is about: no check is to take the default for what was meant."""
        self.mistakes = mistakes
        self.names_program = names_program
        self._environ = environ
        self._overruled = overruled

    def section(self, node: Node, name: str) -> tuple[Entry, ...]:
        """Return the entries of a section; none if it is empty, or no map."""
        if isinstance(node, Entries):
            return node.entries
        if not (isinstance(node, Scalar) and node.kind == "nothing"):
            sentence = "a section must be a map of keys and values"
            if name == "script" and isinstance(node, Scalar):
                sentence += f"; write script: {{path: {node.text}}}"
            self.mistakes.add(node.line, name, sentence)
            self.unread.update(one.dest for one in OPTIONS if section_of(one) == name)
        return ()

    def option(self, option: Option, entry: Entry, key: str) -> None:
        """Read an option's value."""
        try:
            text = None if option.dest in self._overruled else text_of(option, entry.value, self._environ)
        except ValueError as reason:
            self.mistakes.add(entry.line, key, str(reason))
            self.unread.add(option.dest)
            return
        self.write(option, text, entry.line, key)

    def write(self, option: Option, text: str | None, line: int, key: str) -> None:
        """Take a text for an option as the file's, if the option can read it; nothing is no text."""
        if text is None or option.dest in self._overruled:
            return
        try:
            value = option.read(text)
            if option.later is not None and value is not False:
                raise ValueError(option.later)
        except ValueError as reason:
            self.mistakes.add(line, key, str(reason))
            self.unread.add(option.dest)
            return
        if option.dest in self.texts:
            self.mistakes.add(line, key, f"{self.texts[option.dest].origin} says the same thing")
            return
        self.texts[option.dest] = Text(text, f"{self.mistakes.name}:{line}: {key}", "file")

    def variable(self, name: str, node: Node, line: int, key: str) -> None:
        """Read a variable for the workers."""
        text = self.text(node, line, key)
        if text is not None:
            self.env[name] = Text(text, f"{self.mistakes.name}:{line}: {key}", "file")

    def text(self, node: Node, line: int, key: str) -> str | None:
        """Read a plain text, as it was written; ``None`` if it is wrong, which has been told."""
        try:
            text = plain_text(node, self._environ)
            if "\0" in text:
                raise ValueError("a NUL can be in no argument and in no variable")
            return text
        except ValueError as reason:
            self.mistakes.add(line, key, str(reason))
            return None

    def expanded(self, scalar: Scalar, key: str) -> Scalar | None:
        """Replace a scalar's variables; ``None`` if that is wrong, which has been told."""
        try:
            return expanded(scalar, self._environ)
        except ValueError as reason:
            self.mistakes.add(scalar.line, key, str(reason))
            return None

    def read_program(self, named: list[tuple[str, Entry]], arguments: list[str], section: str) -> None:
        """Take the program that the file names, as one of ``PROGRAMS``, with its arguments."""
        if not self.names_program:
            return
        for _, entry in named[1:]:
            self.mistakes.add(
                entry.line, f"{section}.{entry.key}", f"{section}.{named[0][1].key} names the program already"
            )
        for kind, entry in named[:1]:
            key = f"{section}.{entry.key}"
            name = self.text(entry.value, entry.line, key)
            if name is None:
                return
            try:
                self.program = Program(
                    check_script(name) if kind == "path" else _named(name),
                    tuple(arguments),
                    PROGRAMS[kind],
                    f"{self.mistakes.name}:{entry.line}: {key}",
                )
            except ValueError as reason:
                self.mistakes.add(entry.line, key, str(reason))


def _named(name: str) -> str:
    if not name:
        raise ValueError("there is no name")
    return name


def read_arguments(entry: Entry, key: str, reader: FileReader) -> list[str]:
    """Return a list's elements as they were written; nothing about them is parsed."""
    node = entry.value
    if isinstance(node, Scalar) and node.kind == "nothing":
        return []
    if not isinstance(node, Items):
        reader.mistakes.add(entry.line, key, "arguments are a list, such as [--lr, 0.1]")
        return []
    texts = [reader.text(one, one.line, f"{key}[{at}]") for at, one in enumerate(node.items)]
    return [text for text in texts if text is not None]
