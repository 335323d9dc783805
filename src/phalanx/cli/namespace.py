"""A Namespace of torchrun's parser becomes the words that it stands for, and so goes the way of any command line.

Programs build such a Namespace in many ways: from our parser, from torch's, by hand; some names may be missing
and others be of no concern to us. One of our parser knows what was given; in any other what equals the parser's default
counts as not given, because it may be that. A variable that the parser has read already is not asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.cli.options import OPTIONS, Option
from phalanx.cli.parser import Namespace, default_of
from phalanx.cli.words import CommandLine
from phalanx.multiprocessing.macros import LOCAL_RANK

__all__ = ["LOCAL_RANK_FLAGS", "command_line_of", "environ_of", "use_env"]

# How the deprecated launcher tells a script its local rank; torch 1 had the second, and its scripts know no other.
LOCAL_RANK_FLAGS = {"dash": "--local-rank", "underscore": "--local_rank"}


def command_line_of(args: Any) -> CommandLine:
    """Return what stands where, as ``read_words`` does. Raises ``TypeError`` for a value that no word can say."""
    given: dict[str, str] = {}
    for option in OPTIONS:
        value = getattr(args, option.dest, None)
        was_given = isinstance(args, Namespace) and args.has_given(option.dest)
        if value is not None and (was_given or value != default_of(option)):
            given[option.dest] = _text(option, value)
    script = getattr(args, "training_script", None)
    arguments = [str(word) for word in getattr(args, "training_script_args", None) or ()]
    if not use_env(args):
        spelling = getattr(args, "local_rank_spelling", None) or "dash"
        arguments.insert(0, LOCAL_RANK_FLAGS[spelling] + "=" + LOCAL_RANK)
    return CommandLine(given, None if script is None else str(script), tuple(arguments))


def environ_of(args: Any, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables whose options the Namespace has."""
    read = {f"PET_{option.dest.upper()}" for option in OPTIONS if hasattr(args, option.dest)}
    return {name: text for name, text in environ.items() if name not in read}


def use_env(args: Any) -> bool:
    """Whether workers learn their local rank from the environment alone; the deprecated launcher can do otherwise."""
    return bool(getattr(args, "use_env", True))


def _text(option: Option, value: object) -> str:
    if option.is_switch:
        if isinstance(value, (bool, int)):
            return "1" if value else "0"
    elif isinstance(value, (list, tuple, set, frozenset)):
        return ",".join(str(item).replace(",", ",,") for item in value)
    elif isinstance(value, bool):
        raise TypeError(f"{option.dest} is {value}, and must be a text or a number")
    if isinstance(value, (str, int, float)):
        return str(value)
    raise TypeError(f"{option.dest} is of type {type(value).__name__}, and must be a text or a number")
