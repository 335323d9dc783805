"""A Python that has the wheel of Phalanx, and no torch: our names are there, and torch is as absent as before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from tests.compat.conftest import run_python
from tests.compat.items import TORCH_NAMES

from phalanx.compat import names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment into which only our wheel was installed, without a network."""
    folder = tmp_path_factory.mktemp("bare")
    build = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--directory",
        str(folder / "dist"),
    ]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=150)
    (wheel,) = (folder / "dist").glob("*.whl")
    venv.create(folder / "venv", with_pip=False)
    python = str(folder / "venv/bin/python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True, timeout=150)
    return python


def test_our_names_are_there_and_torch_is_as_absent_as_before(bare: str, tmp_path: Path) -> None:
    run_python(
        """
        import importlib, importlib.metadata, importlib.util, sys

        def absent():
            assert "torch" not in sys.modules
            assert importlib.util.find_spec("torch") is None
            for statement in ("import torch", "import torch.nn", "import torch.distributed", "import torch as t",
                              "from torch import nn", "import torch.distributed as dist"):
                try:
                    exec(statement)
                except ModuleNotFoundError as error:
                    assert error.name == "torch", (statement, error)
                else:
                    raise AssertionError(statement)
            try:
                from torch.distributed import init_process_group
            except ImportError:
                pass
            else:
                raise AssertionError("init_process_group")
            try:
                importlib.metadata.version("torch")
            except importlib.metadata.PackageNotFoundError:
                pass

        absent()
        from torch.distributed.elastic.multiprocessing.errors import record
        assert record.__module__ == "phalanx.errors._record"
        absent()
        import torch.distributed.run as run
        import torch.distributed.run as again
        assert run is again and callable(run.get_args_parser)
        absent()

        def in_a_function():
            import torch.distributed.launcher.api
            return torch.distributed.launcher.api.LaunchConfig, torch
        config, stand_in = in_a_function()
        assert config.__module__.startswith("phalanx.")
        assert in_a_function()[0] is config
        try:
            stand_in.ones
        except AttributeError as error:
            assert "torch is not installed" in str(error)
        absent()
        """,
        folder=tmp_path,
        compat=True,
        python=bare,
    )


@pytest.mark.parametrize(
    "first",
    [
        "from torch.distributed import run, launcher",
        "import torch.distributed.elastic.agent.server.api as api",
        "from torch.distributed.elastic import events, metrics",
        "from torch.distributed.elastic.multiprocessing import *",
        "import importlib; importlib.import_module('torch.distributed.elastic.rendezvous.api')",
        "import importlib.util; assert importlib.util.find_spec('torch.distributed.launch').origin",
        "import runpy; runpy.run_module('torch.distributed.argparse_util')",
    ],
)
def test_each_way_to_import_them_works_as_the_first_one_and_again(
    bare: str, tmp_path: Path, first: str
) -> None:
    program = "\n".join([first.replace("; ", "\n")] * 2) + "\nimport sys\nassert 'torch' not in sys.modules\n"
    run_python(program, folder=tmp_path, compat=True, python=bare)


def test_all_names_are_there_but_for_one_that_is_a_subclass_of_torchs(bare: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [bare, ROOT / "tests/compat/describe.py", ROOT / "tests/compat/torch_names.json"],
        cwd=tmp_path,
        env={**os.environ, "PHALANX_COMPAT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    missing = {
        f"{module}.{name}"
        for module, found in json.loads(done.stdout).items()
        for name, description in found.items()
        if description["kind"] == "missing"
    }
    assert missing - names.NOT_OFFERED.keys() == {
        f"{module}.ElasticDistributedSampler"
        for module in TORCH_NAMES
        if "ElasticDistributedSampler" in TORCH_NAMES[module]
    }


@pytest.mark.system
@pytest.mark.parametrize("module", ["torch.distributed.run", "torch.distributed.launch"])
def test_torchs_launchers_start_a_job_by_their_names(bare: str, tmp_path: Path, module: str) -> None:
    (tmp_path / "train.py").write_text(
        "import os, sys\nsys.stdout.write(f\"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n\")\n"
    )
    done = subprocess.run(
        [bare, "-W", "error::RuntimeWarning", "-m", module, "--nproc-per-node", "2", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PHALANX_COMPAT": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 of 2", "1 of 2"]


def test_torch_that_comes_later_on_the_path_is_found_and_has_our_names(bare: str, tmp_path: Path) -> None:
    (tmp_path / "later/torch/distributed/elastic").mkdir(parents=True)
    for folder in ("torch", "torch/distributed", "torch/distributed/elastic"):
        (tmp_path / "later" / folder / "__init__.py").write_text("REAL = True\n")
    (tmp_path / "later/torch/__init__.py").write_text(
        "REAL = True\nfrom torch import distributed\n"
    )  # as torch does
    run_python(
        """
        import sys
        from torch.distributed.elastic.multiprocessing import Std
        sys.path.append("later")
        import torch.distributed
        assert torch.REAL and torch.distributed.REAL
        import torch.distributed.elastic.multiprocessing
        assert torch.distributed.elastic.multiprocessing.Std is Std
        assert not hasattr(torch.distributed.elastic, "REAL")
        """,
        folder=tmp_path,
        compat=True,
        python=bare,
    )


def test_without_the_variable_nothing_is_there(bare: str, tmp_path: Path) -> None:
    run_python(
        """
        try:
            import torch.distributed.run
        except ModuleNotFoundError as error:
            assert error.name == "torch"
        else:
            raise AssertionError
        import sys
        assert not [name for name in sys.modules if name.startswith("phalanx")]
        """,
        folder=tmp_path,
        python=bare,
    )
