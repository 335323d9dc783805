"""Failures and verdicts as text: bounded, read back whole, and believed only if they fit."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.agent.verdict.stored import (
    ALL_FAILURES_MAX,
    EVIDENCE_BYTES_MAX,
    EXTRA_MAX,
    FAILURES_MAX,
    STDERR_MAX,
    TRACEBACK_MAX,
    NodeEvidence,
    evidence_from,
    failures_text,
    verdict_from,
    verdict_text,
)
from phalanx.agent.verdict.verdict import Ending, Failure, Verdict, first_failure, judge
from phalanx.rendezvous.stored import Outcome, Report, VerdictRecord, encode

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
    group_rank=1,
    group_world_size=2,
    round=4,
    wall_at=1795984471.5,
    utc_offset_s=3600,
    exception="ValueError",
    message="ValueError: x\nmore",
    place="train.py:9",
    thread="loader",
    traceback="Traceback (most recent call last):\n…",
    crash="Fatal Python error: Segmentation fault",
    stderr="warming up\n",
    explanation="a\nb",
    cannot_heal="a syntax error",
    error_file="/logs/run/attempt_0/3/error.json",
    extra='{"format": 1}',
    log_dir="/logs/run",
    is_straggler=True,
    is_known_symptom=True,
)


def failures_from(text: str) -> tuple[Failure, ...]:
    return evidence_from(text).failures


def test_failures_are_read_back_as_they_were_written() -> None:
    assert failures_from(failures_text([FULL])) == (FULL,)
    assert failures_from(failures_text([])) == ()


def test_every_field_of_a_failure_is_tried_here() -> None:
    defaults = Failure.__struct_defaults__
    assert [field for field in defaults if getattr(FULL, field) == defaults[field]] == []


def test_ranks_that_were_stopped_are_read_back() -> None:
    text = failures_text([FULL], stopped=[9, 4, 5, 6, 9])
    assert evidence_from(text).stopped == ((4, 6), (9, 9))
    assert failures_from(text) == (FULL,)
    assert evidence_from(failures_text([])).stopped == ()


def test_the_first_failure_comes_first_and_alone_is_told_in_full() -> None:
    first = failed(5, exited_at=1.0, stderr="the first")
    told = failures_from(failures_text([failed(1, stderr="second"), failed(0, stopped_at=2.0), first]))
    assert [(one.rank, one.stderr) for one in told] == [(5, "the first"), (1, ""), (0, "")]


def test_of_very_many_failures_only_some_are_told_and_none_at_length() -> None:
    many = [failed(rank, summary="x" * 10_000, stderr="d" * 100_000) for rank in range(1000)]
    text = failures_text(many)
    assert len(failures_from(text)) == FAILURES_MAX
    assert len(text) < 200_000
    assert failures_from(text)[0].stderr == "d" * STDERR_MAX


def test_the_ranks_of_all_failures_are_told_however_many_they_are() -> None:
    collateral = failed(100, exited_at=20.0, stopped_at=11.0)
    evidence = evidence_from(failures_text([*map(failed, range(100)), collateral], stopped=[100, 101]))
    assert len(evidence.failures) == FAILURES_MAX
    assert (evidence.failed, evidence.tied, evidence.stopped) == (((0, 99),), ((0, 99),), ((100, 101),))


def test_the_larger_the_round_the_less_each_node_tells_but_for_its_first_failure() -> None:
    facts = {"summary": "ValueError: x at train.py:9", "traceback": "a\n" * 999, "stderr": "b\n" * 999}

    def told(nodes: int) -> tuple[int, NodeEvidence]:
        failures = [failed(rank, group_world_size=nodes, exited_at=rank, **facts) for rank in range(60)]
        text = failures_text(failures)
        return len(text), evidence_from(text)

    counts = []
    for nodes in (100, 400, 1000):
        length, evidence = told(nodes)
        assert nodes * length < EVIDENCE_BYTES_MAX + nodes * 500, "ranks come on top"
        counts.append(len(evidence.failures))
    assert 60 == counts[0] > counts[1] > counts[2] > 1
    length, evidence = told(4000)
    assert evidence.failures == (failed(0, group_world_size=4000, exited_at=0, **facts),)
    assert evidence.failed == ((0, 59),)


def test_of_long_texts_that_part_is_kept_that_people_look_for() -> None:
    long = failed(
        0,
        stderr="a" * STDERR_MAX + "the last line",
        traceback="Traceback\n" + "a\n" * TRACEBACK_MAX + "ValueError: x\n",
        summary="RuntimeError: " + "a" * 5000 + " at t.py:3",
    )
    (told,) = failures_from(failures_text([long]))
    assert told.stderr.endswith("the last line")
    assert told.traceback.startswith("Traceback\n")
    assert told.traceback.endswith("ValueError: x\n")
    assert told.summary.startswith("RuntimeError: ")
    assert told.summary.endswith("… at t.py:3".replace("…", "a"))
    assert "\n" not in told.summary


def test_a_symptom_stays_one_where_its_words_are_cut() -> None:
    long = "RuntimeError: " + "a" * 3000 + " Connection reset by peer " + "b" * 3000
    symptom = failed(0, exception="RuntimeError", summary=long[:200], message=long, exited_at=1.0)
    primary = failed(1, exited_at=2.0)
    told = failures_from(failures_text([symptom, primary]))
    assert [(one.rank, one.is_secondary) for one in told] == [(1, False), (0, True)]
    assert first_failure(told) == primary
    again = failures_from(failures_text(told))
    assert [one.is_secondary for one in again] == [False, True]


def test_a_path_is_told_whole_or_not_at_all_and_so_is_data() -> None:
    (told,) = failures_from(
        failures_text([failed(0, error_file="/" + "a" * 5000, extra="1" * (EXTRA_MAX + 1))])
    )
    assert (told.error_file, told.extra) == ("", "")


def test_verdicts_are_read_back_as_they_were_written() -> None:
    for verdict in (
        judge([FULL, failed(9)], reason="all 3 restarts are used", stopped=[0, 1, 2, 5]),
        judge([failed(9), failed(8)], reason=""),
        Verdict(ending=Ending.STOPPED, exit_code=143, restart_count=2, restarts=("x", "y")),
        Verdict(ending=Ending.SUCCEEDED, exit_code=0),
        Verdict(ending=Ending.FAILED, exit_code=75, reason="nobody came", has_run=True),
    ):
        read = verdict_from(verdict_text(verdict))
        assert (read.ending, read.exit_code, read.cause, read.reason) == (
            verdict.ending,
            verdict.exit_code,
            verdict.cause,
            verdict.reason,
        )
        assert {one.rank for one in read.failures} == {one.rank for one in verdict.failures}
        for field in ("failed", "tied", "stopped", "has_run", "restart_count", "restarts"):
            assert getattr(read, field) == getattr(verdict, field)


@pytest.mark.parametrize("letter", ["x", "\x00", "\U0001f600", "\\", "\ud800"])
def test_a_verdict_on_a_thousand_nodes_fits_into_any_store(letter: str) -> None:
    long = letter * 100_000
    texts = {field: long for field, kind in Failure.__annotations__.items() if kind == "str"}
    failures = [failed(rank, **texts) for rank in range(0, 8000, 2)]
    verdict = judge(failures, reason=letter * 100_000, cause=failures[2355], stopped=range(1, 8000, 2))
    text = verdict_text(verdict)
    assert len(encode(VerdictRecord(text=text))) < STORE_VALUE_MAX
    evidence = failures_text(failures, stopped=range(1, 8000, 2))
    assert len(encode(Report(outcome=Outcome.FAILED, evidence=evidence))) < STORE_VALUE_MAX
    read = verdict_from(text)
    assert read.cause is not None
    assert read.cause.rank == 4710
    assert read.cause.stderr == letter * STDERR_MAX
    assert 10 <= len(read.failures) <= ALL_FAILURES_MAX
    assert len(read.failed) == len(read.stopped) == 4000


def test_of_a_job_of_a_thousand_nodes_many_failures_are_told() -> None:
    failures = [
        failed(rank, summary="ValueError: bad batch 17 at train.py:9", host="n17") for rank in range(8000)
    ]
    assert len(verdict_from(verdict_text(judge(failures, reason=""))).failures) == ALL_FAILURES_MAX


GOOD = json.loads(failures_text([FULL]))["failures"][0]


def text_of(*failures: object) -> str:
    return json.dumps({"failures": failures, "stopped": []})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "5",
        "{}",
        '{"rank":1}',
        "[1]",
        '{"failures":[{}]}',
        '{"failures":[[]]}',
        '{"failures":["rank"]}',
        '{"failures":5}',
        '{"failures":null}',
        "[" * 100_000,
        text_of({**GOOD, "rank": "3"}),
        text_of({**GOOD, "rank": True}),
        text_of({**GOOD, "exited_at": None}),
        text_of({**GOOD, "signed_at": "4"}),
        text_of({**GOOD, "summary": ["x"]}),
        text_of({**GOOD, "master_port_taken": 1}),
        text_of({**GOOD, "exited_at": float("nan")}),
        text_of({**GOOD, "wall_at": float("inf")}),
        text_of(GOOD, {}),
    ],
)
def test_failures_that_cannot_be_read_are_none(text: str) -> None:
    assert failures_from(text) == ()


def test_what_a_later_release_adds_is_passed_over() -> None:
    assert failures_from(text_of({**GOOD, "colour": "red"})) == (FULL,)


@pytest.mark.parametrize(
    "ranges", [5, [1], [[1]], [[1, 2, 3]], [["1", 2]], [[5, 1]], [[-1, 0]], [[0, 1 << 40]], [[4, 5], [1, 2]]]
)
@pytest.mark.parametrize("name", ["failed", "tied", "stopped"])
def test_ranks_that_cannot_be_read_are_none(name: str, ranges: object) -> None:
    assert evidence_from(json.dumps({"failures": [GOOD], name: ranges})) == NodeEvidence()


def test_a_node_of_an_earlier_release_tells_of_no_ranks_but_those_of_its_failures() -> None:
    assert evidence_from(json.dumps({"failures": [GOOD]})) == NodeEvidence(failures=(FULL,))


def test_a_failure_of_an_earlier_release_has_what_it_has() -> None:
    few = {"rank": 3, "local_rank": 1, "pid": 7, "exit_code": 1, "exited_at": 10.0}
    assert failures_from(text_of(few)) == (failed(3, local_rank=1),)


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
        {"stopped": [[2, 1]]},
        {"tied": 5},
        {"restarts": 5},
        {"restart_count": "x"},
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
