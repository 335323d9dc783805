"""Every flag and variable of torchrun is shown by some test: torch's own parser says which there are."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.compat.items import READ, SET

ROOT = Path(__file__).parents[2]
# In a process of its own: pytest inside of pytest would share its state.
COLLECT = """
import json, sys, warnings
warnings.simplefilter("ignore")
from tests.compat.marks import collect
print(json.dumps({name: [item.verdict, item.hows] for name, item in collect().items()}))
"""


def test_each_flag_and_each_variable_of_torchrun_is_shown_by_a_test_that_runs() -> None:
    from torch.distributed import argparse_util
    from torch.distributed.run import get_args_parser

    actions = [one for one in get_args_parser()._actions if one.option_strings and one.dest != "help"]
    flags = {f"flag {_with_dashes(action.option_strings)}" for action in actions} | {"flag --use-env"}
    reads = (argparse_util.env, argparse_util.check_env)
    variables = {f"PET_{action.dest.upper()}" for action in actions if isinstance(action, reads)}

    done = subprocess.run([sys.executable, "-c", COLLECT], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    shown = json.loads(done.stdout.splitlines()[-1])

    wanted = flags | {f"variable {name}" for name in (*variables, *READ, *SET)}
    assert len(wanted) > 80
    assert not wanted - shown.keys(), "some test has to show these"
    ours = {name for name in shown if name.startswith(("flag ", "variable "))}
    assert not ours - wanted, "torchrun does not have these"


def _with_dashes(spellings: list[str]) -> str:
    return next(one for one in sorted(spellings, reverse=True) if one.startswith("--") and "_" not in one)
