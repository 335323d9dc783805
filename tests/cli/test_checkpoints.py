"""``phalanx checkpoints`` says what is in a folder, and whether it is good."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.checkpoint.scenarios import flip_a_bit

from phalanx.checkpoint import Checkpointer
from phalanx.checkpoint.directory import StepDirectory
from phalanx.cli import main
from phalanx.cli.checkpoints import table


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    checkpointer = Checkpointer(tmp_path)
    for step in (100, 200):
        checkpointer.save(step, lambda folder: (folder / "weights").write_bytes(bytes(2048)), {"epoch": 1})
    (tmp_path / "step-000000050.bad").mkdir()
    return tmp_path


def test_the_steps_are_listed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["STEP", "SIZE", "SAVED", "WORLD", "SIZE", "STATE"]
    assert [line.split()[0] for line in lines[1:3]] == ["100", "200"]
    assert "2.0 KiB" in lines[1]
    assert lines[1].endswith("complete")
    assert lines[3:] == ["set aside, and not loaded: step-000000050.bad"]


def test_verifying_finds_what_is_bad_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip_a_bit(folder / "step-000000200/weights")
    before = sorted(path.name for path in folder.iterdir())
    assert main(["checkpoints", str(folder)]) == 0, "sizes say nothing about it"
    assert main(["checkpoints", "--verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "step 200: weights is damaged: its xxh3_128 is not the one that was saved" in out
    assert "verified" in out
    assert sorted(path.name for path in folder.iterdir()) == before


def test_other_programs_get_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "step-000000200/manifest.json").write_text("{}")
    assert main(["checkpoints", "--json", str(folder)]) == 0
    value = json.loads(capsys.readouterr().out)
    first, second = value["steps"]
    assert (first["step"], first["size"], first["world_size"], first["meta"]) == (100, 2048, 1, {"epoch": 1})
    assert (first["state"], second["state"]) == ("complete", "bad")
    assert "manifest.json is no manifest of a checkpoint" in second["problems"][0]
    assert value["set_aside"] == ["step-000000050.bad"]
    assert (value["format"], value["version"]) == ("phalanx-checkpoints", 1)


def test_a_step_that_cannot_be_checked_here_is_not_called_bad(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    assert main(["checkpoints", "--verify", "--json", str(folder)]) == 3
    value = json.loads(capsys.readouterr().out)
    assert [step["state"] for step in value["steps"]] == ["unknown"] * 2
    assert "pip install xxhash" in value["steps"][0]["problems"][0]
    (folder / "step-000000100/weights").unlink()
    assert main(["checkpoints", "--verify", str(folder)]) == 1, "one of them is bad for certain"


def test_a_folder_may_begin_with_a_dash(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.rename(folder.parent / "-v")
    monkeypatch.chdir(folder.parent)
    assert main(["checkpoints", "--verify", "--", "-v"]) == 0
    assert "verified" in capsys.readouterr().out
    assert main(["checkpoints", "--", "--json"]) == 2
    assert "'--json' is no folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "phalanx checkpoints takes one folder, not 0"),
        (["a", "b"], "phalanx checkpoints takes one folder, not 2"),
        (["--verfiy", "."], "has no flag '--verfiy'"),
        (["/nowhere/at/all"], "'/nowhere/at/all' is no folder"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", *words]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert says in said[0]


def test_ages_and_sizes_are_for_people() -> None:
    rows = [
        {"step": step, "size": size, "saved_at": 0.0, "world_size": 8, "state": "complete", "problems": []}
        for step, size in ((1, 10), (2, 3 * 1024**3), (3, 5 * 1024**4))
    ]
    assert table(rows, [], 7300.0).splitlines()[1:] == [
        "1     10 B     2 h ago  8           complete",
        "2     3.0 GiB  2 h ago  8           complete",
        "3     5.0 TiB  2 h ago  8           complete",
    ]


def test_the_page_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: phalanx checkpoints [--verify]")


def test_one_step_is_no_folder_of_steps(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoints", str(folder / "step-000000100")]) == 2
    assert f"is one step; give the folder that it is in: '{folder}'" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--json", "--verify"])
def test_a_step_that_the_training_removes_meanwhile_is_not_bad(
    flag: str, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepDirectory, "steps", lambda self: [50, 100, 200])
    assert main(["checkpoints", flag, str(folder)]) == 0
    out = capsys.readouterr().out
    assert "bad" not in out.replace(".bad", "")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """In a folder that anybody may enter."""
    made = Path(tempfile.mkdtemp(dir="/tmp"))
    yield made
    made.chmod(0o700)
    shutil.rmtree(made)


def as_somebody_else(run: Callable[[], int]) -> int:
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        return run()
    finally:
        os.seteuid(before)


def test_a_folder_that_may_not_be_read_is_one_sentence(
    open_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Checkpointer(open_folder).save(100, lambda folder: (folder / "weights").write_bytes(b"1"))
    words = ["checkpoints", "--verify", str(open_folder)]
    assert main(words) == 0  # and all modules are loaded, which somebody else may not read
    open_folder.chmod(0)
    capsys.readouterr()
    assert as_somebody_else(lambda: main(words)) == 2
    assert f"'{open_folder}' cannot be read: Permission denied" in capsys.readouterr().err
    open_folder.chmod(0o444)
    assert as_somebody_else(lambda: main(words)) == 3
    assert "step 100 cannot be checked: " in capsys.readouterr().out


def test_a_folder_whose_steps_are_all_set_aside_is_not_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "step-000000050.bad").mkdir()
    assert main(["checkpoints", str(tmp_path)]) == 0
    assert "no steps but those that were set aside" in capsys.readouterr().out
    assert main(["checkpoints", "--verify", str(tmp_path)]) == 1
