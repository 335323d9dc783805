"""torch's names in processes that a program starts, and in programs that nobody edits."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.errors import boot_file

Python = Callable[..., str]

OURS = """
from torch.distributed.elastic.multiprocessing.errors import record
assert record.__module__ == "phalanx.errors._record", record.__module__
"""


@pytest.mark.torch
def test_children_of_multiprocessing_and_subprocess_have_them_until_they_are_taken_back(
    python: Python,
) -> None:
    said = python(
        """
        import multiprocessing, subprocess, sys

        def work(queue):
            from torch.distributed.elastic.multiprocessing.errors import record
            queue.put(record.__module__)

        if __name__ == "__main__":
            import phalanx.compat
            phalanx.compat.install()
            for method in ("spawn", "forkserver", "fork"):
                context = multiprocessing.get_context(method)
                queue = context.SimpleQueue()
                child = context.Process(target=work, args=(queue,))
                child.start()
                print(queue.get(), flush=True)
                child.join()
            ask = [sys.executable, "-c", "from torch.distributed.elastic.multiprocessing.errors import record;"
                   "print(record.__module__, flush=True)"]
            subprocess.run(ask, check=True)
            phalanx.compat.uninstall()
            subprocess.run(ask, check=True)
        """
    )
    assert said == "phalanx.errors._record\n" * 4 + "torch.distributed.elastic.multiprocessing.errors\n"


@pytest.mark.parametrize(("value", "asked"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_the_variable_alone_does_it_in_this_projects_editable_install(value: str, asked: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print([type(one).__module__ for one in sys.meta_path])"],
        env={**os.environ, "PHALANX_COMPAT": value},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert ("phalanx.compat.finders" in done.stdout) == asked


def test_a_start_of_python_without_the_variable_imports_nothing_of_ours() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PHALANX_COMPAT"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print([name for name in sys.modules if 'phalanx' in name])"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "[]\n", done.stderr


def test_a_start_with_it_imports_next_to_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys; print(*sys.modules)"],
        env={**os.environ, "PHALANX_COMPAT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    modules = done.stdout.split()
    assert "phalanx.compat.finders" in modules, done.stderr
    ours = {name.removeprefix("phalanx") for name in modules if name.startswith("phalanx")}
    assert ours == {"", ".lazy", ".compat", ".compat.names", ".compat.finders"}
    assert not {"typing", "asyncio", "torch", "dis"} & set(modules)


@pytest.mark.parametrize("isolated", [["-S"], ["-I", "-S"]])
def test_a_worker_has_them_where_its_python_does_not_know_phalanx(
    tmp_path: Path, isolated: list[str]
) -> None:
    """-S: no site-packages, so no .pth file, no Phalanx and no torch."""
    (tmp_path / "train.py").write_text(f"{OURS}\nimport sys\nprint(sys.argv[1:], 'torch' in sys.modules)\n")
    done = subprocess.run(
        [sys.executable, *isolated, "-u", boot_file(), "train.py", "--lr=1"],
        cwd=tmp_path,
        env={**os.environ, "PHALANX_COMPAT": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "['--lr=1'] False\n", done.stderr


def test_a_module_of_the_users_by_our_name_is_told_and_the_program_runs_all_the_same(tmp_path: Path) -> None:
    """Only what was imported before the program is in the way; here by the interpreter's own start."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['phalanx'] = type(sys)('phalanx')\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    done = subprocess.run(
        [sys.executable, "-u", boot_file(), "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PHALANX_COMPAT": "1", "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "trained\n", done.stderr


class TestTheCommand:
    """``python -m phalanx.compat script.py args…``."""

    SHOW = "import sys\nprint(__name__, sys.argv, sys.path[0], sys.flags.dev_mode, sys.flags.optimize)\n"

    @staticmethod
    def run(folder: Path, *words: str, flags: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *flags, "-m", "phalanx.compat", *words],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def test_a_script_finds_its_arguments_path_and_flags_as_python_gives_them(self, tmp_path: Path) -> None:
        (tmp_path / "scripts").mkdir()
        # torch, which takes seconds to import and more with -X dev, is not needed to see who would be asked for it.
        asked = "print('phalanx.compat.finders' in [type(one).__module__ for one in sys.meta_path])"
        (tmp_path / "scripts/train.py").write_text(f"{self.SHOW}{asked}\n")
        words = ["scripts/train.py", "-m", "--help", "--", "--r=16", "-X"]
        done = self.run(tmp_path, *words, flags=("-X", "dev", "-O"))
        assert done.stdout == f"__main__ {words} {tmp_path / 'scripts'} True 1\nTrue\n", done.stderr

    def test_a_module_too(self, tmp_path: Path) -> None:
        (tmp_path / "pack").mkdir()
        (tmp_path / "pack/__main__.py").write_text(f"{OURS}\n{self.SHOW}")
        done = self.run(tmp_path, "-m", "pack", "--nproc", "-m")
        path = tmp_path / "pack/__main__.py"
        assert done.stdout == f"__main__ {[str(path), '--nproc', '-m']} {tmp_path} False 0\n", done.stderr

    def test_it_ends_as_the_program_ends(self, tmp_path: Path) -> None:
        (tmp_path / "train.py").write_text("import sys\nsys.exit(int(sys.argv[1]))\n")
        assert [self.run(tmp_path, "train.py", code).returncode for code in ("0", "7")] == [0, 7]

    @pytest.mark.parametrize("words", [(), ("-m",), ("--nproc-per-node", "2", "train.py")])
    def test_a_mistake_is_told_with_the_usage(self, tmp_path: Path, words: tuple[str, ...]) -> None:
        done = self.run(tmp_path, *words)
        assert done.returncode == 2
        assert "usage: python -m phalanx.compat script.py" in done.stderr
        assert "Traceback" not in done.stderr

    def test_help_is_on_stdout(self, tmp_path: Path) -> None:
        done = self.run(tmp_path, "--help")
        assert (done.returncode, done.stdout.partition(":")[0], done.stderr) == (0, "usage", "")
