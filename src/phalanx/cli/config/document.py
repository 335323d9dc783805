"""A YAML 1.2 file as plain nodes that know their lines.

ruamel.yaml parses and composes; nothing is constructed from it, so a tag can make no object. A scalar keeps the text as
it was written (``2:4``, ``007``, ``1e-3``), for what it means is up to who asked for it. Tags, directives and a second
document are mistakes, and so is a file that is too large, too deep, or that aliases blow up.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from phalanx.cli.mistakes import UsageError

__all__ = ["Entries", "Entry", "Items", "Mistakes", "Node", "Scalar", "read_document"]

BYTES_MAX = 256 << 10  # a job's file has a few kilobytes; the parser takes a second for this much
DEPTH_MAX = 20
NODES_MAX = 20_000  # also the end of aliases of aliases
_KINDS: dict[str, Literal["text", "number", "truth", "nothing"]] = {
    "str": "text",
    "timestamp": "text",  # a date has no meaning to any option
    "int": "number",
    "float": "number",
    "bool": "truth",
    "null": "nothing",
}


class Scalar(NamedTuple):
    """One value, as it was written."""

    text: str
    kind: Literal["text", "number", "truth", "nothing"]
    line: int


class Items(NamedTuple):
    """A list."""

    items: tuple[Node, ...]
    line: int


class Entry(NamedTuple):
    """A key and its value; the line is the key's."""

    key: str
    value: Node
    line: int


class Entries(NamedTuple):
    """A map, in the order of the file, each key once."""

    entries: tuple[Entry, ...]
    line: int


Node = Scalar | Items | Entries


class Mistakes:
    """Collects what is wrong with a file, so that all of it is told at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._found: list[tuple[int, str]] = []

    def add(self, line: int, key: str, sentence: str) -> None:
        """Remember what is wrong with a key; without a key it is about the line."""
        self._found.append((line, f"{self.name}:{line}: {key}{': ' if key else ''}{sentence}"))

    def raise_if_any(self) -> None:
        """Raise ``UsageError`` with a line for each mistake, in the order of the file."""
        if self._found:
            told = dict.fromkeys(text for _, text in sorted(self._found, key=lambda found: found[0]))
            raise UsageError("\n".join(told))


def read_document(path: str, mistakes: Mistakes) -> Entries:
    """Return the file's top level. Raises ``UsageError`` if it is no YAML; smaller mistakes are collected."""
    text = _text_of(path)
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("%"):
            mistakes.add(number, "", "a directive is not read here; the file is YAML 1.2")
            mistakes.raise_if_any()
        if line.strip() and not line.lstrip().startswith("#"):
            break
    root = _compose(text, mistakes)
    if root is None:
        return Entries((), 1)
    found = _Reader(mistakes).node(root, "", 0)
    if isinstance(found, Scalar) and found.kind == "nothing":
        return Entries((), 1)
    if not isinstance(found, Entries):
        mistakes.add(1, "", "the file must be a map of sections, such as elastic: and script:")
        mistakes.raise_if_any()
        return Entries((), 1)
    return found


def _text_of(path: str) -> str:
    try:
        with open(path, "rb") as file:
            raw = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise UsageError(f"cannot read the configuration file {path!r}: {error.strerror}") from None
    if len(raw) > BYTES_MAX:
        raise UsageError(f"{path} is no configuration file: it has more than {BYTES_MAX >> 10} KiB")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as reason:
        line = raw.count(b"\n", 0, reason.start) + 1
        raise UsageError(f"{path}:{line}: the file is no UTF-8") from None


def _compose(text: str, mistakes: Mistakes) -> Any:
    import warnings

    try:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError
    except ImportError:
        raise UsageError(
            "a configuration file needs the package ruamel.yaml, which is not installed; "
            "pip install 'phalanx-launcher[config]'"
        ) from None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an anchor may be set again, says YAML; the last one counts
            return YAML(typ="safe", pure=True).compose(text)
    except MarkedYAMLError as reason:
        mark = reason.problem_mark or reason.context_mark
        line = mark.line + 1 if mark else 1
        hint = ""
        if "${" in text.split("\n")[line - 1] and str(reason.context).startswith("while parsing a flow"):
            hint = '; inside of { } and [ ] a variable stands in quotes: "${NAME}"'
        mistakes.add(line, "", f"this is no YAML: {_sentence(reason.context, reason.problem)}{hint}")
    except RecursionError:
        mistakes.add(1, "", "lists and maps are nested too deeply")
    except (YAMLError, ValueError) as reason:
        mistakes.add(1, "", f"this is no YAML: {' '.join(str(reason).split())[:200]}")
    mistakes.raise_if_any()
    return None


def _sentence(*parts: str | None) -> str:
    return ", ".join(" ".join(part.split()) for part in parts if part)


class _Reader:
    """Turns composed nodes into ours, and counts them: an alias is followed each time, so a bomb ends here."""

    def __init__(self, mistakes: Mistakes) -> None:
        self._mistakes = mistakes
        self._count = 0

    def node(self, raw: Any, path: str, depth: int) -> Node:
        line = raw.start_mark.line + 1
        self._count += 1
        if depth > DEPTH_MAX or self._count > NODES_MAX:
            self._mistakes.add(line, path, "lists and maps are too many, or nested too deeply")
            self._mistakes.raise_if_any()
        tag = str(raw.tag or "").removeprefix("tag:yaml.org,2002:")
        if raw.id == "mapping" and tag == "map":
            return Entries(self._entries(raw, path, depth), line)
        if raw.id == "sequence" and tag == "seq":
            return Items(
                tuple(self.node(one, f"{path}[{at}]", depth + 1) for at, one in enumerate(raw.value)), line
            )
        if raw.id == "scalar" and tag in _KINDS:
            return Scalar(raw.value, _KINDS[tag], line)
        self._mistakes.add(line, path, f"the tag {tag} is not read here; write a plain value")
        return Scalar("", "nothing", line)

    def _entries(self, raw: Any, path: str, depth: int) -> tuple[Entry, ...]:
        found: dict[str, Entry] = {}
        for raw_key, raw_value in raw.value:
            line = raw_key.start_mark.line + 1
            if raw_key.id != "scalar":
                self._mistakes.add(line, path, "a key must be a plain word")
                continue
            key = raw_key.value
            place = f"{path}.{key}" if path else key
            if str(raw_key.tag).endswith(":merge"):
                self._mistakes.add(line, place, "YAML 1.2 has no merge keys; write the entries themselves")
            elif key in found:
                self._mistakes.add(line, place, f"the key is there twice, first in line {found[key].line}")
            else:
                found[key] = Entry(key, self.node(raw_value, place, depth + 1), line)
        return tuple(found.values())
