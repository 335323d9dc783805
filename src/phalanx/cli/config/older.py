"""The older kind of file, with sections ``training``, ``elastic`` and ``distributed``.

``elastic`` and ``distributed`` say what options say, some under other names (``_ALIASES``). ``training`` is the
program's own: the script, and settings that we know nothing of. Each setting reaches every worker as a variable,
``TRAINING_LR``, and the script as an argument, ``--lr 0.1``, if the file names the script and does not say
``pass_as: environment``. What ``distributed`` has for torch, such as ``backend``, becomes a variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from phalanx.cli.config.document import Entries, Entry, Items, Node, Scalar
from phalanx.cli.config.reading import PROGRAMS, FileReader, read_arguments
from phalanx.cli.mistakes import nearest, nearest_name, warn
from phalanx.cli.options import OPTIONS, section_of

__all__ = ["is_older", "read"]

_SECTIONS = ("training", "elastic", "distributed")
_BY_NAME = {one.dest: one for one in OPTIONS if section_of(one)}
_ALIASES = {
    "rdzv_configs": "rdzv_conf",
    "run_id": "rdzv_id",
    "job_id": "rdzv_id",
    "nproc": "nproc_per_node",
}
_FOR_TORCH = ("backend", "init_method", "timeout")
_NOT_NEEDED = ("world_size", "rank", "local_rank")
_PROGRAMS = {"script": "path", **{name: name for name in PROGRAMS}}
_PASS_AS = ("arguments", "environment")


def is_older(root: Entries) -> bool:
    """Whether the sections are those of the older kind; ``elastic`` is in both, with other keys."""
    for entry in root.entries:
        if entry.key in ("training", "distributed"):
            return True
        if entry.key == "elastic" and isinstance(entry.value, Entries):
            keys = {one.key for one in entry.value.entries}
            if keys & {"min_nodes", "max_nodes", "rdzv_configs"}:
                return True
    return False


def read(root: Entries, reader: FileReader) -> None:
    """Read a file of the older kind; what is wrong with it is told as with the other kind."""
    for section in root.entries:
        if section.key not in _SECTIONS:
            hint = nearest(section.key, _SECTIONS) or f", which has {', '.join(_SECTIONS)}"
            reader.mistakes.add(section.line, section.key, f"unknown section of the older kind of file{hint}")
            continue
        entries = reader.section(section.value, section.key)
        if section.key == "training":
            _read_training(entries, reader)
        else:
            _read_options(section.key, entries, reader)


def _read_options(section: str, entries: tuple[Entry, ...], reader: FileReader) -> None:
    nodes: dict[str, Entry] = {}
    for one in entries:
        key = f"{section}.{one.key}"
        option = _BY_NAME.get(_ALIASES.get(one.key, one.key))
        if section == "elastic" and one.key in ("min_nodes", "max_nodes"):
            nodes[one.key] = one
        elif option is not None:
            reader.option(option, one, key)
        elif section == "distributed" and one.key in _FOR_TORCH:
            reader.variable(f"DISTRIBUTED_{one.key.upper()}", one.value, one.line, key)
        elif section == "distributed" and one.key in _NOT_NEEDED:
            warn(f"{reader.mistakes.name}:{one.line}: {key} has no effect: ranks and sizes are agreed on")
        else:
            known = [*_BY_NAME, *_ALIASES, *(_FOR_TORCH if section == "distributed" else ())]
            if section == "elastic":
                known += ["min_nodes", "max_nodes"]
            reader.mistakes.add(one.line, key, f"unknown key{nearest(one.key, known)}")
            near = nearest_name(one.key, known) or ""
            reader.unread.add("nnodes" if near.endswith("_nodes") else _ALIASES.get(near, near))
    _read_nodes(nodes, reader)


def _read_nodes(nodes: dict[str, Entry], reader: FileReader) -> None:
    """``min_nodes`` and ``max_nodes`` are ``nnodes``; one alone is a fixed number, or a range from 1."""
    if not nodes:
        return
    texts = {
        name: reader.text(one.value, one.line, f"elastic.{name}")
        for name, one in nodes.items()
        if not (isinstance(one.value, Scalar) and one.value.kind == "nothing")
    }
    if None in texts.values():
        reader.unread.add("nnodes")
        return
    if not texts:
        return
    least = texts.get("min_nodes") or "1"
    most = texts.get("max_nodes") or least
    name, entry = next(iter(nodes.items()))
    reader.write(_BY_NAME["nnodes"], f"{least}:{most}", entry.line, f"elastic.{name}")


def _read_training(entries: tuple[Entry, ...], reader: FileReader) -> None:
    named = [(_PROGRAMS[one.key], one) for one in entries if one.key in _PROGRAMS]
    listed: list[str] = []
    settings: list[str] = []
    as_arguments = True
    for one in entries:
        key = f"training.{one.key}"
        option = _BY_NAME.get(one.key) if one.key in ("python", "start_method") else None
        if one.key in _PROGRAMS:
            continue
        if one.key == "args":
            listed = read_arguments(one, key, reader)
        elif one.key == "pass_as":
            as_arguments = reader.text(one.value, one.line, key) != "environment"
            if not (isinstance(one.value, Scalar) and one.value.text in _PASS_AS):
                reader.mistakes.add(one.line, key, f"write one of {', '.join(_PASS_AS)}")
        elif option is not None:
            reader.option(option, one, key)
        else:
            for name, value in _settings(one.key, one.value):
                settings += _pass_on(name, value, one.line, reader)
    reader.read_program(named, [*(settings if as_arguments else ()), *listed], "training")


def _settings(name: str, node: Node) -> Iterator[tuple[str, Scalar | Items]]:
    """Yield the settings of a key: a map is one for each of its entries, with a dot between the names."""
    if isinstance(node, Entries):
        for one in node.entries:
            yield from _settings(f"{name}.{one.key}", one.value)
    else:
        yield name, node


def _pass_on(name: str, node: Scalar | Items, line: int, reader: FileReader) -> list[str]:
    """Set a setting's variable, and return it as arguments: ``--lr 0.1``, ``--amp``, ``--sizes 1 2``, or nothing."""
    key = f"training.{name}"
    variable = "TRAINING_" + re.sub(r"[^A-Za-z0-9]", "_", name).upper()
    if isinstance(node, Items):
        texts = [reader.text(one, one.line, f"{key}[{at}]") for at, one in enumerate(node.items)]
        known = [text for text in texts if text is not None]
        reader.variable(variable, Scalar(",".join(known).replace("$", "$$"), "text", line), line, key)
        return [f"--{name}", *known]
    found = reader.expanded(node, key)
    if found is None or found.kind == "nothing":
        return []
    reader.variable(variable, node, line, key)
    if found.kind == "truth":
        return [f"--{name}"] if found.text.lower() == "true" else []
    return [f"--{name}", found.text]
