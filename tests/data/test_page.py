"""What docs/data.md shows does what stands below it."""

from __future__ import annotations

import os
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


DRAWING = '''
class Drawing(torch.utils.data.Dataset):
    """What an item is, is drawn when it is loaded: random crops, say."""

    def __len__(self):
        return 16

    def __getitem__(self, at):
        return (torch.rand(()),)

torch.manual_seed(int(os.environ["RANK"]))
dataset = Drawing()
'''


@pytest.mark.torch
def test_workers_of_the_loader_draw_other_numbers_on_each_rank_and_in_each_epoch() -> None:
    code = "import os\n" + BLOCKS[1][0]
    for old, new in {
        "dataset = TensorDataset(torch.arange(40.0))\n": DRAWING,
        "batch_size=4,": "batch_size=4, num_workers=1,",
        "...  # the step": "print(*batch.tolist())",
    }.items():
        assert code.count(old) == 1
        code = code.replace(old, new)

    def drawn(rank: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"},
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    first, second = drawn("0"), drawn("1")
    assert len(set(first + second)) == 2 * 2 * 8  # ranks, epochs, items
    assert drawn("1") == second
