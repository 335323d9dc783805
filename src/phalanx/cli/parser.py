"""torchrun's parser, for programs that take it and pass what it parsed back: ``argparse`` over our option table.

The names, types, choices and defaults of torchrun's flags are torchrun's. Our own options have texts, and ``None``
where they were not given; what a text means is judged later, where ``phalanx run`` judges it. ``phalanx run`` itself
reads its words without argparse (``words.py``); what is taken over from there is that nothing after the script's name
is parsed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

from phalanx.cli import convert
from phalanx.cli.argparse_actions import check_env, env
from phalanx.cli.options import GROUPS, OPTIONS, Option

__all__ = ["FIXED", "LauncherParser", "Namespace", "default_of", "get_args_parser"]

# Defaults that torchrun's Namespace has where ours is "not given": what a program finds there is torchrun's.
FIXED: dict[str, Any] = {
    "rdzv_id": "none",
    "node_rank": 0,
    "master_addr": "127.0.0.1",
    "local_ranks_filter": "",
    "shutdown_timeout": None,
}
_FILTERS = ("duplicate_stdout_filters", "duplicate_stderr_filters")


def get_args_parser() -> argparse.ArgumentParser:
    """Return a parser of ``phalanx run``'s command line, as ``torch.distributed.run.get_args_parser``.

    Its Namespace has torchrun's names, types and defaults, and one name for each option of ours. Variables are read
    now, by the actions ``env`` and ``check_env``. A caller may add arguments; what follows the script's name is never
    parsed.

    >>> args = get_args_parser().parse_args(["--nproc-per-node", "2", "train.py", "--lr", "0.1"])
    >>> args.nproc_per_node, args.training_script, args.training_script_args
    ('2', 'train.py', ['--lr', '0.1'])
    """
    parser = LauncherParser(description="Phalanx, an elastic launcher; the flags are torchrun's and more.")
    groups = {name: parser.add_argument_group(name) for name in GROUPS}
    for option in OPTIONS:
        short = [f"-{option.short}"] if option.short else []
        groups[option.group].add_argument(*short, *option.spellings, **_argument(option))
    parser.add_argument("training_script", help="script, module or program, as -m and --no-python say")
    parser.add_argument(
        "training_script_args", nargs=argparse.REMAINDER, help="all that follows is the program's own"
    )
    return parser


def default_of(option: Option) -> Any:
    """What a Namespace has for an option that was not given."""
    if option.is_switch:
        return False
    if option.dest in FIXED:
        return FIXED[option.dest]
    if option.dest in _FILTERS:
        return []
    if option.default is None or not option.torchrun:
        return None
    return _NUMBERS.get(option.dest, str)(option.default)


def _argument(option: Option) -> dict[str, Any]:
    """The keyword arguments of ``add_argument``."""
    help_text = option.help.replace("%", "%%")
    if option.is_switch:
        action = check_env if option.has_variable else "store_true"
        return {"action": action, "default": False, "help": help_text}
    found: dict[str, Any] = {
        "action": env if option.has_variable else "store",
        "type": _NUMBERS.get(option.dest, _comma_separated if option.dest in _FILTERS else str),
        "default": default_of(option),
        "help": help_text,
    }
    if (
        isinstance(option.read, convert.Choice) and option.torchrun
    ):  # ours are judged later, as all texts of ours
        found["choices"] = option.read.allowed
    else:
        found["metavar"] = option.metavar
    return found


def _seconds(raw: str) -> float:
    """A time in seconds; also with a unit, which torchrun does not know."""
    try:
        return convert.duration(raw)
    except ValueError as reason:
        raise argparse.ArgumentTypeError(str(reason)) from None


def _whole_seconds(raw: str) -> float:
    seconds = _seconds(raw)
    return int(seconds) if seconds.is_integer() else seconds


_NUMBERS: dict[str, Any] = {
    "max_restarts": int,
    "node_rank": int,
    "master_port": int,
    "monitor_interval": _seconds,
    "shutdown_timeout": _whole_seconds,
}


def _comma_separated(raw: str) -> list[str]:
    return list(convert.comma_list(raw))


class Namespace(argparse.Namespace):
    """An ``argparse.Namespace`` that knows which of its values somebody gave, be they those of the default."""

    # A slot is in neither vars(), repr() nor a comparison: to programs it is the Namespace that they know.
    __slots__ = ("_given",)

    _given: frozenset[str]

    def has_given(self, dest: str) -> bool:
        """Whether a flag or a variable gave this value when the words were parsed."""
        return dest in getattr(self, "_given", ())


class _Split(NamedTuple):
    head: list[Any]  # flags and the script
    tail: list[Any] | None  # None: there is no script
    given: set[str]  # the dest of each flag


class LauncherParser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that looks at nothing behind its first positional argument, if its last takes the rest.

    Plain argparse classifies all words before it reads any, and so ends for a ``--no`` of the script's. Abbreviations
    that torchrun takes are taken, too, where one of our options begins in the same way.
    """

    def parse_known_args(  # type: ignore[override] # the base has overloads for the type of the Namespace
        self, args: Sequence[Any] | None = None, namespace: Any = None
    ) -> tuple[Any, list[Any]]:
        """Parse the words up to the script, and take the others as they are."""
        import sys

        words = list(sys.argv[1:] if args is None else args)
        positional = [action for action in self._actions if not action.option_strings]
        is_ours = [action.nargs for action in positional] == [None, argparse.REMAINDER]
        split = self._split(words) if is_ours else None
        if split is None:
            return super().parse_known_args(words, namespace)
        script, rest = positional
        head = split.head
        is_in_file = split.tail is None and any(str(word).partition("=")[0] == "--config" for word in head)
        if is_in_file:  # perhaps; for argparse something has to stand there all the same
            head = [*head, "--", "named in the file"]
        found, unknown = super().parse_known_args(head, Namespace() if namespace is None else namespace)
        if isinstance(found, Namespace):
            variables = {one.dest for one in self._actions if getattr(one, "is_from_variable", False)}
            found._given = frozenset({*getattr(found, "_given", ()), *split.given, *variables})
        setattr(found, rest.dest, split.tail or [])
        if is_in_file:
            setattr(found, script.dest, None)
        return found, unknown

    def _split(self, words: Sequence[Any]) -> _Split | None:
        """Return the words up to the script and those behind it; None if there is no telling where it is."""
        head: list[Any] = []
        given: set[str] = set()
        at = 0
        while at < len(words) and _is_flag(words[at]):
            word = words[at]
            at += 1
            if word == "--":
                if at == len(words):
                    return _Split(head, None, given)
                return _Split([*head, word, words[at]], [*words[at + 1 :]], given)
            flag, equals, text = word.partition("=")
            action = self._find(flag) if word.startswith("--") else self._find(word[:2])
            if action is None:  # unknown: the caller's to judge, or to refuse
                head.append(word)
                continue
            given.add(action.dest)
            if word.startswith("--"):
                word, has_text = max(action.option_strings, key=len) + equals + text, bool(equals)
            else:
                has_text = len(word) > len("-x")
                if has_text and isinstance(
                    action, check_env
                ):  # -mNAME, as with python: the name is the script
                    return _Split([*head, word[:2], word[2:]], [*words[at:]], given)
            head.append(word)
            if action.nargs == 0 or has_text:
                continue
            if action.nargs is not None or at == len(words):
                return None  # argparse says what is missing, and knows arguments with several words
            head.append(words[at])
            at += 1
        if at == len(words):
            return _Split(head, None, given)
        return _Split([*head, words[at]], [*words[at + 1 :]], given)

    def _find(self, flag: str) -> argparse.Action | None:
        """Return the action of a flag or of its abbreviation; an argument of the caller's is as good as torchrun's."""
        known = {spelling: action for action in self._actions for spelling in action.option_strings}
        if flag in known or not flag.startswith("--"):
            return known.get(flag)
        fitting = [action for spelling, action in known.items() if spelling.startswith(flag)]
        best = [action for action in fitting if action.dest not in _OURS_ALONE] or fitting
        return best[0] if len({id(action) for action in best}) == 1 else None


_SWITCHES = frozenset(option.dest for option in OPTIONS if option.is_switch)
_OURS_ALONE = frozenset(option.dest for option in OPTIONS if not option.torchrun)


def _is_flag(word: object) -> bool:
    return isinstance(word, str) and word.startswith("-") and word != "-"
