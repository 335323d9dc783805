"""What docs/data.md shows does what stands below it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/data.md"
BLOCKS = re.findall(
    r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", PAGE.read_text(), re.MULTILINE | re.DOTALL
)


def test_the_page_has_both_examples() -> None:
    assert ["torch" in code for code, _ in BLOCKS] == [False, True]


@pytest.mark.torch
@pytest.mark.parametrize(("code", "text"), BLOCKS, ids=["state", "loop"])
def test_an_example_runs_and_prints_what_stands_below_it(code: str, text: str) -> None:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert done.stdout == text
