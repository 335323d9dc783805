"""Running a program twice: as the interpreter runs it, and through the boot file."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from phalanx.errors import boot_file

_ADDRESS = re.compile(r"0x[0-9a-f]+")  # in the repr of objects, different each time
PATIENCE_S = 60  # for a whole interpreter, on a machine that does other things


@dataclass(frozen=True)
class Ending:
    """How a program ended, and what it said."""

    code: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Bench:
    """A folder with a program in it, and the two ways to run it."""

    folder: Path

    @property
    def error_file(self) -> Path:
        return self.folder.parent / f"{self.folder.name}-error.json"

    @property
    def crash_file(self) -> Path:
        return self.folder.parent / f"{self.folder.name}-crash.txt"

    def write(self, source: str, name: str = "train.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return path

    def plainly(self, *arguments: str, flags: Sequence[str] = (), **more: str) -> Ending:
        return self._run([sys.executable, "-u", *flags, *arguments], more)

    def booted(
        self, *arguments: str, flags: Sequence[str] = (), order: str | None = None, **more: str
    ) -> Ending:
        order = f"{os.getpid()}:{self.crash_file}" if order is None else order
        more = {"TORCHELASTIC_ERROR_FILE": str(self.error_file), "PHALANX_BOOT": order, **more}
        return self._run([sys.executable, "-u", *flags, boot_file(), *arguments], more)

    def info(self) -> dict[str, Any]:
        return dict(self.message()["extraInfo"])

    def message(self) -> dict[str, Any]:
        return dict(json.loads(self.error_file.read_text())["message"])

    def _run(self, command: list[str], more: dict[str, str]) -> Ending:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE_S,
            check=False,
        )
        return Ending(
            done.returncode, *(_ADDRESS.sub("0x…", said.decode()) for said in (done.stdout, done.stderr))
        )


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    folder = tmp_path / "work"
    folder.mkdir()
    return Bench(folder)


@pytest.fixture
def raised() -> Callable[[Callable[[], object]], BaseException]:
    """Call a function and hand over what it raises, with its traceback."""

    def catch(function: Callable[[], object]) -> BaseException:
        try:
            function()
        except BaseException as failure:  # noqa: BLE001 # that is what it is for
            return failure
        raise AssertionError("nothing was raised")

    return catch
