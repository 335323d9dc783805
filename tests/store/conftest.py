"""Which stores the conformance suite runs against: each has a module ``factory_<name>.py`` in this folder.

Such a module exports ``stores()``, an async context manager that starts an empty store and yields an async function
that makes another client of it; and, if the store forgets, ``forget(store, revision)``, which makes it forget the
history up to and with a revision. All keys of the suite begin with ``/phalanx/job/``.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

FACTORIES = sorted(path.stem.removeprefix("factory_") for path in Path(__file__).parent.glob("factory_*.py"))


@pytest.fixture(params=FACTORIES)
def factory(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"tests.store.factory_{request.param}")
