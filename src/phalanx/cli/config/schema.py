"""What a configuration file may say, as JSON Schema, made of the option table: for editors, and ``docs/``.

It is never stricter than the reader about what a person would write, and knows sections, keys, kinds and words; what
only the reader knows (that a file exists, that one number is below another) is not in it.
"""

from __future__ import annotations

from typing import Any

from phalanx.cli.config.sections import SECTIONS
from phalanx.cli.config.shapes import schema_of
from phalanx.cli.options import OPTIONS, section_of

__all__ = ["json_schema", "json_schema_text"]

_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SCALAR = {"type": ["string", "number", "boolean"]}
_ABOUT = {
    "job": "the job: its id, what workers are told, how it stops, what it leaves",
    "elastic": "nodes, workers and restarts",
    "logs": "output and logs",
    "restart": "when a failed job is tried again",
    "store": "how nodes meet",
    "env": "variables for every worker",
    "script": "what to run: one of path, module and command, and its arguments",
}
_PROGRAM: dict[str, Any] = {
    "path": {"description": "a Python script", **_SCALAR},
    "module": {"description": "a Python module, as with python -m", **_SCALAR},
    "command": {"description": "a command that is no Python script", **_SCALAR},
    "args": {
        "description": "the program's own arguments, which are passed on as they are written",
        "type": ["array", "null"],
        "items": _SCALAR,
    },
}


def json_schema() -> dict[str, Any]:
    """Return the schema of a configuration file of the present kind (not of the older one)."""
    return {
        "$schema": _DRAFT,
        "title": "a job of phalanx run",
        "type": ["object", "null"],
        "additionalProperties": False,
        "properties": {name: _section(name) for name in SECTIONS},
    }


def json_schema_text() -> str:
    """Return the schema as it is published."""
    import json

    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _section(name: str) -> dict[str, Any]:
    about = {"description": _ABOUT[name], "type": ["object", "null"]}
    if name == "env":
        return {**about, "propertyNames": {"pattern": "^[^=]+$"}, "additionalProperties": _SCALAR}
    known = {one.dest: schema_of(one) for one in OPTIONS if section_of(one) == name}
    if name != "script":
        return {**about, "additionalProperties": False, "properties": known}
    one_program = {"not": {"anyOf": [{"required": pair} for pair in _PAIRS]}}
    needs_program = {"args": {"anyOf": [{"required": [kind]} for kind in ("path", "module", "command")]}}
    return {
        **about,
        "additionalProperties": False,
        "properties": {**_PROGRAM, **known},
        "dependentSchemas": needs_program,
        **one_program,
    }


_PAIRS = (["path", "module"], ["path", "command"], ["module", "command"])
