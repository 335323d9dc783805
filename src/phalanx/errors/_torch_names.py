"""``PHALANX_COMPAT=1`` in a worker whose interpreter did not see it at its start.

With Phalanx installed there, a ``.pth`` file of the package has done it. Where it is not (another environment's Python,
``-S``, a source tree on the path), the package is loaded from the folder of this file, and from no place of the path.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as typing's, which takes longer to import than all of this package

if TYPE_CHECKING:
    from typing import Any

__all__ = ["lend_if_asked_for"]


def lend_if_asked_for() -> None:
    """Let torch's names for what we stand in for be ours, if the environment asks for it; else do nothing."""
    if os.environ.get("PHALANX_COMPAT", "0") in ("", "0") or "phalanx.compat.finders" in sys.modules:
        return
    try:
        _load().install()
    except Exception as problem:  # noqa: BLE001 # a border: the program may well do without
        print(
            f"phalanx: PHALANX_COMPAT is set, but Phalanx cannot be loaded by {sys.executable} ({problem!r}); "
            "torch's names stay torch's",
            file=sys.stderr,
        )


def _load() -> Any:
    from importlib import import_module
    from importlib.util import module_from_spec, spec_from_file_location

    if "phalanx" not in sys.modules:
        folder = os.path.dirname(os.path.dirname(__file__))
        spec = spec_from_file_location(
            "phalanx", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )
        if spec is None or spec.loader is None:
            raise ImportError(f"{folder} is no package")
        sys.modules["phalanx"] = package = module_from_spec(spec)
        spec.loader.exec_module(package)
    return import_module("phalanx.compat")
