"""Health checks over HTTP, and the times of stuck workers."""

from __future__ import annotations

import json
import logging
import time
import urllib.error
import urllib.request

import pytest
from tests.compat.marks import shows_names
from tests.system.launch import two_free_ports

from phalanx.agent.elastic import HealthCheckServer, create_healthcheck_server
from phalanx.agent.elastic.health_check import server_from_environment
from phalanx.agent.elastic.stuck import StuckWorkers, timeout_from_environment
from phalanx.store.tcp import get_socket_with_port

PORT = "TORCHELASTIC_HEALTH_CHECK_PORT"


def asked(port: int) -> tuple[int, dict[str, object]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/anything", timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, json.loads(refusal.read())


@pytest.mark.compat(
    "name torch.distributed.elastic.agent.server.health_check_server.HealthCheckServer",
    "better",
    "it answers over HTTP, where torch's only logs",
)
@pytest.mark.compat("extension create_healthcheck_server", "same")
@shows_names("same", "elastic.agent.server.health_check_server", "create_healthcheck_server")
def test_it_answers_by_the_age_of_the_last_sign_of_life() -> None:
    seen_at = [int(time.time())]
    server = create_healthcheck_server(lambda: seen_at[0], port=0, timeout=600)
    assert isinstance(server, HealthCheckServer)
    assert server.alive_callback() == seen_at[0]
    server.start()
    server.start()
    try:
        status, told = asked(server.port)
        assert (status, told["alive"]) == (200, True)
        seen_at[0] -= 100_000
        status, told = asked(server.port)
        assert (status, told["alive"]) == (503, False)
    finally:
        server.stop()
        server.stop()


@pytest.mark.compat(
    "variable TORCHELASTIC_HEALTH_CHECK_PORT",
    "better",
    "health is answered over HTTP: 200 while workers get on, else 503",
)
def test_the_environment_names_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PORT, raising=False)
    assert server_from_environment(lambda: 0) is None
    port = two_free_ports()
    monkeypatch.setenv(PORT, str(port))
    server = server_from_environment(lambda: int(time.time()))
    assert server is not None
    try:
        assert asked(port)[0] == 200
    finally:
        server.stop()


def test_no_job_fails_for_a_port_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), get_socket_with_port() as held:
        monkeypatch.setenv(PORT, "eighty")
        assert server_from_environment(lambda: 0) is None
        monkeypatch.setenv(PORT, str(held.getsockname()[1]))
        assert server_from_environment(lambda: 0) is None
    assert "eighty" in caplog.text
    assert "cannot be used" in caplog.text


def test_a_worker_is_stuck_when_every_look_for_so_long_finds_it_waiting() -> None:
    waiting = {7}
    workers = StuckWorkers(0.01, waiting.__contains__)
    assert workers.look({0: 7, 1: 8}) == {}
    time.sleep(0.02)
    assert workers.look({0: 7, 1: 8}).keys() == {0}
    waiting.clear()
    assert workers.look({0: 7, 1: 8}) == {}
    waiting.add(7)
    assert workers.look({0: 7, 1: 8}) == {}
    assert StuckWorkers(0, lambda _pid: True).look({0: 7}) == {}


def test_a_timeout_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for text in ("soon", "-1", "inf", "nan"):
        monkeypatch.setenv("A_TIMEOUT", text)
        with pytest.raises(ValueError, match="A_TIMEOUT"):
            timeout_from_environment("A_TIMEOUT")
    monkeypatch.setenv("A_TIMEOUT", "")
    assert timeout_from_environment("A_TIMEOUT") == 0
