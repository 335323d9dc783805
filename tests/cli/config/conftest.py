from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from phalanx.cli.config import read_job_file
from phalanx.cli.mistakes import UsageError
from phalanx.cli.sources import JobFile

Reading = Callable[..., JobFile]
Mistakes = Callable[..., list[str]]


@pytest.fixture
def read(tmp_path: Path) -> Reading:
    """Read this text as a configuration file."""

    def reading(
        text: str,
        environ: Mapping[str, str] | None = None,
        *,
        overruled: tuple[str, ...] = (),
        names_program: bool = True,
    ) -> JobFile:
        path = tmp_path / "job.yaml"
        path.write_bytes(text.encode())
        return read_job_file(str(path), environ or {}, overruled=overruled, names_program=names_program)

    return reading


@pytest.fixture
def mistakes(read: Reading, tmp_path: Path) -> Mistakes:
    """What is wrong with this text as a configuration file, without the file's folder."""

    def finding(text: str, environ: Mapping[str, str] | None = None) -> list[str]:
        with pytest.raises(UsageError) as caught:
            read(text, environ)
        return str(caught.value).replace(f"{tmp_path}/", "").splitlines()

    return finding
