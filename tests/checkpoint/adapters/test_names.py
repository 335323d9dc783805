from __future__ import annotations

import subprocess
import sys


def test_the_adapters_names_import_none_of_their_libraries() -> None:
    program = """
import sys
from phalanx.checkpoint import DistributedState, SafeTensors, TorchSave, TorchState, gather
sys.exit(bool({"torch", "numpy", "safetensors"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
