"""The port of rank 0 is ours until rank 0 is about to start."""

from __future__ import annotations

import socket

import pytest
from tests.system.launch import two_free_ports

from phalanx.rendezvous.ports import PortError, hold_port


def can_bind(number: int, host: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, number))
        except OSError:
            return False
    return True


def test_a_held_port_can_be_bound_by_nobody_and_by_anybody_once_it_is_released() -> None:
    port = hold_port()
    assert not can_bind(port.number)
    port.release()
    port.release()
    assert can_bind(port.number)


def test_a_released_port_can_be_listened_on_at_once_over_both_families() -> None:
    port = hold_port()
    port.release()
    with socket.create_server(("", port.number)) as server:
        assert server.getsockname()[1] == port.number


def test_a_port_that_the_user_gave_is_taken_as_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:  # nobody looks whether it is free
        number = somebody.getsockname()[1]
        assert hold_port(number).number == number
    given = hold_port(two_free_ports())
    assert can_bind(given.number)


def test_a_range_limits_the_choice_and_busy_ports_are_passed_over() -> None:
    first = hold_port()
    among = range(first.number, min(first.number + 200, 65536))
    second = hold_port(among=among)
    try:
        assert second.number in among
        assert second.number != first.number
    finally:
        first.release()
        second.release()


def test_a_range_without_a_free_port_is_an_error_that_names_it() -> None:
    only = hold_port()
    try:
        with pytest.raises(PortError, match=f"no port between {only.number} and {only.number} is free"):
            hold_port(among=range(only.number, only.number + 1))
    finally:
        only.release()
