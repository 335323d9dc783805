"""docs/compatibility.md is what the tests say, and lists what the specification does: no less, and nothing else."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.compat.items import SMALL, TORCH_NAMES, required
from tests.compat.marks import COLLECTED, OBJECTS, Item, files_with_marks, merged
from tests.compat.table import page as made

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/compatibility.md"

ASK_TORCH = """
import argparse, json
from torch.distributed.argparse_util import check_env, env
from torch.distributed.launch import parse_args
import torch.distributed.run as run
parsers = [run.get_args_parser()]
made = argparse.ArgumentParser.parse_args
argparse.ArgumentParser.parse_args = lambda self, args=None: (parsers.append(self), made(self, args))[1]
parse_args(["train.py"])
actions = [action for parser in parsers for action in parser._actions]
actions = [action for action in actions if action.option_strings and action.dest != "help"]
flags = {max((word for word in action.option_strings if "_" not in word), key=len) for action in actions}
variables = {f"PET_{action.dest.upper()}" for action in actions if isinstance(action, (env, check_env))}
print(json.dumps([sorted(flags), sorted(variables)]))
"""

COLLECT = """
import dataclasses, json
from tests.compat.marks import collect
print(json.dumps([dataclasses.asdict(item) for item in collect().values()]))
"""


@pytest.fixture(scope="module")
def items(request: pytest.FixtureRequest) -> dict[str, Item]:
    """What the tests of this very tree say: those of this session, if it is of all files that have marks."""
    files, marks = request.config.stash[COLLECTED]
    if files_with_marks() <= files:
        return merged(marks)
    # In a process of its own: pytest inside of pytest would share its state.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-c", COLLECT],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    return {each["name"]: Item(**each) for each in json.loads(done.stdout.splitlines()[-1])}


@pytest.fixture(scope="module")
def page(items: dict[str, Item]) -> str:
    return made(items)


def listed(page: str) -> set[str]:
    """The items of a page, as marks name them."""
    kinds = {"Flags": "flag", "Variables": "variable", "Extension points": "extension"}
    found, kind, module = set(), "", ""
    for line in page.splitlines():
        if line.startswith("## "):
            kind = kinds.get(line[3:], "name")
        elif line.startswith("### "):
            module = line[4:].strip("`") + "."
        elif line.startswith("| `"):
            found.add(f"{kind} {module}{line.split('`')[1]}")
    return found


def test_the_page_is_the_one_that_the_tests_make(page: str) -> None:
    # After a change: python -m tests.compat.table > docs/compatibility.md
    assert PAGE.read_text() == page


@pytest.mark.torch
def test_it_lists_each_flag_variable_name_and_extension_point_and_nothing_else(page: str) -> None:
    asked = subprocess.run(
        [sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, timeout=120, env={**os.environ}
    )
    assert asked.returncode == 0, asked.stderr
    flags, variables = json.loads(asked.stdout)
    assert {"--nnodes", "--use-env"} <= set(flags)
    assert "PET_NNODES" in variables
    needed = required(flags, variables)
    missing = sorted(needed - listed(page))
    assert not missing, "\n".join(missing)
    beside = sorted(listed(page) - needed)
    assert not beside, "\n".join(beside)


def test_each_module_of_torchelastic_with_a_name_has_a_table(page: str) -> None:
    modules = {line[4:].strip("`") for line in page.splitlines() if line.startswith("### ")}
    assert modules == {module for module, names in TORCH_NAMES.items() if names}


def test_all_paths_of_an_object_have_one_verdict(items: dict[str, Item]) -> None:
    verdicts: dict[str, set[str]] = {}
    for name, item in items.items():
        verdicts.setdefault(OBJECTS.get(name, name), set()).add(item.verdict)
    assert {name: found for name, found in verdicts.items() if len(found) > 1} == {}


def test_what_programs_use_is_shown_by_what_it_does_and_not_by_its_signature_alone(
    items: dict[str, Item],
) -> None:
    alone = {item.title.rpartition(".")[2] for item in items.values() if item.verdict == "same signature"}
    assert alone == set(SMALL)
