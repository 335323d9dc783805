"""Names of a package that load when they are used: importing ``phalanx`` and what is below it stays free of cost.

Of each name a package says two things: for type checkers where it is imported from, and in a table the same for the
running program. PEP 562 has the rest.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["names"]


def names(
    package: str, table: dict[str, str], *, own: str = "", modules: str = ""
) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """A package's ``__getattr__``, ``__dir__`` and ``__all__``, in this order.

    ``table`` has modules and, separated by blanks, the names that come from each. ``own`` are names that the package
    itself defines. ``modules`` are modules below it that are there without an import; they are not in ``__all__``.

    >>> get, _, listed = names("phalanx.errors", {"phalanx.errors.channel": "progress values"})
    >>> listed, get("values").__module__
    (['progress', 'values'], 'phalanx.errors.channel')
    """
    homes = {name: home for home, some in table.items() for name in some.split()}
    below = modules.split()
    listed = sorted([*homes, *own.split()])

    def load(name: str) -> object:
        if name not in homes and name not in below:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        if name in below:
            return import_module(f"{package}.{name}")
        found: object = getattr(import_module(homes[name]), name)
        sys.modules[package].__dict__[name] = found
        return found

    def listing() -> list[str]:
        return sorted({*sys.modules[package].__dict__, *listed, *below})

    return load, listing, listed
