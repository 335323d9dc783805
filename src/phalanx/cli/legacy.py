"""The deprecated launcher: ``python -m phalanx.launch`` and the names of ``torch.distributed.launch``.

It differs from ``phalanx run`` in one thing. A script is told its local rank by a first argument, ``--local-rank=N``,
unless ``--use-env`` is given. torch 1 wrote ``--local_rank=N``, and scripts know the one or the other, so
``--local-rank-spelling`` chooses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.cli import convert
from phalanx.cli.mistakes import UsageError, warn
from phalanx.cli.namespace import LOCAL_RANK_FLAGS
from phalanx.cli.options import HELP, OPTIONS, Option
from phalanx.cli.options.option import switch
from phalanx.cli.words import CommandLine, read_words
from phalanx.multiprocessing.macros import LOCAL_RANK

__all__ = ["command", "command_line", "launch", "main", "parse_args"]

USE_ENV = switch("use-env", "", "workers read LOCAL_RANK; the script gets no argument for it")
SPELLING = Option(
    name="local-rank-spelling",
    metavar="SPELLING",
    read=convert.Choice(*LOCAL_RANK_FLAGS),
    default="dash",
    torchrun=False,
    group="",
    help="dash: the script gets --local-rank=N; underscore: --local_rank=N",
)
NEEDS_USE_ENV = "--no-python needs --use-env: only a Python script is told its local rank by an argument"
DEPRECATED = (
    "torch.distributed.launch is deprecated, by the name of phalanx.launch too; write phalanx run, and let the script "
    "read LOCAL_RANK from its environment instead of --local-rank"
)


def command(words: Sequence[str]) -> int:
    """Be ``python -m phalanx.launch``: run a job and return the launcher's exit code. Raises ``UsageError``."""
    from phalanx.cli.run import run_line

    line = command_line(words)
    code = run_line(line)
    if line.wants is HELP:
        print("\nthe deprecated launcher, beside these:")
        for option in (USE_ENV, SPELLING):
            print(f"  {option.flag}{f' {option.metavar}' if option.metavar else ''}\n      {option.help}")
    return code


def command_line(words: Sequence[str]) -> CommandLine:
    """Return what the words of ``python -m phalanx.launch`` would be for ``phalanx run``. Raises ``UsageError``.

    Warns that the launcher is deprecated.
    """
    line = read_words(words, more=(USE_ENV, SPELLING))
    given = dict(line.given)
    use_env = given.pop(USE_ENV.dest, None) is not None
    try:
        spelling = SPELLING.read(given.pop(SPELLING.dest, "dash"))
    except ValueError as reason:
        raise UsageError(f"{SPELLING.flag}: {reason}") from None
    if line.wants is not None:
        return line
    warn(DEPRECATED)
    if use_env:
        return CommandLine(given, line.script, line.arguments)
    if "no_python" in given:
        raise UsageError(NEEDS_USE_ENV)
    if line.script is None:
        if _names_a_file(given):  # which names the script's arguments, too
            raise UsageError("no script was named after the flags; name it, or say --use-env")
        raise UsageError("no script was named; name it after the flags, and its own arguments after it")
    return CommandLine(
        given, line.script, (f"{LOCAL_RANK_FLAGS[str(spelling)]}={LOCAL_RANK}", *line.arguments)
    )


def _names_a_file(given: Mapping[str, str]) -> bool:
    (config,) = (one for one in OPTIONS if one.dest == "config")
    return bool(given.get(config.dest) or any(os.environ.get(name) for name in config.variables))


def parse_args(args: Sequence[str] | None) -> Any:
    """Parse a command line of the deprecated launcher, by default this process's, into a Namespace.

    >>> parse_args(["train.py"]).use_env
    False
    """
    from phalanx.cli.parser import get_args_parser

    parser = get_args_parser()
    parser.add_argument(*USE_ENV.spellings, action="store_true", default=False, help=USE_ENV.help)
    parser.add_argument(
        *SPELLING.spellings, choices=tuple(LOCAL_RANK_FLAGS), default="dash", help=SPELLING.help
    )
    return parser.parse_args(args)


def launch(args: Any) -> None:
    """Run a job as the Namespace describes it; see ``phalanx.run.run``. ``no_python`` without ``use_env`` is refused.

    >>> launch(parse_args(["--use-env", "--no-python", "true"]))
    """
    from phalanx.cli.torchrun import run

    if args.no_python and not args.use_env:
        raise ValueError(NEEDS_USE_ENV)
    run(args)


def main(args: Sequence[str] | None = None) -> None:
    """Parse a command line, by default this process's, and ``launch`` it. Warns with ``FutureWarning``.

    Without ``args``, at the top level of the file that was started, it is ``python -m phalanx.launch``, which ends the
    program with its exit code if the job fails.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as warned:
    ...     main(["--use-env", "--no-python", "true"])
    >>> warned[0].category.__name__
    'FutureWarning'
    """
    import sys
    import warnings

    from phalanx.cli import console_script

    if args is None and console_script.is_command(sys._getframe(1)):
        return console_script.be_command("torch.distributed.launch")
    warnings.warn(DEPRECATED, FutureWarning, stacklevel=2)
    return launch(parse_args(args))
