"""The import contracts hold, and each of them would notice the import that it is there to forbid."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    linter = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [linter, "--no-cache"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
    )


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("rendezvous/round.py", "from phalanx.agent import verdict", "Imports point one way"),
        ("multiprocessing/std.py", "import phalanx.rendezvous.round", "Imports point one way"),
        ("errors/_record.py", "import asyncio", "What runs inside a worker"),
        ("errors/_record.py", "def f():\n    import phalanx.agent.spec", "What runs inside a worker"),
        ("functions/worker.py", "def f():\n    import phalanx.launcher.options", "What runs inside a worker"),
        ("control_plane.py", "import asyncio", "What runs inside a worker"),
        ("agent/restarts/policy.py", "import time", "Modules that decide"),
        ("multiprocessing/machine.py", "from os import getpid", "Modules that decide"),
        ("agent/machine.py", "from phalanx.agent.report import files", "Modules that decide"),
        ("store/port.py", "from phalanx.rendezvous import round", "Imports point one way"),
        ("agent/spec.py", "def f():\n    import phalanx.testing", "Imports point one way"),
        ("rendezvous/leader.py", "from random import random", "Modules that decide"),
        ("store/machine.py", "import time", "Modules that decide"),
        ("rendezvous/session.py", "def f():\n    import grpclib", "Only the store on etcd"),
    ],
)
def test_a_forbidden_import_breaks_a_contract(module: str, line: str, contract: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    with (tmp_path / "src/phalanx" / module).open("a") as file:
        file.write(f"\n{line}\n")

    done = lint_imports(tmp_path)

    assert done.returncode == 1, done.stdout + done.stderr
    broken = [printed for printed in done.stdout.splitlines() if "BROKEN" in printed]
    assert any(printed.startswith(contract) for printed in broken), done.stdout


def test_a_module_that_calls_itself_pure_is_under_the_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (pure,) = [
        contract["source_modules"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["name"].startswith("Modules that decide")
    ]
    says_so = {
        ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        for path in (ROOT / "src").rglob("*.py")
        if re.search(r"\bPure\b", ast.get_docstring(ast.parse(path.read_text())) or "")
    }
    assert says_so
    listed = {one for one in pure if "*" not in one}
    folders = tuple(one.removesuffix("**") for one in pure if one.endswith(".**"))
    lacking = {
        name for name in says_so if not name.endswith(".machine") and not (f"{name}.").startswith(folders)
    }
    assert lacking <= listed


def test_the_contracts_hold() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
