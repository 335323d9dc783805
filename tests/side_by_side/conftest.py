"""The side-by-side tests run torchrun as the oracle: all need torch, the exact release of the specification."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.side_by_side.pair import SideBySide

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    has_torch = importlib.util.find_spec("torch") is not None
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker("torch")
            if not has_torch:
                item.add_marker(pytest.mark.skip(reason="needs torch"))


@pytest.fixture
def side_by_side(tmp_path: Path) -> SideBySide:
    return SideBySide(tmp_path)
