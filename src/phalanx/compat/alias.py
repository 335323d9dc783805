"""A module with a name of torch's whose contents are Phalanx's, each loaded when it is used.

What is not in the table is not in the module: no name of torch's own code is ever found here. A name that others
are used to replace (``names.PATCHED``) is replaced where our code looks it up, too, and restored with it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module

from phalanx.compat import names

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType
    from typing import Any
else:
    ModuleType = type(sys)

__all__ = ["AliasLoader", "AliasModule"]

HOMES = names.homes()

_unpatched: dict[tuple[str, str], object] = {}  # what stood in our modules before somebody replaced it


class AliasModule(ModuleType):
    """One of torchelastic's modules, as a view of ours."""

    def __getattr__(self, name: str) -> Any:
        home = HOMES[self.__name__].get(name)
        if home is None and f"{self.__name__}.{name}" in HOMES:  # torch's packages import what is below them
            return import_module(f"{self.__name__}.{name}")
        if home is None:
            reason = names.NOT_OFFERED.get(f"{self.__name__}.{name}")
            about = f"Phalanx does not offer it: {reason}" if reason else "Phalanx stands in for this module"
            raise AttributeError(
                f"module {self.__name__!r} has no attribute {name!r}; {about}", name=name, obj=self
            )
        module, _, attribute = home.partition(":")
        value = getattr(import_module(module), attribute)
        super().__setattr__(name, value)
        return value

    def __setattr__(self, name: str, value: object) -> None:
        for home in names.PATCHED.get(name, ()):
            module = import_module(home)
            _unpatched.setdefault((home, name), getattr(module, name))
            setattr(module, name, value)
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        # How unittest.mock takes back what it put into a module that resolves its names when they are used.
        for home in names.PATCHED.get(name, ()):
            if (home, name) in _unpatched:
                setattr(import_module(home), name, _unpatched[home, name])
        super().__delattr__(name)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *HOMES[self.__name__]})

    def __reduce__(self) -> tuple[Any, ...]:
        return import_module, (self.__name__,)


class AliasLoader:
    """Makes and fills alias modules; has what ``python -m``, ``inspect`` and ``importlib.reload`` ask a loader for."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return an empty module; nothing of ours is imported for it."""
        return AliasModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Give the module its list of names, and forget what it had resolved before (a reload)."""
        own = HOMES[module.__name__]
        for name in own:
            module.__dict__.pop(name, None)
        module.__dict__["__all__"] = [name for name in own if not name.startswith("_")]
        module.__dict__["__doc__"] = f"Phalanx's names for programs that import ``{module.__name__}``."

    def is_package(self, fullname: str) -> bool:
        """Whether there are modules below it."""
        return names.is_package(fullname)

    def get_filename(self, fullname: str) -> str:
        """Return the file to show: the one of the launcher, where it can be run, else the one of the table."""
        if fullname in names.MAINS:
            module = "run" if fullname.endswith(".run") else "launch"
            return os.path.join(os.path.dirname(os.path.dirname(__file__)), f"{module}.py")
        return names.__file__

    def get_source(self, fullname: str) -> str:
        """Return a source that has the same effect as the module, and as ``python -m`` of it."""
        lines = []
        for name, home in HOMES[fullname].items():
            module, _, attribute = home.partition(":")
            lines.append(f"from {module} import {attribute} as {name}")
        if fullname in names.MAINS:  # and then nothing is loaded but the launcher
            main = [
                'if __name__ == "__main__":',
                "    import sys",
                "    from phalanx.cli import command",
                f"    command([{names.MAINS[fullname]!r}, *sys.argv[1:]])",
            ]
            lines = [*main, "else:", *(f"    {line}" for line in lines)]
        return "\n".join([f'"""Phalanx\'s names for programs that import ``{fullname}``."""', *lines, ""])

    def get_code(self, fullname: str) -> CodeType:
        """Compile that source, under the name of the file that is shown."""
        return compile(self.get_source(fullname), self.get_filename(fullname), "exec", dont_inherit=True)
