"""Actions of argparse that take a value from ``PET_<DEST>`` when no flag gives one.

Names, signatures and meaning are those of ``torch.distributed.argparse_util`` 2.13; its documentation is their source.
Three things are better: a switch's variable is read in every usual spelling (there ``true`` ends in a traceback), a
text that cannot be read is argparse's error with the variable's name, and an empty variable counts as not set.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any

from phalanx.cli import convert

__all__ = ["check_env", "env"]


class env(argparse.Action):  # noqa: N801 - torch's name, which programs import
    """Store a value: the flag's, else the text of ``PET_<DEST>``, else ``default``. For switches see ``check_env``.

    A text of the variable goes through ``type`` and ``choices``, as the flag's does, when the parser parses; one that
    does not fit is its error (exit code 2). With ``required=True`` the variable is enough, or a default that is not
    empty. The environment is read when the argument is added. As ``torch.distributed.argparse_util.env``.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("-f", "--foo", action=env, type=int, default=1)
    >>> parser.parse_args(["-f", "2"]).foo
    2
    """

    def __init__(self, dest: str, default: Any = None, required: bool = False, **kwargs: Any) -> None:
        variable = _variable(dest)
        text = os.environ.get(variable)
        self.is_from_variable = bool(text)
        if text:
            default = text
            kwargs["type"] = _naming(variable, text, kwargs.get("type"), kwargs.get("choices"))
        super().__init__(dest=dest, default=default, required=required and not default, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Store the flag's value."""
        setattr(namespace, self.dest, values)


class check_env(argparse.Action):  # noqa: N801 - torch's name, which programs import
    """Store whether a switch is on: True with the flag, else what ``PET_<DEST>`` says, else ``default``.

    The variable is read as ``phalanx run`` reads it: 1, true, t, yes, y, on, 0, false, f, no, n, off, in any case.
    Another word is the parser's error (exit code 2) when it parses. As ``torch.distributed.argparse_util.check_env``.

    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--verbose", action=check_env)
    >>> parser.parse_args(["--verbose"]).verbose, parser.parse_args([]).verbose
    (True, False)
    """

    def __init__(self, dest: str, default: bool | str = False, **kwargs: Any) -> None:
        variable = _variable(dest)
        text = os.environ.get(variable)
        self.is_from_variable = bool(text)
        if text:
            try:
                default = convert.switch(text)
            except ValueError:
                # There is no parser yet that could tell it. argparse gives a default that is a text to the type, later.
                default = text
                kwargs["type"] = _naming(variable, text, convert.switch, None)
        super().__init__(dest=dest, const=True, default=default, nargs=0, **kwargs)

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Store True: the flag is there."""
        setattr(namespace, self.dest, self.const)


def _variable(dest: str) -> str:
    return f"PET_{dest.upper()}"


def _naming(
    variable: str, default: str, read: Callable[[str], Any] | None, choices: Any
) -> Callable[[str], Any]:
    """Return ``read`` with a better message for the variable's text, and argparse's look at ``choices`` for it.

    argparse itself would blame the flag, which nobody wrote, and takes any default as one of the choices.
    """

    def typed(text: str) -> Any:
        value = text if read is None else _converted(text)
        if text is default and choices is not None and value not in choices:
            raise argparse.ArgumentTypeError(
                f"{variable}: {text!r} is not one of {', '.join(map(str, choices))}"
            )
        return value

    def _converted(text: str) -> Any:
        assert read is not None
        try:
            return read(text)
        except (ValueError, TypeError, argparse.ArgumentTypeError) as reason:
            if text is not default:
                raise
            raise argparse.ArgumentTypeError(f"{variable}: {reason}") from None

    typed.__name__ = getattr(read, "__name__", "str")  # argparse's messages say "invalid int value"
    return typed
