from __future__ import annotations

import subprocess
import sys

import pytest

import phalanx.multiprocessing


@pytest.mark.parametrize("name", phalanx.multiprocessing.__all__)
def test_each_public_name_is_there(name: str) -> None:
    value = getattr(phalanx.multiprocessing, name)
    assert getattr(value, "__name__", name) == name  # a partial function has none
    assert name in dir(phalanx.multiprocessing)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = phalanx.multiprocessing.Nothing


def test_starting_commands_loads_nothing_that_is_slow_to_load() -> None:
    script = """
import sys
from phalanx.multiprocessing import DefaultLogsSpecs, SubprocessContext
import phalanx.agent.processes.keeper
slow = {"multiprocessing", "asyncio", "importlib.metadata", "urllib", "http", "tempfile", "typing_extensions", "ctypes"}
print(sorted(slow & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {script}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "[]\n"
