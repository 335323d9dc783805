"""``phalanx.launch`` in a real Jupyter kernel: functions of cells, output below the cell, the notebook's exceptions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.system.launch import LIMIT_S

pytestmark = pytest.mark.system

# nbclient's warnings about how it talks to the kernel are not ours: it runs in a process of its own.
RUNNER = """
import json, sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.v4.new_notebook()
notebook.cells = [nbformat.v4.new_code_cell(source) for source in json.load(sys.stdin)]
NotebookClient(notebook, timeout=90, kernel_name="python3").execute()
print(json.dumps([cell.outputs for cell in notebook.cells]))
"""

CELLS = [
    """
import os
import phalanx

class Broken(Exception):
    pass

def scaled(x):
    return x * 10

def train(x):
    print("rank", os.environ["RANK"], flush=True)
    return scaled(x)
""",
    "phalanx.launch(train, 3, nproc=2)",
    """
def fail():
    raise Broken("in a cell")

try:
    phalanx.launch(fail)
except Broken as broken:
    import traceback
    frame = traceback.extract_tb(broken.__traceback__)[-1]
    print(broken, "|", frame.line)
""",
    "list(await phalanx.start(train, 4, nproc=2))",
]


def test_functions_output_and_exceptions_of_a_notebook(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(CELLS),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "IPYTHONDIR": str(tmp_path)},
        timeout=LIMIT_S * 2,
    )
    assert done.returncode == 0, done.stderr
    cells: list[list[dict[str, Any]]] = json.loads(done.stdout)

    def printed(cell: int) -> list[str]:
        return "".join(one["text"] for one in cells[cell] if one.get("name") == "stdout").splitlines()

    def value(cell: int) -> str:
        return next(str(one["data"]["text/plain"]) for one in cells[cell] if "data" in one)

    assert sorted(printed(1)) == ["[rank0]: rank 0", "[rank1]: rank 1"]
    assert value(1) == "<LaunchResult of 2 ranks: [30, 30]>"
    assert printed(2) == ['in a cell | raise Broken("in a cell")']
    assert sorted(printed(3)) == ["[rank0]: rank 0", "[rank1]: rank 1"]
    assert value(3) == "[40, 40]"
