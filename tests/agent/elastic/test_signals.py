"""Signals as exceptions, for as long as an in-process agent runs."""

from __future__ import annotations

import signal
import threading

import pytest
from tests.compat.marks import shows_names

from phalanx.agent.elastic.signals import RaisingSignals, signals_to_handle
from phalanx.multiprocessing import SignalException


@shows_names("same", "elastic.multiprocessing", "SignalException")
def test_a_signal_raises_within_the_block_and_the_handler_of_before_is_back_after_it() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with pytest.raises(SignalException) as raised, RaisingSignals([signal.SIGUSR2]):
        signal.raise_signal(signal.SIGUSR2)
    assert raised.value.sigval == signal.SIGUSR2
    assert signal.getsignal(signal.SIGUSR2) is before


def test_while_workers_are_made_a_signal_waits() -> None:
    made: list[str] = []

    def make() -> None:
        with RaisingSignals([signal.SIGUSR2]) as signals:
            with signals.held():
                signal.raise_signal(signal.SIGUSR2)
                made.append("a worker")
            made.append("never")

    with pytest.raises(SignalException):
        make()
    assert made == ["a worker"]


def test_an_ignored_signal_stays_ignored_and_another_thread_changes_nothing() -> None:
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        with RaisingSignals([signal.SIGUSR2]):
            signal.raise_signal(signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    seen: list[object] = []

    def look() -> None:
        with RaisingSignals([signal.SIGUSR2]):
            seen.append(signal.getsignal(signal.SIGUSR2))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]


def test_the_environment_names_the_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "sigusr1, SIGNOTHING,SIGTERM")
    assert signals_to_handle() == (signal.SIGUSR1, signal.SIGTERM)
