"""Keys become views: what is told in any order gives the same picture, and nonsense leaves no mark."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from phalanx.rendezvous.keys import JobKeys
from phalanx.rendezvous.stored import (
    Joined,
    Member,
    NodeRecord,
    Outcome,
    Phase,
    Report,
    RoundRecord,
    VerdictRecord,
    Waiting,
    encode,
)
from phalanx.rendezvous.view import Here, JobView, Nodes, RoundTimes, View
from phalanx.store.port import Batch, Change, KeyValue

KEYS = JobKeys("job")
NODE = NodeRecord(host="h", address="10.0.0.1", slots=1)
ROUND = RoundRecord(number=3, phase=Phase.SETTLED)


def kv(key: str, value: bytes = b"{}", revision: int = 5, *, created: int | None = None) -> KeyValue:
    return KeyValue(key, value, revision if created is None else created, revision, 1)


def gone(key: str, revision: int = 9) -> Change:
    return Change(KeyValue(key, b"", 0, revision, 0), is_delete=True)


def test_the_job_is_what_was_listed_and_then_changed() -> None:
    job = JobView(KEYS)
    job.listed(7, [kv(KEYS.leader, b"a"), kv(KEYS.round, encode(ROUND), 6), kv(f"{KEYS.job}signals/1")])
    assert job.is_listed
    assert job.round == ROUND
    assert (job.revision, job.round_revision) == (7, 6)
    job.changed(Batch(8, (gone(KEYS.leader), Change(kv(KEYS.waiting, encode(Waiting(text="w")), 8)))))
    assert job.leader is None
    assert job.waiting == Waiting(text="w")
    job.changed(
        Batch(
            9,
            (gone(KEYS.waiting), gone(KEYS.round), Change(kv(KEYS.verdict, encode(VerdictRecord(text="v"))))),
        )
    )
    assert [job.waiting, job.round, job.round_revision] == [None, None, 0]
    assert job.verdict == VerdictRecord(text="v")
    assert job.revision == 9


def test_nonsense_under_job_is_told_once_and_leaves_what_was_known() -> None:
    job = JobView(KEYS)
    job.listed(7, [kv(KEYS.round, encode(ROUND), 6)])
    job.changed(Batch(8, (Change(kv(KEYS.round, b"nonsense", 8)), Change(kv(KEYS.verdict, b"{}", 8)))))
    assert (job.round, job.round_revision, job.verdict) == (ROUND, 6, None)
    assert len(job.take_refused()) == 2
    assert job.take_refused() == []


def test_a_leader_sees_who_is_here_who_has_joined_and_what_they_report() -> None:
    nodes = Nodes(KEYS)
    nodes.put(
        [
            kv(KEYS.here("a"), encode(NODE), 9, created=4),
            kv(KEYS.joined(3, "a"), encode(Joined(registration=4, port=1))),
            kv(KEYS.joined(2, "b"), encode(Joined(registration=4, port=1))),
            kv(KEYS.report(3, "a", "outcome"), encode(Report(outcome=Outcome.FAILED))),
            kv(KEYS.report(3, "a", "first_sign"), b"x", 20),
            kv(KEYS.report(2, "b", "first_sign"), b"x", 12),
        ]
    )
    view = nodes.view(ROUND, ())
    assert view.here["a"].registration == 4
    assert set(view.joined) == set(view.reports) == {"a"}
    assert view.signs == {"a": 20}
    assert nodes.view(None, ()).joined == {}
    member = Member(node_id="a", registration=4, host="h", slots=1)
    assert view.has_failed(member)
    assert not view.is_lost(member)
    assert view.is_lost(Member(node_id="a", registration=3, host="h", slots=1)), "another life"
    assert view.is_lost(Member(node_id="z", registration=4, host="h", slots=1))


def test_a_lost_node_does_not_leave() -> None:
    nodes = Nodes(KEYS)
    leaving = NodeRecord(host="h", address="a", slots=1, is_leaving=True)
    nodes.put([kv(KEYS.here("a"), encode(leaving), 4)])
    view = nodes.view(ROUND, ())
    assert view.is_leaving(Member(node_id="a", registration=4, host="h", slots=1))
    assert not view.is_leaving(Member(node_id="a", registration=3, host="h", slots=1))


@given(st.permutations(["first_sign", "failing"]), st.permutations([10, 20]))
def test_the_first_sign_is_the_earliest_one_whichever_is_told_first(
    kinds: list[str], revisions: list[int]
) -> None:
    nodes = Nodes(KEYS)
    for kind, revision in zip(kinds, revisions, strict=True):
        nodes.put([kv(KEYS.report(3, "a", kind), b"{}", revision)])
    assert nodes.view(ROUND, ()).signs == {"a": 10}


def test_what_is_deleted_is_forgotten() -> None:
    nodes = Nodes(KEYS)
    keys = [
        KEYS.here("a"),
        KEYS.joined(3, "a"),
        *(KEYS.report(3, "a", kind) for kind in ("outcome", "first_sign", "failing")),
    ]
    values = [encode(NODE), encode(Joined(registration=4)), encode(Report(outcome=Outcome.STOPPED)), b"", b""]
    nodes.put([kv(key, value) for key, value in zip(keys, values, strict=True)])
    nodes.change([gone(key) for key in keys])
    view = nodes.view(ROUND, ())
    assert not any((view.here, view.joined, view.reports, view.signs, view.failing))
    nodes.change([gone(key) for key in keys])


def test_checkpoints_are_counted() -> None:
    nodes = Nodes(KEYS)
    for step in range(3):
        nodes.change([Change(kv(KEYS.report(3, "a", "checkpoint"), str(step).encode()))])
    assert nodes.view(ROUND, ()).checkpoints == 3


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "here/a",
                    "joined/3/a",
                    "joined/x/a",
                    "reports/3/a/outcome",
                    "reports/3/a",
                    "",
                    "what",
                    "here/",
                ]
            ),
            st.binary(max_size=5),
            st.booleans(),
        )
    )
)
def test_no_key_and_no_value_does_anything_but_be_passed_over(told: list[tuple[str, bytes, bool]]) -> None:
    nodes = Nodes(KEYS)
    for suffix, value, is_delete in told:
        nodes.change([Change(kv(KEYS.nodes + suffix, value), is_delete=is_delete)])
    view = nodes.view(ROUND, ())
    assert not any((view.here, view.joined, view.reports))


# How long a round has been open, and has run


def record(number: int = 1, phase: Phase = Phase.JOINING, **facts: Any) -> RoundRecord:
    return RoundRecord(number=number, phase=phase, **facts)


def test_the_times_of_a_round_are_from_when_it_was_seen_first() -> None:
    times = RoundTimes()
    times.see(None, 1.0)
    times.see(record(), 10.0)
    times.see(record(), 14.0)
    assert (times.open_s(15.0), times.ran_s(15.0)) == (5.0, 0.0)
    times.see(record(phase=Phase.SETTLED), 20.0)
    times.see(record(phase=Phase.SETTLED), 29.0)
    assert (times.open_s(30.0), times.ran_s(30.0)) == (20.0, 10.0)
    times.see(record(phase=Phase.COLLECTING), 40.0)
    assert (times.open_s(50.0), times.ran_s(50.0)) == (40.0, 20.0), "it runs no more"
    times.see(record(2, restart_count=1, policy_state="s"), 60.0)
    assert (times.open_s(61.0), times.ran_s(61.0)) == (1.0, 0.0)


def test_who_sees_a_round_late_counts_from_then() -> None:
    times = RoundTimes()
    times.see(record(7, Phase.SETTLED, restart_count=3, policy_state="s"), 10.0)
    assert (times.open_s(12.0), times.ran_s(12.0)) == (2.0, 2.0)
    times.see(record(8, Phase.COLLECTING), 20.0)
    assert (times.open_s(25.0), times.ran_s(25.0)) == (5.0, 0.0)


def test_a_restart_of_one_worker_alone_begins_the_times_anew() -> None:
    times = RoundTimes()
    times.see(record(), 10.0)
    times.see(record(phase=Phase.SETTLED), 10.0)
    times.see(record(phase=Phase.SETTLED, restart_count=1, policy_state="s"), 30.0)
    assert (times.open_s(35.0), times.ran_s(35.0)) == (5.0, 5.0)


# Who is not to be used


def here(registration: int, **facts: Any) -> Here:
    return Here(registration, NodeRecord(host="h", address="10.0.0.1", slots=1, **facts))


def excluded(min_nodes: int, *members: str, **nodes: Here) -> set[str]:
    named = tuple(
        Member(node_id=one, registration=nodes[one].registration, host="h", slots=1) for one in members
    )
    view = Nodes(KEYS).view(ROUND, named)
    view = View(**{**{name: getattr(view, name) for name in view.__struct_fields__}, "here": nodes})
    return set(view.excluded(min_nodes))


BAD = {"excluded": "GPU 3"}


def test_who_asks_for_it_is_excluded_where_enough_others_are_there() -> None:
    assert excluded(1, a=here(1), b=here(2)) == set()
    assert excluded(1, a=here(1), b=here(2, **BAD)) == {"b"}
    assert excluded(2, a=here(1), b=here(2, **BAD)) == set()
    assert excluded(2, a=here(1, **BAD), b=here(2, **BAD), c=here(3), d=here(4)) == {"a", "b"}


def test_as_many_are_used_on_as_are_needed_and_members_first() -> None:
    three = {"a": here(1), "b": here(2, **BAD), "c": here(3, **BAD)}
    assert excluded(2, "a", "c", **three) == {"b"}
    assert excluded(2, "a", "b", **three) == {"c"}
    assert excluded(2, **three) == {"c"}
    assert excluded(3, "a", "c", **three) == set()


def test_a_node_that_leaves_keeps_nobody_else_out() -> None:
    going = here(2, is_leaving=True, **BAD)
    assert excluded(2, "a", "b", a=here(1), b=going, c=here(3, **BAD)) == {"b"}
    assert excluded(1, "a", "b", a=here(1, is_leaving=True), b=here(2, **BAD)) == set()
