"""How Python's import system comes to the alias modules, with torch installed, imported, or not there at all.

The first finder answers for the names of the table, before torch's own files are looked for. The second, the last
one, is asked for ``torch`` only when there is none. The import system cannot get to ``torch.distributed.elastic``
without a parent, so the parents are then given for the length of that import, and to it alone: ``import torch`` still
fails, and ``"torch" in sys.modules`` is still false, so that no library that probes for torch takes ours for it.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder

from phalanx.compat import names

TYPE_CHECKING = False  # typing.TYPE_CHECKING costs 15 ms; type checkers take this for it

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType, ModuleType
    from typing import Any
else:
    ModuleType = type(sys)

__all__ = ["enter", "is_entered", "leave"]

_TORCH, _DISTRIBUTED = "torch", "torch.distributed"
_MACHINERY = {
    "_frozen_importlib",
    "_frozen_importlib_external",
    "importlib",
    "importlib._bootstrap",
    "importlib._bootstrap_external",
    "importlib.util",
}


def is_ours(name: object) -> bool:
    """Whether a module of this name is one that we stand in for."""
    return isinstance(name, str) and any(name == root or name.startswith(root + ".") for root in names.ROOTS)


class AliasFinder:
    """The first finder: torchelastic's names are ours."""

    def __init__(self) -> None:
        self.replaced: dict[str, ModuleType] = {}  # torch's own modules that were loaded before

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of an alias module, and None for all others."""
        if fullname == _TORCH:
            return _make_way_for_torch()
        if not is_ours(fullname):
            return None
        from phalanx.compat.alias import HOMES, AliasLoader

        if fullname not in HOMES:
            return None  # a module of a newer torch: its own code is better than none
        loader = AliasLoader()
        spec = ModuleSpec(
            fullname,
            loader,  # type: ignore[arg-type] # it has a loader's methods; importlib.abc takes long to import
            origin=loader.get_filename(fullname),
            is_package=loader.is_package(fullname),
        )
        spec.has_location = True
        if spec.submodule_search_locations is not None:
            leaf = fullname.rpartition(".")[2]
            below = (os.path.join(folder, leaf) for folder in path or ())
            spec.submodule_search_locations += [folder for folder in below if os.path.isdir(folder)]
        return spec


class ParentFinder:
    """The last finder: where no torch is installed, parents for an import of ours, and nothing for any other."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return a spec of ``torch`` for an import of our names."""
        if fullname != _TORCH or not _asks_for_ours(sys._getframe(1)):
            return None
        # Only while this import runs is it looked up as the parent of torch.distributed, and it is there then.
        sys.modules[_DISTRIBUTED] = _parents().distributed
        # Under a name of its own, the import system does not file it as "torch" either.
        return ModuleSpec("phalanx.compat.<torch>", self)  # type: ignore[arg-type] # it has a loader's methods

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the stand-in for torch."""
        return _parents()

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: there is nothing in it."""


class _Parent(ModuleType):
    """``torch`` or ``torch.distributed`` for a program that has no torch: it has our modules, once imported."""

    __path__: list[str]
    distributed: _Parent

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"module {self.__name__!r} has no attribute {name!r}: torch is not installed; "
            f"Phalanx stands in for {', '.join(names.ROOTS)} alone",
            name=name,
            obj=self,
        )


_stand_in: _Parent | None = None


def _parents() -> _Parent:
    """The one stand-in for torch, with the one for torch.distributed in it."""
    global _stand_in  # there is one per process
    if _stand_in is None:
        _stand_in, distributed = _Parent(_TORCH), _Parent(_DISTRIBUTED)
        distributed.__spec__ = ModuleSpec(_DISTRIBUTED, None, is_package=True)
        distributed.__path__ = []
        _stand_in.distributed = distributed
    return _stand_in


def _make_way_for_torch() -> ModuleSpec | None:
    """Where torch has come on the path since, take back what stood in for it; the aliases follow under the real one."""
    if _stand_in is None or sys.modules.get(_DISTRIBUTED) is not _stand_in.distributed:
        return None
    spec = PathFinder.find_spec(_TORCH)
    if spec is not None:
        del sys.modules[_DISTRIBUTED]
        for name in [name for name in sys.modules if is_ours(name)]:
            del sys.modules[name]
    return spec


def _asks_for_ours(frame: FrameType | None) -> bool:
    """Whether the import that is going on is one of our names: seen in the frames of the import system, or its caller.

    A further ``import torch.distributed.run`` finds that module at once and asks for ``torch`` alone, to bind it: only
    the statement of the caller tells it from an ``import torch``.
    """
    while frame is not None and frame.f_globals.get("__name__") in _MACHINERY:
        if is_ours(frame.f_locals.get("name")) or is_ours(frame.f_locals.get("fullname")):
            return True
        frame = frame.f_back
    if frame is None:
        return False
    if frame.f_globals.get("__name__") == "runpy":
        return is_ours(frame.f_locals.get("mod_name"))
    return _statement_asks_for_ours(frame)


def _statement_asks_for_ours(frame: FrameType) -> bool:
    """Whether ``frame`` is at an import of ours, or at ``from torch.distributed import <one of ours>``."""
    import dis

    before: Any = None
    for instruction in dis.get_instructions(frame.f_code):
        if instruction.offset == frame.f_lasti:
            if instruction.opname != "IMPORT_NAME":
                return False
            if instruction.argval == _DISTRIBUTED and before:
                return all(is_ours(f"{_DISTRIBUTED}.{name}") for name in before)
            return is_ours(instruction.argval)
        if instruction.opname != "EXTENDED_ARG":
            before = instruction.argval
    return False


_first, _last = AliasFinder(), ParentFinder()


def is_entered() -> bool:
    """Whether the finders are in ``sys.meta_path``."""
    return _first in sys.meta_path


def enter() -> None:
    """Put the finders in, and our modules in the place of those of torch that are loaded."""
    if any(is_ours(name) for name in sys.modules):
        from phalanx.compat.alias import HOMES

        _first.replaced = {name: sys.modules.pop(name) for name in HOMES if name in sys.modules}
    sys.meta_path.insert(0, _first)
    sys.meta_path.append(_last)
    for name in sorted(_first.replaced):
        import_module(name)  # which also replaces the attribute of its parent


def leave() -> None:
    """Take the finders out, and give torch's own modules their places back."""
    from phalanx.compat.alias import AliasModule

    sys.meta_path[:] = [finder for finder in sys.meta_path if finder not in (_first, _last)]
    for name in [name for name, module in sys.modules.items() if isinstance(module, AliasModule)]:
        alias = sys.modules.pop(name)
        parent, _, leaf = name.rpartition(".")
        above = sys.modules.get(parent)
        if above is not None and above.__dict__.get(leaf) is alias:
            del above.__dict__[leaf]
    if _stand_in is not None and sys.modules.get(_DISTRIBUTED) is _stand_in.distributed:
        del sys.modules[_DISTRIBUTED]
    for name, module in sorted(_first.replaced.items()):
        sys.modules[name] = module
        parent, _, leaf = name.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], leaf, module)
    _first.replaced = {}
