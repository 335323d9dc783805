"""Folders in memory, where putting on the disk costs nothing: these tests save thousands of times."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

_MEMORY = "/dev/shm"


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    if not os.access(_MEMORY, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="phalanx-test-", dir=_MEMORY))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
