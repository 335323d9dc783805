"""The macro in a worker's arguments: every way to start a script has the same rule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.multiprocessing.macros import LOCAL_RANK, arguments_for, has_macro

GIVEN = ["${local_rank}", "x=${local_rank}", "$local_rank", "$$HOME", "${HOME}", "%{local_rank}"]
ARRIVES = ["0", "x=0", *GIVEN[2:]]

SCRIPT = "import json, os, sys\nopen(os.environ['TOLD'], 'w').write(json.dumps(sys.argv[1:]))\n"
FROM_PYTHON = """
import sys
from phalanx.run import config_from_args, get_args_parser, run
if __name__ == "__main__":
    args = get_args_parser().parse_args(["--standalone", *sys.argv[2:]])
    if sys.argv[1] == "run":
        run(args)
    else:
        from phalanx.launcher import elastic_launch
        config, program, arguments = config_from_args(args)
        elastic_launch(config, program)(*arguments)
"""


def test_the_local_rank_is_replaced_in_texts_and_nothing_else_is() -> None:
    assert arguments_for(0, [*GIVEN, 3, None]) == (*ARRIVES, 3, None)
    assert has_macro([3, f"--rank={LOCAL_RANK}"])
    assert not has_macro([3, "$local_rank", "$$"])


@pytest.mark.torch
def test_torchrun_reads_each_argument_as_a_template(tmp_path: Path) -> None:
    script, told = tmp_path / "train.py", tmp_path / "told.json"
    script.write_text(SCRIPT)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", str(script), *GIVEN]
    subprocess.run(words, env={**os.environ, "TOLD": str(told)}, capture_output=True, timeout=160, check=True)
    assert json.loads(told.read_text()) == ["0", "x=0", "0", "$HOME", "${HOME}", "%{local_rank}"]


@pytest.mark.system
@pytest.mark.compat(
    "name torch.distributed.run.run",
    "better",
    "of what follows the script only ${local_rank} is replaced: $local_rank and $$ arrive as they were typed",
)
@pytest.mark.parametrize(
    "way", ["phalanx run", "run(args)", "elastic_launch(*config_from_args(args))", "legacy"]
)
def test_scripts_get_the_same_arguments_by_every_way_to_start(way: str, tmp_path: Path) -> None:
    script, program, told = tmp_path / "train.py", tmp_path / "program.py", tmp_path / "told.json"
    script.write_text(SCRIPT)
    program.write_text(FROM_PYTHON)
    words = {
        "phalanx run": ["-m", "phalanx", "run"],
        "run(args)": [str(program), "run"],
        "elastic_launch(*config_from_args(args))": [str(program), "elastic_launch"],
        "legacy": ["-m", "phalanx.launch", "--use-env"],
    }[way]

    done = subprocess.run(
        [sys.executable, *words, str(script), *GIVEN],
        env={**os.environ, "TOLD": str(told)},
        capture_output=True,
        text=True,
        timeout=160,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(told.read_text()) == ARRIVES
