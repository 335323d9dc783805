"""``${VAR}`` and ``${VAR:-default}`` in a value of a configuration file; ``$$`` is a dollar.

Replaced after the file was parsed, in each value on its own, so what a variable holds cannot become structure. A dollar
before anything else is itself, and a default is text: nothing is replaced in it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from phalanx.cli.config.document import Scalar

__all__ = ["expanded"]

_PIECE = re.compile(r"\$\$|\$\{([^}]*)(\}?)")
_NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)(?::-(.*))?", re.DOTALL)


def expanded(scalar: Scalar, environ: Mapping[str, str]) -> Scalar:
    """Return the scalar with its variables replaced: text, or nothing where nothing is left.

    Raises ``ValueError`` with the rest of a sentence for a variable that is not set, and for ``${`` without an end.
    """
    if "$" not in scalar.text:
        return scalar

    def replace(piece: re.Match[str]) -> str:
        if piece[0] == "$$":
            return "$"
        named = _NAME.fullmatch(piece[1])
        if named is None or not piece[2]:
            raise ValueError(f"{piece[0][:40]!r} is no variable; write ${{NAME}}, or $$ for a dollar")
        name, default = named[1], named[2]
        if default is not None:
            return environ.get(name) or default  # as in a shell: an empty variable has the default, too
        if name not in environ:
            raise ValueError(
                f"the variable {name} is not set; write ${{{name}:-default}}, or $${{{name}}} for the text itself"
            )
        return environ[name]

    text = _PIECE.sub(replace, scalar.text)
    if text == scalar.text:
        return scalar
    return Scalar(text, "text" if text else "nothing", scalar.line)
