"""The times of a lease, all counted from when its last acknowledged renewal was sent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.rendezvous.lease import LeaseTimes


def test_before_the_first_renewal_nothing_is_due() -> None:
    lease = LeaseTimes(10)
    assert lease.silent_at is lease.fenced_at is lease.ended_at is None
    assert not lease.is_silent(1e9)


def test_agent_keeper_and_store_follow_each_other_with_time_between_them() -> None:
    lease = LeaseTimes(10)
    lease.renew(100)
    assert (lease.silent_at, lease.fenced_at, lease.ended_at) == (106, 108, 110)
    assert lease.silent_at is not None
    assert lease.fenced_at is not None
    assert lease.silent_at + lease.stop_grace_s < lease.fenced_at
    assert not lease.is_silent(105.9)
    assert lease.is_silent(106)


def test_answers_may_overtake_each_other() -> None:
    lease = LeaseTimes(10)
    lease.renew(100)
    lease.renew(95)
    assert lease.renewed_at == 100


def test_a_lease_that_is_over_is_due_never() -> None:
    lease = LeaseTimes(10)
    lease.renew(100)
    lease.forget()
    assert not lease.is_silent(1e9)


def test_who_is_alone_needs_no_limit() -> None:
    lease = LeaseTimes(float("inf"))
    lease.renew(100)
    assert lease.silent_at is lease.fenced_at is lease.ended_at is None


@given(st.floats(1, 1e4), st.floats(0, 1e6))
def test_each_limit_is_before_the_stores(ttl_s: float, sent_at: float) -> None:
    lease = LeaseTimes(ttl_s)
    lease.renew(sent_at)
    assert lease.silent_at is not None
    assert lease.fenced_at is not None
    assert lease.silent_at + lease.stop_grace_s < lease.fenced_at < sent_at + ttl_s
    assert lease.ended_at == pytest.approx(sent_at + ttl_s)


def test_time_that_was_slept_counts_for_answers_that_were_under_way_too() -> None:
    lease = LeaseTimes(10)
    lease.renew(100)
    lease.age(30, 102)
    assert lease.renewed_at == 70
    lease.renew(101)  # asked for before the sleep, answered after it
    assert lease.renewed_at == 71
    lease.renew(103)
    assert lease.renewed_at == 103
