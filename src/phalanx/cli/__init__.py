"""The ``phalanx`` command: finds the sub-command, imports its module, and turns a mistake into one sentence."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Sequence
    from typing import NoReturn
else:
    import _signal  # the C module's names: it is there already, and importing it runs nothing

__all__ = ["command", "main"]

_COMMANDS = ("run", "chaos", "checkpoints", "completion", "config-schema")


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``phalanx`` with these words, by default those of the process, and return the exit code.

    2 is a mistake on the command line; the other codes are those of ``phalanx run``.
    """
    from phalanx.cli.mistakes import UsageError

    try:
        return _main(list(sys.argv[1:] if argv is None else argv))
    except UsageError as mistake:
        for line in str(mistake).splitlines():  # of a configuration file all mistakes are told at once
            print(f"phalanx: error: {line}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before the launcher took over the signals: nothing has been started yet
        return 130


def command(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command as a process of its own: ends it, without the interpreter's leave-taking.

    That would take a fifth of a short job's time to free, object by object, what the kernel frees at once. By now no
    thread, child or unwritten file of ours is left; what was printed is flushed here.
    """
    # Imports run callbacks in which Python loses a KeyboardInterrupt, and with it the request to stop. Until ours is in
    # place SIGINT therefore has its default action.
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    import gc
    import os

    from phalanx.early import end_by_stop_signals

    end_by_stop_signals()
    gc.disable()  # the imports of a start make no garbage; the agent turns it on again
    code = main(argv)
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except (OSError, ValueError):
            continue  # nobody reads it any more
    os._exit(code)


def _main(words: list[str]) -> int:
    from phalanx.cli.mistakes import UsageError, nearest

    command, *rest = words or [""]
    if command == "run":
        from phalanx.cli import run

        return run.main(rest)
    if command == "chaos":
        from phalanx.cli import chaos

        return chaos.main(rest)
    if command == "checkpoints":
        from phalanx.cli import checkpoints

        return checkpoints.main(rest)
    if command == "torch.distributed.launch":  # python -m phalanx.launch says so, and nobody has to type it
        from phalanx.cli import legacy

        return legacy.command(rest)
    if command in ("-h", "--help", "help", "--version", "version"):
        from phalanx.cli import manual
        from phalanx.cli.showing import show

        show(manual.version() if command.endswith("version") else manual.phalanx_page())
        return 0
    if command in _COMMANDS:
        return _print(command, rest)
    if not command:
        raise UsageError("no command was given; write phalanx run SCRIPT, or phalanx --help")
    raise UsageError(
        f"{command!r} is no command{nearest(command, _COMMANDS) or '; did you mean phalanx run ' + command + '?'}"
    )


def _print(command: str, words: list[str]) -> int:
    """Print what is made of the option table for other programs to read."""
    from phalanx.cli.mistakes import UsageError, nearest
    from phalanx.cli.showing import show

    if command == "config-schema":
        from phalanx.cli.config.schema import json_schema_text

        if words:
            raise UsageError(f"config-schema takes no words; leave out {words[0]!r}")
        text = json_schema_text()
    else:
        from phalanx.cli.completion import SHELLS, completion

        if len(words) != 1 or words[0] not in SHELLS:
            hint = nearest(words[0], SHELLS) if words else ""
            raise UsageError(f"completion takes the name of a shell: {', '.join(SHELLS)}{hint}")
        text = completion(words[0])
    show(text)
    return 0
