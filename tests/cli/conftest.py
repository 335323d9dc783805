from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from phalanx.cli.run import launch_values
from phalanx.cli.words import read_words

Values = Callable[..., dict[str, Any]]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text("print('trained')\n")
    return str(path)


@pytest.fixture
def values(script: str) -> Values:
    """What the launcher is called with for these flags before a script that exists, and this environment."""

    def read(*flags: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
        return launch_values(read_words([*flags, script]), environ or {})

    return read
