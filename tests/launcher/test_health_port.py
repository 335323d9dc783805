"""Where health is told: a port of the environment, and what is none."""

from __future__ import annotations

import pytest

from phalanx.launcher.command import _health_port

PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"


@pytest.mark.parametrize("text", ["eighty", "0", "-1", "65536", "9" * 5000, "٣"])
def test_a_word_that_is_no_port_is_told_and_no_job_fails_for_it(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PORT, text)
    assert _health_port() is None
    assert "which is no port: no health checks are answered" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "port"), [("8080", 8080), ("65535", 65535), ("", None)])
def test_a_port_is_taken_from_the_environment(
    text: str, port: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PORT, text)
    assert _health_port() == port
