"""torch 2.13 as an oracle: layout, grammar, filters and redirects of the same input."""

from __future__ import annotations

import dataclasses
import io
import itertools
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from tests.compat.marks import shows_names

from phalanx.multiprocessing import logs, std, tail
from phalanx.multiprocessing.streams import WorkerStreams

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def torchs() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("torch.distributed.elastic.multiprocessing.api")


@pytest.mark.parametrize(
    "text", ["0", "1", "2", "3", "0:3", "0:3,1:1", "0:1,0:2", "", "4", "a", "0:3,", "00", " 1", "1:4"]
)
@shows_names("same", "elastic.multiprocessing", "Std")
def test_the_grammar_of_streams_is_torchs(torchs: Any, text: str) -> None:
    def outcome(kind: Any) -> Any:
        try:
            return kind.from_str(text)
        except ValueError:
            return "ValueError"

    assert outcome(std.Std) == outcome(torchs.Std)


@pytest.mark.parametrize("value", [std.Std.OUT, {0: std.Std.ALL}, {5: std.Std.ERR}, {}])
@shows_names("same", "elastic.multiprocessing", "to_map")
def test_maps_are_spread_as_torch_does(torchs: Any, value: Any) -> None:
    theirs = {k: torchs.Std(v) for k, v in value.items()} if isinstance(value, dict) else torchs.Std(value)
    assert std.to_map(value, 3) == torchs.to_map(theirs, 3)


_CHOICES = list(
    itertools.product(
        (std.Std.NONE, std.Std.OUT, {0: std.Std.ERR}),
        (std.Std.NONE, std.Std.ALL, {1: std.Std.OUT}),
        (None, {0}, {1}, set()),
        ("given", "null"),
    )
)


@pytest.mark.parametrize(("redirects_", "tee", "ranks", "folder"), _CHOICES)
@shows_names("same", "elastic.multiprocessing", "DefaultLogsSpecs", "LogsDest")
def test_destinations_are_torchs(
    torchs: Any, tmp_path: Path, redirects_: Any, tee: Any, ranks: set[int] | None, folder: str
) -> None:
    root = os.devnull if folder == "null" else str(tmp_path / "logs")

    def reified(module: Any, kind: Any) -> tuple[dict[str, Any], Any]:
        def own(value: Any) -> Any:
            return {k: kind(v) for k, v in value.items()} if isinstance(value, dict) else kind(value)

        envs = {i: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "3"} for i in range(2)}
        specs = module.DefaultLogsSpecs(
            log_dir=root, redirects=own(redirects_), tee=own(tee), local_ranks_filter=ranks
        )
        fields = dataclasses.asdict(specs.reify(envs))
        fields = {name: re.sub(r"job_\w{8}", "job_X", str(value)) for name, value in fields.items()}
        return fields, re.sub(r"job_\w{8}", "job_X", str(envs))

    (ours, our_envs), (theirs, their_envs) = reified(logs, std.Std), reified(torchs, torchs.Std)
    assert {name: ours[name] for name in theirs} == theirs
    assert set(ours) - set(theirs) == {"stderr_tail", "max_bytes"}
    assert our_envs == their_envs


def test_folders_are_torchs(torchs: Any, tmp_path: Path) -> None:
    def tree(module: Any, root: Path) -> list[str]:
        module.DefaultLogsSpecs(log_dir=str(root)).reify({0: {"TORCHELASTIC_RUN_ID": "job"}})
        found = sorted(
            f"{path.relative_to(root)} {path.stat().st_mode & 0o700:o}" for path in root.rglob("*")
        )
        return [re.sub(r"job_\w{8}", "job_X", line) for line in found]

    assert tree(logs, tmp_path / "ours") == tree(torchs, tmp_path / "theirs")


@pytest.mark.parametrize("data", [b"a\nb\n", b"a\n\nb\n", "é\n".encode(), b"\xff\n", b"windows\r\n", b""])
@shows_names("same", "elastic.multiprocessing.tail_log", "TailLog")
def test_a_tailed_file_looks_as_with_torch(torchs: Any, tmp_path: Path, data: bytes) -> None:
    from torch.distributed.elastic.multiprocessing import tail_log

    path = tmp_path / "log"
    path.write_bytes(data)

    def shown(kind: Any) -> str:
        dst = io.StringIO()
        kind("t", {7: str(path)}, dst, log_line_filter=lambda line: True).start().stop()
        return dst.getvalue()

    assert shown(tail.TailLog) == shown(tail_log.TailLog)


_REDIRECTED = """
import os, sys
from {module} import redirect
with redirect("stdout", sys.argv[1]):
    os.write(1, b"raw\\n")
    os.system("echo child")
    print("python")
print("after")
"""


@shows_names("same", "elastic.multiprocessing.redirects", "redirect")
def test_a_redirected_process_writes_what_it_would_with_torch(torchs: Any, tmp_path: Path) -> None:
    def outcome(module: str) -> tuple[bytes, str]:
        path = tmp_path / module
        command = [sys.executable, "-c", _REDIRECTED.format(module=module), str(path)]
        return subprocess.run(command, stdout=subprocess.PIPE, timeout=120).stdout, path.read_text()

    ours = outcome("phalanx.multiprocessing.redirects")
    assert ours == outcome("torch.distributed.elastic.multiprocessing.redirects")
    assert ours == (b"after\n", "raw\nchild\npython\n")


@shows_names("same", "elastic.multiprocessing", "LogsSpecs")
def test_log_specs_written_for_torch_work_with_ours(torchs: Any, tmp_path: Path) -> None:
    dest = torchs.DefaultLogsSpecs(log_dir=str(tmp_path), tee=torchs.Std.OUT).reify({0: {}})
    streams = WorkerStreams(dest, local_ranks=[0])
    ends = streams.open_for(0)
    assert ends.stdout is not None
    assert ends.stderr is not None
    streams.close()
