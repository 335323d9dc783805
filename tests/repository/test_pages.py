"""The pages that people read speak of files, targets and flags that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phalanx.cli.manual import reference
from phalanx.cli.options import HELP, OPTIONS, VERSION

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])
FLAGS = {spelling for option in (*OPTIONS, HELP, VERSION) for spelling in option.spellings}


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _without_code_blocks(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", _without_code_blocks(page.read_text()))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_target_of_make_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z]+)", page.read_text())) <= targets


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_a_flag_of_phalanx_run_exists(page: Path) -> None:
    commands = re.findall(r"phalanx run ((?:[^\n`]|\\\n)*)", page.read_text())
    flags = {
        word.partition("=")[0] for command in commands for word in command.split() if word.startswith("--")
    }
    scripts_own = {"--lr", "--steps", "--lose-worker-at", "--epochs", "--"}
    scripts_own |= {"--checkpoints", "--lose-rank", "--at-step"}
    assert flags - scripts_own <= FLAGS


def test_the_tables_of_the_reference_are_those_of_the_option_table() -> None:
    # After a change: python -m phalanx.cli.manual prints the tables.
    assert reference() in (ROOT / "docs/command-line.md").read_text()
