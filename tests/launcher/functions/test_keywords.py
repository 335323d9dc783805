"""The keyword arguments of ``phalanx.launch``: what the page tells of them, and mistakes in them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.launcher.functions import option_table

import phalanx


def test_the_page_tells_of_every_keyword_with_its_default_and_its_flag() -> None:
    told = option_table.PAGE.read_text()
    assert all(f"| `{name}` |" in told for name in phalanx.LaunchOptions.__annotations__)
    assert told == option_table.written(), "run: python -m tests.launcher.functions.option_table"


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("max_restart", "launch has no option 'max_restart'; did you mean max_restarts?"),
        ("reverse", "launch has no option 'reverse'; see phalanx.LaunchOptions."),
        ("key", "launch has no option 'key'; see phalanx.LaunchOptions."),
    ],
)
def test_only_what_is_near_is_suggested(name: str, sentence: str) -> None:
    with pytest.raises(TypeError) as raised:
        phalanx.launch(sorted, [1, 2], **{name: True})  # type: ignore[call-overload]
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize("name", ["python", "log_dir", "error_file", "report_file", "events_file"])
def test_an_empty_path_is_a_mistake(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} is empty; name a path, or leave it out$"):
        phalanx.launch(max, 3, 5, **{name: ""})  # type: ignore[call-overload]


def test_more_nodes_without_an_endpoint_are_told_what_is_missing_before_they_wait() -> None:
    for backend, place in (("static", "127.0.0.1"), ("c10d", "localhost:29400")):
        with (
            pytest.warns(UserWarning, match=f"rdzv_endpoint: not given: nodes meet on {place}"),
            phalanx.start(max, 3, 5, nnodes=2, rdzv_backend=backend) as job,
        ):
            assert job.wait(0) is False


@pytest.mark.parametrize("what", [lambda: 1, "/bin/true"])
def test_a_folder_that_is_not_there_is_named(what: object, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "nope", tmp_path / "file"):
        with pytest.raises(NotADirectoryError) as raised:
            phalanx.launch(what, cwd=wrong)  # type: ignore[call-overload]
        assert str(raised.value) == f"cwd: there is no folder {os.fspath(wrong)!r}"
