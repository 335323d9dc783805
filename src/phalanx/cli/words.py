"""Find the flags, the script and the script's arguments among the words of a command line.

The walk stops at the first word that is neither a flag nor a flag's value. That word is the script, and nothing after
it is looked at, whatever it looks like. argparse cannot promise this: it classifies all words before it reads any, so
an argument of the script that resembles one of our flags ends the run (see docs/decisions).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.cli.mistakes import UsageError, nearest
from phalanx.cli.options import HELP, OPTIONS, VERSION, Option
from phalanx.records import Struct

__all__ = ["CommandLine", "read_words"]


class CommandLine(Struct):
    """What stands where: the text of each given flag by the option's ``dest``, the script, its arguments.

    A switch's text is ``"1"``. Of a flag that is given twice the last text counts. ``wants`` is ``HELP`` or ``VERSION``
    if that was asked for before the script; the rest is of no interest then.
    """

    given: dict[str, str]
    script: str | None = None
    arguments: tuple[str, ...] = ()
    wants: Option | None = None


_OPTIONS = (*OPTIONS, HELP, VERSION)
_BY_SPELLING = {spelling: option for option in _OPTIONS for spelling in option.spellings}
_BY_SHORT = {f"-{option.short}": option for option in _OPTIONS if option.short}


def read_words(words: Sequence[str], *, more: Sequence[Option] = ()) -> CommandLine:
    """Read the words after ``phalanx run``. Raises ``UsageError`` for an unknown, ambiguous or incomplete flag.

    ``more`` are options that the caller knows beside those of the table.
    """
    known = {**_BY_SPELLING, **{spelling: option for option in more for spelling in option.spellings}}
    given: dict[str, str] = {}
    at = 0
    while at < len(words) and _is_flag(words[at]):
        word = words[at]
        at += 1
        if word == "--":  # what follows is the script, even if it begins with a dash
            break
        option, text = _find(word, known)
        if option in (HELP, VERSION):
            return CommandLine(given, wants=option)
        if option.is_switch:
            given[option.dest] = "1"
            if text is not None:  # -mNAME, as with python: the name is the script
                return CommandLine(given, text, tuple(words[at:]))
        elif text is None:
            given[option.dest] = _value(option, words, at)
            at += 1
        else:
            given[option.dest] = text
    if at == len(words):
        return CommandLine(given)
    return CommandLine(given, words[at], tuple(words[at + 1 :]))


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _find(word: str, known: Mapping[str, Option]) -> tuple[Option, str | None]:
    """Return the option of a flag, and the text that hangs on it (``--tee=3``, ``-t3``, ``-mNAME``) or ``None``."""
    if not word.startswith("--"):
        option = _BY_SHORT.get(word[:2])
        if option is None:
            raise UsageError(_unknown(word, known))
        text = word[2:].removeprefix("=")
        return option, text or (None if word == word[:2] else "")
    flag, equals, text = word.partition("=")
    option = known.get(flag) or _abbreviated(flag, known)
    if equals and option.is_switch:
        raise UsageError(f"{option.flag} takes no value; leave out {equals + text!r}")
    return option, text if equals else None


def _abbreviated(flag: str, known: Mapping[str, Option]) -> Option:
    """Return the one option that begins so. An abbreviation that torchrun takes means the same here."""
    fitting = [option for spelling, option in known.items() if spelling.startswith(flag)]
    candidates = dict.fromkeys([option for option in fitting if option.torchrun] or fitting)
    if not candidates:
        raise UsageError(_unknown(flag, known))
    if len(candidates) > 1:
        raise UsageError(f"{flag} could be {' or '.join(one.flag for one in candidates)}; write one of them")
    return next(iter(candidates))


def _unknown(flag: str, known: Mapping[str, Option]) -> str:
    hint = (
        nearest(flag.replace("_", "-"), dict.fromkeys(option.flag for option in known.values()))
        or "; flags of your program go after its name"
    )
    return f"unknown flag {flag}{hint}"


def _value(option: Option, words: Sequence[str], at: int) -> str:
    """Return the word after a flag, unless it looks like the next flag; a negative number does not."""
    if at == len(words):
        raise UsageError(f"{option.flag} needs a value: {option.flag} {option.metavar}")
    word = words[at]
    if _is_flag(word) and not _is_number(word):
        raise UsageError(
            f"{option.flag} needs a value, and {word} looks like a flag; write {option.flag}={word} if it is the value"
        )
    return word


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
