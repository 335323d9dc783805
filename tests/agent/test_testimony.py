"""Failures and verdicts as text: bounded, read back whole, and believed only if they fit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.agent.testimony import (
    ALL_FAILURES_MAX,
    DETAILS_MAX,
    FAILURES_MAX,
    failures_from,
    failures_text,
    verdict_from,
    verdict_text,
)
from phalanx.agent.verdict import Ending, Failure, Verdict, judge
from phalanx.rendezvous.stored import VerdictRecord, encode

STORE_VALUE_MAX = 1_500_000  # etcd's


def failed(rank: int, **facts: object) -> Failure:
    values: dict[str, object] = {"local_rank": rank, "pid": 7, "exit_code": 1, "exited_at": 10.0, **facts}
    return Failure(rank=rank, **values)  # type: ignore[arg-type]


FULL = failed(
    3,
    exit_code=-15,
    signed_at=4.5,
    stopped_at=7.0,
    own_exit_code=2,
    summary="ValueError: x",
    master_port_taken=True,
    why_not_started="'x' not found",
    host="node2",
    details="block\n  more",
)


def test_failures_are_read_back_as_they_were_written() -> None:
    assert failures_from(failures_text([FULL])) == (FULL,)
    assert failures_from(failures_text([])) == ()


def test_the_first_failure_comes_first_and_alone_is_told_in_full() -> None:
    first = failed(5, exited_at=1.0, details="the first")
    told = failures_from(failures_text([failed(1, details="second"), failed(0, stopped_at=2.0), first]))
    assert [(one.rank, one.details) for one in told] == [(5, "the first"), (1, ""), (0, "")]


def test_of_very_many_failures_only_some_are_told_and_none_at_length() -> None:
    many = [failed(rank, summary="x" * 10_000, details="d" * 100_000) for rank in range(1000)]
    text = failures_text(many)
    assert len(failures_from(text)) == FAILURES_MAX
    assert len(text) < 200_000
    assert failures_from(text)[0].details == "d" * DETAILS_MAX


def test_the_end_of_long_details_is_kept() -> None:
    (told,) = failures_from(failures_text([failed(0, details="a" * DETAILS_MAX + "the last line")]))
    assert told.details.endswith("the last line")


def test_verdicts_are_read_back_as_they_were_written() -> None:
    for verdict in (
        judge([FULL, failed(9)], reason="all 3 restarts are used"),
        Verdict(ending=Ending.SUCCEEDED, exit_code=0),
        Verdict(ending=Ending.FAILED, exit_code=75, reason="nobody came"),
    ):
        read = verdict_from(verdict_text(verdict))
        assert (read.ending, read.exit_code, read.cause, read.reason) == (
            verdict.ending,
            verdict.exit_code,
            verdict.cause,
            verdict.reason,
        )
        assert {one.rank for one in read.failures} == {one.rank for one in verdict.failures}


@pytest.mark.parametrize("letter", ["x", "\x00", "\U0001f600"])
def test_a_verdict_on_a_thousand_nodes_fits_into_any_store(letter: str) -> None:
    failures = [
        failed(rank, summary=letter * 2000, why_not_started=letter * 2000, details=letter * 100_000)
        for rank in range(8000)
    ]
    verdict = judge(failures, reason="", cause=failures[4711])
    text = verdict_text(verdict)
    assert len(encode(VerdictRecord(text=text))) < STORE_VALUE_MAX
    read = verdict_from(text)
    assert read.cause is not None
    assert read.cause.rank == 4711
    assert len(read.failures) == ALL_FAILURES_MAX


GOOD = json.loads(failures_text([FULL]))[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "5",
        "{}",
        '{"rank":1}',
        "[1]",
        "[{}]",
        "[[]]",
        '["rank"]',
        "[" * 100_000,
        json.dumps([{**GOOD, "rank": "3"}]),
        json.dumps([{**GOOD, "rank": True}]),
        json.dumps([{**GOOD, "exited_at": None}]),
        json.dumps([{**GOOD, "signed_at": "4"}]),
        json.dumps([{**GOOD, "summary": ["x"]}]),
        json.dumps([{**GOOD, "master_port_taken": 1}]),
        json.dumps([GOOD, {}]),
    ],
)
def test_failures_that_cannot_be_read_are_none(text: str) -> None:
    assert failures_from(text) == ()


def test_what_a_later_release_adds_is_passed_over() -> None:
    assert failures_from(json.dumps([{**GOOD, "colour": "red"}])) == (FULL,)


@pytest.mark.parametrize(
    "change",
    [
        {"ending": "odd"},
        {"exit_code": "x"},
        {"exit_code": float("inf")},
        {"exit_code": float("nan")},
        {"cause": 5},
        {"cause": "0"},
        {"failures": None},
        {"failures": [1]},
        {"failures": [{**GOOD, "rank": []}]},
    ],
)
def test_a_verdict_that_cannot_be_read_says_so(change: dict[str, object]) -> None:
    plain = json.loads(verdict_text(judge([FULL], reason="")))
    with pytest.raises(ValueError, match=r"."):
        verdict_from(json.dumps({**plain, **change}))


@given(st.text(max_size=30))
def test_no_text_does_anything_else(text: str) -> None:
    failures_from(text)
    with pytest.raises(ValueError, match=r"."):
        verdict_from(text)
