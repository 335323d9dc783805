"""All that is wrong is told at once, and what follows from a mistake alone is not told."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.cli import main

Told = Callable[..., list[str]]


@pytest.fixture
def told(
    tmp_path: Path, script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Told:
    """What is said of a job with this configuration file and these words, without the file's folder."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "")

    def telling(text: str, *words: str) -> list[str]:
        path = tmp_path / "job.yaml"
        path.write_text(text.replace("SCRIPT", script))
        assert main(["run", "--config", str(path), *words]) == 2
        said = capsys.readouterr().err.replace(f"{tmp_path}/", "").splitlines()
        return [one.removeprefix("phalanx: error: ") for one in said]

    return telling


def test_mistakes_of_a_file_of_the_machine_of_flags_and_between_options_are_told_at_once(told: Told) -> None:
    said = told(
        "script: {path: SCRIPT}\nelastic: {nproc_per_node: gpu, max_restart: 1}\n"
        "store:\n  rdzv_conf: {timeout: abc, store_port: x}\n",
        *("--pass-signals=SIGTERM", "--signals-to-handle=SIGTERM", "--tee=x", "--numa-binding=no"),
        *("--python=/no/such", "--restart-on=3", "--no-restart-on=3"),
    )
    beginnings = [
        "job.yaml:2: elastic.max_restart: unknown key; did you mean max_restarts?",
        "--tee: 'x' names no streams",
        "--numa-binding: 'no' is not one of",
        "--python: ",
        "job.yaml:2: elastic.nproc_per_node: 'gpu' finds no GPU here",
        "SIGTERM is in --signals-to-handle and in --pass-signals",
        "exit code 3 is in --restart-on and in --no-restart-on",
        "job.yaml:4: store.rdzv_conf: timeout must be a time in seconds, not 'abc'; store_port must be a port",
    ]
    assert len(said) == len(beginnings), said
    for beginning in beginnings:
        assert any(one.startswith(beginning) for one in said), (beginning, said)


def test_how_nodes_meet_is_judged_beside_other_mistakes_where_it_is_known(told: Told) -> None:
    program = "script: {path: SCRIPT}\n"
    said = told(program + "job: {roll: x}\n", "--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:x")
    assert [one.partition(":")[0] for one in said] == ["job.yaml", "--rdzv-endpoint"]
    said = told(program + "elastic: {nnodes: many}\n", "--rdzv-backend=c10d", "--rdzv-endpoint=h:x")
    assert len(said) == 1, "whether nodes meet at all is not known"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("script: {pth: SCRIPT}\n", []),
        ("script: SCRIPT\n", []),
        ("script: {path: /no/such.py}\n", []),
        ("skript: {path: SCRIPT}\n", []),
        ("script: {path: SCRIPT}\nelastic: {nproc_per_nod: 4}\n", ["--debug-rank=2"]),
        ("script: {path: SCRIPT}\nelastic: {nproc_per_node: four}\n", ["--debug-rank=2"]),
        ("script: {path: SCRIPT}\nnproc_per_node: 4\n", ["--debug-rank=2"]),
        ("script: {path: SCRIPT}\nelastik: {nproc_per_node: 4}\n", ["--debug-rank=2"]),
        ("script: {path: SCRIPT}\nelastic: [4]\n", ["--debug-rank=2"]),
        ("script: {path: SCRIPT}\nlogs: {nproc_per_node: 4}\n", ["--debug-rank=2"]),
        ("training: {script: SCRIPT}\nelastic: {nproc_per_nod: 4, min_nodes: 1}\n", ["--debug-rank=2"]),
        ("script: {path: SCRIPT}\n", ["--max-restarts=x", "--restart-window=1h"]),
    ],
)
def test_what_a_mistake_alone_has_caused_is_not_told(text: str, words: list[str], told: Told) -> None:
    said = told(text, *words)
    assert len(said) == 1, said


def test_a_script_without_its_key_is_answered_with_the_way_to_write_it(told: Told) -> None:
    (said,) = told("script: train.py\n")
    assert said.endswith("write script: {path: train.py}")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PET_NPROC_PER_NOD", "PET_NPROC_PER_NODE"),
        ("PET_MAX_RESTART", "PET_MAX_RESTARTS"),
        ("PET_RDZV_END_POINT", "PET_RDZV_ENDPOINT"),
        ("PET_STORE_SERVICE_HOST", None),
        ("PET_STORE_PORT", None),
        ("PET_NNODES", None),
        ("PET_LOG_DIR", None),
    ],
)
def test_a_variable_that_is_nearly_one_of_ours_is_one_line_of_warning(
    name: str, meant: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "2")
    main(["run", "--dry-run", "--no-python", "true"])
    said = [line for line in capsys.readouterr().err.splitlines() if name in line]
    lines = [f"phalanx: warning: {name} has no effect: no option reads it; did you mean {meant}?"]
    assert said == (lines if meant else [])
