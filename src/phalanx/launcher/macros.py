"""torchelastic's ``macros``, for programs that call it themselves. Pure.

No launcher here does: theirs is the narrower rule of ``multiprocessing/macros.py``.
"""

from __future__ import annotations

from string import Template
from typing import Any

from phalanx.multiprocessing.macros import LOCAL_RANK

__all__ = ["macros"]


class macros:  # noqa: N801 # torchelastic's name
    """The names, and their replacement.

    >>> macros.local_rank
    '${local_rank}'
    """

    local_rank = LOCAL_RANK

    @staticmethod
    def substitute(args: list[Any], local_rank: str) -> list[Any]:
        """Return the arguments with the macro replaced in those that are texts; ``$$`` becomes ``$``.

        Other ``${names}`` stay, and what is no text stays as it is. Rules: ``string.Template``, as torchelastic.

        >>> macros.substitute(["--rank=${local_rank}", "${HOME}", 7], "3")
        ['--rank=3', '${HOME}', 7]
        """
        return [
            Template(one).safe_substitute(local_rank=local_rank) if isinstance(one, str) else one
            for one in args
        ]
