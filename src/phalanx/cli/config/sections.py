"""The sections of a configuration file: those of options, ``env``, and ``script``.

A key of a section is an option of the table by its name with ``_``, so nothing about options is written here.
"""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.cli.config.document import Entries, Entry
from phalanx.cli.config.reading import PROGRAMS, FileReader, read_arguments
from phalanx.cli.mistakes import nearest, nearest_name
from phalanx.cli.options import OPTIONS, Option, section_of

__all__ = ["SECTIONS", "read"]

SECTIONS = ("job", "elastic", "logs", "restart", "store", "env", "script")


def read(root: Entries, reader: FileReader) -> None:
    """Read a file's sections; what is wrong with them is told to the reader's ``mistakes``."""
    tables = {name: {one.dest: one for one in OPTIONS if section_of(one) == name} for name in SECTIONS}
    for section in root.entries:
        if section.key not in SECTIONS:
            reader.mistakes.add(section.line, section.key, _unknown_section(section.key, tables))
            reader.unread.add(section.key.replace("-", "_"))
            reader.unread.update(tables.get(nearest_name(section.key, SECTIONS) or "", ()))
            continue
        entries = reader.section(section.value, section.key)
        if section.key == "env":
            for one in entries:
                _read_variable(one, reader)
            continue
        if section.key == "script":
            _read_script(entries, reader)
        for one in entries:
            option = tables[section.key].get(one.key)
            key = f"{section.key}.{one.key}"
            if option is not None:
                reader.option(option, one, key)
            elif not (section.key == "script" and one.key in (*PROGRAMS, "args")):
                meant, place = _meant(section.key, one.key, tables)
                hint = f"; did you mean {place}?" if place else ""
                reader.mistakes.add(one.line, key, f"unknown key{hint}")
                reader.unread.add(meant)


def _unknown_section(name: str, tables: Mapping[str, Mapping[str, Option]]) -> str:
    dest = name.replace("-", "_")
    for section, options in tables.items():
        if dest in options:
            return f"this is no section; {section}.{dest} is the key"
    return f"unknown section{nearest(name, SECTIONS) or '; there are ' + ', '.join(SECTIONS)}"


def _meant(section: str, name: str, tables: Mapping[str, Mapping[str, Option]]) -> tuple[str, str]:
    """Return the key that an unknown one is likely to be, and how to write it; nothing twice if none is near."""
    dest = name.replace("-", "_")
    for other, options in tables.items():
        if dest in options:
            return dest, dest if other == section else f"{other}.{dest}"
    more = [*PROGRAMS, "args"] if section == "script" else []
    if near := nearest_name(dest, [*tables[section], *more]):
        return near, near
    places = {one: f"{other}.{one}" for other, options in tables.items() for one in options}
    near = nearest_name(dest, places) or ""
    return near, places.get(near, "")


def _read_variable(entry: Entry, reader: FileReader) -> None:
    key = f"env.{entry.key}"
    if not entry.key or "=" in entry.key or "\0" in entry.key:
        reader.mistakes.add(entry.line, key, "this is no name of a variable")
        return
    reader.variable(entry.key, entry.value, entry.line, key)


def _read_script(entries: tuple[Entry, ...], reader: FileReader) -> None:
    named = [(one.key, one) for one in entries if one.key in PROGRAMS]
    arguments: list[str] = []
    for one in entries:
        if one.key == "args" and reader.names_program:
            arguments = read_arguments(one, "script.args", reader)
            if not named:
                reader.mistakes.add(
                    one.line, "script.args", "there are arguments, and no script.path that they are for"
                )
    reader.read_program(named, arguments, "script")
