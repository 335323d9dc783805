"""Macros in arguments, and small helpers of torchelastic's that launchers use."""

from __future__ import annotations

import logging

import pytest

from phalanx.launcher.macros import macros
from phalanx.launcher.variables import get_env_variable_or_raise
from phalanx.logger import get_log_level, get_logger


@pytest.mark.compat("name torch.distributed.elastic.utils.macros", "same")
@pytest.mark.compat("name torch.distributed.elastic.utils.api.macros", "same")
@pytest.mark.compat("extension macros.substitute", "same")
def test_the_local_rank_is_replaced_in_texts_and_nothing_else_is() -> None:
    given = ["a", macros.local_rank, "x=${local_rank}-$$", "$local_rank ${other}", 3, None]
    assert macros.substitute(given, "7") == ["a", "7", "x=7-$", "7 ${other}", 3, None]


@pytest.mark.compat("name torch.distributed.elastic.utils.get_env_variable_or_raise", "same")
@pytest.mark.compat("name torch.distributed.elastic.utils.api.get_env_variable_or_raise", "same")
def test_a_variable_that_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_FOLDER", "/data")
    assert get_env_variable_or_raise("A_FOLDER") == "/data"
    monkeypatch.delenv("A_FOLDER")
    with pytest.raises(ValueError, match="A_FOLDER"):
        get_env_variable_or_raise("A_FOLDER")


@pytest.mark.compat("name torch.distributed.elastic.utils.logging.get_logger", "same")
@pytest.mark.compat("name torch.distributed.elastic.utils.log_level.get_log_level", "same")
@pytest.mark.compat("variable LOGLEVEL", "same")
def test_a_logger_has_the_level_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOGLEVEL", raising=False)
    assert get_logger("of the job").level == logging.WARNING
    monkeypatch.setenv("LOGLEVEL", "info")
    assert get_logger("of the job").level == logging.INFO
    assert get_logger().name == __name__
    assert get_log_level() == "WARNING"
