"""The older kind of file: ``training``, ``elastic`` and ``distributed``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.cli.run import launch_values
from phalanx.cli.sources import JobFile
from phalanx.cli.words import read_words

Reading = Callable[..., JobFile]
Mistakes = Callable[..., list[str]]

WHOLE = """\
training:
  script: SCRIPT
  lr: 0.10
  batch_size: 32
  amp: true
  resume: false
  notes:
  layers: [1, 2]
  optimizer: {name: adam, eps: 1e-8}
  data: ${DATA:-/data}
  args: [--plain, x]
elastic:
  min_nodes: 2
  max_nodes: 4
  rdzv_backend: c10d
  rdzv_endpoint: host:29400
  max_restarts: 3
  monitor_interval: 5
  rdzv_configs: {timeout: 900, join_timeout: 600}
distributed:
  backend: nccl
  master_addr: host
  master_port: 29500
  nproc_per_node: 8
"""


def test_a_whole_file_is_read(read: Reading, script: str) -> None:
    found = read(WHOLE.replace("SCRIPT", script))
    assert {dest: text.text for dest, text in found.texts.items()} == {
        "nnodes": "2:4",
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "host:29400",
        "max_restarts": "3",
        "monitor_interval": "5",
        "rdzv_conf": "timeout=900,join_timeout=600",
        "master_addr": "host",
        "master_port": "29500",
        "nproc_per_node": "8",
    }
    assert found.texts["nnodes"].origin == f"{found.path}:13: elastic.min_nodes"
    assert found.program is not None
    assert found.program.name == script
    assert " ".join(found.program.arguments) == (
        "--lr 0.10 --batch_size 32 --amp --layers 1 2 --optimizer.name adam --optimizer.eps 1e-8 --data /data --plain x"
    )
    assert {name: text.text for name, text in found.env.items()} == {
        "TRAINING_LR": "0.10",
        "TRAINING_BATCH_SIZE": "32",
        "TRAINING_AMP": "true",
        "TRAINING_RESUME": "false",
        "TRAINING_LAYERS": "1,2",
        "TRAINING_OPTIMIZER_NAME": "adam",
        "TRAINING_OPTIMIZER_EPS": "1e-8",
        "TRAINING_DATA": "/data",
        "DISTRIBUTED_BACKEND": "nccl",
    }


def test_settings_are_variables_alone_if_the_file_says_so(read: Reading, script: str) -> None:
    found = read(f"training:\n  pass_as: environment\n  script: {script}\n  lr: 0.1\n  args: [a]\n")
    assert found.program is not None
    assert found.program.arguments == ("a",)
    assert found.env["TRAINING_LR"].text == "0.1"


def test_a_script_of_the_command_line_gets_the_settings_as_variables_and_its_own_arguments(
    tmp_path: Path, script: str
) -> None:
    (tmp_path / "old.yaml").write_text("training: {script: gone.py, lr: 0.1}\n")
    found = launch_values(read_words(["--config", str(tmp_path / "old.yaml"), script, "--lr", "0.5"]), {})
    assert found["args"] == ("--lr", "0.5")
    assert found["env"] == {"TRAINING_LR": "0.1"}


@pytest.mark.parametrize(
    ("nodes", "nnodes"),
    [
        ("min_nodes: 2", "2:2"),
        ("max_nodes: 3", "1:3"),
        ("max_nodes: 4\n  min_nodes: 1", "1:4"),
        ("min_nodes: ${MIN:-2}\n  max_nodes: ${MIN:-2}", "2:2"),
    ],
)
def test_min_nodes_and_max_nodes_are_nnodes(nodes: str, nnodes: str, read: Reading) -> None:
    assert read(f"elastic:\n  {nodes}\n").texts["nnodes"].text == nnodes


@pytest.mark.parametrize("key", ["training", "distributed"])
def test_one_section_of_the_older_kind_is_enough_to_know_it(key: str, read: Reading) -> None:
    found = read(f"{key}: {{}}\nelastic: {{rdzv_id: job7, role: trainer}}\n")
    assert found.texts["rdzv_id"].text == "job7"
    assert found.texts["role"].text == "trainer"


def test_a_stronger_source_wins_here_too(tmp_path: Path, script: str) -> None:
    (tmp_path / "old.yaml").write_text(
        "elastic: {min_nodes: 5, max_nodes: 2, max_restarts: x}\ntraining: {}\n"
    )
    words = ["--config", str(tmp_path / "old.yaml"), "--nnodes=1", script]
    found = launch_values(read_words(words), {"PET_MAX_RESTARTS": "1"})
    assert (found["max_nodes"], found["restarts"].max_restarts) == (1, 1)


def test_what_the_job_settles_has_no_effect_and_that_is_said(
    read: Reading, capsys: pytest.CaptureFixture[str]
) -> None:
    read("distributed:\n  world_size: 8\n")
    assert "job.yaml:2: distributed.world_size has no effect: ranks and sizes are agreed on" in (
        capsys.readouterr().err
    )


def test_all_mistakes_are_told_at_once(mistakes: Mistakes) -> None:
    text = (
        "training: [a]\nelastic:\n  min_node: 1\n  min_nodes: 3\n  max_nodes: 2\n  max_restart: 1\n"
        "  rdzv_configs: 5\ndistributed:\n  nproc_per_nod: 1\n  master_port: x\nlogs: {}\ntrainin: {}\n"
    )
    assert mistakes(text) == [
        "job.yaml:1: training: a section must be a map of keys and values",
        "job.yaml:3: elastic.min_node: unknown key; did you mean min_nodes?",
        "job.yaml:4: elastic.min_nodes: '3:2' is no number of nodes; write N, or MIN:MAX with 1 <= MIN <= MAX",
        "job.yaml:6: elastic.max_restart: unknown key; did you mean max_restarts?",
        "job.yaml:7: elastic.rdzv_configs: '5' is no setting; write key=value, with commas between them",
        "job.yaml:9: distributed.nproc_per_nod: unknown key; did you mean nproc_per_node?",
        "job.yaml:10: distributed.master_port: 'x' is no whole number",
        "job.yaml:11: logs: unknown section of the older kind of file, which has training, elastic, distributed",
        "job.yaml:12: trainin: unknown section of the older kind of file; did you mean training?",
    ]


def test_two_keys_for_one_option_are_a_mistake(mistakes: Mistakes) -> None:
    (told,) = mistakes("elastic:\n  nproc_per_node: 1\ndistributed:\n  nproc_per_node: 2\n")
    assert told.startswith("job.yaml:4: distributed.nproc_per_node: ")
    assert told.endswith("job.yaml:2: elastic.nproc_per_node says the same thing")
