"""Names that load when they are used: the same list for programs, for ``dir`` and for type checkers."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import phalanx

ROOT = Path(phalanx.__file__).parent
LAZY = sorted(path for path in ROOT.rglob("*.py") if "= lazy.names(" in path.read_text())


def module_of(path: Path) -> str:
    return ".".join(("phalanx", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__")


@pytest.mark.parametrize("path", LAZY, ids=module_of)
def test_type_checkers_and_programs_find_the_same_names_in_the_same_places(path: Path) -> None:
    module = importlib.import_module(module_of(path))
    (block,) = [
        node
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.If) and "TYPE" in ast.dump(node.test)
    ]
    imported = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    own = {name for name in module.__all__ if name not in imported}
    assert {name for name in own if vars(module)[name].__module__ != module.__name__} == set()
    assert set(imported) - set(module.__all__) <= {"compat"}
    for name in module.__all__:
        assert name in dir(module)
        home = imported.get(name)
        if home is not None:
            assert getattr(module, name) is getattr(importlib.import_module(home), name)


def test_a_name_that_is_not_there_is_an_error_as_of_any_module() -> None:
    with pytest.raises(AttributeError, match=r"^module 'phalanx' has no attribute 'lunch'$"):
        phalanx.lunch  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'lunch'"):
        from phalanx import lunch  # noqa: F401
