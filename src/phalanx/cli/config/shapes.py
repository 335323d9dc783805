"""What the value of an option may look like in a file: from YAML to the text that a flag would have.

One text for each option, whatever it came from, keeps the meaning in one place: the option's ``read``. A list or a map
of YAML is for options whose text is a list or a map, too; it is refused where the text could not hold it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.cli import convert
from phalanx.cli.config.document import Entries, Items, Node, Scalar
from phalanx.cli.config.expansion import expanded
from phalanx.cli.options import Option
from phalanx.launcher.hardware import slots

__all__ = ["plain_text", "schema_of", "text_of"]

_LISTS = (
    convert.comma_list,
    convert.devices,
    convert.exit_codes,
    convert.rank_set,
    convert.refill,
    convert.signals,
)
_MAPS = (convert.pairs, convert.streams)
_WHOLE = (convert.count, convert.port, convert.tries)
_WHOLE_OR_WORDS = (convert.node_range, convert.threads, slots.read_slots)
_TIMES = (convert.duration, convert.span)


def text_of(option: Option, node: Node, environ: Mapping[str, str]) -> str | None:
    """Return the option's text; ``None`` for nothing (``null``, or a key without a value).

    Raises ``ValueError`` with the rest of a sentence.
    """
    if isinstance(node, Items):
        if not _takes_list(option):
            raise ValueError("one value is wanted here, not a list")
        return _joined(option, [plain_text(one, environ) for one in node.items])
    if isinstance(node, Entries):
        if option.read not in _MAPS:
            raise ValueError("one value is wanted here, not a map")
        return _paired(option, {one.key: plain_text(one.value, environ) for one in node.entries})
    found = expanded(node, environ)
    if found.kind == "nothing":
        return None
    if found.kind == "truth" and not option.is_switch:
        raise ValueError(f"{found.text} is a yes or no; put it in quotes if the text is meant")
    return found.text


def plain_text(node: Node, environ: Mapping[str, str]) -> str:
    """Return the text of an element or of a value in a map, as it was written. Raises ``ValueError``."""
    if not isinstance(node, Scalar):
        raise ValueError("one value is wanted for each, not a list or a map")  # noqa: TRY004  # of the file
    found = expanded(node, environ)
    if found.kind == "nothing" and found is node:
        raise ValueError('there is no value; write "" for an empty text')
    return found.text


def schema_of(option: Option) -> dict[str, Any]:
    """Return the JSON Schema of the option's value. A text is always allowed: it may be made of variables."""
    described = {"description": option.help}
    if option.default and not option.is_switch:
        described["description"] += f" (default: {option.default})"
    if isinstance(option.read, convert.Choice):
        words = {"anyOf": [{"enum": [*option.read.allowed, None]}, {"type": "string", "pattern": r"\$"}]}
        return {**described, **words}
    if option.is_switch:
        return {**described, "type": ["boolean", "integer", "string", "null"]}
    if option.read in _WHOLE or option.read in _WHOLE_OR_WORDS:
        least = 0 if option.read in _WHOLE else 1
        return {**described, "type": ["integer", "string", "null"], "minimum": least}
    if option.read in _TIMES:
        return {**described, "type": ["number", "string", "null"], "minimum": 0}
    kinds = ["number", "string", "null"]
    more: dict[str, Any] = {}
    scalar = {"type": ["number", "string", "boolean"]}
    if _takes_list(option):
        kinds.append("array")
        more["items"] = scalar
    if option.read in _MAPS:
        kinds.append("object")
        more["additionalProperties"] = scalar
    return {**described, "type": kinds, **more}


def _takes_list(option: Option) -> bool:
    return option.read in _LISTS or ((option.metavar or "").endswith(",...") and option.read not in _MAPS)


def _joined(option: Option, texts: list[str]) -> str:
    if option.read is convert.comma_list:  # where two commas are one
        joined = ",".join(text.replace(",", ",,") for text in texts)
        if option.read(joined) != tuple(texts):
            raise ValueError("a text of the list is empty, or begins with a comma")
        return joined
    for text in texts:
        if "," in text:
            raise ValueError(f"{text[:40]!r} has a comma; make it two elements of the list")
    return ",".join(texts)


def _paired(option: Option, texts: dict[str, str]) -> str:
    if option.read is convert.streams:
        return ",".join(f"{key}:{text}" for key, text in texts.items()) or "0"
    joined = ",".join(f"{key}={text}" for key, text in texts.items())
    if not all("," not in f"{key}{text}" and "=" not in key for key, text in texts.items()):
        raise ValueError("a setting cannot hold a comma, nor its key =")
    return joined
